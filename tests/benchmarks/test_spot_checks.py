"""The benchmark of spot checks, on a model so small that its runs take seconds."""

from pathlib import Path

import pytest

from benchmarks import spot_checks
from protocol.manifest import Manifest
from tests.benchmarks import test_pool
from tests.reference.processes import TEXT
from tests.reference.small_manifest import small_manifest
from tests.world.runs import get_ready

nothing_is_left = test_pool.nothing_is_left


def small(seed: int, preset: str) -> Manifest:
    """Two rounds, of which the second is false."""
    return small_manifest(
        model={"layers": spot_checks.STAGES, "d": 32, "context": 32},
        replicas={"groups": 1, "datacenters": 0, "stages": spot_checks.STAGES, "compression": 2},
        inner={"steps": 10, "sequences": 12, "optimizer": "muon", "learning_rate": 1e-3},
        outer={"rounds": 2},
    )


def test_who_lies_is_found_and_where_nobody_does_nobody_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spot_checks, "manifest_of", small)
    text = tmp_path / "text.txt"
    text.write_text(TEXT[:20000], encoding="utf-8")
    get_ready()
    found = spot_checks.watch("flipped", 2, 1, "", text, tmp_path)
    honest = spot_checks.watch("honest", 2, 1, "", text, tmp_path)
    assert (found.rounds, found.others_blamed) == (1, 0)
    assert "sent false gradients" in found.reason
    assert (honest.rounds, honest.others_blamed) == (None, 0)
    assert 0 < honest.checks <= 2 * spot_checks.STAGES  # two rounds, a microbatch of each stage
    assert honest.share == pytest.approx(honest.checks / (2 * 10 * 6))
