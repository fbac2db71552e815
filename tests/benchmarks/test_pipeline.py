"""The modules of the benchmark's experts are the same model."""

from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_experts_come_to_the_loss_of_a_model_without_boundaries(monkeypatch: pytest.MonkeyPatch):
    """The modules alone, without hivemind's servers around them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import pipeline
    from compared.experts import Expert

    manifest = pipeline.Case("pico", 8, 4, 1).manifest()
    batch = torch.from_numpy(pipeline.batch_of(manifest))
    first, *others = [Expert(manifest, index) for index in range(pipeline.STAGES)]
    x = first(batch)
    for expert in others:
        x = expert(batch, x)
    assert x.shape == (len(batch),)
    expected = pipeline.alone(manifest, "datacenter").inner_step(batch, 0)
    assert x.mean().item() == pytest.approx(expected, abs=1e-4)
