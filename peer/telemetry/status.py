"""What a daemon does now, as its events say. A process folds it once, for its screen, logs and metrics; and the
reporter from where a peer joined."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from peer.telemetry.decisions import CaughtUp, CompressionChosen, EndedEarly, Left, Placed, Pulse, Recalled
from peer.telemetry.events import (
    Contributed,
    Credited,
    Evaluated,
    Event,
    Failed,
    Finished,
    GroupBroken,
    GroupFormed,
    Joined,
    Paused,
    PauseEnded,
    Progress,
    Resumed,
    RoundDone,
    StepDone,
)

DaemonState = Literal["starting", "waiting", "training", "paused", "leaving", "finished", "failed"]

STEPS_REMEMBERED = 32
"""So many inner steps tell how many tokens a second there are."""


@dataclass(slots=True)
class Status:
    """One peer. `step` inner steps of `round` are done; times are seconds by `clock`; rates are bytes a second. It is a
    listener: it must hear an event before those that read it."""

    clock: Callable[[], float] = time.monotonic
    heard: float = 0.0
    """When the last event came."""
    state: DaemonState = "starting"
    waits_for: str = ""
    peer_id: str = ""
    role: str = ""
    stage: int = 0
    slot: int = 0
    joined: float | None = None
    rounds: int = 0
    inner_steps: int = 0
    replica: str = ""
    members: list[str] = field(default_factory=list)
    round: int = 0
    step: int = 0
    last_step: StepDone | None = None
    loss: float | None = None
    """Of the last inner step that told one."""
    held_out: tuple[float, float] | None = None
    """Through the boundaries, and plain."""
    tokens: int = 0
    compression: int = 0
    """d / k that its group has chosen; 0: the run's own."""
    up: float = 0.0
    down: float = 0.0
    peers: int = 0
    lost: int = 0
    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))
    _credited: dict[int, int] = field(default_factory=dict)
    """Tokens of work that receipts show, by round: each event has all that those of its round before had."""
    _pulse: tuple[float, Pulse] | None = None

    @property
    def credit(self) -> int:
        """Tokens of work that receipts show."""
        return sum(self._credited.values())

    @property
    def tokens_per_second(self) -> float:
        """Over the last inner steps; 0 while this peer does not train."""
        if self.state != "training" or len(self._steps) < 2:
            return 0.0
        (began, first), (ended, _) = self._steps[0], self._steps[-1]
        return (sum(tokens for _, tokens in self._steps) - first) / max(ended - began, 1e-3)

    def __call__(self, event: Event) -> None:
        self.take(event, self.clock())

    def take(self, event: Event, now: float) -> None:
        """Follow what the daemon says."""
        self.heard = now
        match event:
            case Joined(peer_id, role, stage, slot):
                self.peer_id, self.role, self.stage, self.slot = peer_id, role, stage, slot
                self.state, self._pulse = "waiting", None
                self.joined = now if self.joined is None else self.joined
            case Placed(_, rounds, inner_steps):
                self.rounds, self.inner_steps = rounds, inner_steps
            case Progress(doing, done, total):
                self._wait(f"{doing}: {done / total:.0%}" if total else doing)
            case GroupFormed(replica, _, members):
                self.replica, self.members = replica, list(members)
                self._wait("the first inner step")
            case GroupBroken(_, _, _, reason):
                self.replica, self.members = "", []
                self._wait(f"another member: {reason}")
            case StepDone(round, step, loss, tokens):
                self.state, self.waits_for, self.round, self.step = "training", "", round, step + 1
                self.last_step, self.loss = event, self.loss if loss is None else loss
                self.tokens += tokens
                self._steps.append((now, tokens))
            case EndedEarly(round) | Contributed(round):
                self.round = round
                self._wait(f"the others' contributions to round {round}")
            case RoundDone(round) | Resumed(round) | CaughtUp(round):
                self.round, self.step = min(round + 1, self.rounds or round + 1), 0
                self._wait("the next round")
            case Evaluated(_, loss, plain):
                self.held_out = loss, plain
            case Credited(round, tokens):
                self._credited[round] = tokens
            case Recalled(_, older, recent):
                self._credited = {0: older} | dict(recent)
            case CompressionChosen(compression):
                self.compression = compression
            case Pulse():
                self._feel(event, now)
            case _:
                self._end(event)

    def _end(self, event: Event) -> None:
        match event:
            case Paused(reason):
                self.state, self.waits_for = "paused", reason
                self.replica, self.members, self.up, self.down = "", [], 0.0, 0.0
            case PauseEnded():
                self.state, self.waits_for = "starting", ""
            case Left():
                self.state, self.waits_for = "leaving", "the end of the inner step"
            case Finished():
                self.state, self.waits_for = "finished", ""
            case Failed(message):
                self.state, self.waits_for = "failed", message
            case _:
                pass

    def _wait(self, what: str) -> None:
        self.waits_for = what
        if self.state == "training":
            self.state = "waiting"
            self._steps.clear()

    def _feel(self, pulse: Pulse, now: float) -> None:
        if self._pulse is not None:
            then, before = self._pulse
            seconds = max(now - then, 1e-3)
            self.up = (pulse.frames_sent + pulse.bulk_sent - before.frames_sent - before.bulk_sent) / seconds
            self.down = (
                pulse.frames_received + pulse.bulk_received - before.frames_received - before.bulk_received
            ) / seconds
        self.peers, self.lost, self._pulse = pulse.peers, pulse.lost, (now, pulse)
