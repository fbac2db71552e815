"""Real faults in real processes: what stops for a while, or is cut off, goes on and ends where the lab does."""

from pathlib import Path

import pytest

from tests.chaos import namespaces
from tests.reference.processes import attacked_swarm, completed_swarm

needs_namespaces = pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")


SHAPE = ["--preset", "nano", "--groups", "1", "--rounds", "3", "--inner-steps", "6"]


def test_a_paused_a_killed_and_a_leaving_process_cost_time_and_one_more_takes_a_place(tmp_path: Path):
    spec = "pause:datacenter=0@round=1.3+1s,kill:stage=1@round=2.2+1s,leave:stage=0@round=2.5,join:stage=0@round=2.5"
    outcome = completed_swarm(tmp_path, *SHAPE, "--no-compare", "--chaos", spec)
    assert "chaos: paused datacenter 1" in outcome.output
    chaos = outcome.report["chaos"]
    actions = [action for fault in chaos["faults"] for action in fault["actions"]]
    assert [action.split()[0] for action in actions] == ["paused", "resumed", "killed", "started", "told", "joined"]
    assert chaos["digests_equal"]
    assert chaos["rounds_completed"] == 3


@needs_namespaces
def test_a_partition_and_a_slow_link_cost_time_and_nothing_else(tmp_path: Path):
    shorter_than_patience = "partition:datacenter=0|group=0@round=2+1.5s"  # or the others would go on without it
    spec = f"slow:stage=1=8mbit@round=1.3+2s,{shorter_than_patience}"
    outcome = attacked_swarm(tmp_path, *SHAPE, "--chaos", spec)
    assert "chaos: cut off datacenter 1 from volunteer 1, stage 0; volunteer 1, stage 1" in outcome.output
    chaos = outcome.report["chaos"]
    assert [fault["actions"][-1] for fault in chaos["faults"]] == ["quick again", "healed"]
    assert chaos["digests_equal"]
    assert chaos["final_loss"] == chaos["lab_loss"]
