"""Which payloads are false, and who made them so, tried on invented likenesses."""

import pytest

from peer.swarm.group.likenesses import (
    CHECKS_SHARE,
    EXACT,
    EXACT_COARSE,
    chance_of_check,
    false_payload,
    is_made_of_true,
    least_exact,
    likeness_of_sources,
)
from protocol.codec.spot_check import Likeness
from protocol.identity import PeerId
from protocol.manifest import Manifest
from tests.reference.small_manifest import small_manifest

TRUE, FALSE = 0.9998, 0.995
BEFORE, BEHIND = PeerId("before"), PeerId("behind")


def run_of(stages: int = 4, **replicas: str) -> Manifest:
    return small_manifest(model={"layers": stages}, replicas={"stages": stages, "groups": 1, **replicas})


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_a_payload_that_is_wrong_by_a_tenth_is_false_and_one_in_another_number_format_is_not(wire: str):
    """Noise of a tenth leaves a cosine of 0.995; honest ones were measured (docs/benchmarks.md)."""
    run = run_of(wire=wire)
    assert 0.9958 < least_exact(run) == EXACT < 0.9997
    assert false_payload(Likeness(0.9958, TRUE, same_state=True), run, 1) == "activations"
    assert false_payload(Likeness(TRUE, 0.9958, same_state=True), run, 1) == "gradients"
    assert false_payload(Likeness(0.9997, 0.9997, same_state=True), run, 1) is None


@pytest.mark.parametrize("coarse", ["wire", "gradient_wire"])
def test_where_one_format_has_few_bits_both_kinds_of_payloads_may_be_less_like(coarse: str):
    run = run_of(**({"wire": "bf16", "gradient_wire": "bf16"} | {coarse: "int4"}))
    assert least_exact(run) == EXACT_COARSE
    assert false_payload(Likeness(0.993, 0.99, same_state=True), run, 1) is None


def test_activations_are_named_before_the_gradients_that_were_made_of_them():
    assert false_payload(Likeness(FALSE, 0.1, same_state=True), run_of(), 1) == "activations"


def test_a_stage_at_the_end_has_one_neighbour():
    nothing = Likeness(0.0, TRUE, same_state=True)
    assert false_payload(nothing, run_of(), 0) is None
    assert false_payload(Likeness(TRUE, 0.0, same_state=True), run_of(), 3) is None


def test_each_stage_checks_a_microbatch_in_a_round_or_less_in_small_ones():
    large = {"sequences": 128, "microbatch": 2, "steps": 50}
    assert chance_of_check(small_manifest(inner=large)) == 1.0
    small = small_manifest(inner={"sequences": 8, "microbatch": 2, "steps": 10})
    assert chance_of_check(small) * small.replicas.stages == pytest.approx(CHECKS_SHARE * 4 * 10)
    assert chance_of_check(small_manifest(inner=large, outer={"overlap": True})) == 0.0


def told(before: float | None = None, behind: float | None = None, own: float = TRUE) -> Likeness:
    """What stage 2 of four is told: of the activations that the stage before received, of the gradients that the one
    behind did, and of its own activations."""
    neighbours = {}
    if before is not None:
        neighbours[BEFORE] = before, 0.5
    if behind is not None:
        neighbours[BEHIND] = 0.5, behind
    return Likeness(own, FALSE, True, neighbours)


def test_activations_are_made_of_those_that_their_sender_received():
    run = run_of()
    assert likeness_of_sources(told(before=0.99), "activations", BEFORE, run, 2) == 0.99
    assert likeness_of_sources(told(behind=0.99), "activations", BEFORE, run, 2) is None
    assert likeness_of_sources(told(), "activations", BEFORE, run, 1) == 1.0  # of the text


def test_gradients_are_made_of_those_that_their_sender_received_and_of_activations():
    run = run_of(5)
    assert likeness_of_sources(told(behind=0.99), "gradients", BEHIND, run, 2) == 0.99
    assert likeness_of_sources(told(behind=TRUE, own=0.998), "gradients", BEHIND, run, 2) == 0.998
    assert likeness_of_sources(told(before=TRUE), "gradients", BEHIND, run, 2) is None
    assert likeness_of_sources(Likeness(0.0, FALSE, True, {BEHIND: (0.5, TRUE)}), "gradients", BEHIND, run, 0) == TRUE


def test_the_last_stage_made_its_gradients_of_activations_alone():
    last = Likeness(TRUE, FALSE, True, {BEHIND: (0.99, 0.0)})
    assert likeness_of_sources(last, "gradients", BEHIND, run_of(), 2) == 0.99
    assert likeness_of_sources(told(), "gradients", BEHIND, run_of(), 2) is None


@pytest.mark.parametrize(
    ("sources", "made_of_true"),
    [(0.9998, True), (0.9951, False), (0.9986, None)],
    ids=["its sender falsified it", "it came so", "a little came so"],
)
def test_who_sent_what_is_false_is_judged_by_what_it_received(sources: float, made_of_true: bool | None):
    assert is_made_of_true(sources, FALSE, run_of(wire="bf16")) is made_of_true
