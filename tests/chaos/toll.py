"""What a crowd of attackers cost the honest, from what their processes said: how fast they trained before it, while it
lasted and afterwards, what memory they held, and how soon they avoided whom. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from peer.testnet.event_log import Timed
from protocol.events.activity import Finished, Injected, StepDone
from protocol.events.decisions import Avoided

LEAST_SECONDS = 3.0
"""Over less than so long, steps a second say nothing."""

START_SECONDS = 3.0
"""An attack is told of when its process says that it attacks, and may have begun a moment before."""

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class MemorySample:
    """A process's memory at a time: of itself and of its children, libp2p's daemon."""

    seconds: float
    process: str
    bytes: int


@dataclass(frozen=True, slots=True)
class HostileSighting:
    """A hostile name of the crowd with this number, what it does, and since when."""

    number: int
    seconds: float
    peer: str
    kind: str


@dataclass(frozen=True, slots=True)
class CrowdEvidence:
    """What is known of the crowds of a run beside its log. `told` is what each crowd's process has written of itself,
    by the number of its fault."""

    held: Sequence[MemorySample] = ()
    met: Sequence[HostileSighting] = ()
    told: Mapping[int, Mapping[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB of one process: right before the attack, at most while it lasted, and at the end."""

    before: float
    most: float
    after: float


@dataclass(frozen=True, slots=True)
class BanStats:
    """Of the names of one kind: how many, how many of them somebody honest avoided, and after how many seconds."""

    names: int
    avoided: int
    median_seconds: float | None
    most_seconds: float | None


@dataclass(frozen=True, slots=True)
class AttackCost:
    """One attack. Steps a second are of all honest processes together; None: nothing to measure them by."""

    attack: str
    began: float
    ended: float
    before: float | None
    during: float | None
    after: float | None
    memory: dict[str, Memory]
    shunned: dict[str, BanStats]
    told: dict[str, object]

    @property
    def most_growth(self) -> float:
        """MiB of the process that grew most."""
        return max((each.most - each.before for each in self.memory.values()), default=0.0)


def tolls(log: Sequence[Timed], witnessed: CrowdEvidence) -> list[AttackCost]:
    """The toll of every crowd in the log, in the order of their numbers."""
    times: dict[int, list[tuple[float, Injected]]] = defaultdict(list)
    for entry in log:
        if isinstance(entry.event, Injected) and entry.event.fault.startswith("crowd:"):
            times[entry.event.number].append((entry.seconds, entry.event))
    begun = {number: told for number, told in times.items() if told[0][1].begins}
    return [_toll(log, witnessed, number, told) for number, told in sorted(begun.items())]


def _toll(
    log: Sequence[Timed], witnessed: CrowdEvidence, number: int, told: list[tuple[float, Injected]]
) -> AttackCost:
    began, event = told[0]
    ended = told[-1][0] if len(told) > 1 else log[-1].seconds
    steps = [entry.seconds for entry in log if isinstance(entry.event, StepDone)]
    first_steps: dict[str, float] = {}
    for entry in log:
        if isinstance(entry.event, StepDone):
            first_steps.setdefault(entry.process, entry.seconds)
    first, last = max(first_steps.values(), default=0.0), max(steps, default=0.0)
    over = min((entry.seconds for entry in log if isinstance(entry.event, Finished)), default=log[-1].seconds)
    return AttackCost(
        attack=event.fault,
        began=began,
        ended=ended,
        before=_rate(steps, first, began),
        during=_rate(steps, began, min(ended, over)),
        after=_rate(steps, ended, last),
        memory=_memory(witnessed.held, began, ended),
        shunned=_shunned(log, [each for each in witnessed.met if each.number == number]),
        told=dict(witnessed.told.get(number, {})),
    )


def _rate(steps: Iterable[float], since: float, until: float) -> float | None:
    if until - since < LEAST_SECONDS:
        return None
    return round(sum(since < each <= until for each in steps) / (until - since), 3)


def _memory(held: Iterable[MemorySample], began: float, ended: float) -> dict[str, Memory]:
    by_process: dict[str, list[MemorySample]] = defaultdict(list)
    for each in held:
        by_process[each.process].append(each)
    found = {}
    for process, samples in sorted(by_process.items()):
        before = [each.bytes for each in samples if each.seconds <= began - START_SECONDS][-1:] or [samples[0].bytes]
        during = [each.bytes for each in samples if began < each.seconds <= ended] or before
        values = before[0], max(during), samples[-1].bytes
        found[process] = Memory(*(round(each / MEBIBYTE, 1) for each in values))
    return found


def _shunned(log: Iterable[Timed], met: Sequence[HostileSighting]) -> dict[str, BanStats]:
    first: dict[str, float] = {}
    for entry in log:
        if isinstance(entry.event, Avoided):
            first.setdefault(entry.event.peer, entry.seconds)
    found = {}
    for kind in dict.fromkeys(each.kind for each in met):
        names = [each for each in met if each.kind == kind]
        after = [max(0.0, first[each.peer] - each.seconds) for each in names if each.peer in first]
        middle, most = (round(median(after), 1), round(max(after), 1)) if after else (None, None)
        found[kind] = BanStats(len(names), len(after), middle, most)
    return found
