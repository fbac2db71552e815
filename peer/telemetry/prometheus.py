"""`--metrics`: what a daemon does, for Prometheus.

Every number is this peer's own. No label has a value that another peer chooses, so there are never more series.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, start_http_server

from peer.telemetry.status import Status
from protocol.addresses import join_address, read_place
from protocol.errors import FormatError, ResourceError, UserError
from protocol.events.activity import Evaluated, GroupBroken, Joined, Pulse, Refused, RoundDone, StepDone
from protocol.events.decisions import Avoided, NotCounted, Resynchronised
from protocol.events.event import Event, PeerState
from protocol.events.group_decisions import MemberReplaced

STEP_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
ROUND_SECONDS = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)

COUNTED: dict[type[Any], tuple[str, str]] = {
    GroupBroken: ("groups_broken", "Times a group of this peer lost a member"),
    MemberReplaced: ("members_replaced", "Times this peer let a slow neighbour go for another volunteer of its stage"),
    Refused: ("refused", "Times another peer sent what is not valid"),
    Avoided: ("avoided", "Times this peer hung up on another for breaking the protocol"),
    Resynchronised: ("resynchronised", "Times this peer took the state of the others in place of its own"),
    NotCounted: ("not_counted", "Times nothing of this peer counted in some part of a round"),
}
"""Events that are counted, by the middle of their metric's name."""


class Metrics:
    """A listener that counts events in `registry`. All that `status` has is read from there."""

    def __init__(self, status: Status, memory: Callable[[], int]) -> None:
        """`status` hears each event before; `memory` gives the bytes that this process and its children hold."""
        self.status = status
        registry = self.registry = CollectorRegistry()
        self.info = Info("hetpeer_peer", "This peer and its place in the run", registry=registry)
        self.state = Enum("hetpeer_state", "What this peer does", states=list(PeerState), registry=registry)
        self.joined = Counter("hetpeer_reconnects", "Times this peer has come back to its run", registry=registry)
        self.tokens = Counter("hetpeer_tokens", "Tokens of the inner steps of this peer's replica", registry=registry)
        self.steps = Histogram(
            "hetpeer_inner_step_seconds",
            "From one inner step's end to the next",
            buckets=STEP_SECONDS,
            registry=registry,
        )
        self.rounds = Histogram("hetpeer_round_seconds", "Outer rounds", buckets=ROUND_SECONDS, registry=registry)
        self.sent = Counter("hetpeer_sent_bytes", "Bytes sent, by kind", ("kind",), registry=registry)
        self.received = Counter("hetpeer_received_bytes", "Bytes received, by kind", ("kind",), registry=registry)
        self.held_out = Gauge("hetpeer_held_out_loss", "Held-out loss in nats per token", ("mode",), registry=registry)
        self.counted = {
            kind: Counter(f"hetpeer_{name}", help, registry=registry) for kind, (name, help) in COUNTED.items()
        }
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
            ("memory_bytes", "Memory of this process and those it has started", memory),
        )
        for name, help, read in gauges:
            Gauge(f"hetpeer_{name}", help, registry=registry).set_function(read)

    def __call__(self, event: Event) -> None:
        status, moved = self.status, self.status.moved
        self.state.state(status.state)
        if type(event) in self.counted:
            self.counted[type(event)].inc()
        match event:
            case Joined(peer_id, role, stage, slot):
                self.joined.inc(status.joins > 1)
                self.info.info({"peer_id": peer_id, "role": role, "stage": str(stage), "slot": str(slot)})
            case StepDone(tokens=tokens):
                self.tokens.inc(tokens)
                if status.step_seconds is not None:
                    self.steps.observe(status.step_seconds)
            case RoundDone():
                self.rounds.observe(event.seconds)
            case Evaluated(_, loss, plain):
                self.held_out.labels("compressed").set(loss)
                self.held_out.labels("plain").set(plain)
            case Pulse() if moved is not None:
                self.sent.labels("pipeline").inc(moved.frames_sent)
                self.sent.labels("bulk").inc(moved.bulk_sent)
                self.received.labels("pipeline").inc(moved.frames_received)
                self.received.labels("bulk").inc(moved.bulk_received)
            case _:
                pass


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
        raise ResourceError(
            f"--metrics {join_address(host, port)}: {error.strerror or error}; give another port"
        ) from None
    try:
        yield f"http://{join_address(host, server.server_port)}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
