"""The benchmark's sides train the same model: what it compares is the way, not the work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SECONDS = 480
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, float]]:
    """One step of each side that counts, of a small model. `hivemind.moe` is left out: it forks for minutes."""
    sides = ["one process", "pipeline", "without TLS", "unary"]
    small = ["--preset", "pico", "--sequences", "4", "--turns", "1"]
    command = [sys.executable, "benchmarks/pipeline.py", *small, "--json", "--sides", *sides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def test_all_sides_come_to_the_loss_of_one_process(measured: dict[str, dict[str, float]]):
    losses = measured["losses"]
    assert losses.keys() == {"one process", "pipeline", "without TLS", "unary"}
    assert all(loss == pytest.approx(losses["one process"], abs=1e-5) for loss in losses.values())


def test_ratios_are_of_tokens_a_second(measured: dict[str, dict[str, float]]):
    speeds = measured["tokens_per_s"]
    assert measured["ratio_to_one_process"] == pytest.approx(speeds["pipeline"] / speeds["one process"])
    assert measured["ratio_to_unary"] == pytest.approx(speeds["pipeline"] / speeds["unary"])
    assert measured["tls_share"] == pytest.approx(1 - speeds["pipeline"] / speeds["without TLS"])


def test_experts_come_to_the_loss_of_a_model_without_boundaries(monkeypatch: pytest.MonkeyPatch):
    """The modules alone, without hivemind's servers around them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import pipeline

    manifest = pipeline.Case("pico", 8, 4, 1).manifest()
    batch = torch.from_numpy(pipeline.batch_of(manifest))
    first, *others = [pipeline.Expert(manifest, index) for index in range(pipeline.STAGES)]
    x = first(batch)
    for expert in others:
        x = expert(batch, x)
    assert x.shape == (len(batch),)
    expected = pipeline.alone(manifest, "datacenter").inner_step(batch, 0)
    assert x.mean().item() == pytest.approx(expected, abs=1e-4)
