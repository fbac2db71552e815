"""What each fault of a chaos run cost, computed from the timed events of all processes. Pure.

**A replica's advance** is the sequence of its inner steps and round ends, each at the time its first member told
it. A step counts again where the same process tells it again, so work that is repeated is seen. The members are those
at the time of the fault: the processes whose latest `GroupFormed` named the same replica, or one datacenter.

**Seconds lost** by a replica: from its last advance before the fault until its first advance after all of the fault,
after its end ("resumed", "started again", "healed", …) and after the first `GroupBroken` that a member told; less
what as many advances usually take (the medians over the whole run, apart for steps within a round, for the end of a
round, and for the first step of the next). Who never advances again stood still until the log's end, unless it had
done all. So a killed process counts only while its replica stands still, and a process that
joins costs nothing. A fault's seconds are those of the replica that lost most.

**Inner steps lost** by a replica: the steps it did twice, never, or began and rolled back (`GroupBroken`), from
its last advance before the fault until the next fault that meets one of its members, or the end. A fault's steps
are the sum over its replicas. The bootstrap node is in no replica: its faults are held against all of them.
Seconds in which a replica stood still for two faults count for both.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from peer.events import Event, GroupBroken, GroupFormed, Injected, Joined, RoundDone, StepDone


@dataclass(frozen=True, slots=True)
class Timed:
    """What a process said, and when, in seconds since the testnet's start."""

    seconds: float
    process: str
    event: Event


@dataclass(frozen=True, slots=True)
class Damage:
    """What one fault was and cost. `place` is the round and inner step (from 1) that the swarm had reached; `actions`
    are in words. `seconds` None: it was never done."""

    fault: str
    actions: list[str]
    seconds: float | None
    place: tuple[int, int]
    seconds_lost: float
    steps_lost: int


@dataclass(frozen=True, slots=True)
class Advance:
    """A step (from 0) or, where `step` is the number of steps, the end of a round."""

    seconds: float
    round: int
    step: int


def damages(log: Sequence[Timed], rounds: int, steps: int) -> list[Damage]:
    """What every fault in the log cost, in the order of their numbers; the run asked for `rounds` of `steps`."""
    faults: dict[int, list[Timed]] = defaultdict(list)
    for entry in log:
        if isinstance(entry.event, Injected):
            faults[entry.event.number].append(entry)
    begun = {number: _begun(entries) for number, entries in faults.items()}
    hits = {number: _replicas_hit(log, entry) for number, entry in begun.items() if entry is not None}
    return [_damage(log, faults[number], begun, hits, number, rounds, steps) for number in sorted(faults)]


def _begun(entries: list[Timed]) -> Timed | None:
    return next((entry for entry in entries if isinstance(entry.event, Injected) and entry.event.begins), None)


def _damage(
    log: Sequence[Timed],
    faults: list[Timed],
    begun: dict[int, Timed | None],
    hits: dict[int, list[frozenset[str]]],
    number: int,
    rounds: int,
    steps: int,
) -> Damage:
    events = [entry.event for entry in faults if isinstance(entry.event, Injected)]
    actions = [_words(event) for event in events]
    start = begun[number]
    if start is None:
        return Damage(events[0].fault, actions, None, _reached(log, faults[0].seconds), 0.0, 0)
    end = max(entry.seconds for entry in faults)
    costs = []
    for members in hits[number]:
        later = [
            entry.seconds
            for other, entry in begun.items()
            if entry is not None and entry.seconds > start.seconds and _meet(members, hits[other])
        ]
        costs.append(_cost(log, members, start.seconds, end, min(later, default=None), rounds, steps))
    lost = max((seconds for seconds, _ in costs), default=0.0)
    place = _reached(log, start.seconds)
    return Damage(events[0].fault, actions, start.seconds, place, round(lost, 3), sum(count for _, count in costs))


def _words(event: Injected) -> str:
    """Whom an end is of is known from the beginning."""
    if event.begins:
        return f"{event.action} {event.reason or '; '.join(event.processes)}"
    return f"{event.action} {'; '.join(event.processes)}: {event.reason}" if event.reason else event.action


def _meet(members: frozenset[str], replicas: list[frozenset[str]]) -> bool:
    return any(members & other for other in replicas)


def _reached(log: Sequence[Timed], seconds: float) -> tuple[int, int]:
    done = [(e.event.round, e.event.step + 1) for e in log if e.seconds <= seconds and isinstance(e.event, StepDone)]
    return max(done, default=(0, 0))


def _replicas_hit(log: Sequence[Timed], fault: Timed) -> list[frozenset[str]]:
    """The replicas that a fault meets, each as the names of its members at that time."""
    assert isinstance(fault.event, Injected)
    replica: dict[str, str] = {}
    for entry in log:
        if entry.seconds > fault.seconds:
            break
        match entry.event:
            case GroupFormed(name):
                replica[entry.process] = name
            case Joined(peer, "datacenter"):
                replica[entry.process] = peer
            case _:
                pass
    members: dict[str, set[str]] = defaultdict(set)
    for process, name in replica.items():
        members[name].add(process)
    hit = set(fault.event.processes)
    everybody = "bootstrap" in hit
    return [frozenset(each) for each in members.values() if everybody or each & hit]


def _advances(log: Iterable[Timed], members: frozenset[str], steps: int) -> list[Advance]:
    told: Counter[tuple[str, int, int]] = Counter()
    seen: set[tuple[int, int, int]] = set()
    advances = []
    for entry in log:
        if entry.process not in members or not isinstance(entry.event, StepDone | RoundDone):
            continue
        place = (entry.event.round, entry.event.step if isinstance(entry.event, StepDone) else steps)
        told[entry.process, *place] += 1
        key = (*place, told[entry.process, *place])
        if key not in seen:
            seen.add(key)
            advances.append(Advance(entry.seconds, *place))
    return advances


def _usual(advances: Sequence[Advance], steps: int) -> dict[str, float]:
    gaps: dict[str, list[float]] = defaultdict(list)
    for one, other in pairwise(advances):
        gaps[_kind(one, other, steps)].append(other.seconds - one.seconds)
    return {kind: median(lengths) for kind, lengths in gaps.items()}


def _kind(one: Advance, other: Advance, steps: int) -> str:
    if other.step == steps:
        return "end of a round"
    return "start of a round" if one.step == steps else "step"


def _cost(
    log: Sequence[Timed],
    members: frozenset[str],
    start: float,
    end: float,
    next_fault: float | None,
    rounds: int,
    steps: int,
) -> tuple[float, int]:
    """Seconds and inner steps that one replica lost by one fault, done at `start` and over at `end`."""
    advances = _advances(log, members, steps)
    if not advances:
        return 0.0, 0
    broken = [
        entry
        for entry in log
        if entry.process in members
        and isinstance(entry.event, GroupBroken)
        and start <= entry.seconds
        and (next_fault is None or entry.seconds < next_fault)
    ]
    over = max([end, *(entry.seconds for entry in broken[:1])])
    first = max((i for i, each in enumerate(advances) if each.seconds <= start), default=0)
    finished = (advances[-1].round, advances[-1].step) >= (rounds, steps)
    last = next((i for i, each in enumerate(advances) if i > first and each.seconds > over), None)
    usual = _usual(advances, steps)
    spent = advances[first : len(advances) if last is None else last + 1]
    until = log[-1].seconds if last is None and not finished else spent[-1].seconds
    expected = sum(usual[_kind(one, other, steps)] for one, other in pairwise(spent))
    seconds = max(0.0, until - spent[0].seconds - expected)
    lost = set(_jumps(advances[first:], next_fault, rounds, steps))
    for entry in broken:
        assert isinstance(entry.event, GroupBroken)
        lost.add((entry.event.round, entry.event.step))
    return seconds, len(lost)


def _jumps(advances: Sequence[Advance], until: float | None, rounds: int, steps: int) -> Iterator[tuple[int, int]]:
    """The steps done twice or never, as (round, step), up to the first advance after `until`."""
    places = [((each.round - 1) * steps + each.step, each.seconds) for each in advances if each.step < steps]
    if not places:
        return
    for (one, _), (other, seconds) in pairwise(places):
        if until is not None and seconds > until:
            return
        missing = range(one + 1, other) if other > one else range(other, one + 1)
        yield from ((place // steps + 1, place % steps) for place in missing)
    if until is None:
        yield from ((place // steps + 1, place % steps) for place in range(places[-1][0] + 1, rounds * steps))
