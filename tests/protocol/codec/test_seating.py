"""What the stages of a group tell each other between inner steps: each message comes through as it was, and what cannot
be is refused in words."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec.frames import EndFrame, pack_end
from protocol.codec.seating import (
    MOST_LETTERS,
    AnswerFrame,
    OfferFrame,
    pack_answer,
    pack_offer,
    pack_seats,
    pack_start,
    unpack_answer,
    unpack_offer,
    unpack_seats,
    unpack_start,
)
from protocol.errors import FormatError
from protocol.identity import PeerId
from protocol.schemas import pipeline_pb2 as pb
from tests.fuzz.messages import messages
from tests.fuzz.reader import Reader, from_protobuf
from tests.reference.small_manifest import small_manifest

A, B, C, D = map(PeerId, ("QmA", "QmB", "QmC", "QmD"))
DIGEST = "cd" * 32
MANIFEST = small_manifest(
    model={"layers": 3}, replicas={"stages": 3, "compression": "auto"}, inner={"steps": 4, "most_steps": 9}
)
INNER, ROUNDS = MANIFEST.inner, MANIFEST.outer.rounds
OFFER = OfferFrame(2, 3, (A, B, C), 5, 1, DIGEST, MANIFEST.compressions[0], 6, 20.0)


def taken(offer: OfferFrame, stage: int = 1, me: PeerId = B, before: PeerId = A) -> OfferFrame:
    """An offer as the stage hears it to which it was sent."""
    return unpack_offer(pack_offer(offer), MANIFEST, stage, me, before)


# Seats


@pytest.mark.parametrize("members", [(A,), (A, B), (A, B, C)])
def test_seats_come_through(members: tuple[PeerId, ...]):
    assert unpack_seats(pack_seats(members), A, 3) == members


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([], id="nobody"),
        pytest.param([B, A], id="another first"),
        pytest.param([A, B, C, D], id="more than there are stages"),
        pytest.param([A, B, A], id="one twice"),
        pytest.param([A, ""], id="one without a name"),
        pytest.param([A, "x" * (MOST_LETTERS + 1)], id="one with too long a name"),
    ],
)
def test_seats_that_cannot_be_are_refused(members: list[PeerId]):
    with pytest.raises(FormatError, match=f"{len(members)} seats, of 3 stages, that are not of as many peers"):
        unpack_seats(pack_seats(members), A, 3)


def test_the_last_stage_seats_nobody_behind_it():
    with pytest.raises(FormatError, match="2 seats, of 1 stages"):
        unpack_seats(pack_seats([A, B]), A, 1)


# A round's offer


@pytest.mark.parametrize(
    "offer",
    [
        OFFER,
        replace(OFFER, embedding_digest=""),
        replace(OFFER, round=1, step=0, goal=INNER.steps, patience=0.0, slot=0, attempt=0),
        replace(OFFER, round=ROUNDS, step=INNER.steps_at_most, goal=INNER.steps_at_most, patience=1e300),
        *(replace(OFFER, compression=each) for each in MANIFEST.compressions),
    ],
)
def test_an_offer_comes_through(offer: OfferFrame):
    assert taken(offer) == taken(offer, 2, C, B) == offer


CANNOT_BE: dict[str, tuple[OfferFrame, str]] = {
    "a member too few": (replace(OFFER, members=(A, B)), "a group of 2 members, of 3 stages"),
    "a member too many": (replace(OFFER, members=(A, B, C, D)), "a group of 4 members, of 3 stages"),
    "nobody": (replace(OFFER, members=()), "a group of 0 members"),
    "a member twice": (replace(OFFER, members=(A, B, A)), "a group of 3 members"),
    "a member without a name": (replace(OFFER, members=(A, B, PeerId(""))), "a group of 3 members"),
    "a member with too long a name": (replace(OFFER, members=(A, B, PeerId("x" * 129))), "a group of 3 members"),
    "another in this seat": (replace(OFFER, members=(A, C, B)), "another has this seat"),
    "another in the seat before": (replace(OFFER, members=(C, B, A)), "or that of who offers it"),
    "round 0": (replace(OFFER, round=0), "round 0 at step 3, which are none of this run"),
    "a round after the last": (replace(OFFER, round=ROUNDS + 1), f"round {ROUNDS + 1} at step 3"),
    "more steps than a round has": (replace(OFFER, step=INNER.steps_at_most + 1), "at step 10"),
    "d / k that the run does not have": (replace(OFFER, compression=3), "d / k = 3, which this run does not have"),
    "d / k of none": (replace(OFFER, compression=0), "d / k = 0"),
    "a goal below H": (replace(OFFER, goal=INNER.steps - 1), "3 inner steps in a round"),
    "a goal beyond all": (replace(OFFER, goal=INNER.steps_at_most + 1), "10 inner steps in a round"),
    "patience before it": (replace(OFFER, patience=-1.0), "a patience of no time there is"),
    "patience without end": (replace(OFFER, patience=float("inf")), "a patience of no time there is"),
    "patience that is no number": (replace(OFFER, patience=float("nan")), "a patience of no time there is"),
    "a short digest": (replace(OFFER, embedding_digest="cd"), "a digest that is none"),
    "a long digest": (replace(OFFER, embedding_digest=DIGEST + "c"), "a digest that is none"),
    "a digest in capitals": (replace(OFFER, embedding_digest=DIGEST.upper()), "a digest that is none"),
    "a digest of other letters": (replace(OFFER, embedding_digest="\u0661" * 64), "a digest that is none"),
}


@pytest.mark.parametrize(("offer", "words"), CANNOT_BE.values(), ids=CANNOT_BE)
def test_an_offer_that_cannot_be_is_refused(offer: OfferFrame, words: str):
    with pytest.raises(FormatError, match=words):
        taken(offer)


def test_an_offer_is_only_for_the_stage_that_it_was_passed_on_to():
    for stage, me, before in ((1, B, C), (2, B, A), (2, C, A), (1, A, B)):
        with pytest.raises(FormatError, match="a group in which another has this seat"):
            taken(OFFER, stage, me, before)


# Its answer


@pytest.mark.parametrize(
    "answer",
    [
        AnswerFrame(2, 3, DIGEST, "ef" * 32),
        AnswerFrame(2),
        AnswerFrame(1, INNER.steps_at_most),
        AnswerFrame(MANIFEST.outer.rounds + 1),
    ],
)
def test_an_answer_comes_through(answer: AnswerFrame):
    assert unpack_answer(pack_answer(answer), MANIFEST) == answer


@pytest.mark.parametrize("round", [0, MANIFEST.outer.rounds + 2, 2**32 - 1])
def test_an_answer_of_no_round_of_the_run_is_refused(round: int):
    with pytest.raises(FormatError, match=f"round {round}, which is none of this run"):
        unpack_answer(pack_answer(AnswerFrame(round)), MANIFEST)


def test_an_answer_that_cannot_be_is_refused():
    with pytest.raises(FormatError, match="10 inner steps of a round, more than it has"):
        unpack_answer(pack_answer(AnswerFrame(2, INNER.steps_at_most + 1)), MANIFEST)
    with pytest.raises(FormatError, match="a digest that is none"):
        unpack_answer(pack_answer(AnswerFrame(2, 3, "x" * 64)), MANIFEST)
    with pytest.raises(FormatError, match="a digest that is none"):
        unpack_answer(pack_answer(AnswerFrame(2, 3, DIGEST, "ef" * 31)), MANIFEST)


def test_who_holds_the_round_and_its_embedding_holds_what_was_offered_wherever_it_is_in_it():
    assert AnswerFrame(2, 0, DIGEST).holds(OFFER)
    assert AnswerFrame(2, INNER.steps_at_most, DIGEST).holds(OFFER)
    others = AnswerFrame(3, 3, DIGEST), AnswerFrame(1, 3, DIGEST), AnswerFrame(2, 3), AnswerFrame(2, 3, "ef" * 32)
    assert not any(other.holds(OFFER) for other in others)


# Its start


@pytest.mark.parametrize(("step", "least", "goal"), [(0, 0, 6), (3, 3, 6), (6, 3, 6), (6, 0, 6), (8, 8, 6)])
def test_a_start_comes_through_at_any_step_that_is_not_behind_nor_beyond_the_goal(step: int, least: int, goal: int):
    """Whoever has taken more than the goal has nothing left to take."""
    assert unpack_start(pack_start(step, DIGEST), least, goal) == (step, DIGEST)


@pytest.mark.parametrize(("step", "least", "goal"), [(2, 3, 6), (7, 3, 6), (9, 8, 6), (0, 1, 6), (2**32 - 1, 0, 6)])
def test_a_start_at_a_step_that_is_behind_or_beyond_the_goal_is_refused(step: int, least: int, goal: int):
    with pytest.raises(FormatError, match=f"a start at step {step}, where {least} are done, of {goal}"):
        unpack_start(pack_start(step, DIGEST), least, goal)


# All of them

READS: dict[str, Callable[[pb.Frame], object]] = {
    "seats": lambda message: unpack_seats(message, A, 3),
    "offer": lambda message: unpack_offer(message, MANIFEST, 1, B, A),
    "answer": lambda message: unpack_answer(message, MANIFEST),
    "start": lambda message: unpack_start(message, 3, 6),
}
SAYS = {
    "seats": pack_seats([A, B]),
    "offer": pack_offer(OFFER),
    "answer": pack_answer(AnswerFrame(2, 3, DIGEST)),
    "start": pack_start(3, DIGEST),
    "end": pack_end(2, 1, EndFrame(0.5, True, ())),
    "rest": pb.Frame(rest=b"of a tensor"),
    "None": pb.Frame(),
}


@pytest.mark.parametrize("said", SAYS)
@pytest.mark.parametrize("due", READS)
def test_only_a_message_of_the_kind_that_is_due_is_read(due: str, said: str):
    if due == said:
        READS[due](SAYS[said])
        return
    with pytest.raises(FormatError, match=f"expected the {due} of a round, got {said}"):
        READS[due](SAYS[said])


def changed(kind: str) -> st.SearchStrategy[pb.Frame]:
    """Frames of a kind that is valid but for some of its fields, or whose fields are anything."""
    known, inner = [A, B, C, D, DIGEST, ""], pb.Frame.DESCRIPTOR.fields_by_name[kind].message_type
    like = messages(inner, known, [b"signed"], getattr(SAYS[kind], kind))
    return st.one_of(like, messages(inner, known, [b"signed"])).map(lambda said: pb.Frame(**{kind: said}))


@pytest.mark.parametrize("due", READS)
@given(st.data())
def test_whatever_comes_is_read_as_what_can_be_or_refused_in_words(due: str, data: st.DataObject):
    frames = st.one_of(changed(due), messages(pb.Frame.DESCRIPTOR, [A, B, C, DIGEST], [b"signed"]))
    reader = Reader(due, lambda sent: READS[due](from_protobuf(pb.Frame, sent)), ())
    found = reader.attempt(data.draw(frames).SerializeToString())
    match found:
        case None:  # it is refused
            pass
        case OfferFrame():
            assert len(found.members) == len({*found.members}) == 3
            assert found.members[:2] == (A, B)
            assert 1 <= found.round <= ROUNDS
            assert 0 <= found.step <= INNER.steps_at_most
            assert INNER.steps <= found.goal <= INNER.steps_at_most
            assert taken(found) == found
        case AnswerFrame():
            assert 0 <= found.step <= INNER.steps_at_most
            assert unpack_answer(pack_answer(found), MANIFEST) == found
        case int(step), str(digest):
            assert 3 <= step <= 6
            assert unpack_start(pack_start(step, digest), 3, 6) == found
        case members:
            assert isinstance(members, tuple)
            assert unpack_seats(pack_seats(members), A, 3) == members
