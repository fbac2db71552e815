"""The benchmark of what elastic groups cost: its chains are the lab's, to the last bit, and it counts what was read."""

from pathlib import Path

import pytest
import torch

from benchmarks import pool_loss
from bootstrap.genesis import create_run
from peer.lab.reference_run import Lab
from peer.telemetry.events import Evaluated, Event
from protocol.manifest import Manifest
from tests.benchmarks import test_pool
from tests.reference.processes import TEXT
from tests.reference.small_manifest import small_manifest
from tests.world.runs import get_ready

ROUNDS = 4


nothing_is_left = test_pool.nothing_is_left


def small(elastic: bool, seed: int, preset: str, rounds: int) -> Manifest:
    """Two groups of two stages."""
    inner = {"steps": 3, "most_steps": 9, "overlap": 1} if elastic else {"steps": 6}
    return small_manifest(
        model={"layers": 2},
        replicas={"groups": 2, "datacenters": 0, "stages": 2, "compression": 4},
        inner={"sequences": 4, "microbatch": 1} | inner,
        outer={"rounds": rounds},
    )


def test_chains_lose_what_the_lab_says_and_elastic_groups_read_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {"GROUPS": 2, "STAGES": 2, "SPEEDS": (1, 3), "manifest_of": small}.items():
        monkeypatch.setattr(pool_loss, name, value)
    text = tmp_path / "text.txt"
    text.write_text(TEXT[:20000], encoding="utf-8")
    get_ready()
    chains, elastic = (pool_loss.train(each, 1, "", ROUNDS, text, tmp_path / each) for each in pool_loss.ARRANGEMENTS)
    assert chains.digests_equal
    assert elastic.digests_equal
    manifest, said = small(False, 1, "", ROUNDS), list[Event]()
    files = tmp_path / "lab"
    Lab.open(create_run(manifest, files, text), files, torch.device("cpu")).run(said.append)
    last = next(event for event in reversed(said) if isinstance(event, Evaluated))
    assert (chains.loss, chains.loss_plain) == (last.loss, last.loss_plain)
    assert chains.steps == [6, 6]
    assert chains.tokens == ROUNDS * 12 * manifest.tokens_per_step
    assert min(elastic.steps) == 3
    assert max(elastic.steps) > 3
    assert chains.tokens > elastic.tokens > 0.6 * chains.tokens
