"""The benchmark's sides train the same model: what it compares is the way, not the work."""

import json
import subprocess
import sys

import pytest

SECONDS = 480


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, float]]:
    """One step of each side that counts, of a small model."""
    small = ["--preset", "pico", "--sequences", "4", "--turns", "1"]
    command = [sys.executable, "benchmarks/pipeline.py", *small, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def test_all_sides_come_to_the_loss_of_one_process(measured: dict[str, dict[str, float]]):
    losses = measured["losses"]
    for side in ("pipeline", "without TLS", "unary"):
        assert losses[side] == pytest.approx(losses["one process"], abs=1e-5)


def test_experts_come_to_the_loss_of_a_model_without_boundaries(measured: dict[str, dict[str, float]]):
    """They have no optimizer, so theirs is the loss of the first weights."""
    losses = measured["losses"]
    assert losses["moe"] == pytest.approx(losses["no boundary"], abs=1e-3)
    assert abs(losses["moe"] - losses["one process"]) > abs(losses["moe"] - losses["no boundary"])


def test_ratios_are_of_tokens_a_second(measured: dict[str, dict[str, float]]):
    speeds = measured["tokens_per_s"]
    assert measured["ratio_to_one_process"] == pytest.approx(speeds["pipeline"] / speeds["one process"])
    assert measured["ratio_to_unary"] == pytest.approx(speeds["pipeline"] / speeds["unary"])
    assert measured["tls_share"] == pytest.approx(1 - speeds["pipeline"] / speeds["without TLS"])
