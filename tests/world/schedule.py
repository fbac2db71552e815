"""Schedules: who is in a run, and what happens to whom at which time. A schedule is its own text.

What a schedule breaks, it mends: whoever was stopped is started again by the same command, and the network is whole
again. From then on the run has to end by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from protocol.events.event import Event

Kind = Literal[
    "start",
    "kill",
    "power",
    "wipe",
    "interrupt",
    "freeze",
    "thaw",
    "pause",
    "resume",
    "cut",
    "heal",
    "leave",
    "full",
    "room",
    "slow",
    "fast",
    "narrow",
    "wide",
    "again",
    "lose",
    "move",
]
"""What can happen. `leave`: by Ctrl-C, and back only after the run's end; `lose`: by SIGKILL, and back only then;
`move`: its machine gets another address;
`full` and `room`, `slow` and `fast`: of the disk; `narrow` and `wide`: of the link; `again`: it is started once it has
ended, however long that takes."""


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody who takes part, from `at` seconds on. `speed`: how much slower than others it computes; `latency`:
    seconds to the middle of the network; `skew`: by how much its clock is wrong, in seconds; `door`: whose ticket it
    has; `audits`: it is an observer that does."""

    name: str
    role: Literal["volunteer", "datacenter", "observer", "gateway"]
    stage: int | None = None
    at: float = 0.0
    speed: float = 1.0
    latency: float = 0.01
    skew: float = 0.0
    door: str = "node"
    audits: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """When somebody first tells an event of this class: `name`, or anybody; of `round` or a later one, if it has a
    round."""

    event: Literal["GroupFormed", "StepDone", "Contributed", "RoundDone", "Finished"]
    round: int = 0
    name: str = ""

    def is_come(self, name: str, event: Event) -> bool:
        """Whether it has come when `name` tells an event."""
        told = type(event).__name__ == self.event and self.name in ("", name)
        return told and getattr(event, "round", self.round) >= self.round

    def __str__(self) -> str:
        of = f" of round {self.round}" if self.round else ""
        return f"after {self.name or 'somebody'}'s first {self.event}{of}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens at `at` seconds, of the story or `after` a moment of it, to one process, or, where the
    network is cut, to several machines. A moment that does not come does nothing."""

    at: float
    kind: Kind
    names: tuple[str, ...]
    after: Moment | None = None


def for_a_while(
    kind: Kind, names: tuple[str, ...], at: float, seconds: float, mend: Kind, after: Moment | None
) -> list[Fault]:
    """Something that happens, and what mends it so many seconds later; `heal` mends the whole network."""
    until = round(at + seconds, 2)
    return [Fault(at, kind, names, after), Fault(until, mend, () if mend == "heal" else names, after)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A story. `groups` and `datacenters` are the manifest's, and so are `grace`, `liars` and `gather` if not None;
    with few of both, rounds are closed before the end. `life`: of certificates, in seconds. `step_overlap`: the
    manifest's of inner steps. `most_steps`: the manifest's, of which replicas count by their steps; 0: all take H."""

    seed: int
    stages: int
    groups: int
    datacenters: int
    rounds: int
    overlap: bool
    members: tuple[Member, ...]
    faults: tuple[Fault, ...]
    grace: int | None = None
    liars: int | None = None
    life: float | None = None
    gather: float | None = None
    step_overlap: int = 0
    most_steps: int = 0

    def lines(self) -> list[str]:
        """The schedule in words, one thing a line."""
        said = [
            f"seed {self.seed}: {self.groups} groups of {self.stages} stages, {self.datacenters} datacenters, "
            f"{self.rounds} rounds{', overlap' if self.overlap else ''}{', of steps too' if self.step_overlap else ''}"
            f"{f', up to {self.most_steps} steps of 4' if self.most_steps else ''}"
            f"{f', certificates of {self.life:.0f} s' if self.life else ''}"
            f"{f', grace {self.grace}, liars {self.liars}' if self.grace else ''}"
            f"{f', begins {self.gather:.0f} s after the first replica' if self.gather is not None else ''}"
        ]
        for each in self.members:
            place = f"stage {each.stage}" if each.stage is not None else each.role + ", audits" * each.audits
            place += f", by the ticket of {each.door}" if each.door != "node" else ""
            said.append(
                f"  {each.at:6.2f} s  {each.name} starts: {place}, {each.speed:.1f} times slower, "
                f"{1000 * each.latency:.0f} ms away, clock {each.skew:+.1f} s"
            )
        for fault in self.faults:
            after = f" {fault.after}" if fault.after is not None else ""
            said.append(f"  {fault.at:6.2f} s{after}  {fault.kind} {', '.join(fault.names)}")
        return said


def without(schedule: Schedule, faults: Sequence[Fault]) -> Schedule:
    """The same schedule with these faults alone."""
    return replace(schedule, faults=tuple(faults))
