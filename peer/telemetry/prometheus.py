"""`--metrics`: what a daemon does, for Prometheus.

Every number is this peer's own. No label has a value that another peer chooses, so there are never more series.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, start_http_server

from peer.telemetry.decisions import Avoided, NotCounted, Pulse, Resynchronised
from peer.telemetry.events import Evaluated, Event, GroupBroken, Joined, Refused, RoundDone, StepDone
from peer.telemetry.status import DaemonState, Status
from protocol.addresses import join, read_place
from protocol.errors import FormatError, ResourceError, UserError

STEP_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
ROUND_SECONDS = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)

COUNTED: dict[type[Any], tuple[str, str]] = {
    GroupBroken: ("groups_broken", "Times a group of this peer lost a member"),
    Refused: ("refused", "Times another peer sent what is not valid"),
    Avoided: ("avoided", "Times this peer hung up on another for breaking the protocol"),
    Resynchronised: ("resynchronised", "Times this peer took the state of the others in place of its own"),
    NotCounted: ("not_counted", "Times nothing of this peer counted in some part of a round"),
}
"""Events that are counted, by the middle of their metric's name."""


@dataclass(slots=True)
class Metrics:
    """A listener that counts. `status` hears each event before; `memory` tells the bytes that this process and its
    children hold."""

    status: Status
    memory: Callable[[], int]
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    place: tuple[int, int] = (0, 0)
    """The round and the inner steps done in it, after the event before."""
    back: bool = False
    """Whether this peer has joined before."""
    pulse: Pulse = field(default_factory=lambda: Pulse(0, 0, 0, 0, 0, 0))
    stepped: float | None = None
    joined: Counter = field(init=False)
    tokens: Counter = field(init=False)
    steps: Histogram = field(init=False)
    rounds: Histogram = field(init=False)
    sent: Counter = field(init=False)
    received: Counter = field(init=False)
    held_out: Gauge = field(init=False)
    state: Enum = field(init=False)
    info: Info = field(init=False)
    counted: dict[type[Any], Counter] = field(init=False)

    def __post_init__(self) -> None:
        own, status = self.registry, self.status
        self.info = Info("hetpeer_peer", "This peer and its place in the run", registry=own)
        self.state = Enum("hetpeer_state", "What this peer does", states=list(get_args(DaemonState)), registry=own)
        self.joined = Counter("hetpeer_reconnects", "Times this peer has come back to its run", registry=own)
        self.tokens = Counter("hetpeer_tokens", "Tokens of the inner steps of this peer's replica", registry=own)
        self.steps = Histogram(
            "hetpeer_inner_step_seconds", "From one inner step's end to the next", buckets=STEP_SECONDS, registry=own
        )
        self.rounds = Histogram("hetpeer_round_seconds", "Outer rounds", buckets=ROUND_SECONDS, registry=own)
        kind = ("kind",)
        self.sent = Counter("hetpeer_sent_bytes", "Bytes sent, by kind", kind, registry=own)
        self.received = Counter("hetpeer_received_bytes", "Bytes received, by kind", kind, registry=own)
        self.held_out = Gauge("hetpeer_held_out_loss", "Held-out loss in nats per token", ("mode",), registry=own)
        self.counted = {each: Counter(f"hetpeer_{name}", help, registry=own) for each, (name, help) in COUNTED.items()}
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("round", "The outer round that this peer works on", lambda: status.round),
            ("step", "Inner steps done in this round", lambda: status.step),
            ("loss", "Training loss of the last inner step, in nats per token", lambda: status.loss or 0.0),
            ("tokens_per_second", "Over the last inner steps", lambda: status.tokens_per_second),
            (
                "group_members",
                "Peers in this peer's group, itself counted; 0: it has none",
                lambda: len(status.members),
            ),
            ("peers_known", "Other peers of the run that this one knows", lambda: status.peers),
            ("peers_silent", "Those of them that do not answer", lambda: status.lost),
            ("credit_tokens", "Tokens of work that receipts show", lambda: status.credit),
            ("memory_bytes", "Memory of this process and those it has started", self.memory),
        )
        for name, help, read in gauges:
            Gauge(f"hetpeer_{name}", help, registry=own).set_function(read)

    def __call__(self, event: Event) -> None:
        """Follow what the daemon says."""
        before, now = self.place, self.status.heard
        self.place = self.status.round, self.status.step
        self.state.state(self.status.state)
        if type(event) in self.counted:
            self.counted[type(event)].inc()
        match event:
            case Joined(peer_id, role, stage, slot):
                self.joined.inc(self.back)
                self.back = True
                self.info.info({"peer_id": peer_id, "role": role, "stage": str(stage), "slot": str(slot)})
                self.pulse = Pulse(0, 0, 0, 0, 0, 0)
            case StepDone(round, step, _, tokens):
                self.tokens.inc(tokens)
                if self.stepped is not None and before == (round, step):
                    self.steps.observe(now - self.stepped)
                self.stepped = now
            case RoundDone():
                self.stepped = None
                self.rounds.observe(event.seconds)
            case Evaluated(_, loss, plain):
                self.held_out.labels("compressed").set(loss)
                self.held_out.labels("plain").set(plain)
            case Pulse():
                self._carry(event)
            case _:
                pass

    def _carry(self, new: Pulse) -> None:
        """Counters go up by what has gone over the line since the last pulse."""
        old, self.pulse = self.pulse, new
        for counter, kind, bytes_now, bytes_then in (
            (self.sent, "pipeline", new.frames_sent, old.frames_sent),
            (self.sent, "bulk", new.bulk_sent, old.bulk_sent),
            (self.received, "pipeline", new.frames_received, old.frames_received),
            (self.received, "bulk", new.bulk_received, old.bulk_received),
        ):
            counter.labels(kind).inc(max(0, bytes_now - bytes_then))


def where(text: str) -> tuple[str, int]:
    """`PORT`, on loopback, or `HOST:PORT`.

    Raises:
        UserError: it is neither.
    """
    try:
        return read_place(text)
    except FormatError as error:
        raise UserError(f"--metrics takes PORT or HOST:PORT: {error}") from None


@contextlib.contextmanager
def served(registry: CollectorRegistry, text: str) -> Iterator[str]:
    """Serve what is registered over HTTP, in threads of its own, as long as the block lasts; the URL.

    Raises:
        UserError: `text` is no address.
        ResourceError: it cannot be listened to.
    """
    host, port = where(text)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ResourceError(f"--metrics {join(host, port)}: {error.strerror or error}; give another port") from None
    try:
        yield f"http://{join(host, server.server_port)}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
