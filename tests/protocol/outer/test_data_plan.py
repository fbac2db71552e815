"""Every chunk is behind one contribution that counts, whoever comes, goes, is late, short or killed."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.manifest import Manifest
from protocol.outer import data_plan as module
from protocol.outer.data_plan import OWN_ORDER, READING_BYTES, Plan, Reading, Spans, chunks, first_chunks
from protocol.outer.window import Window
from tests.reference.read_once import ReadOnce
from tests.reference.small_manifest import small_manifest

Counted = dict[int, int]
"""Slot → inner steps behind its contribution, of those that count in one round."""


def manifest_of(replicas: int, steps: int, grace: int = 2, liars: int = 0, more: int = 0) -> Manifest:
    """`more`: so many steps more than H may a replica take."""
    return small_manifest(
        replicas={"groups": replicas, "datacenters": 0},
        inner={"steps": steps, "most_steps": steps + more if more else 0, "sequences": 2, "microbatch": 1},
        outer={"grace": grace, "liars": liars, "weights": "steps" if more else "equal"},
    )


def chunks_of(spans: Spans) -> list[int]:
    return [each for first, end in spans for each in range(first, end)]


def plans_open(manifest: Manifest) -> int:
    return Window(manifest.outer.grace, manifest.outer.liars).width + 1


manifests = st.builds(
    manifest_of,
    st.integers(1, 4),
    st.integers(1, 5),
    grace=st.integers(2, 3),
    liars=st.integers(0, 1),
    more=st.sampled_from([0, 0, 1, 3]),
)
slots = st.one_of(st.integers(0, 6), st.integers(0, 40))
rounds = st.lists(st.dictionaries(slots, st.integers(1, 5), max_size=6), min_size=1, max_size=40)
"""Who contributes, in each round, and after how many steps: comes, goes, is short, or missing, all at random."""


def run(manifest: Manifest, rounds: list[Counted]) -> tuple[Reading, list[int]]:
    """The reading after these rounds, each with what counted in it, and the chunks that were read for good."""
    reading = Reading.begin(manifest)
    read: list[int] = []
    for number, counted in enumerate(rounds, start=1):
        for slot, steps in counted.items():
            read += chunks_of(reading.share(number, slot, manifest))[:steps]
        reading = reading.fold(counted, manifest)
    return reading, read


# What must hold whatever happens


@given(manifests, rounds)
@settings(max_examples=60, deadline=None)
def test_it_says_what_the_plain_reference_says(manifest: Manifest, rounds: list[Counted]) -> None:
    plain = ReadOnce(manifest.replicas.total, manifest.inner.steps_at_most, plans_open(manifest))
    reading = Reading.begin(manifest)
    for counted in [*rounds, {}]:
        for round in plain.plans:
            for slot in {*range(30), *counted}:
                share = chunks_of(reading.share(round, slot, manifest))
                expected = plain.share(round, slot)
                assert share == expected if expected is not None else share[0] >= OWN_ORDER
        plain.fold(counted)
        reading = reading.fold(counted, manifest)


@given(manifests, rounds)
@settings(max_examples=100, deadline=None)
def test_every_chunk_is_read_once_given_out_once_or_free(manifest: Manifest, rounds: list[Counted]) -> None:
    reading, read = run(manifest, rounds)
    read = [each for each in read if each < OWN_ORDER]
    out = [each for plan in reading.plans for each in chunks_of(plan.spans)]
    everything = [*read, *out, *chunks_of(reading.free)]
    assert sorted(everything) == list(range(reading.fresh))


@given(manifests, rounds)
@settings(max_examples=60, deadline=None)
def test_what_was_left_over_is_read_as_soon_as_somebody_reads(manifest: Manifest, rounds: list[Counted]) -> None:
    """No gap stays: a few whole rounds later, everything is read below what is given out."""
    reading, read = run(manifest, rounds)
    gaps = {*range(reading.fresh)} - {*read}
    whole = {0: manifest.inner.steps_at_most}
    for number in range(len(rounds) + 1, len(rounds) + 2 * plans_open(manifest) + len(gaps) + 1):
        read += chunks_of(reading.share(number, 0, manifest))
        reading = reading.fold(whole, manifest)
    assert gaps <= {*read}


@given(manifests, rounds)
@settings(max_examples=60, deadline=None)
def test_no_two_replicas_have_the_same_chunk_in_any_open_rounds(manifest: Manifest, rounds: list[Counted]) -> None:
    reading, _ = run(manifest, rounds)
    open = range(reading.folded + 1, reading.folded + 1 + plans_open(manifest))
    shares = [chunks_of(reading.share(round, slot, manifest)) for round in open for slot in range(50)]
    assert {len(share) for share in shares} == {manifest.inner.steps_at_most}
    assert len({*chain(*shares)}) == len(list(chain(*shares)))


@given(manifests, rounds, st.data())
@settings(max_examples=60, deadline=None)
def test_a_share_is_the_same_from_when_it_is_planned_until_its_round_is_closed(
    manifest: Manifest, rounds: list[Counted], data: st.DataObject
) -> None:
    """So peers whose clocks differ, who have been restarted, or have come since, read what was meant for them."""
    readings = [Reading.begin(manifest)]
    for counted in rounds:
        reading = readings[-1].fold(counted, manifest)
        if data.draw(st.booleans()):
            reading = Reading.from_bytes(reading.to_bytes(), reading.folded, manifest)
        readings.append(reading)
    for folded, reading in enumerate(readings):
        for later in readings[folded : folded + plans_open(manifest)]:
            round = folded + plans_open(manifest)
            assert later.share(round, 3, manifest) == reading.share(round, 3, manifest)


@given(manifests, rounds)
@settings(max_examples=60, deadline=None)
def test_it_says_nothing_of_rounds_before_but_what_is_left_over(manifest: Manifest, rounds: list[Counted]) -> None:
    """Bounded: no more is left over than was ever given out at once."""
    reading, _ = run(manifest, rounds)
    most = max(6, manifest.replicas.total)  # of whom something counts in a round
    seats = most * module.ABSENT_ROUNDS
    shares = plans_open(manifest) * (seats + max(module.NEWCOMERS, seats))
    assert sum(end - first for first, end in reading.free) <= 2 * shares * manifest.inner.steps_at_most
    assert len(reading.seen) <= seats


# A run in which nothing goes wrong


@given(manifests, st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_with_all_replicas_in_all_rounds_each_round_is_the_next_chunks_by_slot(manifest: Manifest, last: int) -> None:
    reading, replicas, steps = Reading.begin(manifest), manifest.replicas.total, manifest.inner.steps_at_most
    for round in range(1, last + 1):
        for slot in range(replicas):
            first = ((round - 1) * replicas + slot) * steps
            assert reading.share(round, slot, manifest) == ((first, first + steps),)
        reading = reading.fold(dict.fromkeys(range(replicas), steps), manifest)
    assert reading.seen == tuple((slot, last) for slot in range(replicas))
    # What is held ready for newcomers leaves no trace.
    assert len(reading.free) <= 2 * plans_open(manifest)


# Single cases


@pytest.fixture
def manifest() -> Manifest:
    """Two replicas, four steps; a round is closed five rounds later."""
    return manifest_of(2, 4)


def fold(reading: Reading, manifest: Manifest, *rounds: Mapping[int, int]) -> Reading:
    for counted in rounds:
        reading = reading.fold(counted, manifest)
    return reading


BOTH = {0: 4, 1: 4}


def test_what_an_absent_replica_left_is_read_by_the_other(manifest: Manifest) -> None:
    reading = fold(Reading.begin(manifest), manifest, {0: 4})
    assert reading.share(6, 0, manifest) == ((4, 8),)  # what was meant for slot 1 in round 1
    assert reading.share(6, 1, manifest) == ((40, 44),)


def test_what_a_short_round_left_goes_to_who_reads_most(manifest: Manifest) -> None:
    reading = fold(Reading.begin(manifest), manifest, {0: 1, 1: 4})
    assert reading.share(6, 1, manifest) == ((1, 4), (40, 41))
    assert reading.share(6, 0, manifest) == ((41, 45),)


def test_a_newcomer_has_a_share_at_once_and_one_of_its_own_when_it_has_counted(manifest: Manifest) -> None:
    reading = Reading.begin(manifest)
    ready = reading.share(1, 2, manifest)
    assert not {*chunks_of(ready)} & {*range(40)}  # far from what the others read meanwhile
    reading = fold(reading, manifest, BOTH | {2: 4})
    assert ready == ((48, 52),)
    assert [reading.share(6, slot, manifest) for slot in range(3)] == [((40, 44),), ((44, 48),), ((52, 56),)]


def test_more_newcomers_than_a_plan_is_ready_for_read_in_orders_of_their_own(manifest: Manifest) -> None:
    reading = Reading.begin(manifest)
    assert reading.share(1, 2 + module.NEWCOMERS - 1, manifest)[0][0] < OWN_ORDER
    beside = [reading.share(round, 2 + module.NEWCOMERS + more, manifest) for round in (1, 2) for more in (0, 1)]
    assert len({*chain(*map(chunks_of, beside))}) == 16
    assert min(chain(*map(chunks_of, beside))) >= OWN_ORDER


def test_who_is_away_for_long_has_no_share_of_its_own_any_more(manifest: Manifest) -> None:
    reading = fold(Reading.begin(manifest), manifest, *[{1: 4}] * (module.ABSENT_ROUNDS - 1))
    assert 0 in reading.plans[-1].seats
    reading = fold(reading, manifest, {1: 4})
    assert reading.plans[-1].seats == (1,)
    assert reading.seen == ((1, module.ABSENT_ROUNDS),)


def test_a_round_that_is_closed_or_not_planned_is_read_in_an_order_of_ones_own(manifest: Manifest) -> None:
    reading = fold(Reading.begin(manifest), manifest, BOTH)
    for round in (1, 7):
        assert reading.share(round, 0, manifest)[0][0] >= OWN_ORDER


def test_a_run_that_nobody_contributed_to_gives_all_to_newcomers(manifest: Manifest) -> None:
    reading = fold(Reading.begin(manifest), manifest, *[{}] * (module.ABSENT_ROUNDS + 5))
    assert reading.seen == ()
    assert reading.share(module.ABSENT_ROUNDS + 10, 0, manifest)[0][0] < OWN_ORDER


def test_more_pieces_than_there_may_be_are_given_up(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 20)
    reading = Reading.begin(manifest)
    for _ in range(10):
        reading = reading.fold(dict.fromkeys(range(0, 16, 2), 1), manifest)
    pieces = len(reading.free) + sum(len(plan.spans) for plan in reading.plans)
    assert pieces <= 40
    assert Reading.from_bytes(reading.to_bytes(), 10, manifest) == reading


def test_more_replicas_than_there_may_be_have_no_seats(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SEATS", 3)
    reading = Reading.begin(manifest).fold(dict.fromkeys(range(5), 4), manifest)
    assert reading.plans[-1].seats == (0, 1, 2)


def test_the_places_of_a_share() -> None:
    share: Spans = ((3, 5), (9, 10))
    assert [*chunks(share)] == [3, 4, 9]
    assert [first_chunks(share, count) for count in range(5)] == [(), ((3, 4),), ((3, 5),), share, share]


# On the wire


@given(manifests, rounds)
@settings(max_examples=40, deadline=None)
def test_bytes_say_all_of_it(manifest: Manifest, rounds: list[Counted]) -> None:
    reading, _ = run(manifest, rounds)
    data = reading.to_bytes()
    assert len(data) <= READING_BYTES
    assert Reading.from_bytes(data, len(rounds), manifest) == reading


@given(manifests, rounds, st.data())
@settings(max_examples=100, deadline=None)
def test_other_bytes_are_refused_or_mean_something_else(
    manifest: Manifest, rounds: list[Counted], data: st.DataObject
) -> None:
    reading, _ = run(manifest, rounds)
    good = bytearray(reading.to_bytes())
    at = data.draw(st.integers(0, len(good) // 8 - 1))
    good[8 * at : 8 * at + 8] = data.draw(st.integers(0, 2**64 - 1) | st.integers(0, 100)).to_bytes(8, "little")
    try:
        other = Reading.from_bytes(bytes(good), reading.folded, manifest)
    except FormatError:
        return
    assert other.to_bytes() == bytes(good)
    other.fold({0: 1}, manifest).fold({}, manifest)  # and nothing breaks by it


def test_a_reading_that_no_run_comes_to_is_refused(manifest: Manifest) -> None:
    reading = fold(Reading.begin(manifest), manifest, BOTH, {0: 2})
    plan, *later = reading.plans
    (first, end), fresh = reading.free[0], reading.fresh
    refused = [
        ("gives something out twice", replace(reading, fresh=reading.free[-1][1] - 1)),
        ("gives something out twice", replace(reading, free=(plan.spans[0], *reading.free))),
        ("pieces out of order", replace(reading, free=((first + 2, end), (first, first + 1)))),
        ("pieces out of order", replace(reading, free=((first, first + 1), (first + 1, end)))),
        ("pieces out of order", replace(reading, free=((fresh, fresh + 1),), fresh=fresh + 1)),
        ("slots out of order", replace(reading, seen=((1, 1), (0, 1)))),
        ("or range", replace(reading, seen=((0, 3),))),
        ("a slot twice", replace(reading, plans=(Plan((0, 0), plan.spans), *later))),
        ("has not a share for each", replace(reading, plans=(Plan((0, 1, 2), plan.spans[:1]), *later))),
        ("empty ones", replace(reading, free=((5, 5), *reading.free))),
        ("after round 3 in a state after round 2", replace(reading, folded=3)),
        ("ends too early", replace(reading, plans=tuple(later))),
        ("after round 2 in a state after round 2", replace(reading, plans=(plan, *reading.plans))),
    ]
    for words, made in refused:
        with pytest.raises(FormatError, match=words):
            Reading.from_bytes(made.to_bytes(), 2, manifest)
    for data in (b"", b"seven b", bytes(READING_BYTES + 8), (2**63).to_bytes(8, "little") * 9):
        with pytest.raises(FormatError, match="a plan of what is read"):
            Reading.from_bytes(data, 2, manifest)
