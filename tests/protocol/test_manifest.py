"""The manifest: read, checked, compared."""

import os
from pathlib import Path

import pytest

from protocol.errors import ManifestError
from protocol.manifest import Manifest, check_manifest, first_difference, load_manifest, parse_manifest
from tests.reference.small_manifest import small_manifest


def nano(**tables: dict[str, object]) -> Manifest:
    return check_manifest({"model": {"preset": "nano"}} | tables)


def test_a_preset_fills_in_what_is_not_given():
    model = check_manifest({"model": {"preset": "nano", "layers": 6}}).model
    assert (model.layers, model.d) == (6, 128)


def test_a_preset_and_its_sizes_by_hand_are_one_manifest():
    by_hand = nano().model.model_dump()
    assert check_manifest({"model": by_hand}).digest == nano().digest


def test_the_canonical_form_reads_back():
    manifest = nano(outer={"values": "2bit"})
    assert parse_manifest(manifest.canonical()) == manifest
    assert parse_manifest(manifest.canonical()).digest == manifest.digest


def test_manifests_that_are_equal_and_written_otherwise_have_their_own_digests():
    one, other = nano(inner={"weight_decay": 0.0}), nano(inner={"weight_decay": -0.0})
    assert one == other
    assert one.canonical() != other.canonical()
    assert one.digest != other.digest
    assert [nano(run={"seed": seed}).digest for seed in range(20)] == [
        nano(run={"seed": seed}).digest for seed in range(20)
    ]


def test_every_field_counts_in_the_digest():
    assert nano(inner={"steps": 20}).digest != nano(inner={"steps": 21}).digest


DIGESTS = {
    "a5d16cc826a1a8d58096bb236501c7d4f0265ac7b3daee5b9b25afbe15197a78": {
        "model": {"preset": "nano"},
        "replicas": {"preset": "paper"},
    },
    "40af90e257dece42ea7305ab0109bdacc7ac053a9b2ba17774ad15d3f59bbdff": {
        "model": {"preset": "178m"},
        "replicas": {"stages": 4, "compression": "auto"},
    },
}
"""Of manifests as they were before stages could have layers of their own, a run Muon, and boundaries presets."""


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_cut_by_count_is_not_in_the_digest(digest: str):
    tables = DIGESTS[digest]
    manifest = check_manifest(tables)
    assert manifest.digest == digest
    even = {"layers": manifest.replicas.layers}
    for named in (even, {"balance": "count"}, {"layers": []}):
        assert check_manifest({**tables, "replicas": {**tables.get("replicas", {}), **named}}).digest == digest


def test_another_optimizer_is_in_the_digest_and_the_usual_one_is_not():
    (usual, tables), *_ = DIGESTS.items()
    adamw, muon = (check_manifest({**tables, "inner": {"optimizer": each}}) for each in ("adamw", "muon"))
    assert adamw.digest == usual != muon.digest
    assert parse_manifest(muon.canonical()) == muon
    assert b'"optimizer":"muon"' in muon.canonical()


def test_what_came_later_is_in_the_digest_only_where_it_is_said():
    (usual, tables), *_ = DIGESTS.items()
    muon = {"optimizer": "muon"}
    plain = check_manifest({**tables, "inner": muon, "replicas": {"anchor": "complement"}})
    within = check_manifest({**tables, "inner": muon | {"subspace_steps": True}})
    whole = check_manifest({**tables, "replicas": {"anchor": "embedding"}})
    assert check_manifest({**tables, "inner": {"subspace_steps": False}}).digest == usual
    assert plain.digest == check_manifest({**tables, "inner": muon}).digest
    slower = check_manifest({**tables, "outer": {"final_learning_rate": 0.5}})
    assert check_manifest({**tables, "outer": {"final_learning_rate": 1.0}}).digest == usual
    overlapping = check_manifest({**tables, "inner": {"overlap": 1}})
    assert check_manifest({**tables, "inner": {"overlap": 0}}).digest == usual
    weighted = check_manifest({**tables, "outer": {"weights": "steps"}})
    assert check_manifest({**tables, "outer": {"weights": "equal"}, "inner": {"most_steps": 0}}).digest == usual
    uneven = check_manifest({**tables, "outer": {"weights": "steps"}, "inner": {"most_steps": 400}})
    others = (plain, within, whole, slower, overlapping, weighted, uneven)
    assert len({usual, *(each.digest for each in others)}) == 8
    for manifest in others:
        assert parse_manifest(manifest.canonical()) == manifest


def test_a_manifest_that_says_nothing_of_boundaries_has_the_preset_that_was_best_and_any_word_of_them_the_papers():
    silent, named = nano(replicas={"stages": 4}), nano(replicas={"stages": 4, "preset": "int4"})
    assert silent == named == nano(replicas={"stages": 4, "compression": 2, "wire": "int4", "anchor": "embedding"})
    assert silent.digest == named.digest
    assert parse_manifest(silent.canonical()) == silent
    paper = nano(replicas={"preset": "paper"})
    assert paper == nano(replicas={"compression": 8})
    assert nano(replicas={"wire": "int8"}).replicas.compression == 8
    assert nano(replicas={"anchor": "complement"}) == nano(replicas={"gradient_wire": "same"}) == paper
    eighth = nano(replicas={"preset": "int4", "compression": 8})
    assert (eighth.k, eighth.replicas.wires, eighth.replicas.factored) == (16, ("int4", "int4"), False)


def test_no_more_of_the_next_step_is_under_way_than_a_step_has():
    of_a_step = {"sequences": 12, "microbatch": 2}
    manifest = nano(replicas={"stages": 4}, inner=of_a_step | {"overlap": 2})
    assert [manifest.late(stage) for stage in range(4)] == [6, 4, 2, 0]
    assert [nano(replicas={"stages": 4}).late(stage) for stage in range(4)] == [0, 0, 0, 0]
    with pytest.raises(
        ManifestError, match="overlap = 3 lets stage 0 pass 9 microbatches of the next step, and a step has 6"
    ):
        nano(replicas={"stages": 4}, inner=of_a_step | {"overlap": 3})


def test_peers_agree_on_the_cut_whatever_made_it():
    by_cost = check_manifest({"model": {"preset": "178m"}, "replicas": {"stages": 4, "balance": "compute"}})
    by_hand = check_manifest({"model": {"preset": "178m"}, "replicas": {"layers": [3, 3, 2, 1]}})
    assert by_cost == by_hand == parse_manifest(by_hand.canonical())
    assert by_cost.digest == by_hand.digest
    assert [list(layers) for layers in by_cost.cut] == [[0, 1, 2], [3, 4, 5], [6, 7], [8]]
    assert (b"balance" in by_cost.canonical(), b'"layers":[3,3,2,1]' in by_cost.canonical()) == (False, True)


def test_a_group_that_has_chosen_its_k_keeps_the_cut():
    auto = check_manifest({"model": {"preset": "178m"}, "replicas": {"balance": "memory", "compression": "auto"}})
    assert {auto.at(compression).cut for compression in auto.compressions} == {auto.cut}


def test_peers_with_other_cuts_are_told_both():
    words = first_difference(nano(replicas={"layers": [1, 3]}), nano())
    assert words == "replicas.layers: ours is [1, 3], theirs is [2, 2]"


def test_a_difference_names_the_field_and_both_values():
    assert first_difference(nano(), nano()) is None
    words = first_difference(nano(inner={"steps": 20}), nano(inner={"steps": 50}))
    assert words == "inner.steps: ours is 20, theirs is 50"
    whole, half = nano(replicas={"compression": 2, "wire": "int4"}), nano(outer={"final_learning_rate": 0.5})
    assert first_difference(whole, nano()) == "replicas.anchor: ours is 'complement', theirs is 'embedding'"
    assert first_difference(nano(), whole) == "replicas.anchor: ours is 'embedding', theirs is 'complement'"
    assert first_difference(half, nano()) == "outer.final_learning_rate: ours is 0.5, theirs is 1.0"
    assert (
        first_difference(nano(inner={"optimizer": "muon"}), nano())
        == "inner.optimizer: ours is 'muon', theirs is 'adamw'"
    )
    assert (
        first_difference(nano(), nano(inner={"optimizer": "muon"}))
        == "inner.optimizer: ours is 'adamw', theirs is 'muon'"
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_every_round_is_applied_once_with_overlap_one_boundary_later_and_none_is_left_at_the_end(overlap: bool):
    outer = nano(outer={"rounds": 5, "overlap": overlap}).outer
    applied = [list(outer.applied(round)) for round in range(1, 6)]
    assert applied == ([[], [1], [2], [3], [4, 5]] if overlap else [[1], [2], [3], [4], [5]])
    assert [outer.last_applied(round) for round in range(6)] == ([0, 0, 1, 2, 3, 5] if overlap else [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"model": {"preset": "huge"}}, "unknown preset 'huge'"),
        ({"model": {"preset": "nano", "heads": 3}}, "heads = 3"),
        (
            {"model": {"preset": "nano"}, "replicas": {"stages": 9}},
            "stages = 9 is more than model.layers = 4",
        ),
        ({"model": {"preset": "nano"}, "replicas": {"layers": [1, 2]}}, "layers are 3 in all"),
        ({"model": {"preset": "nano"}, "replicas": {"layers": [1, 3], "stages": 3}}, "give stages = 2"),
        (
            {"model": {"preset": "nano"}, "replicas": {"layers": [4, 0]}},
            "layers: value 2 is 0, and has to be g",
        ),
        (
            {"model": {"preset": "nano"}, "replicas": {"layers": [5, -1]}},
            "layers: value 2 is -1, and has to be ",
        ),
        ({"model": {"preset": "nano"}, "replicas": {"layers": [10**30, 1]}}, "and has to be less than"),
        ({"model": {"preset": "nano"}, "replicas": {"layers": [1] * 10**5}}, "at most 128"),
        (
            {"model": {"preset": "nano"}, "replicas": {"layers": 4}},
            "layers: is 4, and has to be a valid",
        ),
        ({"model": {"preset": "nano"}, "replicas": {"layers": [1, 3], "balance": "count"}}, "leave one of them out"),
        ({"model": {"preset": "nano"}, "replicas": {"balance": "cost"}}, "'count', 'memory' or 'compute'"),
        ({"model": {"preset": "nano"}, "replicas": {"compression": 7}}, "compression = 7 must divide"),
        ({"model": {"preset": "nano"}, "replicas": {"anchor": "token"}}, "'complement' or 'embedding'"),
        ({"model": {"preset": "nano"}, "inner": {"subspace_steps": True}}, 'is for optimizer = "muon"'),
        ({"model": {"preset": "nano"}, "inner": {"steps": 5, "most_steps": 4}}, "give 5 to 80, or leave it out"),
        ({"model": {"preset": "nano"}, "inner": {"steps": 5, "most_steps": 81}}, "give 5 to 80, or leave it out"),
        ({"model": {"preset": "nano"}, "outer": {"weights": "steps", "clip": "median"}}, "knows no weights"),
        ({"model": {"preset": "nano"}, "replicas": {"groups": 0, "datacenters": 0}}, "at least 1"),
        (
            {"model": {"preset": "nano"}, "inner": {"sequences": 5, "microbatch": 2}},
            "multiple of inner.microbatch",
        ),
        ({"model": {"preset": "nano"}, "outer": {"top_k": 99, "chunk_side": 8}}, "more than a chunk of 64"),
        ({"model": {"preset": "nano"}, "outer": {"overlap": True, "grace": 2}}, "give grace = 3 or more"),
        ({"model": {"preset": "nano"}, "outer": {"rounds": 0}}, "outer.rounds"),
        ({"model": {"preset": "nano", "d": 4096}, "inner": {"sequences": 2**10, "microbatch": 2**10}}, "at most 1 GiB"),
        ({"model": {"preset": "nano"}, "inner": {"sequences": 2**14, "microbatch": 2**14}}, "more than 1048576 tokens"),
        ({"model": {"preset": "nano"}, "inner": {"sequences": 2**18}}, "inner.sequences = 262144 times"),
        ({"model": {"preset": "nano"}, "evaluation": {"sequences": 2**30}}, "evaluation.sequences = 1073741824 times"),
        ({"model": {"preset": "nano"}, "outter": {}}, "outter: there is no such field; is outer meant"),
        ({"model": {"preset": "nano"}, "inner": {"stepz": 3}}, "inner.stepz: there is no such field; is steps meant"),
        (
            {"model": {"preset": "nano"}, "evaluation": {"x": 3}},
            "evaluation.x: there is no such field; there are",
        ),
        (
            {"model": {"preset": "nano"}, "inner": {"betas": [0.9, 1.0]}},
            "betas: value 2 is 1.0, and has to be less than 1; usual is 0.95",
        ),
        (
            {"model": {"preset": "nano"}, "inner": {"betas": [-0.1, 0.9]}},
            "value 1 is -0.1, and has to be",
        ),
        ({"model": {"preset": "nano"}, "inner": {"learning_rate": 0.5, "weight_decay": 2.0}}, "give less than 2 "),
    ],
)
def test_an_error_names_what_is_wrong(tables: dict[str, object], words: str):
    with pytest.raises(ManifestError, match="(?s)" + words.replace(".", r"\.").replace("(", r"\(")):
        check_manifest(tables)


def test_a_missing_file_and_broken_toml_are_named(tmp_path):
    with pytest.raises(ManifestError, match="cannot read the manifest"):
        load_manifest(tmp_path / "none.toml")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ManifestError, match="a pipe, and nobody writes to it; give a file of TOML"):
        load_manifest(tmp_path / "fifo")
    (tmp_path / "bad.toml").write_text("[model")
    with pytest.raises(ManifestError, match="not valid TOML"):
        load_manifest(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "model: is missing: give it"),
        (b'{"model": {"preset": "nano"}}', "it looks like JSON: write tables"),
        (b"model:\n  preset: nano\n", r"write tables, as \[model\]"),
        (b"[model]\npreset = nano\n", "straight quotation marks"),
        ("[model]\npreset = “nano”\n".encode(), "straight quotation marks"),
        (b"[model]\n[model]\n", "it is there twice"),
        (b'[[model]]\npreset = "nano"\n', "model: is no table"),
        ('[model]\npreset = "nano"\n'.encode("utf-16"), "save it as UTF-8"),
        ('[model]\npreset = "nano"\n[run]\nname = "größe"\n'.encode(), r"run\.name: give 1 to 64 of A-Z"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused_with_the_cure(tmp_path: Path, contents: bytes, words: str):
    (tmp_path / "run.toml").write_bytes(contents)
    with pytest.raises(ManifestError, match=words):
        load_manifest(tmp_path / "run.toml")


def test_a_manifest_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path):
    (tmp_path / "run.toml").write_text('[model]\r\npreset = "nano"\r\n', encoding="utf-8-sig")
    assert load_manifest(tmp_path / "run.toml").model.layers == 4


def test_overrides_replace_the_file(tmp_path):
    (tmp_path / "run.toml").write_text('[model]\npreset = "nano"\n')
    assert load_manifest(tmp_path / "run.toml", {"inner.steps": 7}).inner.steps == 7


def test_a_run_that_leaves_k_to_its_groups_names_what_they_choose_from():
    auto = small_manifest(model={"d": 48, "heads": 2, "kv_heads": 2}, replicas={"compression": "auto"})
    assert auto.compressions == (2, 4, 8, 16)
    assert (auto.k, auto.compressed) == (24, True)
    assert (auto.at(8).k, auto.at(8).compressed) == (6, True)
    assert parse_manifest(auto.canonical()) == auto
    fixed = small_manifest()
    assert fixed.compressions == (4,)
    assert fixed.at(4) is fixed
