"""Signed messages, cards, proofs: who said what, checked without asking anybody."""

from pathlib import Path

import pytest

from protocol.errors import FormatError
from protocol.identity import PeerId, RunId, stage_part
from protocol.outer.ledger import Revocation
from protocol.trust import signed
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.proofs import (
    CONTRIBUTION,
    read_entry,
    read_revocation,
    read_trial,
    sign_contribution,
    sign_receipt,
    sign_revocation,
)

RUN, OTHER = RunId("ab" * 32), RunId("cd" * 32)


@pytest.fixture
def operator(tmp_path: Path) -> Identity:
    return load_or_create(tmp_path / "operator")


@pytest.fixture
def authority(operator: Identity) -> Authority:
    return Authority(RUN, operator.peer_id)


def signer(
    folder: Path,
    operator: Identity,
    authority: Authority,
    role: str = "volunteer",
    stage: int = 1,
    on_trial: bool = False,
) -> Signer:
    identity = load_or_create(folder)
    card = issue(operator, RUN, Card(identity.peer_id, role, stage, 0, on_trial))
    return Signer(identity, authority, card)


def test_a_message_is_read_as_what_it_is_and_nothing_else(operator: Identity):
    data = signed.sign_fields(operator, "word", [1, "two", b"three"])
    assert signed.read_signed(data, "word") == (operator.peer_id, [1, "two", b"three"])
    with pytest.raises(FormatError, match="not a signed wor"):
        signed.read_signed(data, "wor")
    for at in range(0, len(data), 5):
        with pytest.raises(FormatError):
            signed.read_signed(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "word")
    with pytest.raises(FormatError, match="are allowed"):
        signed.read_signed(data + bytes(30_000), "word")


def test_a_card_holds_if_the_operator_signed_it_for_this_run(tmp_path: Path, operator: Identity, authority: Authority):
    card = Card(PeerId("QmPeer"), "volunteer", 2, 7)
    assert authority.read(issue(operator, RUN, card)) == card
    with pytest.raises(FormatError, match="another run"):
        authority.read(issue(operator, OTHER, card))
    with pytest.raises(FormatError, match="nobody who may admit"):
        authority.read(issue(load_or_create(tmp_path / "x"), RUN, card))


def test_a_gateway_admits_peers_but_no_gateways(tmp_path: Path, operator: Identity, authority: Authority):
    gateway, stranger = load_or_create(tmp_path / "g"), load_or_create(tmp_path / "s")
    own = issue(operator, RUN, Card(gateway.peer_id, "gateway", 0, 0))
    card = Card(PeerId("QmPeer"), "datacenter", 0, 3)
    assert authority.read(issue(gateway, RUN, card, own)) == card
    more = issue(gateway, RUN, Card(stranger.peer_id, "gateway", 0, 0), own)
    for forged in (
        more,
        issue(stranger, RUN, card, more),
        issue(stranger, RUN, card, own),
        issue(gateway, RUN, card, issue(operator, RUN, Card(gateway.peer_id, "datacenter", 0, 0))),
    ):
        with pytest.raises(FormatError, match="nobody who may admit"):
            authority.read(forged)


def test_an_entry_comes_with_the_receipts_that_hold_for_it(tmp_path: Path, operator: Identity, authority: Authority):
    author, holder, elsewhere = (
        signer(tmp_path / "a", operator, authority),
        signer(tmp_path / "h", operator, authority),
        signer(tmp_path / "e", operator, authority, stage=0),
    )
    entry = sign_contribution(author, stage_part(1), 3, "cd" * 32, 100)
    other = sign_contribution(author, stage_part(1), 4, "cd" * 32, 100)
    receipts = [sign_receipt(holder, entry), sign_receipt(holder, other), sign_receipt(elsewhere, entry), b"nonsense"]
    read = read_entry(entry.proof, receipts, authority)
    assert (read.name, read.sha256, read.size) == (entry.name, entry.sha256, entry.size)
    assert read.receipts == {holder.identity.peer_id: receipts[0]}


def test_a_receipt_is_for_one_version_of_one_contribution(tmp_path: Path, operator: Identity, authority: Authority):
    """In all else its signer could have signed it: another contribution of the run, or another version of this one."""
    author, another, holder = (
        signer(tmp_path / name, operator, authority, role, 0)
        for name, role in (("a", "datacenter"), ("b", "datacenter"), ("h", "datacenter"))
    )
    entry = sign_contribution(author, stage_part(1), 3, "cd" * 32, 100)
    others = [
        sign_contribution(author, stage_part(1), 3, "ef" * 32, 100),
        sign_contribution(author, stage_part(1), 4, "cd" * 32, 100),
        sign_contribution(author, stage_part(0), 3, "cd" * 32, 100),
        sign_contribution(another, stage_part(1), 3, "cd" * 32, 100),
    ]
    elsewhere = Signer(holder.identity, Authority(OTHER, operator.peer_id), holder.card)
    borrowed = Signer(holder.identity, authority, another.card)
    receipts = [
        *(sign_receipt(holder, each) for each in others),
        sign_receipt(elsewhere, entry),
        sign_receipt(borrowed, entry),
    ]
    assert read_entry(entry.proof, receipts, authority).receipts == {}
    assert read_entry(entry.proof, [*receipts, sign_receipt(holder, entry)], authority).receipts.keys() == {
        holder.identity.peer_id
    }


@pytest.mark.parametrize(
    ("at", "wrong"),
    [(0, OTHER), (1, "stage\n1"), (2, 0), (2, 2**31), (2, "3"), (3, bytes(31)), (4, -1), (5, b"card"), (5, "card")],
)
def test_a_contribution_that_cannot_be_is_refused(
    tmp_path: Path, operator: Identity, authority: Authority, at: int, wrong: object
):
    author = signer(tmp_path / "a", operator, authority)
    fields: list[object] = [RUN, stage_part(1), 3, bytes(32), 100, author.card]
    assert read_entry(signed.sign_fields(author.identity, CONTRIBUTION, fields), [], authority).name.round == 3
    fields[at] = wrong
    with pytest.raises(FormatError):
        read_entry(signed.sign_fields(author.identity, CONTRIBUTION, fields), [], authority)


def test_nobody_is_taken_out_from_before_the_first_round(operator: Identity, authority: Authority):
    for start in (0, -3):
        with pytest.raises(FormatError, match="not this run's operator"):
            read_revocation(sign_revocation(operator, authority, Revocation(PeerId("QmPeer"), start, 8)), authority)


@pytest.mark.parametrize(("role", "stage"), [("volunteer", 0), ("observer", 0), ("gateway", 0)])
def test_only_those_with_a_place_in_a_part_contribute_to_it(
    tmp_path: Path, operator: Identity, authority: Authority, role: str, stage: int
):
    entry = sign_contribution(
        signer(tmp_path / "a", operator, authority, role, stage), stage_part(1), 3, "cd" * 32, 100
    )
    with pytest.raises(FormatError, match="no place that contributes to stage-1"):
        read_entry(entry.proof, [], authority)


def test_what_is_contributed_on_trial_counts_nowhere_and_with_the_next_card_it_does(
    tmp_path: Path, operator: Identity, authority: Authority
):
    newcomer = signer(tmp_path / "n", operator, authority, on_trial=True)
    entry = sign_contribution(newcomer, stage_part(1), 3, "cd" * 32, 100)
    with pytest.raises(FormatError, match="on trial"):
        read_entry(entry.proof, [], authority)
    tried = read_trial(entry.proof, authority)
    assert tried is not None
    assert (tried.name, tried.sha256, tried.size) == (entry.name, entry.sha256, entry.size)
    newcomer.card = issue(operator, RUN, Card(newcomer.identity.peer_id, "volunteer", 1, 0))
    later = sign_contribution(newcomer, stage_part(1), 3, "cd" * 32, 100)
    assert read_trial(later.proof, authority) is None
    assert read_entry(later.proof, [], authority).key == entry.key


def test_a_receipt_of_who_is_on_trial_is_none(tmp_path: Path, operator: Identity, authority: Authority):
    entry = sign_contribution(signer(tmp_path / "a", operator, authority), stage_part(1), 3, "cd" * 32, 100)
    newcomer = signer(tmp_path / "n", operator, authority, on_trial=True)
    assert read_entry(entry.proof, [sign_receipt(newcomer, entry)], authority).receipts == {}


def test_a_revocation_is_the_operators(tmp_path: Path, operator: Identity, authority: Authority):
    revocation = Revocation(PeerId("QmPeer"), 5, 8)
    assert read_revocation(sign_revocation(operator, authority, revocation), authority) == revocation
    with pytest.raises(FormatError, match="not this run's operator"):
        read_revocation(sign_revocation(load_or_create(tmp_path / "x"), authority, revocation), authority)
    with pytest.raises(FormatError, match="not this run's operator"):
        read_revocation(sign_revocation(operator, Authority(OTHER, operator.peer_id), revocation), authority)
