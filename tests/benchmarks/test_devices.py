"""The benchmark of what processes of a replica hold runs whole, on the smallest model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_each_of_two_processes_holds_half_of_what_one_does():
    words = [sys.executable, "benchmarks/devices.py", "--preset", "nano", "--context", "16", "--json"]
    done = subprocess.run(
        [*words, "--processes", "1", "2"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=480,
        check=True,
    )
    one, two = json.loads(done.stdout)["rows"]
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["share"] == pytest.approx(1, abs=0.01)
    assert two["share"] == pytest.approx(0.5, abs=0.01)
    if sys.platform == "linux":
        assert two["peak"] > two["base"] > 0
