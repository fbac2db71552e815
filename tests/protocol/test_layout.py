"""How the model is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import EMBEDDING, parts_authored, stage_part
from protocol.layout import follows, layers_of_stage, model_layout, parameter_count, parts_followed
from protocol.manifest import check_manifest
from tests.reference.small_manifest import small_manifest


@given(st.integers(1, 64), st.data())
def test_every_layer_is_in_one_stage_and_no_stage_is_empty(layers: int, data: st.DataObject):
    stages = data.draw(st.integers(1, layers))
    cut = [layers_of_stage(layers, stages, stage) for stage in range(stages)]
    assert [layer for part in cut for layer in part] == list(range(layers))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_nine_layers_in_four_stages():
    assert [len(layers_of_stage(9, 4, stage)) for stage in range(4)] == [3, 2, 2, 2]


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
