"""The benchmark of TLS runs whole, on the smallest frames."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def measured() -> Any:
    words = [sys.executable, "benchmarks/tls.py", "--preset", "nano", "--megabytes", "1", "--turns", "1", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def test_it_exchanges_the_frames_of_a_run_with_compression_and_of_one_without(measured: Any):
    b, context, d = 4, 128, 128
    assert [each["frame_bytes"] for each in measured["frames"]] == [2 * b * context * d // 8, 2 * b * context * d]


def test_a_share_is_of_the_throughput_without_tls(measured: Any):
    for each in measured["frames"]:
        assert each["tls_mb_per_s"] == pytest.approx((1 - each["share"]) * each["plain_mb_per_s"])


def test_connecting_and_joining_are_timed(measured: Any):
    assert all(measured[each] > 0 for each in ("connect_tls_ms", "connect_plain_ms", "join_ms"))
