"""The memory model is held against real processes, of which the smallest are tried here."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_process_takes_more_than_it_is_said_to():
    words = [sys.executable, "benchmarks/memory.py", "--presets", "nano", "--json"]
    output = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = {(row["role"], row["stage"], row["memory"]): row for row in json.loads(output)["rows"]}
    assert {role for role, *_ in rows} == {"volunteer", "holder"}
    for row in rows.values():
        assert row["measured_bytes"] < row["estimate_bytes"]
    stage = rows["volunteer", 1, "recompute"]
    assert 16 <= stage["device_bytes_a_parameter"] < 24  # of so small a model, T⊥ is much
    assert 8 <= stage["host_bytes_a_parameter"] < 16
