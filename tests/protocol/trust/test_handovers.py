"""Offers and answers of a hand-over: who signed them, and to what."""

from pathlib import Path

import pytest

from protocol.errors import FormatError
from protocol.identity import PeerId, RunId, stage_part
from protocol.layout import elements, model_layout
from protocol.trust import signed
from protocol.trust.handovers import (
    KIND,
    HandoverOffer,
    Handovers,
    largest_handover,
    read_answer,
    read_handover,
    sign_answer,
    sign_handover,
)
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from tests.reference.small_manifest import small_manifest

RUN = RunId("ab" * 32)


def signer(folder: Path, name: str, role: str = "volunteer") -> Signer:
    """A peer of stage 1."""
    operator, identity = load_or_create(folder / "operator"), load_or_create(folder / name)
    card = issue(operator, RUN, Card(identity.peer_id, role, 1, 0))
    return Signer(identity, Authority(RUN, operator.peer_id), card)


def handover(giver: Signer, successor: Signer, number: int = 1) -> HandoverOffer:
    return HandoverOffer(giver.identity.peer_id, successor.identity.peer_id, number, 1, "cd" * 32, 1000)


def test_an_offer_is_read_as_it_was_made(tmp_path: Path):
    giver, successor = signer(tmp_path, "giver"), signer(tmp_path, "successor")
    assert read_handover(sign_handover(giver, handover(giver, successor)), successor.authority) == handover(
        giver, successor
    )


def test_only_a_volunteer_offers_and_only_with_its_own_card(tmp_path: Path):
    giver, successor, datacenter = (
        signer(tmp_path, "giver"),
        signer(tmp_path, "successor"),
        signer(tmp_path, "d", "datacenter"),
    )
    with pytest.raises(FormatError, match="not admitted as a volunteer"):
        read_handover(sign_handover(datacenter, handover(datacenter, successor)), successor.authority)
    borrowed = Signer(giver.identity, giver.authority, successor.card)
    with pytest.raises(FormatError, match="another's card"):
        read_handover(sign_handover(borrowed, handover(giver, successor)), successor.authority)


@pytest.mark.parametrize("change", [{0: "ef" * 32}, {2: 0}, {2: 2**31}, {3: b"short"}, {4: -1}, {1: 7}])
def test_other_fields_are_no_offer(tmp_path: Path, change: dict[int, object]):
    giver = signer(tmp_path, "giver")
    fields: list[object] = [RUN, "successor", 1, bytes(32), 5, giver.card]
    for place, value in change.items():
        fields[place] = value
    with pytest.raises(FormatError, match=r"other fields|no bequest of this run"):
        read_handover(signed.sign_fields(giver.identity, KIND, fields), giver.authority)


def test_an_answer_is_the_successors_and_to_this_handover(tmp_path: Path):
    giver, successor, other = (signer(tmp_path, name) for name in ("giver", "successor", "other"))
    made = handover(giver, successor, 3)
    assert read_answer(sign_answer(successor, made, ""), made, giver.authority) == ""
    assert read_answer(sign_answer(successor, made, "x" * 500), made, giver.authority) == "x" * 200
    for forged in (
        sign_answer(other, made, ""),
        sign_answer(successor, handover(giver, successor, 2), ""),
        sign_answer(successor, handover(other, successor, 3), ""),
    ):
        with pytest.raises(FormatError, match="answered for"):
            read_answer(forged, made, giver.authority)


def test_what_was_taken_stays_taken_and_older_numbers_with_it():
    handovers = Handovers(taken={PeerId("a"): 3})
    taken = {number: HandoverOffer(PeerId("a"), PeerId("me"), number, 0, "", 0) for number in (1, 3, 4)}
    assert {number: handovers.has_taken(each) for number, each in taken.items()} == {1: True, 3: True, 4: False}
    assert not handovers.has_taken(HandoverOffer(PeerId("b"), PeerId("me"), 1, 0, "", 0))


def test_a_handover_is_bounded_by_what_a_stage_has():
    manifest = small_manifest()
    size = elements(model_layout(manifest)[stage_part(1)])
    assert 12 * size < largest_handover(manifest, 1) < 12 * size + 2**18
