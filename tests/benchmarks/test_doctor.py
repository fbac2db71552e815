"""The benchmark that holds the doctor's and the plan's words against what a run then takes runs whole, on the least."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAST = "--repeat 1 --preset pico --steps 2 --rounds 2 --microbatches 2 --seconds 0.1 --json"


def test_what_was_said_stands_beside_what_was_measured():
    command = [sys.executable, str(ROOT / "benchmarks/doctor.py"), *LEAST.split()]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    for name in ("doctor_step_ratio", "doctor_round_ratio", "plan_step_ratio", "plan_round_ratio"):
        assert 0 < found[name] < math.inf
        assert found[name] == row[name]
    assert row["round"] > row["step"] > 0
