"""Which contributions count, seen by one peer."""

import pytest

from protocol.identity import ContributionName, Part, PeerId
from protocol.outer.history import History
from protocol.outer.ledger import Entry, Ledger, Revocation, Standing
from protocol.outer.window import Window

PART = Part("stage-0")
ME, ANN, BOB, EVE = map(PeerId, ("me", "ann", "bob", "eve"))
WINDOW = Window(grace=2, liars=1)


def entry(round: int, author: PeerId = ANN, version: str = "v1", *receipts: PeerId) -> Entry:
    return Entry(ContributionName(PART, round, author), version, 9, receipts=dict.fromkeys(receipts, b""))


def ledger(clock: int, *taken: Entry) -> Ledger:
    made = Ledger(PART, ME, WINDOW, clock)
    for each in taken:
        assert made.take(each) is Standing.ACCEPTED
    return made


def test_an_entry_in_time_waits_for_its_bytes_and_then_counts():
    mine = ledger(5)
    assert mine.offer(entry(5)) is Standing.WANTED
    assert mine.chosen(5) == {}
    assert mine.take(entry(5)) is Standing.ACCEPTED
    assert mine.offer(entry(5)) is Standing.ACCEPTED
    assert mine.chosen(5) == {ANN: "v1"}
    assert not mine.waiting[5][ANN]


def test_what_others_have_closed_is_taken_by_their_word_alone_and_only_in_rounds_open_here():
    mine = ledger(5 + WINDOW.width + 1)
    assert mine.offer(entry(5)) is Standing.CLOSED
    assert mine.take(entry(5), vouched=True) is Standing.ACCEPTED
    assert mine.offer(entry(5 + WINDOW.width + 4), vouched=True) is Standing.EARLY
    for round in range(1, 6):
        mine.fold(round)
    assert mine.history.has(ANN, 5)
    assert mine.offer(entry(4), vouched=True) is Standing.CLOSED


@pytest.mark.parametrize(("clock", "needed"), [(5, 0), (7, 0), (8, 1), (9, 1), (10, 2), (11, 2)])
def test_the_later_it_is_the_more_receipts_it_needs(clock: int, needed: int):
    signers = [BOB, EVE][:needed]
    assert ledger(clock).take(entry(5, ANN, "v1", *signers)) is Standing.ACCEPTED
    if needed:
        assert ledger(clock).take(entry(5, ANN, "v1", *signers[1:])) is Standing.UNPROVEN


def test_the_authors_and_ones_own_receipts_prove_nothing():
    assert ledger(8).take(entry(5, ANN, "v1", ANN)) is Standing.UNPROVEN
    assert ledger(8).take(entry(5, ANN, "v1", ME)) is Standing.UNPROVEN


def test_receipts_that_come_one_by_one_add_up():
    mine = ledger(10)
    assert mine.take(entry(5, ANN, "v1", BOB)) is Standing.UNPROVEN
    assert mine.take(entry(5, ANN, "v1", EVE)) is Standing.ACCEPTED


@pytest.mark.parametrize(
    ("round", "standing"), [(4, Standing.CLOSED), (5, Standing.UNPROVEN), (13, Standing.WANTED), (14, Standing.EARLY)]
)
def test_closed_and_coming_rounds_are_refused(round: int, standing: Standing):
    assert ledger(11).offer(entry(round)) is standing


def test_what_enough_others_vouch_for_needs_no_receipts():
    mine = ledger(11)
    assert mine.offer(entry(5), vouched=True) is Standing.WANTED
    assert mine.take(entry(5)) is Standing.ACCEPTED


def test_two_versions_void_each_other_and_both_are_kept_as_proof():
    mine = ledger(5, entry(5), entry(5, BOB))
    assert mine.offer(entry(5, ANN, "v2")) is Standing.ACCEPTED
    assert mine.chosen(5) == {BOB: "v1"}
    assert {each.sha256 for each in mine.entries(5) if each.name.author == ANN} == {"v1", "v2"}
    assert mine.offer(entry(5, ANN, "v3")) is Standing.SURPLUS


def test_versions_whose_bytes_never_come_are_void_and_keep_no_third_out():
    mine, other = ledger(5), ledger(5, entry(5, EVE, "v3"))
    for each in (mine, other):
        assert each.offer(entry(5, EVE, "v1")) in (Standing.WANTED, Standing.ACCEPTED)
        assert each.offer(entry(5, EVE, "v2")) in (Standing.ACCEPTED, Standing.SURPLUS)
    assert mine.take(entry(5, EVE, "v3")) is Standing.SURPLUS
    assert mine.chosen(5) == other.chosen(5) == {}


def test_what_is_void_keeps_its_bytes_whichever_version_came_first():
    for versions in (["v1", "v2"], ["v2", "v1"]):
        mine = ledger(5)
        for version in versions:
            assert (mine.take if version == "v1" else mine.offer)(entry(5, ANN, version)) in (
                Standing.WANTED,
                Standing.ACCEPTED,
            )
        assert {each.sha256: each.held for each in mine.entries(5)} == {"v1": True, "v2": False}


def test_versions_without_proof_keep_no_room_from_one_that_has_it():
    mine = ledger(8)
    for version in ("v1", "v2"):
        assert mine.offer(entry(5, EVE, version)) is Standing.UNPROVEN
    assert mine.offer(entry(5, EVE, "v3")) is Standing.SURPLUS
    assert mine.take(entry(5, EVE, "v4", BOB)) is Standing.ACCEPTED


def test_a_receipt_is_given_once_for_what_others_sent_and_while_more_are_of_use():
    mine = ledger(5, entry(5), entry(5, ME), entry(5, BOB, "v1", ANN, EVE))
    assert mine.wants_receipt(ContributionName(PART, 5, ANN), "v1")
    mine.sign(ContributionName(PART, 5, ANN), "v1", b"signed")
    assert mine.versions(ContributionName(PART, 5, ANN))["v1"].receipts == {ME: b"signed"}
    for author in (ANN, ME, BOB, EVE):
        assert not mine.wants_receipt(ContributionName(PART, 5, author), "v1")


def test_a_round_is_folded_when_nothing_can_come_any_more():
    mine = ledger(5, entry(5), entry(6))
    assert list(mine.advance(11)) == [1, 2, 3, 4]
    assert list(mine.advance(9)) == [1, 2, 3, 4], "the clock goes on only"
    for round in mine.advance(12):
        mine.fold(round)
    assert (mine.folded, mine.history.to_wire(), mine.open_rounds()) == (5, {"ann": [[5, 5]]}, [6])
    assert mine.take(entry(5, BOB, "v1", ANN, EVE)) is Standing.CLOSED
    with pytest.raises(ValueError, match="cannot be folded"):
        mine.fold(7)


@pytest.mark.parametrize(("start", "issued", "first_without"), [(1, 12, 8), (10, 12, 10), (30, 12, 30)])
def test_a_revocation_takes_effect_where_nobody_can_have_folded(start: int, issued: int, first_without: int):
    mine = ledger(9, entry(7), entry(8), entry(9), entry(10))
    assert mine.revoke(Revocation(ANN, start, issued))
    assert [round for round in range(7, 11) if mine.chosen(round)] == [r for r in range(7, 11) if r < first_without]


def by(gateway: str, each: Entry) -> Entry:
    """An entry that its author signed by a card of this gateway's."""
    each.issuer = PeerId(gateway)
    return each


@pytest.mark.parametrize("first", ["the revocation", "the entries"])
def test_what_was_signed_by_cards_of_a_revoked_gateway_falls_from_the_same_round_on_in_any_order(first: str):
    mine, revocation = ledger(10), Revocation(PeerId("gate"), 9, 12)

    def hear() -> None:
        assert mine.take(by("gate", entry(8))) is Standing.ACCEPTED
        mine.take(by("gate", entry(9)))
        mine.offer(by("gate", entry(9, EVE)))
        mine.take(by("", entry(9, BOB)))
        mine.take(by("another", entry(10, BOB)))
        mine.take(by("gate", entry(10)))

    if first == "the entries":
        hear()
    mine.revoke(revocation)
    if first == "the revocation":
        hear()
    assert [mine.chosen(round) for round in (8, 9, 10)] == [{ANN: "v1"}, {BOB: "v1"}, {BOB: "v1"}]
    plain = ledger(10, entry(8), entry(9, BOB), entry(10, BOB))
    assert mine.checks == plain.checks
    assert {entry.key for entry in mine.all_entries()} == {entry.key for entry in plain.all_entries()}
    assert mine.take(by("gate", entry(9))) is Standing.FALLEN
    assert mine.take(by("", entry(9))) is Standing.ACCEPTED  # the same content, by a card that holds


@pytest.mark.parametrize("standing", [Standing.WANTED, Standing.UNPROVEN])
def test_what_waits_of_a_revoked_gateways_peers_goes_and_what_others_let_in_stays(standing: Standing):
    mine = ledger(10)
    round = 10 if standing is Standing.WANTED else 7
    for gateway, author in (("gate", ANN), ("another", BOB), ("", EVE)):
        assert mine.offer(by(gateway, entry(round, author))) is standing
    mine.revoke(Revocation(PeerId("gate"), 5, 10))
    assert {author for author, versions in mine.waiting[round].items() if versions} == {BOB, EVE}


def test_a_version_that_falls_voids_nothing_and_the_other_waits_for_its_bytes():
    mine = ledger(10, by("gate", entry(10, ANN, "v1")))
    assert mine.offer(entry(10, ANN, "v2", BOB)) is Standing.ACCEPTED  # void, so without its bytes
    assert mine.chosen(10) == {}
    mine.revoke(Revocation(PeerId("gate"), 10, 10))
    assert mine.chosen(10) == {}
    assert mine.take(entry(10, ANN, "v2", BOB)) is Standing.ACCEPTED
    assert mine.chosen(10) == {ANN: "v2"}
    assert mine.checks == ledger(10, entry(10, ANN, "v2")).checks


def test_a_revocation_of_what_is_folded_says_that_the_state_is_wrong():
    mine = Ledger(PART, ME, WINDOW, 20, 13, History({ANN: [(1, 13)], BOB: [(1, 9)]}))
    assert not mine.revoke(Revocation(ANN, 12, 14))
    assert mine.revoke(Revocation(BOB, 12, 14))


def test_adopting_keeps_later_rounds_and_a_clock_that_ran_ahead_goes_back():
    mine = ledger(20, entry(18), entry(20), entry(21))
    mine.adopt(18, History({BOB: [(1, 18)]}))
    assert (mine.folded, mine.open_rounds(), mine.clock) == (18, [20, 21], 20)
    mine.adopt(9, History())
    assert mine.clock == 9 + 1 + WINDOW.width


def test_after_having_been_away_only_what_others_would_take_is_kept():
    mine = ledger(5, entry(5), entry(5, ME), entry(5, BOB), entry(5, EVE, "v1", ANN))
    mine.advance(8)
    mine.reconsider([(ContributionName(PART, 5, BOB), "v1")])
    assert mine.chosen(5) == {BOB: "v1", EVE: "v1"}


def test_an_author_counts_itself_only_if_others_can_when_they_hear_of_it():
    assert ledger(5).take(entry(5, ME)) is Standing.ACCEPTED
    assert ledger(6).take(entry(5, ME)) is Standing.UNPROVEN
    assert ledger(6).take(entry(5, ME, "v1", BOB)) is Standing.ACCEPTED


def test_an_author_needs_no_more_receipts_than_anybody_ever_does():
    most = ledger(9)  # of another, by a message later, three: there are never more than two
    assert WINDOW.receipts_needed(9 + 2, 5) > WINDOW.most_receipts - 1
    assert ledger(10).take(entry(5, ME, "v1", BOB)) is Standing.UNPROVEN
    assert ledger(10).take(entry(5, ME, "v1", BOB, EVE)) is Standing.ACCEPTED
    assert most.take(entry(5, ME, "v1", BOB, EVE)) is Standing.ACCEPTED


def test_no_more_receipts_are_kept_than_are_ever_needed():
    mine = ledger(5, entry(5, ANN, "v1", BOB))
    for each in ("a", "b", "c", "d"):
        mine.offer(entry(5, ANN, "v1", PeerId(each)))
    assert len(mine.versions(ContributionName(PART, 5, ANN))["v1"].receipts) == WINDOW.most_receipts


def test_nothing_waits_for_a_round_that_is_closed():
    mine = ledger(8)
    assert mine.offer(entry(5)) is Standing.UNPROVEN
    assert mine.offer(entry(5, BOB, "v1", EVE)) is Standing.WANTED
    for round in range(1, 6):
        mine.fold(round)
    assert not mine.waiting.keys() & range(1, 6)


def test_what_was_void_and_is_not_any_more_waits_for_its_bytes_if_they_never_came():
    mine = ledger(5)
    first, second = entry(5, ANN, "v1"), entry(5, ANN, "v2", BOB)
    assert mine.take(first) is Standing.ACCEPTED
    assert mine.offer(second) is Standing.ACCEPTED  # void with the first: its bytes are not asked for
    mine.advance(8)  # the first would come too late now
    mine.reconsider([])
    assert mine.chosen(5) == {}
    assert mine.waiting[5][ANN].keys() == {"v2"}
    assert mine.take(entry(5, ANN, "v2", BOB)) is Standing.ACCEPTED
    assert mine.chosen(5) == {ANN: "v2"}


def test_equal_sets_have_equal_checks_whatever_their_order_and_receipts():
    one = ledger(5, entry(5), entry(5, BOB))
    other = ledger(5, entry(5, BOB, "v1", EVE), entry(5))
    assert one.checks == other.checks != ledger(5).checks
    assert one.offer(entry(5, BOB, "v2")) is Standing.ACCEPTED
    assert one.checks != other.checks


def test_checks_follow_what_is_taken_dropped_and_closed():
    mine = ledger(5, entry(4), entry(5), entry(5, BOB))
    mine.advance(8)
    mine.reconsider([(ContributionName(PART, 5, BOB), "v1")])
    assert mine.checks == ledger(5, entry(5, BOB)).checks
    mine.adopt(5, History())
    assert mine.checks == {}


def test_what_was_accepted_before_a_restart_is_there_again_until_it_turns_out_to_be_late():
    mine = ledger(5)
    mine.take(entry(5), vouched=True)
    mine.take(entry(4, BOB, "v1"), vouched=True)
    assert {each.name.round for each in mine.all_entries()} == {4, 5}
    mine.advance(8)
    mine.reconsider([])
    assert mine.all_entries() == []
