"""What to do next, decided from what is known. Pure functions: call them with an invented swarm."""

from collections.abc import Container

from peer.swarm.view import Peers, free
from protocol.records import PeerRecord


def choose_members(
    peers: Peers, me: PeerRecord, stages: int, taken: Container[int] = (), attempt: int = 0
) -> dict[int, PeerRecord]:
    """Who should serve each of the stages 1, 2, … of the group that `me` (a stage-0 peer) leads, where none does yet.

    Leaders that look at the same time see the same lists, so the i-th free leader takes the i-th free peer
    of each stage, and they do not get in each other's way. Who was declined asks the next one.
    """
    leaders = sorted({peer.peer_id for peer in free(peers, 0)} | {me.peer_id})
    turn = leaders.index(me.peer_id)
    chosen = {}
    for stage in range(1, stages):
        candidates = sorted(free(peers, stage), key=lambda peer: peer.peer_id)
        if stage not in taken and candidates:
            chosen[stage] = candidates[(turn + attempt) % len(candidates)]
    return chosen


def backoff_seconds(attempt: int, jitter: float) -> float:
    """How long a leader waits after a failed attempt: 0.25 s doubling to 2 s, times `jitter` in [0.5, 1.5)."""
    return float(min(2.0, 0.25 * 2 ** min(attempt, 5)) * jitter)
