"""The lab's switches: which go together, and that each changes the run."""

import functools
from collections.abc import Mapping

import pytest

from peer.lab.switches import Switches, switches
from protocol.errors import ManifestError
from protocol.manifest import Manifest
from tests.reference.small_lab import play, small_lab
from tests.reference.small_manifest import small_manifest

FREE = {"anchor": "embedding"}
"""`replicas.anchor`, which the manifest has and not the lab: `both` tells them apart."""
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
        (FREE | {"embedding": "project"}, "replicas.anchor = embedding has no T_S"),
        (FREE | {"embedding": "drift"}, "replicas.anchor = embedding has no T_S"),
        (FREE | {"adaptation": False}, "replicas.anchor = embedding has no T_S"),
        (FREE | {"weight_projection": True}, "weight_projection is onto Col(U)"),
        (FREE | {"grassmann": 5}, "replicas.anchor = embedding has no T_S"),
        *(
            ({"method": "adamw"} | each, "method = adamw has no inner loop")
            for each in (
                {"embedding": "drift"},
                {"adaptation": False},
                {"weight_projection": True},
                {"grassmann": 5},
                {"second_moment": "columns"},
                FREE,
            )
        ),
        ({"method": "adamw", "speeds": "1:1:2"}, "method = adamw has no inner loop"),
        ({"speeds": "1:0:1"}, "lab.speeds"),
        ({"speeds": "1:2"}, "lab.speeds: 2 speeds for 3 replicas"),
        ({"method": "diloco", "values": "exact"}, "values are SparseLoCo's"),
        ({"method": "adamw", "values": "exact"}, "values are SparseLoCo's"),
        ({"momentum": 1.0}, "lab.momentum"),
        ({"grassmann": -1}, "lab.grassmann"),
        ({"method": "demo"}, "lab.method"),
        ({"embedding": "learned"}, "lab.embedding"),
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
    {"speeds": "1:1:2"},
    {"values": "exact"},
    {"adaptation": False},
    {"embedding": "project"},
    {"embedding": "drift"},
    {"weight_projection": True},
    {"second_moment": "columns"},
    {"grassmann": 3},
    FREE,
    {"precision": "bf16"},
]


@functools.cache
def outcome(**table: object) -> tuple[str, float, float]:
    """Digests after the last round, and the losses (plain) at the genesis and then."""
    run, own = both(table)
    lab = small_lab(run, switches(own, run, ""))
    _, before = lab.evaluator.evaluate(lab.swarm.grids)
    digests = str(play(lab, ROUNDS))
    return digests, before, lab.evaluator.evaluate(lab.swarm.grids)[1]


@pytest.mark.parametrize("table", HEARD, ids=str)
def test_every_switch_is_heard_and_the_run_still_learns(table: dict[str, object]):
    digests, before, after = outcome(**table)
    assert digests not in [outcome(**other)[0] for other in [{}, *HEARD] if other != table]
    assert after < before - 0.1


def test_every_switch_is_tried_here():
    assert {name for table in HEARD for name in table} - FREE.keys() == Switches.model_fields.keys()


def test_by_default_a_group_is_the_protocols():
    assert small_lab(manifest(), Switches()).swarm.weights.group is None


@pytest.mark.parametrize("people", [{"groups": 0}, {"compression": 1}], ids=str)
def test_what_is_said_of_compressed_groups_is_nothing_where_there_are_none(people: dict[str, int]):
    digests = []
    for table in ({}, {"grassmann": 1}, {"weight_projection": True}, {"second_moment": "columns"}):
        run, own = both(table, **people)
        digests.append(play(small_lab(run, switches(own, run, "")), 1))
    assert all(each == digests[0] for each in digests)
