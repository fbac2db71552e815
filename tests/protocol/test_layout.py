"""How the model is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import EMBEDDING, parts_authored, stage_part
from protocol.layout import (
    elements,
    follows,
    is_layer_matrix,
    layer_layout,
    model_layout,
    multiplies,
    operations_per_token,
    parameter_count,
    part_layout,
    parts_followed,
    whole_layout,
)
from protocol.manifest import check_manifest
from protocol.model_sizes import NgramTables
from tests.reference import wire
from tests.reference.small_manifest import small_manifest

CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def cut_so(cut: list[int], ngrams: int = 0, width: int = 0):
    replicas = {"layers": cut, "stages": len(cut)}
    if ngrams and len(cut) > 1:
        replicas |= {"ngrams": ngrams, "ngram_width": width}
    return small_manifest(model={"layers": sum(cut)}, replicas=replicas)


@given(CUTS)
def test_a_stages_part_has_the_tensors_of_its_own_layers(cut: list[int]):
    manifest = cut_so(cut)
    assert [len(layers) for layers in manifest.cut] == cut
    assert [layer for layers in manifest.cut for layer in layers] == list(range(sum(cut)))
    for stage, layers in enumerate(manifest.cut):
        names = [name for layer in layers for name in layer_layout(manifest.model, layer)]
        last = ["model.norm.weight", "lm_head.weight"] if stage == len(cut) - 1 else []
        assert list(part_layout(manifest, stage_part(stage))) == names + last


@given(CUTS, st.integers(0, 3), st.integers(0, 8))
def test_the_parts_one_after_the_other_are_the_whole_model(cut: list[int], ngrams: int, width: int):
    manifest = cut_so(cut, ngrams, width)
    tensors = [tensor for layout in model_layout(manifest).values() for tensor in layout.items()]
    assert tensors == list(whole_layout(manifest.model, manifest.ngrams).items())


@given(CUTS, st.integers(0, 3), st.integers(0, 8))
def test_whoever_has_the_wire_page_alone_finds_the_same_tensors(cut: list[int], ngrams: int, width: int):
    manifest = cut_so(cut, ngrams, width)
    canonical = json.loads(manifest.canonical())
    for number, layout in enumerate(model_layout(manifest).values()):
        assert list(wire.layout(canonical, number).items()) == list(layout.items())


@pytest.mark.parametrize(("preset", "count"), [("178m", 177_622_016), ("512m", 512_398_848), ("1b", 1_204_881_408)])
@pytest.mark.parametrize("stages", [1, 4])
def test_the_papers_models_have_the_papers_parameters(preset: str, count: int, stages: int):
    manifest = check_manifest({"model": {"preset": preset}, "replicas": {"stages": stages}})
    assert parameter_count(manifest) == count


def test_tables_are_those_of_the_stages_behind_the_first_and_take_no_operations():
    tables = check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 3, "ngrams": 3}})
    plain = check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 3}})
    assert tables.ngrams == NgramTables(most=3, width=16, layers=(2, 3))
    for stage, rows in enumerate((0, 9 * 2048, 9 * 2048)):
        added = part_layout(tables, stage_part(stage)).items() - part_layout(plain, stage_part(stage)).items()
        assert elements(dict(added)) == 16 * rows
        assert not any(is_layer_matrix(name, shape) or multiplies(name) for name, shape in added)
    assert operations_per_token(tables) == operations_per_token(plain)


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
