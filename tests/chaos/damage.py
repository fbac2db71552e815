"""What each fault of a chaos run cost, computed from the timed events of all processes. Pure.

**A replica's advance** is the sequence of its inner steps and round ends, each at the time its first member told
it. A step counts again where the same process tells it again, so work that is repeated is seen. The members are those
at the time of the fault: the processes whose latest `GroupFormed` named the same replica, or one datacenter.

**Seconds lost** by a replica: from its last advance before the fault until its first advance after all of the fault,
after its end ("resumed", "started again", "healed", …) and after the first `GroupBroken` that a member told; less
what as many advances usually take (the medians over the undisturbed run, apart for steps within a round, for the end
of a round, and for the first step of the next). Who never advances again stood still until the log's end, unless it had
done all. So a killed process counts only while its replica stands still, and a process that
joins costs nothing. A fault's seconds are those of the replica that lost most.

**Inner steps lost** by a replica: those it did twice, or began and rolled back (`GroupBroken`), from its last advance
before the fault until the next fault that meets one of its members, or the end: work that was for nothing. **Inner
steps missed**: those it never did in that time, because it stood still while the others ended the round; so they are
what the seconds lost cost. A fault's steps are the sums over its replicas. The bootstrap node is in no replica: its
faults are held against all of them.
Seconds in which a replica stood still for two faults count for both, and once in the sum of all (`seconds_lost`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from peer.telemetry.run_report import FaultDone
from peer.testnet.event_log import Timed, faults_done
from protocol.events.activity import GroupBroken, GroupFormed, Injected, Joined, RoundDone, StepDone

KINDS = ("step", "end", "start")
"""Of advances: a step within a round, a round's end, and the first step after it."""


@dataclass(frozen=True, slots=True)
class Damage(FaultDone):
    """The cost of one fault. `stood_still` is between which times its seconds were lost."""

    seconds_lost: float
    steps_lost: int
    steps_missed: int
    stood_still: tuple[float, float] | None = None


def seconds_lost(damages: Iterable[Damage]) -> float:
    """By all faults together: of those that kept a replica standing at the same time, the worst counts."""
    total = worst = 0.0
    over = float("-inf")
    for since, until, seconds in sorted((*each.stood_still, each.seconds_lost) for each in damages if each.stood_still):
        if since >= over:
            total, worst = total + worst, 0.0
        worst, over = max(worst, seconds), max(over, until)
    return round(total + worst, 3)


@dataclass(frozen=True, slots=True)
class Advance:
    """A step (from 0) or, where `step` is the number of steps, the end of a round."""

    seconds: float
    round: int
    step: int


Cost = tuple[float, tuple[float, float] | None, int, int]
"""Of a fault to one replica: seconds, between which times, and inner steps lost and missed."""

NOTHING: Cost = (0.0, None, 0, 0)


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """A fault that was done at `start` and over at `end`, and the members of each replica it met."""

    start: float
    end: float
    replicas: list[frozenset[str]]


def damages(log: Sequence[Timed], rounds: int, steps: int) -> list[Damage]:
    """The cost of every fault in the log, in the order of their numbers; the run asked for `rounds` of `steps`."""
    injected: dict[int, list[tuple[float, Injected]]] = defaultdict(list)
    for entry in log:
        if isinstance(entry.event, Injected):
            injected[entry.event.number].append((entry.seconds, entry.event))
    spans: dict[int, FaultSpan] = {}
    for number, entries in injected.items():
        if begun := [(seconds, event) for seconds, event in entries if event.begins]:
            start, event = begun[0]
            spans[number] = FaultSpan(start, entries[-1][0], _replicas_hit(log, start, set(event.processes)))
    done = list(spans.values())
    found = []
    for number, fault in zip(sorted(injected), faults_done(log), strict=True):
        span = spans.get(number)
        costs = [_cost(log, members, span, done, rounds, steps) for members in span.replicas] if span else []
        worst = max(costs, key=lambda cost: cost[0], default=NOTHING)
        found.append(
            Damage(
                *(fault.fault, fault.actions, fault.seconds, fault.place),
                seconds_lost=round(worst[0], 3),
                steps_lost=sum(lost for _, _, lost, _ in costs),
                steps_missed=sum(missed for *_, missed in costs),
                stood_still=worst[1],
            )
        )
    return found


def _replicas_hit(log: Sequence[Timed], seconds: float, hit: set[str]) -> list[frozenset[str]]:
    """The replicas that these processes are in at that time, each as the names of its members."""
    replica: dict[str, str] = {}
    for entry in log:
        if entry.seconds > seconds:
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


def _usual(advances: Sequence[Advance], steps: int, disturbed: list[tuple[float, float]]) -> dict[str, float]:
    """How long each kind of advance takes outside of the disturbed times: the median. For a kind
    that was disturbed each time a step is taken."""
    gaps: dict[str, list[float]] = defaultdict(list)
    for one, other in pairwise(advances):
        if not any(start <= other.seconds and one.seconds <= over for start, over in disturbed):
            gaps[_kind(one, other, steps)].append(other.seconds - one.seconds)
    step = median(gaps["step"]) if gaps["step"] else 0.0
    return {kind: median(gaps[kind]) if gaps[kind] else step for kind in KINDS}


def _kind(one: Advance, other: Advance, steps: int) -> str:
    if other.step == steps:
        return "end"
    return "start" if one.step == steps else "step"


def _broken(log: Sequence[Timed], members: frozenset[str], span: FaultSpan, later: float | None) -> list[Timed]:
    """What the members told of broken groups between a fault and the next one that they meet."""
    return [
        entry
        for entry in log
        if entry.process in members
        and isinstance(entry.event, GroupBroken)
        and span.start <= entry.seconds
        and (later is None or entry.seconds < later)
    ]


def _cost(
    log: Sequence[Timed], members: frozenset[str], span: FaultSpan, spans: Sequence[FaultSpan], rounds: int, steps: int
) -> Cost:
    """What one replica lost by one of the faults, `spans`."""
    advances = _advances(log, members, steps)
    if not advances:
        return NOTHING
    met = [each for each in spans if any(members & replica for replica in each.replicas)]
    later = {each.start: min((o.start for o in met if o.start > each.start), default=None) for each in met}
    over = {
        each.start: max([each.end, *(entry.seconds for entry in _broken(log, members, each, later[each.start])[:1])])
        for each in met
    }
    first = max((i for i, each in enumerate(advances) if each.seconds <= span.start), default=0)
    finished = (advances[-1].round, advances[-1].step) >= (rounds, steps)
    last = next((i for i, each in enumerate(advances) if i > first and each.seconds > over[span.start]), None)
    usual = _usual(advances, steps, list(over.items()))
    spent = advances[first : len(advances) if last is None else last + 1]
    until = log[-1].seconds if last is None and not finished else spent[-1].seconds
    expected = sum(usual[_kind(one, other, steps)] for one, other in pairwise(spent))
    seconds = max(0.0, until - spent[0].seconds - expected)
    again, never = _jumps(advances[first:], later[span.start], rounds, steps)
    lost = set(again)
    for entry in _broken(log, members, span, later[span.start]):
        assert isinstance(entry.event, GroupBroken)
        lost.add((entry.event.round, entry.event.step))
    return seconds, (spent[0].seconds, until), len(lost), len(never - lost)


def _jumps(
    advances: Sequence[Advance], until: float | None, rounds: int, steps: int
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The steps done twice, and those never done, as (round, step), up to the first advance after `until`."""
    again: set[int] = set()
    never: set[int] = set()
    places = [(each.round * steps + each.step, each.seconds) for each in advances if each.step < steps]
    for (one, _), (other, seconds) in pairwise(places):
        if until is not None and seconds > until:
            break
        never.update(range(one + 1, other))
        again.update(range(other, one + 1))
    else:
        if until is None and places:
            never.update(range(places[-1][0] + 1, (rounds + 1) * steps))
    return {divmod(place, steps) for place in again}, {divmod(place, steps) for place in never}
