"""T of runs whose curves and links are simple enough to compute by hand."""

from dataclasses import replace

import pytest

from benchmarks.time_to_loss import as_pipeline, compare, tokens_until
from examples.experiments.results import Point, Record
from peer.planning.model import Volunteer
from protocol.manifest import check_manifest

LINK = Volunteer(operations=1e18, up=1e6, down=1e6)
"""Computes in no time: what crosses the link decides."""


def record(groups: int, losses: list[float], compression: int = 8) -> Record:
    """A run of four replicas, evaluated every thousand tokens."""
    manifest = check_manifest(
        {
            "model": {"preset": "nano"},
            "replicas": {"stages": 2, "groups": groups, "datacenters": 4 - groups, "compression": compression},
            "inner": {"sequences": 32, "microbatch": 32},
        }
    )
    curve = [Point(1000 * (i + 1), loss, loss) for i, loss in enumerate(losses)]
    kind = "group" if groups else "whole"
    written = manifest.model_dump(mode="json")
    return Record(kind, {}, 1, 4, groups, curve, 0.0, 0.0, 1.0, 1.0, None, written, {"late": 0})


@pytest.mark.parametrize(
    ("target", "tokens"), [(5.0, 1000), (4.75, 1250), (4.0, 2000), (3.5, 2500), (3.0, 3000), (2.9, None)]
)
def test_between_two_evaluations_a_loss_falls_evenly(target: float, tokens: float | None):
    assert tokens_until(record(0, [5.0, 4.0, 3.0]), target) == tokens


def test_a_pipeline_has_microbatches_and_whole_activations_where_nothing_was_compressed():
    vanilla, group = as_pipeline(record(0, [3.0]), "178m"), as_pipeline(record(4, [3.0]), "178m")
    assert (vanilla.replicas.groups, vanilla.compressions, group.compressions) == (4, (1,), (8,))
    assert (vanilla.model.d, vanilla.replicas.stages) == (1024, 2)
    assert vanilla.inner.microbatches == group.inner.microbatches == 8


def test_where_the_link_decides_bytes_and_tokens_are_what_a_method_is_worth():
    whole, group = record(0, [4.0, 3.0]), record(4, [5.0, 4.0])
    vanilla, compressed = compare([group, whole], LINK, "178m")
    assert (vanilla.tokens, compressed.tokens) == (1000, 2000)  # both until 4.0, the worst of the last losses
    assert (vanilla.bytes_per_token, compressed.bytes_per_token) == (2048, 256)
    assert vanilla.times == 1
    faster = vanilla.seconds_per_million / compressed.seconds_per_million
    assert 6 < faster < 8  # token ids and the outer exchange stay
    assert compressed.times == pytest.approx(faster / 2)


def test_who_never_reaches_the_target_is_left_out_and_somebody_vanilla_must():
    whole, group = record(0, [4.0, 3.0]), replace(record(4, [5.0, 4.0]), id="other")
    assert [row.tokens for row in compare([whole, group], LINK, "178m", target=3.5)] == [1500]
    with pytest.raises(ValueError, match="no run without compressed boundaries"):
        compare([whole, group], LINK, "178m", target=2.5)
