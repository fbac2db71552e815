"""A run as its operator's node sees it, for Prometheus. Pure: a view in, text out.

No label has a value that a peer chooses: roles and states are of fixed sets, stages are those of the run.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from protocol.events.event import PeerState
from protocol.monitor import PeerRole, PeerView, RoundView, RunState, View


def render(view: View) -> bytes:
    """Return the answer to `/metrics`, in Prometheus' text format."""
    return generate_latest(RunCollector(view))


@dataclass(frozen=True, slots=True)
class RunCollector(Collector):
    """A view of a run, as the metrics that Prometheus takes."""

    view: View

    def collect(self) -> Iterator[Metric]:
        """All families of metrics."""
        view = self.view
        yield InfoMetricFamily("hetpeer_run", "The run", value={"run_id": view.run_id})
        for name, help, value in (
            ("round", "The outer round that most peers work on", view.round),
            ("rounds", "Outer rounds of the run", view.rounds),
            ("inner_steps", "Inner steps of a round", view.inner_steps),
            ("replicas", "Replicas that the run's manifest has", view.replicas),
            ("compression", "d / k of the run's boundaries", view.compression),
            ("tokens", "Tokens that have been trained on", view.tokens),
            ("tokens_per_second", "Tokens a second of all replicas", view.tokens_per_second),
            ("up_bytes_per_second", "Bytes a second that all peers send", sum(peer.up for peer in view.peers)),
            ("down_bytes_per_second", "Bytes a second that all peers receive", sum(peer.down for peer in view.peers)),
            ("credit_tokens", "Tokens of work that receipts show", sum(peer.credit for peer in view.peers)),
            ("relayed_peers", "Peers that are reached through a relay", sum(peer.relayed for peer in view.peers)),
            ("start_time_seconds", "When the run began, in Unix seconds", view.started),
        ):
            yield GaugeMetricFamily(f"hetpeer_run_{name}", help, value=value)
        state = GaugeMetricFamily("hetpeer_run_state", "1 for the state that the run is in", labels=["state"])
        for name in get_args(RunState):
            state.add_metric([name], name == view.state)
        yield state
        yield GaugeMetricFamily(
            "hetpeer_run_state_since_seconds", "Since when, in Unix seconds", value=view.state_since
        )
        yield _peers(view.peers)
        volunteers = GaugeMetricFamily(
            "hetpeer_run_stage_volunteers", "Volunteers of a stage that are here", labels=["stage"]
        )
        away = PeerState.GONE, PeerState.LOST
        counts = Counter(peer.stage for peer in view.peers if peer.role == "volunteer" and peer.state not in away)
        for stage in range(view.stages):  # also one that nobody serves
            volunteers.add_metric([str(stage)], counts[stage])
        yield volunteers
        groups = GaugeMetricFamily("hetpeer_run_groups", "Replicas of several volunteers", labels=["state"])
        broken = sum(bool(group.broken) or not all(group.members) for group in view.groups)
        groups.add_metric(["training"], len(view.groups) - broken)
        groups.add_metric(["broken"], broken)
        yield groups
        if ended := [round for round in view.history if round.ended is not None]:
            yield from _round(ended[-1])
        if evaluated := [round for round in view.history if round.loss is not None]:
            losses = GaugeMetricFamily("hetpeer_run_held_out_loss", "Held-out loss in nats per token", labels=["mode"])
            for mode, loss in (("compressed", evaluated[-1].loss), ("plain", evaluated[-1].loss_plain)):
                if loss is not None:
                    losses.add_metric([mode], loss)
            yield losses


def _peers(peers: Iterable[PeerView]) -> Metric:
    family = GaugeMetricFamily("hetpeer_run_peers", "Peers, by role and state", labels=["role", "state"])
    counts = Counter((peer.role, peer.state) for peer in peers)
    for role in get_args(PeerRole):
        for state in PeerState:
            family.add_metric([role, state], counts[role, state])
    return family


def _round(last: RoundView) -> Iterator[Metric]:
    """The last round that has ended."""
    assert last.ended is not None
    for name, help, value in (
        ("seconds", "How long it lasted", last.ended - last.began),
        ("tokens", "Tokens trained on in it", last.tokens),
        ("contributions", "Contributions to it", len(last.contributions)),
        ("late", "Peers that came too late for it", len(last.late)),
        ("left", "Peers that left in it", len(last.left)),
    ):
        yield GaugeMetricFamily(f"hetpeer_run_last_round_{name}", f"Last round: {help}", value=value)
    sent = GaugeMetricFamily(
        "hetpeer_run_last_round_bytes",
        "Last round: bytes of the whole swarm, and what they would be uncompressed",
        labels=["kind"],
    )
    sent.add_metric(["pipeline"], last.pipeline_bytes)
    sent.add_metric(["outer"], last.outer_bytes)
    sent.add_metric(["uncompressed"], last.uncompressed_bytes)
    yield sent
