"""A pipeline in virtual time over links that connections share, as at home: a stage has one uplink and one downlink,
and the frames that are under way share them by the weights of their connections."""

from collections.abc import Iterable, Mapping, Sequence

from peer.compute.schedule import Backward, Forward, Schedule

Connection = tuple[int, int]
"""From a stage to its neighbour."""

MOMENT = 1e-9


def connections(stages: int) -> list[Connection]:
    """All of a pipeline's."""
    return [way for stage in range(stages - 1) for way in ((stage, stage + 1), (stage + 1, stage))]


def shares(active: Iterable[Connection], weights: Mapping[Connection, float]) -> dict[Connection, float]:
    """Max-min fair, by weight: what each gets of links that carry 1 a second up and 1 down."""
    todo, found = set(active), dict[Connection, float]()
    left = {(end, stage): 1.0 for way in todo for end, stage in enumerate(way)}

    def over(link: tuple[int, int]) -> set[Connection]:
        return {way for way in todo if way[link[0]] == link[1]}

    while todo:
        unit, fullest = min((left[link] / sum(weights[way] for way in over(link)), link) for link in left if over(link))
        for way in over(fullest):
            found[way] = unit * weights[way]
            todo.remove(way)
            for end, stage in enumerate(way):
                left[end, stage] -= found[way]
    return found


def play_shared(
    microbatches: int, depths: Sequence[int], carry: float, latency: float, weights: Mapping[Connection, float]
) -> float:
    """Seconds of an inner step in which the passes of a microbatch take 1, a third of it forward, and a frame that has
    its links to itself `carry`; it is there `latency` after that."""
    stages = len(depths)
    todo = [Schedule(stage, stages, microbatches, depth) for stage, depth in enumerate(depths)]
    busy: list[tuple[float, Connection] | None] = [None] * stages
    """Until when, and whither its frame goes then."""
    queues: dict[Connection, list[float]] = {way: [] for way in connections(stages)}
    flying: list[tuple[float, Connection]] = []
    came = dict.fromkeys(queues, 0)
    now = 0.0
    while True:
        for stage, each in enumerate(todo):
            if busy[stage] is None and not each.done:
                activations = stage == 0 or came[stage - 1, stage] > each.forwards
                gradients = stage == stages - 1 or came[stage + 1, stage] > each.backwards
                match each.next(activations, gradients):
                    case Forward():
                        busy[stage] = now + 1 / 3, (stage, stage + 1)
                    case Backward():
                        busy[stage] = now + 2 / 3, (stage, stage - 1)
        if all(each.done for each in todo) and not any(busy):
            return now
        rates = shares((way for way, frames in queues.items() if frames), weights)
        sent = [now + queues[way][0] / rate for way, rate in rates.items()]
        before, now = now, min([*sent, *(one[0] for one in (*busy, *flying) if one)])
        for way, rate in rates.items():
            queues[way][0] -= rate * (now - before)
            if queues[way][0] <= MOMENT:
                queues[way].pop(0)
                flying.append((now + latency, way))
        for arrived in [one for one in flying if one[0] <= now + MOMENT]:
            flying.remove(arrived)
            came[arrived[1]] += 1
        for stage, passing in enumerate(busy):
            if passing is not None and passing[0] <= now + MOMENT:
                busy[stage] = None
                if passing[1] in queues:
                    queues[passing[1]].append(carry)
