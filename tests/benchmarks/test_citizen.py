"""The benchmark of a peer's limits, in short: what crosses a real link is what `--max-up` and `--max-down` say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.shaped.hosts import missing

BENCHMARK = Path(__file__).parents[2] / "benchmarks/citizen.py"


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_limit_of_five_megabits_holds_at_the_interface_and_frames_go_first():
    """From below it can only be held where the machine has time for it."""
    short = ["--limits", "5", "--kinds", "both", "--seconds", "8", "--modes"]
    command = [sys.executable, str(BENCHMARK), "--json", *short]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["limits"]
    assert [row["flag"] for row in rows] == ["--max-up", "--max-down"]
    for row in rows:
        assert 0.5 < row["share"] < 1.05, row
        assert 0.5 < row["frames"] < 0.98, row
