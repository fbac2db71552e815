"""The reader of `hetpeer testnet --chaos SPEC`, and its check against the swarm that was asked for. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from peer.testnet.faults import After, Fault, Join, Kill, Leave, Moment, Pause, Scheduled, Target, When
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import UserError

MOST_SECONDS = 600.0
"""No fault lasts longer: a testnet is watched by somebody who waits."""

AnyFault = TypeVar("AnyFault")


@dataclass(frozen=True, slots=True)
class Notation(Generic[AnyFault]):
    """The notation of one kind of fault: an example, and the reader of what follows the kind.

    `read` raises ValueError where that is wrong.
    """

    example: str
    read: Callable[[str], AnyFault]


def parse_chaos(spec: str, notations: Mapping[str, Notation[AnyFault]]) -> tuple[AnyFault, ...]:
    """Read the comma-separated faults of `--chaos`, each of one of these kinds.

    Raises:
        UserError: one of them is wrong; the message names it and shows a right one.
    """
    return tuple(_parse_fault(text.strip(), notations) for text in spec.split(","))


def _parse_fault(text: str, notations: Mapping[str, Notation[AnyFault]]) -> AnyFault:
    kind, _, rest = text.partition(":")
    if kind not in notations:
        example = next(iter(notations.values())).example
        raise UserError(f"--chaos: {text[:60]!r} is none of {', '.join(notations)}; right is, for example, {example}")
    try:
        return notations[kind].read(rest)
    except ValueError as error:
        raise UserError(
            f"--chaos: {text[:60]!r}: {str(error)[:200]}; right is, for example, {notations[kind].example}"
        ) from None


def _kill(text: str) -> Kill:
    target, when, seconds = parse_timed(text)
    return Kill(parse_target(target), when, seconds)


def _pause(text: str) -> Pause:
    target, when, seconds = parse_timed(text)
    return Pause(parse_target(target), when, required(seconds))


def _leave(text: str) -> Leave:
    target, when, seconds = parse_timed(text)
    _forbidden(seconds)
    return Leave(parse_target(target), when)


def _join(text: str) -> Join:
    newcomer, when, seconds = parse_timed(text)
    _forbidden(seconds)
    if newcomer == "datacenter":
        return Join(None, when)
    if not (stage := re.fullmatch(r"stage=(\d{1,4})", newcomer)):
        raise ValueError(f"who joins is stage=S or datacenter, not {newcomer!r}")
    return Join(int(stage[1]), when)


NOTATIONS: dict[str, Notation[Fault]] = {
    "kill": Notation("kill:stage=1@round=2.3+5s", _kill),
    "pause": Notation("pause:datacenter=0@round=1.2+3s", _pause),
    "leave": Notation("leave:group=1/stage=0@round=3", _leave),
    "join": Notation("join:stage=1@round=5", _join),
}
"""The kinds of faults that `hetpeer testnet --chaos` reads."""


def parse_target(text: str) -> Target:
    """Read whom a fault hits.

    Raises:
        ValueError: it names no process.
    """
    if text in ("bootstrap", "all"):
        return Target("bootstrap" if text == "bootstrap" else "all")
    match = re.fullmatch(r"(?:group=(\d{1,4}))?(/)?(?:stage=(\d{1,4}))?|datacenter=(\d{1,4})", text)
    if not match or not text or bool(match[2]) != bool(match[1] and match[3]):
        raise ValueError(
            f"{text!r} names no process: it is stage=S, group=G, group=G/stage=S, datacenter=N, bootstrap or all"
        )
    group, _, stage, datacenter = match.groups()
    if datacenter is not None:
        return Target("datacenter", int(datacenter))
    return Target("group", int(group)) if stage is None else Target("volunteer", int(group or 0), int(stage))


def parse_timed(text: str) -> tuple[str, When, float | None]:
    """Read `WHO@round=R[.S][+Ns]` or `WHO@Ns[+Ns]`: who, when, and for how many seconds, if it says so.

    Raises:
        ValueError: it is neither.
    """
    duration = r"\d{1,6}(?:\.\d{1,3})?"
    match = re.fullmatch(rf"(.+)@(?:round=(\d{{1,6}})(?:\.(\d{{1,6}}))?|({duration})s)(?:\+({duration})s)?", text)
    if not match:
        raise ValueError("it lacks its moment, @round=R or @round=R.S, or something is wrong there")
    who, round, step, after, seconds = match.groups()
    when = After(float(after)) if after is not None else Moment(int(round), int(step or 1))
    if seconds is not None and not 0 < float(seconds) <= MOST_SECONDS:
        raise ValueError(f"it may last up to {MOST_SECONDS:.0f} seconds, not {seconds}")
    return who, when, None if seconds is None else float(seconds)


def required(seconds: float | None) -> float:
    """The duration of a fault that has to have one.

    Raises:
        ValueError: it has none.
    """
    if seconds is None:
        raise ValueError("it lacks how long it lasts, as in +3s")
    return seconds


def _forbidden(seconds: float | None) -> None:
    if seconds is not None:
        raise ValueError("it takes no +Ns")


def check_chaos(faults: Iterable[Fault], options: TestnetOptions) -> None:
    """Raises UserError where a fault does not fit this swarm, and says what does."""
    check_faults(faults, options, _misfits)


def check_faults(
    faults: Iterable[AnyFault],
    options: TestnetOptions,
    misfits: Callable[[AnyFault, TestnetOptions], Iterator[str | None]],
) -> None:
    """Raises UserError where a fault is one of the `misfits` in this swarm."""
    faults = tuple(faults)
    if faults and options.most_steps:
        raise UserError("--chaos: the run is compared with one in which all take H steps; leave --most-steps out")
    for fault in faults:
        if problem := next(filter(None, misfits(fault, options)), None):
            raise UserError(f"--chaos: {str(fault)!r}: {problem}")


def _misfits(fault: Fault, options: TestnetOptions) -> Iterator[str | None]:
    if not isinstance(fault, Join):
        yield misfit(fault.target, options)
    elif fault.stage is not None:
        yield misfit(Target("volunteer", 0, fault.stage), options)
    yield too_late(fault, options)


def misfit(target: Target, options: TestnetOptions) -> str | None:
    """The reason why this swarm has no such process; None: it has."""
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


def too_late(fault: Scheduled, options: TestnetOptions) -> str | None:
    """The reason why this run never comes to a fault's moment; None: it does."""
    when = fault.when
    if isinstance(when, Moment) and not 1 <= when.round <= options.rounds:
        return f"rounds are 1 to {options.rounds}"
    if isinstance(when, Moment) and not 1 <= when.step <= options.inner_steps:
        return f"inner steps are 1 to {options.inner_steps}"
    return None
