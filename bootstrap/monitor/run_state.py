"""The state of a whole run: it gathers its peers, trains, stands still for want of something, or is finished. Pure: the
clock is an argument."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from bootstrap.monitor.peers import Peer, present
from bootstrap.monitor.rounds import PACE_ROUNDS_KEPT, Round
from protocol.identity import stage_part
from protocol.manifest import Manifest
from protocol.monitor import GroupView, RunState
from protocol.staffing import missing_peers
from protocol.trust.records import lost_states
from protocol.wording import LOST, parts_named, state_after

STALLED_TIMES, STALLED_SECONDS = 10, 60.0
"""A round that has lasted so many times the usual, and so long at least, shows that the run stands still."""

BROKEN_SECONDS = 15.0
"""A run without any complete replica is stalled after so long: a group that lost a member has another by then."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The observed state of the run, the reason for it in words, and since when (Unix seconds)."""

    state: RunState
    why: str
    since: float

    @property
    def words(self) -> str:
        """State and reason in a sentence."""
        return f"The run is {self.state}{f': {self.why}' if self.why else ''}"


LastState = Literal["", "coming", "here"]
"""Whether this node holds the run's last state for those who come late: it does not, it is about to, it does."""

HOLDING: dict[LastState, str] = {
    "": "",
    "coming": "the node takes the model from those who have finished it",
    "here": "the node holds the model: `hetpeer export TICKET --out model` takes it from there",
}
"""The same in words, of a run that is finished."""


def has_replica(peers: Iterable[Peer], groups: Iterable[GroupView]) -> bool:
    """Whether any replica is complete: a datacenter, or a group with a member at each stage that is not broken."""
    has_datacenter = any(record.role == "datacenter" for record in present(peers))
    return has_datacenter or any(not group.broken and all(group.members) for group in groups)


def usual_seconds(rounds: Iterable[Round]) -> float | None:
    """Return how long a round of the run takes, by the last that have ended; None: none has."""
    took = [entry.ended - entry.began for entry in rounds if entry.ended is not None]
    return median_low(took[-PACE_ROUNDS_KEPT:]) if took else None


def lost_state(manifest: Manifest, peers: Iterable[Peer]) -> str:
    """The state of a stage that somebody serves and nobody who is here holds any more, in words; empty: there is none
    such."""
    last, stages = lost_states(present(peers), manifest.replicas.stages)
    return f"waits for {state_after(last, parts_named(map(stage_part, stages)))}: {LOST}" if stages else ""


def waits_for(manifest: Manifest, peers: Iterable[Peer]) -> str:
    """Say what an incomplete run waits for; empty where everybody is there."""
    missing = missing_peers(present(peers), manifest.replicas)
    return f"waits for {', '.join(missing)}" if missing else ""


def run_state(
    manifest: Manifest,
    peers: Collection[Peer],
    groups: Collection[GroupView],
    rounds: Collection[Round],
    before: RunStatus,
    alone: float | None,
    over: bool,
    now: float,
    last_state: LastState = "",
    lost: float | None = None,
    awake: float = 0.0,
) -> RunStatus:
    """The run's state now, where it was `before`. `rounds`: those known, in order. `alone`: since when no replica is
    complete; None: one is, or this node has not looked for long enough to tell. `lost`: the same of a state that nobody
    holds any more. `awake`: since when this node looks: what ended before, while it was away, it did not see."""
    if over:
        return _since(before, "finished", HOLDING[last_state], now)
    has_begun = any(any(entry.stepped.values()) or entry.contributed or entry.ended is not None for entry in rounds)
    if before.state == "gathering" and not has_begun:
        return RunStatus("gathering", waits_for(manifest, peers) or "waits for the first inner step", before.since)
    if before.state == "gathering":
        return _since(before, "training", "", now)
    if alone is not None and before.state == "training":
        alone = max(alone, before.since)  # it gathered until then
    if lost is not None and now - lost >= BROKEN_SECONDS:
        return _since(before, "stalled", lost_state(manifest, peers), lost)
    if alone is not None and now - alone >= BROKEN_SECONDS:
        want = waits_for(manifest, peers) or "its volunteers have formed no group"
        why = f"no replica is complete: {want}" if lost is None else lost_state(manifest, peers)
        return _since(before, "stalled", why, alone)
    usual, ends = usual_seconds(rounds), [entry.ended for entry in rounds if entry.ended is not None]
    if usual is not None and now - max(ends[-1], awake) >= max(STALLED_TIMES * usual, STALLED_SECONDS):
        want = waits_for(manifest, peers)
        words = f"no round has ended for {STALLED_TIMES} times the usual {usual:.0f} s"
        return _since(before, "stalled", f"{words}; {want}" if want else words, ends[-1])
    return _since(before, "training", "", now)


def _since(before: RunStatus, state: RunState, why: str, since: float) -> RunStatus:
    return RunStatus(state, why, before.since if before.state == state else since)
