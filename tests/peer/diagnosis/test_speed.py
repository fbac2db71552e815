"""How fast a stage is computed here: that it is measured, and of what; not how fast that is."""

import pytest
import torch

from peer.diagnosis.speed import SHORTEST_CONTEXT, kind_of, measure_stages, part_that_takes
from peer.planning.model import work_of
from protocol.manifest import check_manifest
from tests.reference.small_manifest import small_manifest

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "replicas",
    [
        {"stages": 3, "compression": 4},
        {"stages": 2, "compression": 1},
        {"stages": 2, "compression": 4, "wire": "int8", "gradient_wire": "int4"},
        {"stages": 1},
    ],
)
def test_every_stage_is_measured(replicas: dict[str, object]):
    manifest, told = small_manifest(replicas=replicas), list[int]()
    speeds = measure_stages(manifest, CPU, 1, 0.01, told.append)
    assert len(speeds) == manifest.replicas.stages
    for each in speeds:
        assert each is not None
        assert min(each.passes, each.update, each.closing) > 0
        assert each.share == 1.0
    assert told == list(range(manifest.replicas.stages))


def test_stages_of_one_kind_are_measured_once():
    manifest = check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": 6}})
    assert len({kind_of(manifest, stage) for stage in range(6)}) == 3
    uneven = check_manifest({"model": {"preset": "178m"}, "replicas": {"stages": 4}})
    assert [kind_of(uneven, stage)[1] for stage in range(4)] == [3, 2, 2, 2]
    by_hand = check_manifest({"model": {"preset": "178m"}, "replicas": {"layers": [1, 2, 2, 4]}})
    assert [kind_of(by_hand, stage)[1] for stage in range(4)] == [1, 2, 2, 4]
    assert part_that_takes(by_hand, 3, 1.0).replicas.layers == (1, 1, 1, 1)


def test_what_takes_too_long_is_measured_on_a_part():
    manifest = check_manifest({"model": {"preset": "512m"}, "replicas": {"stages": 4}})
    whole = work_of(manifest, stage=1).operations
    assert part_that_takes(manifest, 1, whole) == manifest
    half = part_that_takes(manifest, 1, whole / 2)
    assert (half.inner.microbatch, half.model.layers, half.model.context) == (2, 12, 2048)
    layer = part_that_takes(manifest, 1, whole / 10)
    assert (layer.inner.microbatch, layer.model.layers) == (1, 4)
    least = part_that_takes(manifest, 1, 1.0)
    assert SHORTEST_CONTEXT <= least.model.context < 2 * SHORTEST_CONTEXT
    assert (least.model.d, least.model.ffn) == (manifest.model.d, manifest.model.ffn)
    for part in (half, layer):
        assert work_of(part, stage=1).operations <= whole


def test_of_an_enormous_model_nothing_is_made() -> None:
    """As a hostile operator may name one; `hetpeer doctor` then says that no stage fits."""
    model = {"layers": 1024, "d": 65536, "heads": 64, "kv_heads": 64, "ffn": 2**20, "vocabulary": 2**18}
    assert measure_stages(small_manifest(model=model), CPU, 1, 0.01, lambda stage: None) == [None, None]
