"""The reader of `python -m tests.chaos --chaos SPEC`, and its check against the swarm that was asked for. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import get_args

from peer.testnet.chaos import (
    NOTATIONS,
    Notation,
    check_chaos,
    check_faults,
    misfit,
    parse_target,
    parse_timed,
    required,
    too_late,
)
from peer.testnet.faults import Join, Kill, Leave, Moment, Pause, Target
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import UserError
from tests.chaos.faults import (
    CONTRIBUTING,
    Attacker,
    AttackKind,
    ChaosItem,
    Crowd,
    CrowdKind,
    Partition,
    Random,
    RandomKind,
    Side,
    Slow,
)

MOST_NAMES = 200
"""The most names of a crowd: they share one process, and this machine with those whom they attack."""


def _partition(text: str) -> Partition:
    who, _, when = text.partition("@")
    sides = None if who == "half" else _sides(who)
    if match := re.fullmatch(r"rounds=(\d{1,6})(?:-(\d{1,6}))?", when):
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"rounds {first} to {last} are none")
        return Partition(sides, Moment(first), last=last)
    _, moment, seconds = parse_timed(text)
    return Partition(sides, moment, seconds=required(seconds))


def _sides(text: str) -> tuple[Side, Side]:
    sides = [tuple(map(parse_target, side.split("+"))) for side in text.split("|")]
    if len(sides) != 2:
        raise ValueError(f"a partition has two sides, as in A|B, or is `half`, not {text!r}")
    if set(sides[0]) & set(sides[1]):
        raise ValueError("nobody can be on both sides")
    return sides[0], sides[1]


def _slow(text: str) -> Slow:
    limited, when, seconds = parse_timed(text)
    target, _, rate = limited.rpartition("=")
    if not re.fullmatch(r"[1-9]\d{0,5}[kmg]bit", rate):
        raise ValueError(f"a rate is a whole number of kbit, mbit or gbit, not {rate!r}")
    return Slow(parse_target(target), rate, when, required(seconds))


def _random(text: str) -> Random:
    match = re.fullmatch(r"(\d{1,9}):(\d{1,4}(?:\.\d{1,3})?)(?::([a-z+]+))?", text)
    if not match or not float(match[2]):
        raise ValueError("it takes a seed, how many faults a minute, and kinds of fault if not only kill")
    kinds: list[RandomKind] = []
    for word in (match[3] or "kill").split("+"):
        match word:
            case "kill" | "pause" | "slow" | "partition":
                kinds.append(word)
            case _:
                raise ValueError(f"random faults are kill, pause, slow and partition, not {word!r}")
    return Random(int(match[1]), float(match[2]), tuple(kinds))


def _attacker(text: str) -> Attacker:
    for kind in get_args(AttackKind):
        if text == kind:
            return Attacker(kind)
    raise ValueError(f"attacks are {', '.join(get_args(AttackKind))}, not {text!r}")


def _crowd(text: str) -> Crowd:
    attack, when, seconds = parse_timed(text)
    word, _, names = attack.partition("*")
    kind = next((kind for kind in (*get_args(CrowdKind), "all") if kind == word), None)
    if kind is None:
        raise ValueError(f"crowds are {', '.join(get_args(CrowdKind))}, or all of them, not {word!r}")
    if not re.fullmatch(r"[1-9]\d{0,3}", names) or int(names) > MOST_NAMES:
        raise ValueError(f"it has 1 to {MOST_NAMES} names, as in {kind}*2")
    return Crowd(kind, int(names), when, required(seconds))


ALL_NOTATIONS: dict[str, Notation[ChaosItem]] = {
    **NOTATIONS,
    "partition": Notation("partition:group=0|group=1+datacenter=0@rounds=2-3", _partition),
    "slow": Notation("slow:stage=1=1mbit@round=2+10s", _slow),
    "random": Notation("random:7:6:kill+pause", _random),
    "attacker": Notation("attacker:garbage", _attacker),
    "crowd": Notation("crowd:clock*2@round=2+20s", _crowd),
}
"""The kinds of faults that the harness reads: those of `hetpeer testnet`, and its own."""


def check_items(items: Iterable[ChaosItem], options: TestnetOptions) -> None:
    """Raises UserError where an item does not fit this swarm, and says what does."""
    items = tuple(items)
    if sum(isinstance(item, Attacker) for item in items) > 1:
        raise UserError("--chaos: there is one attacker at most")
    check_faults(items, options, _misfits)


def _misfits(item: ChaosItem, options: TestnetOptions) -> Iterator[str | None]:
    match item:
        case Kill() | Pause() | Leave() | Join():
            check_chaos((item,), options)
        case Random() if not options.groups:
            yield "random faults hit volunteers, and there are none"
        case Attacker(kind) if options.stages < 2 and kind not in CONTRIBUTING:
            yield "it attacks a pipeline, which takes two stages"
        case Partition() | Slow() | Crowd():
            yield from (misfit(target, options) for target in _targets(item))
            yield too_late(item, options)
    if isinstance(item, Partition) and item.sides is None and options.groups + options.datacenters < 2:
        yield "there is one replica, which stays whole"
    if isinstance(item, Partition) and item.last > options.rounds:
        yield f"there are {options.rounds} rounds"


def _targets(fault: Partition | Slow | Crowd) -> list[Target]:
    match fault:
        case Slow(target):
            return [target]
        case Partition((one, other)):
            return [*one, *other]
        case _:
            return []
