import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.identity import PeerId, ReplicaId, RunId
from protocol.outer.ledger import Revocation
from protocol.trust import proofs, receipts, signed
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.receipts import (
    RETIRED,
    WORK,
    Verifier,
    Work,
    by_round,
    is_retired,
    microbatch_tokens,
    read_receipt,
    receipt_from_line,
    receipt_to_line,
    sign_credit_receipt,
    standing,
)
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

RUN = RunId("ab" * 32)
OPERATOR = identity("operator")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
ME = identity("me").peer_id


def signer(name: str, role: str = "volunteer", stage: int = 0, on_trial: bool = False, operator: str = "operator"):
    own, by = identity(name), identity(operator)
    return Signer(own, AUTHORITY, issue(by, RUN, Card(own.peer_id, role, stage, 0, on_trial)))


LEADER = signer("leader")


def work(by: Signer = LEADER, **changes: object) -> Work:
    leader = ReplicaId(LEADER.identity.peer_id)
    fields = {"receiver": ME, "round": 3, "replica": leader, "stage": 1, "beside": 0, "since": 1_800_000_000_000}
    counts = {"attempts": 2, "forward": 24, "backward": 24, "tokens": 24 * 16}
    return Work(by.identity.peer_id, **(fields | counts | changes))  # type: ignore[arg-type]


def test_a_receipt_is_read_as_it_was_signed_and_is_small():
    receipt = work()
    data = sign_credit_receipt(LEADER, receipt)
    assert read_receipt(data, AUTHORITY) == receipt
    assert Verifier(AUTHORITY, ME, tokens=16).check(data) == receipt
    assert len(data) < 600


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_with_any_byte_flipped_it_does_not_hold(data: st.DataObject):
    made = bytearray(sign_credit_receipt(LEADER, work()))
    made[data.draw(st.integers(0, len(made) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        read_receipt(bytes(made), AUTHORITY)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_nor_does_its_line_in_a_file(data: st.DataObject):
    line = bytearray(receipt_to_line(sign_credit_receipt(LEADER, work())))
    assert read_receipt(receipt_from_line(bytes(line)), AUTHORITY) == work()
    line[data.draw(st.integers(0, len(line) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        [read_receipt(receipt_from_line(each), AUTHORITY) for each in bytes(line).splitlines(keepends=True)]


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 10_000))
def test_nor_half_of_a_line(cut: int):
    line = receipt_to_line(sign_credit_receipt(LEADER, work()))
    with pytest.raises(FormatError):
        read_receipt(receipt_from_line(line[: cut % (len(line) - 1)]), AUTHORITY)


def test_its_body_under_anybody_elses_signature_does_not_hold():
    fields = signed.read_signed(sign_credit_receipt(LEADER, work()), WORK)[1]
    for other in (identity("me"), identity("stranger"), OPERATOR):
        with pytest.raises(FormatError, match="card"):
            read_receipt(signed.sign_fields(other, WORK, fields), AUTHORITY)


VERIFIER = Verifier(AUTHORITY, ME, tokens=16)


def refused(data: bytes, why: str, verifier: Verifier = VERIFIER) -> None:
    with pytest.raises(FormatError, match=why):
        verifier.check(data)


def test_a_receipt_of_another_run_or_for_another_peer_does_not_hold():
    elsewhere = Signer(LEADER.identity, Authority(RunId("cd" * 32), OPERATOR.peer_id), LEADER.card)
    refused(sign_credit_receipt(elsewhere, work()), "of this run")
    refused(sign_credit_receipt(LEADER, work(receiver=identity("other").peer_id)), "not peer")


def test_who_was_not_admitted_or_is_on_trial_or_an_observer_signs_nothing():
    refused(sign_credit_receipt(signer("leader", operator="stranger"), work()), "nobody who may admit")
    refused(sign_credit_receipt(signer("leader", on_trial=True), work()), "on trial")
    refused(sign_credit_receipt(signer("leader", "observer"), work()), "no neighbour")


def test_nobody_signs_for_itself():
    mine = signer("me")
    refused(sign_credit_receipt(mine, work(mine, replica=ReplicaId(ME))), "for itself")


def test_only_the_stages_beside_sign_for_work_and_stage_0_for_its_own_group():
    refused(sign_credit_receipt(signer("far", stage=3), work(signer("far", stage=3))), "no neighbour of stage 1")
    refused(sign_credit_receipt(signer("far", stage=1), work(signer("far", stage=1))), "no neighbour of stage 1")
    refused(sign_credit_receipt(signer("dc", "datacenter"), work(signer("dc", "datacenter"))), "no neighbour")
    refused(sign_credit_receipt(LEADER, work(replica=ReplicaId("QmOther"))), "leads")


def test_of_who_was_revoked_nothing_holds_from_that_round_on():
    data = sign_credit_receipt(LEADER, work())
    record = proofs.sign_revocation(OPERATOR, AUTHORITY, Revocation(LEADER.identity.peer_id, 3, 3))
    author = proofs.read_revocation(record, AUTHORITY).author
    for who in (author, ME):
        refused(data, "taken", Verifier(AUTHORITY, ME, {who: 3}))
        assert Verifier(AUTHORITY, ME, {who: 4}).check(data) == work()


def test_tokens_are_those_of_the_microbatches():
    refused(sign_credit_receipt(LEADER, work(tokens=24 * 16 + 1)), "not those")
    refused(sign_credit_receipt(LEADER, work(backward=12)), "not those")
    assert Verifier(AUTHORITY, ME, tokens=16).check(sign_credit_receipt(LEADER, work(backward=12, tokens=12 * 16)))


IMPOSSIBLE = [
    ("round", 0),
    ("round", 2**31),
    ("round", -1),
    ("stage", -1),
    ("stage", 1024),
    ("attempts", 0),
    ("forward", -1),
    ("tokens", 2**53),
    ("since", -1),
    ("receiver", ""),
    ("receiver", "x" * 65),
    ("receiver", "\x1b[2J"),
    ("replica", ""),
    ("round", "3"),
    ("round", True),
]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_impossible_fields_are_refused_though_rightly_signed(name: str, value: object):
    refused(sign_credit_receipt(LEADER, work(**{name: value})), "other fields|no list of numbers|no neighbour")


def test_other_fields_are_refused_though_rightly_signed():
    fields = signed.read_signed(sign_credit_receipt(LEADER, work()), WORK)[1]
    for wrong in ([], fields[:-1], [*fields, 1], fields[1:], [[], *fields[1:]], [RUN]):
        with pytest.raises(FormatError):
            read_receipt(signed.sign_fields(LEADER.identity, WORK, wrong), AUTHORITY)
    assert WORK == "work"


def test_what_older_versions_signed_for_contributions_is_known_and_no_receipt():
    data = signed.sign_fields(LEADER.identity, RETIRED.decode(), [RUN, ME, 3, "stage-1", bytes(32), 12, LEADER.card])
    assert is_retired(data)
    assert not is_retired(sign_credit_receipt(LEADER, work()))
    with pytest.raises(FormatError):
        read_receipt(data, AUTHORITY)


def test_a_longer_receipt_than_any_is_not_looked_at():
    with pytest.raises(FormatError, match="allowed"):
        read_receipt(bytes(receipts.MOST_RECEIPT_BYTES + 1), AUTHORITY)
    with pytest.raises(FormatError, match="longer"):
        receipt_from_line(b"A" * (receipts.MOST_LINE + 1))


def test_with_the_card_of_a_gateway_it_still_fits():
    gateway = identity("gateway")
    by = issue(OPERATOR, RUN, Card(gateway.peer_id, "gateway", 0, 0))
    card = issue(gateway, RUN, Card(LEADER.identity.peer_id, "volunteer", 0, 0), by)
    largest = work(round=2**31 - 1, forward=2**53 - 1, backward=2**53 - 1, tokens=2**53 - 1)
    data = sign_credit_receipt(Signer(LEADER.identity, AUTHORITY, card), largest)
    assert read_receipt(data, AUTHORITY) == largest
    assert len(data) < receipts.MOST_RECEIPT_BYTES / 2
    assert msgpack.unpackb(data[64 + 33 + len(WORK) + 1 :])[0] == RUN


def test_a_receipt_names_whom_it_replaces():
    first, later, other_start = work(), work(forward=48, backward=48, tokens=48 * 16), work(since=1)
    assert first.stands_for == later.stands_for != other_start.stands_for
    assert later.amount > first.amount


# Credit


def seen(by: str, pairs: int, beside: int, round: int = 1, since: int = 1) -> Work:
    who, group = PeerId(by), ReplicaId("leader")
    return Work(who, ME, round, group, 1, beside, since, 1, pairs, pairs, 10 * pairs)


def test_of_a_round_the_last_of_each_signer_stands():
    early, late = seen("a", 5, 0), seen("a", 9, 0)
    assert standing([early, late]) == standing([late, early]) == standing([late, late]) == [late]


def test_two_neighbours_that_saw_the_same_work_do_not_make_it_twice_as_much():
    (credit,) = by_round([seen("a", 9, 0), seen("b", 7, 2)])
    assert (credit.tokens, credit.microbatches, credit.tokens_of_both) == (90, 9, 70)
    assert credit.neighbours == ("a", "b")


def test_neighbours_of_one_side_that_followed_each_other_add_up_as_do_starts_of_one():
    (credit,) = by_round([seen("a", 4, 0), seen("heir", 5, 0), seen("b", 3, 2), seen("b", 6, 2, since=2)])
    assert (credit.tokens, credit.tokens_of_both) == (90, 90)


found_receipts = st.lists(
    st.builds(seen, st.sampled_from("abc"), st.integers(0, 9), st.sampled_from([0, 2]), st.integers(1, 3)),
    max_size=12,
)


@given(found_receipts, st.randoms())
def test_order_and_repetition_change_nothing(found: list[Work], chance):
    again = [*found, *(each for each in found if chance.random() < 0.5)]
    chance.shuffle(again)
    assert by_round(again) == by_round(found)


@given(found_receipts, st.sampled_from("abc"), st.integers(0, 9))
def test_one_more_receipt_never_takes_tokens_away(found: list[Work], by: str, pairs: int):
    before = sum(each.tokens for each in by_round(found))
    assert sum(each.tokens for each in by_round([*found, seen(by, pairs, 0)])) >= before


@given(found_receipts)
def test_tokens_are_the_plain_sum_of_a_sides_signers(found: list[Work]):
    largest: dict[tuple[int, int, str], int] = {}
    for each in found:
        key = each.round, each.beside, each.signer
        largest[key] = max(largest.get(key, 0), each.tokens)
    for credit in by_round(found):
        sides = [
            sum(tokens for (round, beside, _), tokens in largest.items() if (round, beside) == (credit.round, side))
            for side in (0, 2)
        ]
        assert (credit.tokens, credit.tokens_of_both) == (max(sides), min(sides))


def test_tokens_of_a_microbatch():
    manifest = small_manifest()
    assert microbatch_tokens(manifest) * manifest.inner.microbatches == manifest.tokens_per_step
