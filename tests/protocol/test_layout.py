"""How the model is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import EMBEDDING, parts_authored, stage_part
from protocol.layout import (
    follows,
    layer_layout,
    model_layout,
    parameter_count,
    part_layout,
    parts_followed,
    whole_layout,
)
from protocol.manifest import check_manifest
from tests.reference import wire
from tests.reference.small_manifest import small_manifest


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_a_stages_part_has_the_tensors_of_its_own_layers(cut: list[int]):
    manifest = small_manifest(model={"layers": sum(cut)}, replicas={"layers": cut, "stages": len(cut)})
    assert [len(layers) for layers in manifest.cut] == cut
    assert [layer for layers in manifest.cut for layer in layers] == list(range(sum(cut)))
    for stage, layers in enumerate(manifest.cut):
        names = [name for layer in layers for name in layer_layout(manifest.model, layer)]
        last = ["model.norm.weight", "lm_head.weight"] if stage == len(cut) - 1 else []
        assert list(part_layout(manifest, stage_part(stage))) == names + last
    tensors = [tensor for layout in model_layout(manifest).values() for tensor in layout.items()]
    assert tensors == list(whole_layout(manifest.model).items())


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_whoever_has_the_wire_page_alone_finds_the_same_tensors(cut: list[int]):
    manifest = small_manifest(model={"layers": sum(cut)}, replicas={"layers": cut, "stages": len(cut)})
    canonical = json.loads(manifest.canonical())
    for number, layout in enumerate(model_layout(manifest).values()):
        assert list(wire.layout(canonical, number).items()) == list(layout.items())


@pytest.mark.parametrize(("preset", "count"), [("178m", 177_622_016), ("512m", 512_398_848), ("1b", 1_204_881_408)])
@pytest.mark.parametrize("stages", [1, 4])
def test_the_papers_models_have_the_papers_parameters(preset: str, count: int, stages: int):
    manifest = check_manifest({"model": {"preset": preset}, "replicas": {"stages": stages}})
    assert parameter_count(manifest) == count


def test_nano_is_small_and_has_four_stages():
    manifest = check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 4}})
    assert 1_000_000 <= parameter_count(manifest) <= 2_000_000
    assert list(model_layout(manifest)) == [EMBEDDING, *map(stage_part, range(4))]


def test_every_compressed_stage_follows_the_embedding_and_only_the_first_authors_it():
    compressed = check_manifest({"model": {"preset": "nano"}, "replicas": {"compression": 8}})
    whole = check_manifest({"model": {"preset": "nano"}, "replicas": {"compression": 1}})
    assert parts_followed(compressed, 1) == [EMBEDDING, stage_part(1)]
    assert parts_followed(whole, 1) == [stage_part(1)]
    assert parts_authored(0) == [EMBEDDING, stage_part(0)]
    assert parts_authored(1) == [stage_part(1)]


@pytest.mark.parametrize(("compression", "needs_embedding"), [(1, False), (2, True)])
def test_a_compressed_groups_stages_all_follow_the_embedding(compression: int, needs_embedding: bool):
    manifest = small_manifest(replicas={"compression": compression})
    assert follows("volunteer", 1, EMBEDDING, manifest) == needs_embedding
    assert follows("datacenter", 0, EMBEDDING, manifest)
    assert not follows("volunteer", 1, stage_part(0), manifest)
