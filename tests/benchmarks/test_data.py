"""The benchmark of reading text runs whole, on a little text. Over HTTP only as root, with the tools for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.chaos import namespaces

ROOT = Path(__file__).parents[2]


def test_text_is_read_from_disk_and_from_a_mirror_at_the_speed_of_training():
    sizes = ["--tokens", "1000000", "--steps", "20", "--speeds", "100000", "--seconds", "3"]
    words = [sys.executable, "benchmarks/data.py", *sizes, "--round-trip", "20", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=480, check=True)
    found = json.loads(done.stdout)
    assert found["disk"]["tokens_per_second"] > 0
    assert found["disk"]["steps"] == 20
    if namespaces.missing() is None:
        at_speed, any_speed = found["http"]
        assert at_speed["wanted"] == 1e5
        assert 0 < at_speed["tokens_per_second"] <= 1e5
        assert any_speed["tokens_per_second"] > at_speed["tokens_per_second"]
