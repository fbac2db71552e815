"""The benchmark of what watching costs runs, and tells shares. Its numbers are for quiet machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_measurement_ends_with_shares():
    short = ["--presets", "nano", "--pairs", "2", "--steps", "12", "--json"]
    command = [sys.executable, "benchmarks/watching.py", *short]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=480, check=True)
    [found] = json.loads(done.stdout)["watching"]
    assert found["step_seconds"] > 0
    assert -1 < found["cpu"] < 1
    assert 0 < found["node"] < 4
