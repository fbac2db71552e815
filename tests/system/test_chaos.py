"""Real faults in real processes: what stops for a while, or is cut off, goes on and ends where the lab does."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from peer.testnet import namespaces
from tests.reference.processes import HETPEER, SECONDS, TEXT

needs_namespaces = pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")


def testnet(directory: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """A testnet of a group and a datacenter with chaos: its report, and what it said."""
    (directory / "village.txt").write_text(TEXT)
    where = ["--dir", str(directory / "net"), "--report", str(directory / "report.json")]
    shape = ["--data", str(directory / "village.txt"), "--groups", "1", "--rounds", "3", "--inner-steps", "6"]
    command = [*HETPEER, "testnet", *where, *shape, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((directory / "report.json").read_text()), done.stdout


testnet.__test__ = False  # type: ignore[attr-defined]


def test_a_datacenter_that_stops_for_a_while_costs_time_and_nothing_else(tmp_path: Path):
    report, said = testnet(tmp_path, "--chaos", "pause:datacenter=0@round=2.2+3s")
    assert "chaos: paused datacenter 1" in said
    chaos = report["chaos"]
    (fault,) = chaos["faults"]
    assert fault["actions"] == ["paused datacenter 1", "resumed"]
    assert fault["seconds_lost"] > 2.0
    assert chaos["steps_lost"] == 0
    assert chaos["rounds_completed"] == 3
    assert chaos["digests_equal"]
    assert chaos["final_loss"] == chaos["lab_loss"]  # bit by bit
    log = [json.loads(line) for line in (tmp_path / "net" / "events.jsonl").read_text().splitlines()]
    paused, resumed = (line["seconds"] for line in log if line["event"] == "Injected")
    assert resumed - paused >= 3.0


@needs_namespaces
def test_a_partition_and_a_slow_link_cost_time_and_nothing_else(tmp_path: Path):
    spec = "slow:stage=1=8mbit@round=1.3+2s,partition:datacenter=0|group=0@round=2+3s"
    report, said = testnet(tmp_path, "--chaos", spec)
    assert "chaos: cut off datacenter 1 from volunteer 1, stage 0; volunteer 1, stage 1" in said
    chaos = report["chaos"]
    assert [fault["actions"][-1] for fault in chaos["faults"]] == ["quick again", "healed"]
    assert chaos["digests_equal"]
    assert chaos["final_loss"] == chaos["lab_loss"]
