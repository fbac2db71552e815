"""The benchmark of ways to hidden peers runs whole, on a few bytes. Skipped, with the reason, without root or tools."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import namespaces

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")
def test_each_way_is_measured_beside_what_was_dialled():
    words = [sys.executable, "benchmarks/reach.py", "--megabytes", "1", "--turns", "1", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=480, check=True)
    ways = {each["way"]: each for each in json.loads(done.stdout)["ways"]}
    assert list(ways) == ["dialled", "over its own connection", "by a relay"]
    for each in ways.values():
        assert each["small_call_ms"] > 0
        assert each["share"] == pytest.approx(each["mb_per_s"] / ways["dialled"]["mb_per_s"])
