"""Whom to tell, with whom to compare, what to fetch from whom."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.network.gossip_policy import ALL_CONTACTS, FANOUT, compare_seconds, partners, read_seconds, some
from peer.network.wanted import BLOB_FETCHES, FETCHES_FROM_ONE, MOST_SOURCES, Wanted
from protocol.patience import RECORD_SECONDS

seeds = st.integers(0, 2**32)


def wanting(keys: int, *sources: str) -> Wanted[int, str]:
    wanted: Wanted[int, str] = Wanted()
    for key in range(keys):
        for source in sources:
            wanted.want(key, source)
    return wanted


@given(st.integers(0, 40), st.integers(0, 40), seeds)
def test_some_are_so_many_of_them_and_none_twice(known, count, seed):
    chosen = some(range(known), count, Random(seed))
    assert len(chosen) == len(set(chosen)) == min(known, count)


def test_in_a_small_swarm_all_are_compared_with_and_in_a_large_one_a_few():
    assert partners(range(5), range(5, ALL_CONTACTS), Random(1)) == list(range(ALL_CONTACTS))
    assert len(partners((), range(ALL_CONTACTS + 1), Random(1))) == FANOUT


@given(st.integers(1, 40), seeds)
def test_a_hundred_names_do_not_keep_news_from_those_who_train(training, seed):
    chosen = partners(range(training), range(1000, 1100), Random(seed))
    assert len([each for each in chosen if each < 1000]) == min(training, FANOUT)
    assert len([each for each in chosen if each >= 1000]) == max(1, FANOUT - training)  # any of them may be honest


@pytest.mark.parametrize("heard_before", [True, False])
def test_beside_strangers_who_give_nothing_one_that_has_given_something_is_tried(heard_before):
    wanted = wanting(1, "proven")
    assert wanted.choose(Random(1)) == (0, "proven")
    wanted.fetched("proven", 1e6)
    wanted.drop(0)
    wanted.want(1, "stranger")
    assert wanted.choose(Random(1)) == (1, "stranger")
    if heard_before:
        wanted.add_source([1], "proven")
        assert wanted.choose(Random(1)) is None
    wanted.retry_elsewhere(1)
    wanted.add_source([1], "another stranger")
    if not heard_before:
        assert wanted.choose(Random(1)) is None
        wanted.add_source([1], "proven")
    assert wanted.choose(Random(1)) == (1, "proven")
    wanted.fetched("another proven", 1e6)
    wanted.add_source([1], "another proven")
    assert wanted.choose(Random(1)) is None  # one of them is enough
    wanted.drop(1)
    assert not wanted.doubted


def test_in_a_large_swarm_comparisons_and_reads_are_rarer_but_no_record_dies_unseen():
    assert compare_seconds(1) == compare_seconds(100) == compare_seconds(1000) / 10
    assert read_seconds(1) == read_seconds(50) < read_seconds(500) <= read_seconds(10**6) < RECORD_SECONDS


def test_an_entry_is_asked_for_once_and_whoever_else_has_it_is_remembered():
    wanted: Wanted[int, str] = Wanted()
    assert wanted.add_source([1, 2], "a") == [1, 2]
    assert wanted.add_source([1, 2, 3], "b") == [3]
    assert wanted.want(1, "a")
    assert not wanted.want(1, "c")
    assert wanted.sources == {1: ["a", "b", "c"]}
    assert wanted.add_source([1], "d") == []
    assert wanted.sources[1][-1] == "d"


def test_what_was_asked_for_in_vain_is_asked_for_again():
    wanted: Wanted[int, str] = Wanted()
    wanted.add_source([1], "a")
    wanted.forget([1])
    assert wanted.add_source([1], "b") == [1]


def test_only_so_many_sources_are_remembered():
    wanted = wanting(1, *map(str, range(1000)))
    assert len(wanted.sources[0]) == MOST_SOURCES


@given(st.integers(1, 60), st.integers(1, 5), seeds)
def test_only_so_much_is_under_way_in_all_and_from_one(keys, sources, seed):
    wanted = wanting(keys, *map(str, range(sources)))
    chosen = []
    while (choice := wanted.choose(Random(seed))) is not None:
        chosen.append(choice)
    from_one = FETCHES_FROM_ONE[1]
    assert len(chosen) == min(keys, BLOB_FETCHES, from_one * sources)
    assert len({key for key, _ in chosen}) == len(chosen)
    assert all([each for _, each in chosen].count(source) <= from_one for _, source in chosen)


def test_the_quicker_source_is_asked_until_it_has_more_to_do():
    wanted = wanting(1, "slow", "quick")
    for source, speed in (("slow", 1.0), ("quick", 3.5)):
        wanted.under_way += 1
        wanted.busy[source] += 1
        wanted.fetched(source, speed)
    chance, asked = Random(1), []
    for key in range(1, 6):
        wanted.want(key, "slow")
        wanted.want(key, "quick")
    while (choice := wanted.choose(chance)) is not None:
        asked.append(choice[1])
    assert asked[:4] == ["quick", "quick", "quick", "slow"]


def test_what_fails_at_one_comes_from_another_and_without_another_it_can_be_asked_for_again():
    wanted = wanting(1, "a", "b")
    _, first = wanted.choose(Random(1)) or (0, "")
    assert wanted.failed(0, first)
    _, second = wanted.choose(Random(1)) or (0, "")
    assert {first, second} == {"a", "b"}
    assert not wanted.failed(0, second)
    assert wanted.under_way == 0
    assert wanted.add_source([0], "c") == [0]


@given(st.lists(st.sampled_from(["choose", "came", "failed", "want"]), max_size=80), seeds)
def test_whatever_happens_every_key_is_waiting_or_under_way_or_done(steps, seed):
    chance, wanted, flying, keys = Random(seed), wanting(6, "a", "b"), [], 6
    for step in steps:
        if step == "want":
            wanted.want(keys, chance.choice("abc"))
            keys += 1
        elif step == "choose":
            choice = wanted.choose(chance)
            flying += [choice] if choice else []
        elif flying:
            key, source = flying.pop(chance.randrange(len(flying)))
            if step == "came":
                wanted.fetched(source, 1.0)
                wanted.drop(key)
            else:
                wanted.failed(key, source)
        assert sorted([*wanted.waiting, *(key for key, _ in flying)]) == sorted(wanted.sources)
        assert wanted.under_way == len(flying) == sum(wanted.busy.values())


def test_when_a_stranger_that_was_doubted_fails_another_stranger_is_tried():
    wanted = wanting(1, "stranger", "another")
    wanted.speeds["proven"] = 1e6
    key, first = wanted.choose(Random(1))
    wanted.retry_elsewhere(key)
    assert wanted.choose(Random(1)) is None  # nobody proven has it
    assert wanted.failed(key, first)
    choice = wanted.choose(Random(1))
    assert choice is not None
    assert choice[1] != first
