"""A pipeline in virtual time: stages that follow `Schedule` over links that carry one frame after another."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from peer.compute.schedule import Action, Backward, Forward, Schedule


@dataclass
class Played:
    """What became of one inner step. `actions` of each stage in order; `waited`: in whom each stage saw the fault
    whenever it stood still (stage, neighbour), with no frame under way."""

    seconds: float = 0.0
    busy: list[float] = field(default_factory=list)
    actions: list[list[Action]] = field(default_factory=list)
    most_in_flight: list[int] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    """From the first forward pass of each stage but the last until its gradients came."""


def play(
    stages: int,
    microbatches: int,
    depths: list[int],
    seconds: Callable[[int, Action], float],
    carry: Callable[[int, Action], float],
    latency: float = 0.0,
    one_uplink: bool = False,
) -> Played:
    """One inner step. A pass of a stage takes `seconds(stage, action)`; its frame then occupies the link to the next
    stage, in its direction, for `carry(stage, action)`, and is there `latency` later. With `one_uplink` a stage sends
    to both its neighbours over the same."""
    todo = [Schedule(stage, stages, microbatches, depths[stage]) for stage in range(stages)]
    here: list[set[Action]] = [set() for _ in range(stages)]
    free_at: dict[tuple[int, type], float] = {}
    busy_until: list[float | None] = [None] * stages
    played = Played(busy=[0.0] * stages, actions=[[] for _ in range(stages)], most_in_flight=[0] * stages)
    sent, came = {}, {}
    events: list[tuple[float, int, Callable[[], None]]] = []
    number = 0

    def at(when: float, what: Callable[[], None]) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, what))

    def look(stage: int) -> None:
        if busy_until[stage] is not None:
            return
        each = todo[stage]
        activations = stage == 0 or Forward(each.forwards) in here[stage]
        gradients = stage == stages - 1 or Backward(each.backwards) in here[stage]
        action = each.next(activations, gradients)
        if action is None:
            return
        played.actions[stage].append(action)
        played.most_in_flight[stage] = max(played.most_in_flight[stage], each.in_flight)
        took = seconds(stage, action)
        played.busy[stage] += took
        busy_until[stage] = now + took
        at(now + took, lambda: end(stage, action))

    def end(stage: int, action: Action) -> None:
        busy_until[stage] = None
        there = stage + 1 if isinstance(action, Forward) else stage - 1
        if isinstance(action, Forward) and action.microbatch == 0:
            sent[stage] = now
        if 0 <= there < stages:
            way = stage, object if one_uplink else type(action)
            begin = max(now, free_at.get(way, 0.0))
            free_at[way] = begin + carry(stage, action)
            at(free_at[way] + latency, lambda: arrive(there, action))
        look(stage)

    def arrive(stage: int, action: Action) -> None:
        if action == Backward(0):
            came[stage] = now
        here[stage].add(action)
        look(stage)

    now = 0.0
    for stage in range(stages):
        look(stage)
    while events:
        now, _, what = heapq.heappop(events)
        what()
    assert all(each.done for each in todo), "they wait for each other in a circle"
    played.seconds = now
    played.trips = [came[stage] - sent[stage] for stage in range(stages - 1)]
    return played


@dataclass(frozen=True)
class Taken:
    """Stands among a stage's actions where it takes a step."""

    step: int


@dataclass(frozen=True)
class GoesOn:
    """The first stage's word, behind the last microbatch of a step, whether another follows."""

    step: int
    last: bool


def play_round(
    stages: int,
    microbatches: int,
    steps: int,
    overlap: int,
    seconds: Callable[[int, Action], float],
    latency: Callable[[], float],
    depth: int = 0,
) -> tuple[float, list[list[Action | Taken]]]:
    """A round of steps that overlap: how long it takes, and what each stage does.

    A pass takes `seconds(stage, action)`; frames are on their way for `latency()`, and come in the order in which they
    were sent. `depth` microbatches are in flight at most, or as many as must be. Microbatches are numbered through the
    round.
    """
    ahead = [overlap * (stages - 1 - stage) for stage in range(stages)]

    def schedule(stage: int, begun: int) -> Schedule:
        most = max(depth, ahead[stage] + 1)
        return Schedule(stage, stages, microbatches, most, begun=begun, more=None if ahead[stage] else 0)

    todo = [schedule(stage, 0) for stage in range(stages)]
    step, busy, done = [0] * stages, [False] * stages, [False] * stages
    from_before: list[list[Action | GoesOn]] = [[] for _ in range(stages)]
    from_behind: list[list[Action]] = [[] for _ in range(stages)]
    actions: list[list[Action | Taken]] = [[] for _ in range(stages)]
    arrivals: dict[tuple[int, int], float] = {}
    events: list[tuple[float, int, Callable[[], None]]] = []
    now = 0.0

    turns = count()

    def at(when: float, what: Callable[[], None]) -> None:
        heapq.heappush(events, (when, next(turns), what))

    def send(stage: int, there: int, said: Action | GoesOn) -> None:
        if 0 <= there < stages:
            arrivals[stage, there] = max(now + latency(), arrivals.get((stage, there), 0.0))
            at(arrivals[stage, there], lambda: arrive(stage, there, said))

    def arrive(stage: int, there: int, said: Action | GoesOn) -> None:
        (from_before if stage < there else from_behind)[there].append(said)  # type: ignore[arg-type]
        look(there)

    def hear(stage: int) -> bool:
        """Take the first stage's word, if it is here; whether it is."""
        said = GoesOn(step[stage], step[stage] + 1 == steps)
        if stage:
            if not from_before[stage] or from_before[stage][0] != said:
                return False
            from_before[stage].pop(0)
        todo[stage].more = 0 if said.last else ahead[stage]
        send(stage, stage + 1, said)
        return True

    def look(stage: int) -> None:
        if busy[stage] or done[stage]:
            return
        each = todo[stage]
        if each.asks:
            hear(stage)
        if each.done and (ahead[stage] or hear(stage)):
            actions[stage].append(Taken(step[stage]))
            step[stage] += 1
            done[stage] = step[stage] == steps
            todo[stage] = schedule(stage, each.forwards - microbatches)
            look(stage)
            return
        first = step[stage] * microbatches
        forward, backward = Forward(first + each.forwards), Backward(first + each.backwards)
        action = each.next(
            not stage or from_before[stage][:1] == [forward],
            stage == stages - 1 or from_behind[stage][:1] == [backward],
        )
        if action is None:
            return
        action = forward if isinstance(action, Forward) else backward
        if isinstance(action, Forward) and stage:
            from_before[stage].pop(0)
        if isinstance(action, Backward) and stage < stages - 1:
            from_behind[stage].pop(0)
        actions[stage].append(action)
        busy[stage] = True
        at(now + seconds(stage, action), lambda: end(stage, action))

    def end(stage: int, action: Action) -> None:
        busy[stage] = False
        send(stage, stage + 1 if isinstance(action, Forward) else stage - 1, action)
        look(stage)

    for stage in range(stages):
        look(stage)
    while events:
        now, _, what = heapq.heappop(events)
        what()
    assert all(done), "they wait for each other in a circle"
    return now, actions
