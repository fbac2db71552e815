"""Random faults: a function of their seed and of the swarm's shape. Pure."""

import random
from collections.abc import Iterator

from peer.testnet.faults import After, Fault, Kill, Partition, Pause, Random, RandomKind, Slow, Target

BACK_SECONDS = 1.0
PAUSE_SECONDS = 3.0
LINK_SECONDS = 5.0
SLOW_RATE = "1mbit"


def draw(plan: Random, groups: int, stages: int) -> Iterator[Fault]:
    """Faults without end, in the order of their moments, on average `plan.per_minute` of them a minute."""
    chance = random.Random(plan.seed)
    seconds = 0.0
    while True:
        seconds += chance.expovariate(plan.per_minute / 60)
        kind = plan.kinds[chance.randrange(len(plan.kinds))]
        target = Target("volunteer", chance.randrange(groups), chance.randrange(stages))
        yield _fault(kind, target, After(round(seconds, 1)))


def _fault(kind: RandomKind, target: Target, when: After) -> Fault:
    match kind:
        case "kill":
            return Kill(target, when, BACK_SECONDS)
        case "pause":
            return Pause(target, when, PAUSE_SECONDS)
        case "slow":
            return Slow(target, SLOW_RATE, when, LINK_SECONDS)
        case "partition":
            return Partition(None, when, seconds=LINK_SECONDS)
