"""The plan of what each replica reads in each round: given out by what has counted, so that all of the text is read
once.

The text is read along one line of *chunks*, 0, 1, 2, …: chunk c is what a replica reads in one inner step (the numbers
c · `inner.sequences` and so on of `peer/data/batches.py`). A round's *plan* gives a share to every replica whose
contributions counted lately, as many chunks as it may take inner steps, and holds a share ready for each of some
newcomers. When the round is closed, what a contribution that counts has read, the first chunks of its replica's share,
is read for good; everything else goes back, and is given out again in the next plan. So every chunk is behind exactly
one contribution that counts, or will be.

A plan must be made before its round begins, and may only follow from what all peers agree on: so that of round t +
width + 1 is made when round t is closed (`protocol/outer/window.py`: before, nobody comes to it). Like the weights, a
`Reading` is a function of the contributions that counted; it belongs to the token embedding, which all who read tokens
follow and contribute to, and travels in its snapshots.

Where no replica is ever missing, short or new, and all take H steps, each plan is the M · H next chunks, in the order
of the slots.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from protocol.errors import FormatError
from protocol.manifest import Manifest
from protocol.outer.window import Window

NEWCOMERS = 16
"""The shares that a plan holds ready for replicas that it does not know; it holds as many as it knows, if these are
more."""

ABSENT_ROUNDS = 16
"""The closed rounds after which a replica of which nothing has counted is a newcomer again."""

MOST_SEATS = 2**12
"""The replicas that have shares of their own: twice as many as a manifest begins with."""

MOST_SPANS = 2**16
"""The pieces in which text is given out and left over; of what is left over, more pieces are given up. A thousand
replicas, half of which always stop in the midst of a round, make some thousand."""

READING_BYTES = 2**23
"""The size of a reading in bytes: more than the longest has, with its pieces and the seats of all rounds that may be
open."""

OWN_ORDER = 2**100
"""The first chunk for replicas that have no share, where no plan comes: the same text, each in an order of its own."""

Span = tuple[int, int]
"""A range of chunks, from the first up to the second, which is not in it."""

Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one round: in the order of `spans`, a share for each slot of `seats`, then as many for each of some
    newcomers."""

    seats: tuple[int, ...]
    spans: Spans

    def seat(self, slot: int) -> int | None:
        """The number of a slot's share; None if it has none. Newcomers have theirs by their order among the slots not
        known."""
        if slot in self.seats:
            return self.seats.index(slot)
        unknown = slot - sum(known < slot for known in self.seats)
        return len(self.seats) + unknown if unknown < newcomers(len(self.seats)) else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading after the closed rounds: what has been read, and what is given out for the rounds that are open.

    Read for good is every chunk below `fresh` that is neither in `free` nor in a plan. `free` has pieces in rising
    order with gaps between, and one before `fresh`; `seen` are slots in rising order, each with the last round in which
    its contribution counted; `plans` are those of rounds `folded` + 1 to `folded` + 1 + width.
    """

    folded: int
    fresh: int
    free: Spans
    seen: tuple[tuple[int, int], ...]
    plans: tuple[Plan, ...]

    @property
    def planned(self) -> int:
        """The last round that is planned."""
        return self.folded + len(self.plans)

    @staticmethod
    def begin(manifest: Manifest) -> "Reading":
        """The reading before round 1: the run's first slots are known."""
        slots = tuple((slot, 0) for slot in range(manifest.replicas.total))
        reading = Reading(0, 0, (), slots, ())
        for _ in range(_plans_open(manifest)):
            reading = reading._with_plan({}, manifest)
        return reading

    def share(self, round: int, slot: int, manifest: Manifest) -> Spans:
        """The chunks that the replica of a slot may read in a round, one for each inner step, in this order."""
        steps = manifest.inner.steps_at_most
        ahead = round - self.folded - 1
        seat = self.plans[ahead].seat(slot) if 0 <= ahead < len(self.plans) else None
        if seat is None:
            first = OWN_ORDER + (slot << 64) + round * steps
            return ((first, first + steps),)
        return _cut(self.plans[ahead].spans, [seat * steps, (seat + 1) * steps])[1]

    def fold(self, read: Mapping[int, int], manifest: Manifest) -> "Reading":
        """Close the next round, in which these slots' contributions count: slot → inner steps behind it. Returns the
        reading after it."""
        steps, (plan, *later) = manifest.inner.steps_at_most, self.plans
        ends: list[int] = []
        for seat, count in sorted((seat, read[slot]) for slot in read if (seat := plan.seat(slot)) is not None):
            ends += [seat * steps, seat * steps + min(count, steps)]
        unread = [span for spans in _cut(plan.spans, ends)[::2] for span in spans]
        free, fresh = _joined([*self.free, *unread], self.fresh)
        last = dict(self.seen) | dict.fromkeys(read, self.folded + 1)
        slots_seen = [(slot, round) for slot, round in sorted(last.items()) if round > self.folded + 1 - ABSENT_ROUNDS]
        room = max(0, MOST_SPANS - sum(len(plan.spans) for plan in later))
        closed = Reading(self.folded + 1, fresh, free[:room], tuple(slots_seen[:MOST_SEATS]), tuple(later))
        return closed._with_plan(read, manifest)

    def _with_plan(self, read: Mapping[int, int], manifest: Manifest) -> "Reading":
        """Add a plan. Slots that read most come first, so that what was left over finds a reader soon. Newcomers'
        shares are so far ahead that they are back before the others come there, if nobody has come."""
        steps = manifest.inner.steps_at_most
        seats = sorted((slot for slot, _ in self.seen), key=lambda slot: (-read.get(slot, 0), slot))
        given, free, fresh = _taken(self.free, self.fresh, 0, len(seats) * steps)
        beyond = (given[-1][1] if given else 0) + _plans_open(manifest) * len(seats) * steps
        ready, free, fresh = _taken(free, fresh, beyond, newcomers(len(seats)) * steps)
        return replace(self, fresh=fresh, free=free, plans=(*self.plans, Plan(tuple(seats), given + ready)))

    def to_bytes(self) -> bytes:
        """Encode the reading in the one way there is: counts and numbers as u64, little-endian, each list behind its
        length."""
        numbers = [self.folded, self.fresh, *_listed(self.free), *_listed(self.seen)]
        for plan in self.plans:
            numbers += [len(plan.seats), *plan.seats, *_listed(plan.spans)]
        return struct.pack(f"<{len(numbers)}Q", *numbers)

    @staticmethod
    def from_bytes(data: bytes, folded: int, manifest: Manifest) -> "Reading":
        """Check the reading that another peer sent, of the state after round `folded`.

        Raises:
            FormatError: it is none that a run of this manifest can come to.
        """
        if len(data) > READING_BYTES or len(data) % 8:
            raise FormatError(f"a plan of what is read in {len(data)} bytes")
        numbers = _Numbers(struct.unpack(f"<{len(data) // 8}Q", data))
        round, fresh, free, slots_seen = numbers.one(), numbers.one(), numbers.pairs(), numbers.pairs()
        plans = tuple(Plan(numbers.many(numbers.one()), numbers.pairs()) for _ in range(_plans_open(manifest)))
        if numbers.left or round != folded:
            raise FormatError(f"a plan of what is read after round {round} in a state after round {folded}")
        reading = Reading(round, fresh, free, slots_seen, plans)
        reading._check(manifest)
        return reading

    def _check(self, manifest: Manifest) -> None:
        slots = [slot for slot, _ in self.seen]
        rounds = range(max(0, self.folded + 1 - ABSENT_ROUNDS), self.folded + 1)
        if slots != sorted({*slots}) or len(slots) > MOST_SEATS or any(last not in rounds for _, last in self.seen):
            raise FormatError("a plan of what is read with slots out of order or range")
        for plan in self.plans:
            if len({*plan.seats}) != len(plan.seats) or len(plan.seats) > MOST_SEATS:
                raise FormatError("a plan of what is read with a slot twice, or too many")
            shares = len(plan.seats) + newcomers(len(plan.seats))
            if sum(end - first for first, end in plan.spans) != shares * manifest.inner.steps_at_most:
                raise FormatError("a plan of what is read that has not a share for each")
        spans = sorted([*self.free, *(span for plan in self.plans for span in plan.spans)])
        if len(spans) > 2 * MOST_SPANS or any(first >= end for first, end in spans):
            raise FormatError("a plan of what is read in too many pieces, or in empty ones")
        if any(end > first for (_, end), (first, _) in pairwise([*spans, (self.fresh, self.fresh)])):
            raise FormatError("a plan of what is read that gives something out twice")
        if (self.free, self.fresh) != _joined(self.free, self.fresh):
            raise FormatError("a plan of what is read with pieces out of order")


def newcomers(known: int) -> int:
    """The number of newcomers for which a plan with `known` slots holds shares ready."""
    return max(NEWCOMERS, known)


def first_chunks(share: Spans, count: int) -> Spans:
    """The first chunks of a share."""
    return _cut(share, [count])[0]


def chunks(share: Spans) -> Iterator[int]:
    """The chunks of a share, one after the other."""
    return (chunk for first, end in share for chunk in range(first, end))


def _plans_open(manifest: Manifest) -> int:
    """The number of rounds that may be open at once, and one."""
    return Window.of(manifest).width + 1


def _cut(spans: Spans, places: Sequence[int]) -> list[Spans]:
    """Lay spans end to end and cut them at these places, in rising order: one piece more than there are places."""
    pieces: list[list[Span]] = [[]]
    position, at = 0, 0
    for first, end in spans:
        while at < len(places) and places[at] < position + end - first:
            middle = first + places[at] - position
            if middle > first:
                pieces[-1].append((first, middle))
            pieces.append([])
            position, first, at = places[at], middle, at + 1
        pieces[-1].append((first, end))
        position += end - first
    pieces += [[] for _ in places[at:]]
    return [tuple(piece) for piece in pieces]


def _joined(spans: Iterable[Span], fresh: int) -> tuple[Spans, int]:
    """Sort disjoint spans, and join those that touch. A span that touches `fresh` is fresh again."""
    joined: list[Span] = []
    for first, end in sorted(spans):
        if joined and joined[-1][1] == first:
            first = joined.pop()[0]
        joined.append((first, end))
    if joined and joined[-1][1] == fresh:
        fresh = joined.pop()[0]
    return tuple(joined), fresh


def _taken(free: Spans, fresh: int, start: int, count: int) -> tuple[Spans, Spans, int]:
    """Take the first `count` free chunks from `start` on. Returns (taken, free, fresh), the last two of what is
    left."""
    spans_taken: list[Span] = []
    spans_left: list[Span] = []
    for first, end in (*free, (fresh, max(fresh, start) + count)):
        begin = min(max(first, start), end)
        until = min(begin + count, end)
        count -= until - begin
        spans_taken += [(begin, until)] if begin < until else []
        spans_left += [rest for rest in ((first, begin), (until, end)) if rest[0] < rest[1]]
        fresh = max(fresh, end)
    return tuple(spans_taken), *_joined(spans_left, fresh)


def _listed(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return [len(pairs), *(number for pair in pairs for number in pair)]


@dataclass(slots=True)
class _Numbers:
    """A reader that takes numbers from front to back; a list is behind its length."""

    all: tuple[int, ...]
    at: int = 0

    @property
    def left(self) -> int:
        return len(self.all) - self.at

    def one(self) -> int:
        return self.many(1)[0]

    def many(self, count: int) -> tuple[int, ...]:
        if count > self.left:
            raise FormatError("a plan of what is read ends too early")
        self.at += count
        return self.all[self.at - count : self.at]

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Take a list of pairs: pieces of text, or slots with their rounds."""
        numbers = self.many(2 * self.one())
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))
