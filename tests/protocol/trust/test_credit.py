from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import PeerId, ReplicaId, stage_part
from protocol.trust.credit import RoundCredit, by_round, microbatch_tokens, standing
from protocol.trust.receipts import CountedReceipt, Receipt, Work
from tests.reference.small_manifest import small_manifest

ME = PeerId("me")


def seen(by: str, pairs: int, beside: int, round: int = 1, since: int = 1) -> Work:
    who, group = PeerId(by), ReplicaId("leader")
    return Work(who, ME, round, group, 1, beside, since, 1, pairs, pairs, 10 * pairs)


def counts(by: str, sha256: str = "ab" * 32, round: int = 1) -> CountedReceipt:
    return CountedReceipt(PeerId(by), ME, round, stage_part(1), sha256, 12)


def test_of_a_round_the_last_of_each_signer_stands():
    early, late = seen("a", 5, 0), seen("a", 9, 0)
    assert standing([early, late]) == standing([late, early]) == standing([late, late]) == [late]


def test_two_neighbours_that_saw_the_same_work_do_not_make_it_twice_as_much():
    (credit,) = by_round([seen("a", 9, 0), seen("b", 7, 2)])
    assert (credit.tokens, credit.microbatches, credit.tokens_of_both) == (90, 9, 70)
    assert credit.neighbours == ("a", "b")
    assert not credit.counts


def test_neighbours_of_one_side_that_followed_each_other_add_up_as_do_starts_of_one():
    (credit,) = by_round([seen("a", 4, 0), seen("heir", 5, 0), seen("b", 3, 2), seen("b", 6, 2, since=2)])
    assert (credit.tokens, credit.tokens_of_both) == (90, 90)


def test_a_contribution_counts_if_nobody_names_another():
    (credit,) = by_round([counts("a"), counts("b")])
    assert credit == RoundCredit(1, counted_by=(PeerId("a"), PeerId("b")), steps=12)
    assert credit.counts
    (torn,) = by_round([counts("a"), counts("b", "cd" * 32)])
    assert torn.contradicted
    assert not torn.counts


receipts = st.lists(
    st.one_of(
        st.builds(seen, st.sampled_from("abc"), st.integers(0, 9), st.sampled_from([0, 2]), st.integers(1, 3)),
        st.builds(counts, st.sampled_from("abc"), round=st.integers(1, 3)),
    ),
    max_size=12,
)


@given(receipts, st.randoms())
def test_order_and_repetition_change_nothing(found: list[Receipt], chance):
    again = [*found, *(each for each in found if chance.random() < 0.5)]
    chance.shuffle(again)
    assert by_round(again) == by_round(found)


@given(receipts, st.sampled_from("abc"), st.integers(0, 9))
def test_one_more_receipt_never_takes_tokens_away(found: list[Receipt], by: str, pairs: int):
    before = sum(each.tokens for each in by_round(found))
    assert sum(each.tokens for each in by_round([*found, seen(by, pairs, 0)])) >= before


@given(receipts)
def test_tokens_are_the_plain_sum_of_a_sides_signers(found: list[Receipt]):
    largest: dict[tuple[int, int, str], int] = {}
    for each in found:
        if isinstance(each, Work):
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
