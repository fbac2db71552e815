"""Offers and answers of a hand-over: who signed them, and to what."""

from pathlib import Path

import pytest

from protocol.errors import FormatError
from protocol.identity import PeerId, RunId, stage_part
from protocol.layout import elements, model_layout
from protocol.trust import signed
from protocol.trust.bequests import (
    KIND,
    Bequest,
    Handovers,
    largest_bequest,
    read_answer,
    read_bequest,
    sign_answer,
    sign_bequest,
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


def bequest(giver: Signer, heir: Signer, number: int = 1) -> Bequest:
    return Bequest(giver.identity.peer_id, heir.identity.peer_id, number, 1, "cd" * 32, 1000)


def test_an_offer_is_read_as_it_was_made(tmp_path: Path):
    giver, heir = signer(tmp_path, "giver"), signer(tmp_path, "heir")
    assert read_bequest(sign_bequest(giver, bequest(giver, heir)), heir.authority) == bequest(giver, heir)


def test_only_a_volunteer_offers_and_only_with_its_own_card(tmp_path: Path):
    giver, heir, datacenter = (signer(tmp_path, "giver"), signer(tmp_path, "heir"), signer(tmp_path, "d", "datacenter"))
    with pytest.raises(FormatError, match="not admitted as a volunteer"):
        read_bequest(sign_bequest(datacenter, bequest(datacenter, heir)), heir.authority)
    borrowed = Signer(giver.identity, giver.authority, heir.card)
    with pytest.raises(FormatError, match="another's card"):
        read_bequest(sign_bequest(borrowed, bequest(giver, heir)), heir.authority)


@pytest.mark.parametrize("change", [{0: "ef" * 32}, {2: 0}, {2: 2**31}, {3: b"short"}, {4: -1}, {1: 7}])
def test_other_fields_are_no_offer(tmp_path: Path, change: dict[int, object]):
    giver = signer(tmp_path, "giver")
    fields: list[object] = [RUN, "heir", 1, bytes(32), 5, giver.card]
    for place, value in change.items():
        fields[place] = value
    with pytest.raises(FormatError, match=r"other fields|no bequest of this run"):
        read_bequest(signed.sign_fields(giver.identity, KIND, fields), giver.authority)


def test_an_answer_is_the_heirs_and_to_this_bequest(tmp_path: Path):
    giver, heir, other = (signer(tmp_path, name) for name in ("giver", "heir", "other"))
    made = bequest(giver, heir, 3)
    assert read_answer(sign_answer(heir, made, ""), made, giver.authority) == ""
    assert read_answer(sign_answer(heir, made, "x" * 500), made, giver.authority) == "x" * 200
    for forged in (
        sign_answer(other, made, ""),
        sign_answer(heir, bequest(giver, heir, 2), ""),
        sign_answer(heir, bequest(other, heir, 3), ""),
    ):
        with pytest.raises(FormatError, match="answered for"):
            read_answer(forged, made, giver.authority)


def test_what_was_taken_stays_taken_and_older_numbers_with_it():
    handovers = Handovers(taken={PeerId("a"): 3})
    taken = {number: Bequest(PeerId("a"), PeerId("me"), number, 0, "", 0) for number in (1, 3, 4)}
    assert {number: handovers.has_taken(each) for number, each in taken.items()} == {1: True, 3: True, 4: False}
    assert not handovers.has_taken(Bequest(PeerId("b"), PeerId("me"), 1, 0, "", 0))


def test_a_bequest_is_bounded_by_what_a_stage_has():
    manifest = small_manifest()
    size = elements(model_layout(manifest)[stage_part(1)])
    assert 12 * size < largest_bequest(manifest, 1) < 12 * size + 2**18
