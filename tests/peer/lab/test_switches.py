"""The lab's switches: which go together, that each is heard, and how many coordinates a boundary's bytes hold."""

import functools
import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.lab.switches import BITS, SCALE_BITS, Switches, coordinates, residual_bits, switches
from protocol.errors import ManifestError
from protocol.manifest import Manifest
from tests.reference.small_lab import play, small_lab
from tests.reference.small_manifest import small_manifest

FREE = {"anchor": "embedding"}
"""`replicas.anchor`, which the manifest has and not the lab: `both` tells them apart."""
FITTED = FREE | {"basis": "fitted"}
ROUNDS = 3


def manifest(**tables) -> Manifest:
    """Three stages, so that a stage has a boundary on either side."""
    replicas = {"stages": 3, "compression": 2} | tables.pop("replicas", {})
    outer = {"rounds": ROUNDS, "top_k": 1024} | tables.pop("outer", {})
    inner = {"learning_rate": 1e-2, "warmup": 2} | tables.pop("inner", {})
    return small_manifest(replicas=replicas, outer=outer, inner=inner, **tables)


def both(table: Mapping[str, object], **replicas) -> tuple[Manifest, dict[str, object]]:
    """A manifest, and the table `lab`."""
    anchor = {"anchor": table["anchor"]} if "anchor" in table else {}
    return manifest(replicas=anchor | replicas), {key: value for key, value in table.items() if key != "anchor"}


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"basis": "fitted"}, "basis = fitted needs replicas.anchor = embedding"),
        (FREE | {"embedding": "project"}, "replicas.anchor = embedding has no T_S"),
        (FREE | {"embedding": "drift"}, "replicas.anchor = embedding has no T_S"),
        (FREE | {"adaptation": False}, "replicas.anchor = embedding has no T_S"),
        (FREE | {"weight_projection": True}, "weight_projection is onto Col(U)"),
        ({"payload": "allocated"}, "payload = allocated needs basis = fitted"),
        (FREE | {"payload": "allocated"}, "payload = allocated needs basis = fitted"),
        (FREE | {"gradient_basis": "own"}, "gradient_basis = own needs basis = fitted"),
        (FREE | {"grassmann": 5}, "replicas.anchor = embedding has no T_S"),
        (FITTED | {"grassmann": 5}, "grassmann moves the random basis"),
        (FITTED | {"gradient_payload": "8bit"}, "gradient_payload is for a random basis that stays"),
        ({"grassmann": 5, "gradient_payload": "8bit"}, "gradient_payload is for a random basis that stays"),
        *(
            ({"method": "adamw"} | each, "method = adamw has no inner loop")
            for each in (
                {"embedding": "drift"},
                {"adaptation": False},
                {"weight_projection": True},
                {"grassmann": 5},
                {"second_moment": "columns"},
                {"false": "noisy"},
                FREE,
            )
        ),
        *(
            ({"method": "adamw"} | each, "method = adamw has no inner loop")
            for each in ({"late": 1}, {"clip": "stage"}, {"speeds": "1:1:2"})
        ),
        ({"lookahead": True}, "lookahead is for late gradients"),
        ({"paths": "loose"}, "paths = loose clips by stage"),
        ({"paths": "loose", "clip": "stage", "late": 1}, "paths = loose makes gradients late by itself"),
        ({"paths": "loose", "clip": "stage", "weight_projection": True}, "paths = loose puts nothing back"),
        ({"link": 0.5}, "link and churn are of paths = loose"),
        ({"churn": 1.0}, "link and churn are of paths = loose"),
        ({"paths": "loose", "clip": "stage", "embedding": "project"}, "paths = loose puts nothing back"),
        ({"method": "diloco", "paths": "loose", "clip": "stage"}, "paths are SparseLoCo's"),
        ({"speeds": "1:0:1"}, "lab.speeds"),
        ({"speeds": "1:2"}, "lab.speeds: 2 speeds for 3 replicas"),
        ({"method": "diloco", "values": "sign"}, "values are SparseLoCo's"),
        ({"method": "adamw", "values": "exact"}, "values are SparseLoCo's"),
        ({"momentum": 1.0}, "lab.momentum"),
        ({"residuals": -1}, "lab.residuals"),
        ({"grassmann": -1}, "lab.grassmann"),
        ({"method": "demo"}, "lab.method"),
        ({"basis": "learned"}, "lab.basis"),
        ({"anchors": "embedding"}, "lab.anchors"),
    ],
    ids=str,
)
def test_what_does_not_go_together_or_is_unknown_is_an_error_that_names_it(table: dict[str, object], named: str):
    run, own = both(table)
    with pytest.raises(ManifestError) as error:
        switches(own, run, "experiment.toml")
    assert str(error.value).startswith("experiment.toml: lab")
    assert named in str(error.value)


@pytest.mark.parametrize("method", ["diloco", "adamw"])
@pytest.mark.parametrize("field", [{"overlap": True}, {"clip": "median"}], ids=str)
def test_methods_that_apply_at_once_and_know_no_sets_refuse_what_needs_them(method: str, field: dict[str, object]):
    chosen = manifest(outer=field)
    assert switches({}, chosen, "").method == "sparseloco"
    with pytest.raises(ManifestError, match=rf"lab\.method: {method} knows no outer\.{next(iter(field))}"):
        switches({"method": method}, chosen, "experiment.toml")


@pytest.mark.parametrize("table", [{"method": "adamw"}, {"second_moment": "columns"}], ids=str)
def test_what_is_adamws_refuses_another_optimizer(table: dict[str, object]):
    switches(table, manifest(), "")
    with pytest.raises(ManifestError, match=rf"lab\.{next(iter(table))}: .* inner\.optimizer"):
        switches(table, manifest(inner={"optimizer": "muon"}), "experiment.toml")


HEARD = [
    {"method": "diloco"},
    {"method": "diloco", "momentum": 0.5},
    {"method": "adamw"},
    {"late": 1},
    {"late": 2},
    {"late": 1, "lookahead": True},
    {"clip": "stage"},
    {"speeds": "1:1:2"},
    {"clip": "stage", "paths": "loose"},
    {"clip": "stage", "paths": "loose", "link": 2.5},
    {"clip": "stage", "paths": "loose", "churn": 2.0},
    {"average": 0.5},
    {"average": 0.5, "begin_at_average": 0.5},
    {"anchors": "convolution"},
    {"anchors": "bigrams", "anchor_width": 3},
    {"codec": "learned"},
    {"values": "exact"},
    {"values": "sign"},
    {"values": "statistical"},
    {"adaptation": False},
    {"embedding": "project"},
    {"embedding": "drift"},
    {"weight_projection": True},
    {"second_moment": "columns"},
    {"grassmann": 3},
    FREE,
    FITTED,
    FITTED | {"gradient_basis": "own"},
    {"payload": "8bit"},
    {"payload": "4bit"},
    {"payload": "3bit"},
    {"payload": "2bit"},
    {"gradient_payload": "8bit"},
    FITTED | {"payload": "allocated"},
    {"residuals": 1},
    {"precision": "bf16"},
    {"false": "noisy"},
    {"false": "biased"},
    {"false": "flipped"},
]


@functools.cache
def outcome(**table: object) -> tuple[str, float, float]:
    """Digests after the last round, and the losses (plain) at the genesis and then."""
    run, own = both(table)
    lab = small_lab(run, switches(own, run, ""))
    _, before = lab.evaluator.evaluate(lab.bench.grids)
    digests = str(play(lab, ROUNDS))
    return digests, before, lab.evaluator.evaluate(lab.bench.grids)[1]


@pytest.mark.parametrize("table", HEARD, ids=str)
def test_every_switch_is_heard_and_the_run_still_learns(table: dict[str, object]):
    digests, before, after = outcome(**table)
    assert digests not in [outcome(**other)[0] for other in [{}, *HEARD] if other != table]
    assert after < before - 0.1


def test_every_switch_is_tried_here():
    silent = {"indices": "what it changes is in bytes: test_methods.py"}
    tried = {name for table in HEARD for name in table} - FREE.keys()
    assert tried | silent.keys() == Switches.model_fields.keys()


def test_by_default_a_group_is_the_protocols():
    assert small_lab(manifest(), Switches()).bench.workshop.group is None


@pytest.mark.parametrize("people", [{"groups": 0}, {"compression": 1}], ids=str)
def test_what_is_said_of_compressed_groups_is_nothing_where_there_are_none(people: dict[str, int]):
    digests = []
    for table in ({}, FITTED, {"grassmann": 1}, {"weight_projection": True}, {"second_moment": "columns"}):
        run, own = both(table, **people)
        digests.append(play(small_lab(run, switches(own, run, "")), 1))
    assert all(each == digests[0] for each in digests)


@pytest.mark.parametrize(
    ("table", "compression"),
    [
        ({"residuals": 40}, 4),
        (FITTED | {"residuals": 40, "payload": "allocated"}, 4),
        ({"residuals": 3, "payload": "4bit"}, 4),
        ({"payload": "8bit"}, 16),
        ({"gradient_payload": "8bit"}, 16),
    ],
    ids=str,
)
def test_what_the_bytes_of_a_token_have_no_room_for_is_an_error_that_says_so(
    table: dict[str, object], compression: int
):
    run, own = both(table, compression=compression)
    with pytest.raises(ManifestError, match=r"lab\.payload and lab\.residuals: \d+ bits a token are too few"):
        switches(own, run, "experiment.toml")
    none, own = both(table, compression=compression, groups=0)
    assert switches(own, none, "") == Switches()


@given(st.integers(8, 4096), st.sampled_from(sorted(BITS.values())), st.integers(0, 40), st.integers(16, 65536))
def test_coordinates_fill_the_budget_and_never_more(d: int, bits: int, residuals: int, budget: int):
    beside = (SCALE_BITS if bits < 16 else 0) + residuals * (math.ceil(math.log2(d)) + 16)
    if beside + bits > budget:
        with pytest.raises(ValueError, match="too few"):
            coordinates(budget, bits, residuals, d)
        return
    count = coordinates(budget, bits, residuals, d)
    assert 1 <= count <= d
    assert beside + count * bits <= budget
    assert count == d or beside + (count + 1) * bits > budget


@pytest.mark.parametrize(("d", "place"), [(2, 1), (4096, 12), (4097, 13), (5120, 13)])
def test_a_residual_is_its_place_and_a_number_in_bf16(d: int, place: int):
    assert residual_bits(d) == place + 16
