"""Which payloads are false, and who is held to account first, tried on invented groups."""

import random

import pytest

from peer.swarm.group.likenesses import (
    CHECKS_OF_GROUP,
    CHECKS_SHARE,
    ENOUGH,
    EXACT_COARSE,
    checks_in_a_step,
    checks_of_the_first_step,
    is_false,
    is_made_of_true,
    is_made_of_true_exact,
    is_suspicious,
    judges_gradients,
    least_exact,
    others_of_step,
    rank,
    usual,
)
from tests.reference.small_manifest import small_manifest

N = 6
"""Microbatches of a step."""


def seen_in(step: int, *values: float) -> dict[int, float]:
    return {step * N + number: value for number, value in enumerate(values)}


def test_a_payload_is_judged_by_others_of_its_step():
    seen = seen_in(3, 0.05, 0.8, 0.7, 0.9)
    assert usual(18, N, seen) == 0.8
    assert is_suspicious(18, seen)
    assert is_false(18, N, seen)
    assert not any(is_false(each, N, seen) for each in (19, 20, 21))


def test_where_all_of_a_step_are_unlike_nobody_is_blamed():
    """Weights have moved far, or the loss had a spike."""
    seen = seen_in(3, -0.6, 0.1, 0.2, -0.1, 0.3, 0.0)
    assert not any(is_false(each, N, seen, doubted=True) for each in seen)


def test_others_of_other_steps_say_nothing():
    seen = seen_in(2, 0.9, 0.9, 0.9, 0.9) | seen_in(3, 0.05, 0.9, 0.9) | seen_in(4, 0.9, 0.9, 0.9, 0.9)
    assert usual(18, N, seen) is None
    assert not is_false(18, N, seen)
    assert len(others_of_step(18, N)) == N - 1 >= ENOUGH


def test_what_is_a_little_less_like_is_false_only_where_another_stage_doubts_it():
    seen = seen_in(3, 0.25, 0.8, 0.7, 0.9)
    assert not is_false(18, N, seen)
    assert is_false(18, N, seen, doubted=True)
    assert not is_false(18, N, seen | {18: 0.5}, doubted=True)


@pytest.mark.parametrize("wire", ["fp32", "bf16", "int8"])
def test_an_exact_payload_that_is_wrong_by_a_tenth_is_false_and_one_in_another_number_format_is_not(wire: str):
    """Noise of a tenth leaves a cosine of 0.995; honest ones were measured (docs/benchmarks.md)."""
    assert 0.9955 < least_exact(wire) < least_exact(wire, doubted=True) < 0.9997


def test_of_few_bits_an_exact_payload_has_to_be_less_like():
    assert least_exact("int4") == least_exact("int4", doubted=True) == EXACT_COARSE


def test_each_member_sees_an_exact_payload_in_a_round_or_half_of_what_it_sees():
    large = {"sequences": 128, "microbatch": 2, "steps": 50}
    assert checks_of_the_first_step(small_manifest(inner=large)) == 1.0
    small = small_manifest(inner={"sequences": 16, "microbatch": 2, "steps": 20})
    assert checks_of_the_first_step(small) == pytest.approx(checks_in_a_step(small) * 20 / 2)
    assert checks_of_the_first_step(small_manifest(inner=large, outer={"overlap": True})) == 0.0


def test_gradients_are_judged_with_muon():
    assert judges_gradients(small_manifest(inner={"optimizer": "muon"}))
    assert not judges_gradients(small_manifest(inner={"optimizer": "adamw"}))


@pytest.mark.parametrize(("microbatches", "steps"), [(64, 50), (8, 20)], ids=["large", "small"])
def test_a_group_checks_a_small_share(microbatches: int, steps: int):
    inner = {"sequences": 2 * microbatches, "microbatch": 2, "steps": steps}
    of_group = checks_in_a_step(small_manifest(inner=inner)) * 2 * steps  # it has two stages
    assert of_group == pytest.approx(min(CHECKS_OF_GROUP, CHECKS_SHARE * microbatches * steps))
    assert of_group <= 0.02 * microbatches * steps * 1.0001


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_the_first_to_act_received_what_was_false_first(stages: int):
    """Whatever is made of a false payload is unlike, too. All but the liar judge; whoever has the least rank acts."""
    for liar in range(stages):
        for backward in (False, True):
            if liar == (0 if backward else stages - 1):
                continue
            order = [(stage - 1, stage, False) for stage in range(1, stages)]
            order += [(stage + 1, stage, True) for stage in reversed(range(stages - 1))]
            false_at = order.index((liar, liar - 1 if backward else liar + 1, backward))
            unlike = [each for each in order[false_at:] if each[1] != liar]
            random.Random(liar).shuffle(unlike)
            ranks = {rank(receiver, stages, back): sender for sender, receiver, back in unlike}
            assert len(ranks) == len(unlike)
            assert ranks[min(ranks)] == liar
            assert order[false_at] in unlike


@pytest.mark.parametrize(
    ("received", "sent", "made_of_true"),
    [(0.9998, 0.995, True), (0.9951, 0.995, False), (0.9986, 0.995, None)],
    ids=["its sender falsified it", "it came so", "a little came so"],
)
def test_who_sent_an_exact_payload_is_judged_by_what_it_received(
    received: float, sent: float, made_of_true: bool | None
):
    assert is_made_of_true_exact(received, sent, least_exact("bf16", doubted=True)) is made_of_true


@pytest.mark.parametrize(("received", "made_of_true"), [(0.75, True), (0.2, False), (0.5, None)])
def test_who_sent_another_false_payload_is_judged_by_how_like_others_of_the_step_are(
    received: float, made_of_true: bool | None
):
    seen = seen_in(3, 0.02, 0.9, 0.7, 0.85)
    assert is_made_of_true(received, 18, N, seen) is made_of_true
    assert is_made_of_true(received, 18, N, seen | {20: 0.01, 21: 0.03}) is not False
