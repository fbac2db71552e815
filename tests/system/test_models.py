"""A model leaves a run of real processes in the format everyone uses, and begins another run where it stopped."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer.events import Event, Finished, RoundDone
from tests.reference.processes import HETPEER, RUN, SECONDS, Peer, finish, serving, start

TINY = RUN.format(datacenters=1, sequences=4) + "steps = 3\n[outer]\nrounds = 12\n"


def export(*arguments: str) -> dict[str, Any]:
    """What `hetpeer export` says at its end."""
    done = subprocess.run(
        [*HETPEER, "export", *arguments, "--threads", "1", "--json"], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def digests(said: list[Event]) -> dict[str, str]:
    return next(event.digests for event in said if isinstance(event, Finished))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], dict[str, Any]]:
    """A run that has ended, in the folders of its peers (`b` is the bootstrap node's); its last digests; and what
    `hetpeer export` told that took the model from the swarm in the midst of it."""
    here = tmp_path_factory.mktemp("models") / "run"
    with serving(TINY, here) as ticket:

        def where(name: str) -> list[str]:
            return [str(ticket), "--dir", str(here / name), "--device", "cpu", "--threads", "1"]

        trained = [start("join", "--stage", str(stage), *where(f"stage-{stage}")) for stage in (0, 1)]
        with Peer("replica", *where("datacenter")) as datacenter:
            datacenter.wait_for(RoundDone, lambda event: event.round >= 2)
            live = export(str(ticket), "--out", str(here / "live"))
            finish(trained)
            datacenter.wait_for(Finished)
        yield here, digests(datacenter.said), live


def test_it(folders):
    here, last, live = folders
    print(live, last)
    said = export(str(here / "datacenter"), "--out", str(here / "model"), "--evaluate")
    print(said)
    assert said["round"] == 12
    assert said["digests"] == last
