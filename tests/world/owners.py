"""Who is in a world: owners with their machines, and the processes that they start there."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from peer.telemetry.status import Status
from protocol.events.event import Event
from protocol.trust.ticket import Ticket
from tests.world.network import Machine

Role = Literal["volunteer", "datacenter", "observer"]
Program = Role | Literal["node", "gateway"]


@dataclass(eq=False, slots=True)
class Process:
    """A running program: the node, or a peer."""

    name: str
    machine: Machine
    held: list[Any] | None = None
    dead: bool = False
    stop: asyncio.Event | None = None
    task: asyncio.Task[None] | None = None
    exit_code: int | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    """When it ended, or was killed."""
    stops: list[list[float]] = field(default_factory=list)
    """From when to when it was stopped."""
    was_full: bool = False
    """Its disk has been full."""
    error: str = ""
    events: list[tuple[float, Event]] = field(default_factory=list)
    status: Status = field(default_factory=Status)

    def stopped_between(self, begins: float, ends: float) -> float:
        """The seconds of a time in which the process was stopped."""
        return sum(max(0.0, min(until, ends) - max(since, begins)) for since, until in self.stops)


@dataclass(eq=False, slots=True)
class Owner:
    """Somebody with a machine: what is started there, by the same command each time. `audits`: an observer that does;
    `door`: whose ticket it has, the node's or a gateway's; `ticket`: the one that a gateway gives to others."""

    name: str
    machine: Machine
    folder: Path
    role: Program
    stage: int | None = None
    stays: bool = False
    runs: list[Process] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the owner sets beside the usual: fields of `PeerSettings`."""
    audits: bool = False
    left: bool = False
    """It comes back only after the run's end."""
    paused: float | None = None
    """Since when it has been told to pause, if it is."""
    door: str = "node"
    ticket: Ticket | None = None

    @property
    def process(self) -> Process | None:
        """What runs there now."""
        return self.runs[-1] if self.runs and self.runs[-1].exit_code is None and not self.runs[-1].dead else None
