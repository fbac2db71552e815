"""What to do next, decided from what is known. Pure functions: call them with an invented swarm."""

from peer.swarm.view import Peers, free
from protocol.records import PeerRecord


def choose_members(peers: Peers, me: PeerRecord, stages: int) -> tuple[PeerRecord, ...] | None:
    """Who should serve stages 1, 2, … of the group that `me` (a stage-0 peer) leads; None if a stage lacks a peer.

    Leaders that look at the same time see the same lists, so the i-th free leader takes the i-th free peer
    of each stage, and they do not get in each other's way.
    """
    leaders = sorted({peer.peer_id for peer in free(peers, 0)} | {me.peer_id})
    turn = leaders.index(me.peer_id)
    chosen = []
    for stage in range(1, stages):
        candidates = sorted(free(peers, stage), key=lambda peer: peer.peer_id)
        if not candidates:
            return None
        chosen.append(candidates[min(turn, len(candidates) - 1)])
    return tuple(chosen)


def backoff_seconds(attempt: int, jitter: float) -> float:
    """How long a leader waits after a failed attempt: 0.25 s doubling to 8 s, times `jitter` in [0.5, 1.5)."""
    return float(min(8.0, 0.25 * 2 ** min(attempt, 5)) * jitter)
