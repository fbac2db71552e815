"""How two peers find out what one lacks, and what an author's error feedback is charged for."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import ContributionName, Part, PeerId
from protocol.outer.history import History
from protocol.outer.ledger import Entry, Ledger
from protocol.outer.set_difference import KEPT_ROUNDS, Authored, different, entries, lacking_keys, summary
from protocol.outer.window import Window

PART = Part("stage-0")
ME = PeerId("me")
names = st.builds(ContributionName, st.just(PART), st.integers(3, 6), st.sampled_from([PeerId("a"), PeerId("b")]))
some = st.frozensets(st.tuples(names, st.sampled_from(["v1", "v2"])), max_size=8)


def holding(me: str, held: frozenset[tuple[ContributionName, str]]) -> Ledger:
    ledger = Ledger(PART, PeerId(me), Window(grace=3, liars=0), clock=6)
    for name, version in sorted(held):
        ledger.take(Entry(name, version, 9))
    return ledger


@given(some, some)
def test_after_comparing_both_ways_both_hold_everything(held, others_held):
    one, other = holding("one", held), holding("other", others_held)
    for asking, asked in ((one, other), (other, one)):
        for entry in entries(asked, lacking_keys(asking, different(asked, summary(asking)))):
            asking.take(Entry(entry.name, entry.sha256, entry.size))
    assert one.checks == other.checks
    for round in range(3, 7):
        assert one.chosen(round) == other.chosen(round)


@given(some)
def test_who_comes_from_an_older_state_is_told_what_the_other_has_closed(held):
    """And accepts it by the word of enough others, which is given here."""
    one, behind = holding("one", held), Ledger(PART, PeerId("behind"), Window(grace=3, liars=0), folded=2)
    for round in range(1, 7):
        one.advance(round + one.window.width + 1)
        if accepted := one.entries(round):
            one.closed[round] = accepted
        one.fold(round)
    behind.advance(one.clock)
    for entry in entries(one, lacking_keys(behind, different(one, summary(behind)))):
        behind.take(Entry(entry.name, entry.sha256, entry.size), vouched=True)
    for round in range(3, 7):
        behind.fold(round)
    assert behind.history == one.history
    assert different(one, summary(behind)) == []


@given(some)
def test_equal_sets_have_nothing_to_say(held):
    assert different(holding("one", held), summary(holding("other", held))) == []


def test_what_the_other_has_closed_is_not_offered():
    one, other = holding("one", frozenset({(ContributionName(PART, 3, PeerId("a")), "v1")})), holding("o", frozenset())
    other.adopt(3, History())
    assert different(one, summary(other)) == []


def test_what_waits_for_receipts_is_asked_for_again():
    name = ContributionName(PART, 3, PeerId("a"))
    late = holding("late", frozenset())
    late.advance(7)
    late.take(Entry(name, "v1", 9))
    has = holding("has", frozenset({(name, "v1")}))
    assert len(lacking_keys(late, different(has, summary(late)))) == 1


def closed(folded: int, *counting: int) -> Ledger:
    ledger = Ledger(PART, ME, Window(grace=2, liars=0), folded + 5, folded)
    for round in counting:
        ledger.history.add(round, [ME])
    return ledger


def test_what_a_state_closed_without_it_goes_back_once_and_is_taken_again_when_it_counts():
    authored, sent = Authored(), [ContributionName(PART, round, ME) for round in range(1, 5)]
    for name in sent:
        authored.send(name)
    assert authored.adopt(closed(3, 1)) == (sent[1:3], [])
    assert authored.adopt(closed(3, 1)) == ([], [])
    assert authored.adopt(closed(3, 1, 3)) == ([], [sent[2]])
    assert authored.adopt(closed(4, 2, 3, 4)) == ([sent[0]], [sent[1]])


def test_an_author_forgets_what_is_long_past():
    authored = Authored()
    for round in range(1, KEPT_ROUNDS + 4):
        authored.send(ContributionName(PART, round, ME))
    assert min(authored.sent) == 4
