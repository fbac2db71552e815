"""Reads `hetpeer testnet --chaos SPEC`, and checks it against the swarm that was asked for. Pure."""

import re
from collections.abc import Callable, Iterable
from typing import get_args

from peer.testnet.faults import (
    CONTRIBUTING,
    After,
    Attacker,
    AttackKind,
    ChaosItem,
    Crowd,
    CrowdKind,
    Join,
    Kill,
    Leave,
    Moment,
    Partition,
    Pause,
    Random,
    RandomKind,
    Side,
    Slow,
    Target,
    When,
    targets,
)
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import UserError

MOST_SECONDS = 600.0
"""No fault lasts longer: a testnet is watched by somebody who waits."""

MOST_NAMES = 200
"""In a crowd: they share one process, and this machine with those whom they attack."""

EXAMPLES = {
    "kill": "kill:stage=1@round=2.3+5s",
    "pause": "pause:datacenter=0@round=1.2+3s",
    "leave": "leave:group=1/stage=0@round=3",
    "join": "join:stage=1@round=5",
    "partition": "partition:group=0|group=1+datacenter=0@rounds=2-3",
    "slow": "slow:stage=1=1mbit@round=2+10s",
    "random": "random:7:6:kill+pause",
    "attacker": "attacker:garbage",
    "crowd": "crowd:clock*2@round=2+20s",
}


def parse_chaos(spec: str) -> tuple[ChaosItem, ...]:
    """Read the comma-separated items of `--chaos`.

    Raises:
        UserError: one of them is wrong; the message names it and shows a right one.
    """
    return tuple(_parse_item(item.strip()) for item in spec.split(","))


def _parse_item(item: str) -> ChaosItem:
    kind, _, rest = item.partition(":")
    if kind not in EXAMPLES:
        raise UserError(
            f"--chaos: {item[:60]!r} is none of {', '.join(EXAMPLES)}; right is, for example, {EXAMPLES['kill']}"
        )
    read: dict[str, Callable[[str], ChaosItem]] = {
        "kill": _kill,
        "pause": _pause,
        "leave": _leave,
        "join": _join,
        "partition": _partition,
        "slow": _slow,
        "random": _random,
        "attacker": _attacker,
        "crowd": _crowd,
    }
    try:
        return read[kind](rest)
    except ValueError as error:
        raise UserError(
            f"--chaos: {item[:60]!r}: {str(error)[:200]}; right is, for example, {EXAMPLES[kind]}"
        ) from None


def _kill(text: str) -> Kill:
    target, when, seconds = _timed(text)
    return Kill(_target(target), when, seconds)


def _pause(text: str) -> Pause:
    target, when, seconds = _timed(text)
    return Pause(_target(target), when, _required(seconds))


def _leave(text: str) -> Leave:
    target, when, seconds = _timed(text)
    _forbidden(seconds)
    return Leave(_target(target), when)


def _join(text: str) -> Join:
    what, when, seconds = _timed(text)
    _forbidden(seconds)
    if what == "datacenter":
        return Join(None, when)
    if not (found := re.fullmatch(r"stage=(\d{1,4})", what)):
        raise ValueError(f"who joins is stage=S or datacenter, not {what!r}")
    return Join(int(found[1]), when)


def _partition(text: str) -> Partition:
    who, _, when = text.partition("@")
    sides = None if who == "half" else _sides(who)
    if found := re.fullmatch(r"rounds=(\d{1,6})(?:-(\d{1,6}))?", when):
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"rounds {first} to {last} are none")
        return Partition(sides, Moment(first), last=last)
    _, moment, seconds = _timed(text)
    return Partition(sides, moment, seconds=_required(seconds))


def _sides(text: str) -> tuple[Side, Side]:
    sides = [tuple(_target(each) for each in side.split("+")) for side in text.split("|")]
    if len(sides) != 2:
        raise ValueError(f"a partition has two sides, as in A|B, or is `half`, not {text!r}")
    if set(sides[0]) & set(sides[1]):
        raise ValueError("nobody can be on both sides")
    return sides[0], sides[1]


def _slow(text: str) -> Slow:
    limited, when, seconds = _timed(text)
    target, _, rate = limited.rpartition("=")
    if not re.fullmatch(r"[1-9]\d{0,5}[kmg]bit", rate):
        raise ValueError(f"a rate is a whole number of kbit, mbit or gbit, not {rate!r}")
    return Slow(_target(target), rate, when, _required(seconds))


def _random(text: str) -> Random:
    found = re.fullmatch(r"(\d{1,9}):(\d{1,4}(?:\.\d{1,3})?)(?::([a-z+]+))?", text)
    if not found or not float(found[2]):
        raise ValueError("it takes a seed, how many faults a minute, and kinds of fault if not only kill")
    kinds: list[RandomKind] = []
    for word in (found[3] or "kill").split("+"):
        match word:
            case "kill" | "pause" | "slow" | "partition":
                kinds.append(word)
            case _:
                raise ValueError(f"random faults are kill, pause, slow and partition, not {word!r}")
    return Random(int(found[1]), float(found[2]), tuple(kinds))


def _attacker(text: str) -> Attacker:
    for kind in get_args(AttackKind):
        if text == kind:
            return Attacker(kind)
    raise ValueError(f"attacks are {', '.join(get_args(AttackKind))}, not {text!r}")


def _crowd(text: str) -> Crowd:
    what, when, seconds = _timed(text)
    word, _, names = what.partition("*")
    kind = next((each for each in (*get_args(CrowdKind), "all") if each == word), None)
    if kind is None:
        raise ValueError(f"crowds are {', '.join(get_args(CrowdKind))}, or all of them, not {word!r}")
    if not re.fullmatch(r"[1-9]\d{0,3}", names) or int(names) > MOST_NAMES:
        raise ValueError(f"it has 1 to {MOST_NAMES} names, as in {kind}*2")
    return Crowd(kind, int(names), when, _required(seconds))


def _target(text: str) -> Target:
    if text in ("bootstrap", "all"):
        return Target("bootstrap" if text == "bootstrap" else "all")
    found = re.fullmatch(r"(?:group=(\d{1,4}))?(/)?(?:stage=(\d{1,4}))?|datacenter=(\d{1,4})", text)
    if not found or not text or bool(found[2]) != bool(found[1] and found[3]):
        raise ValueError(
            f"{text!r} names no process: it is stage=S, group=G, group=G/stage=S, datacenter=N, bootstrap or all"
        )
    group, _, stage, datacenter = found.groups()
    if datacenter is not None:
        return Target("datacenter", int(datacenter))
    return Target("group", int(group)) if stage is None else Target("volunteer", int(group or 0), int(stage))


def _timed(text: str) -> tuple[str, When, float | None]:
    """Read `WHO@round=R[.S][+Ns]` or `WHO@Ns[+Ns]`: who, when, and for how many seconds, if it says so."""
    duration = r"\d{1,6}(?:\.\d{1,3})?"
    found = re.fullmatch(rf"(.+)@(?:round=(\d{{1,6}})(?:\.(\d{{1,6}}))?|({duration})s)(?:\+({duration})s)?", text)
    if not found:
        raise ValueError("it lacks its moment, @round=R or @round=R.S, or something is wrong there")
    who, round, step, after, seconds = found.groups()
    when = After(float(after)) if after is not None else Moment(int(round), int(step or 1))
    if seconds is not None and not 0 < float(seconds) <= MOST_SECONDS:
        raise ValueError(f"it may last up to {MOST_SECONDS:.0f} seconds, not {seconds}")
    return who, when, None if seconds is None else float(seconds)


def _required(seconds: float | None) -> float:
    if seconds is None:
        raise ValueError("it lacks how long it lasts, as in +3s")
    return seconds


def _forbidden(seconds: float | None) -> None:
    if seconds is not None:
        raise ValueError("it takes no +Ns")


def check_chaos(items: Iterable[ChaosItem], options: TestnetOptions) -> None:
    """Raises UserError where an item does not fit this swarm, and says what does."""
    items = tuple(items)
    if items and options.most_steps:
        raise UserError("--chaos: what faults cost is counted in steps that all take; leave --most-steps out")
    if sum(isinstance(item, Attacker) for item in items) > 1:
        raise UserError("--chaos: there is one attacker at most")
    for item in items:
        problems = [_misfit(target, options) for target in targets(item)]
        if isinstance(item, Join) and item.stage is not None:
            problems.append(_misfit(Target("volunteer", 0, item.stage), options))
        if isinstance(item, Random) and not options.groups:
            problems.append("random faults hit volunteers, and there are none")
        if isinstance(item, Attacker) and options.stages < 2 and item.kind not in CONTRIBUTING:
            problems.append("it attacks a pipeline, which takes two stages")
        if not isinstance(item, Random | Attacker) and isinstance(item.when, Moment):
            problems.append(_too_late(item.when, options))
        if isinstance(item, Partition) and item.sides is None and options.groups + options.datacenters < 2:
            problems.append("there is one replica, which stays whole")
        if isinstance(item, Partition) and item.last > options.rounds:
            problems.append(f"there are {options.rounds} rounds")
        if problem := next(filter(None, problems), None):
            raise UserError(f"--chaos: {str(item)!r}: {problem}")


def _misfit(target: Target, options: TestnetOptions) -> str | None:
    groups, stages = options.groups, options.stages
    if target.kind in ("volunteer", "group") and target.number >= groups:
        return f"there is no group {target.number}: {_count(groups)}"
    if target.kind == "volunteer" and target.stage >= stages:
        return f"there is no stage {target.stage}: {_count(stages)}"
    if target.kind == "datacenter" and target.number >= options.datacenters:
        return f"there is no datacenter {target.number}: {_count(options.datacenters)}"
    return None


def _count(number: int) -> str:
    return f"they are 0 to {number - 1}" if number else "there are none"


def _too_late(when: Moment, options: TestnetOptions) -> str | None:
    if not 1 <= when.round <= options.rounds:
        return f"rounds are 1 to {options.rounds}"
    if not 1 <= when.step <= options.inner_steps:
        return f"inner steps are 1 to {options.inner_steps}"
    return None
