"""The decisions on groups and members, as pure functions: tests call them with an invented swarm."""

import math
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from peer.swarm.roles import free_volunteers, looking
from protocol.identity import PeerId
from protocol.net.allowances import pause_after
from protocol.outer.window import SKEW
from protocol.trust.records import PeerRecord, Peers

ALIKE = math.log(1.5)
"""Speeds that differ by less are alike: machines are busy now and then, and a step has other costs, too."""

UNKNOWN = math.log(2)
"""The |ln| of the ratio of speeds that counts for an unmeasured peer: twice as fast, or half as fast."""

MUCH_QUICKER = 1.2
"""Groups change members for this and no less: speeds that are measured differ from round to round."""

NOWHERE = math.inf
"""The distance of a peer whose distance is not known."""


def speed_difference(one: PeerRecord, other: PeerRecord) -> float:
    """The difference between two volunteers' speeds: |ln| of their ratio, since a group is as fast as its slowest
    member."""
    if not (one.tokens_per_second and other.tokens_per_second):
        return UNKNOWN
    return abs(math.log(one.tokens_per_second / other.tokens_per_second))


def preferred(peers: Peers, me: PeerRecord, trips: Mapping[PeerId, float] = MappingProxyType({})) -> list[PeerRecord]:
    """The free volunteers of the stage behind that of `me`, in the order in which it should call them.

    Like goes with like: a group is as fast as its slowest member, and who is much faster waits. All of a stage that
    look at the same time see the same lists, so each can tell whom the others want: from the fastest on, each takes
    whoever is next to it in speed, and they do not get in each other's way. Of those that nobody wants, a peer may take
    one that is nearer, and as like it; `trips` are round trips, in seconds, as far as they are known.
    """
    others = [peer for peer in looking(peers, me.stage) if peer.peer_id != me.peer_id]
    able = (
        peer for peer in free_volunteers(peers, me.stage + 1) if peer.round + SKEW >= me.round
    )  # the others catch up first
    rivals = sorted([me, *others], key=_fastest_first)
    candidates = sorted(able, key=lambda peer: peer.peer_id)
    wanted = matched(rivals, candidates)
    mine = wanted.get(me.peer_id)
    begin = candidates.index(mine) if mine is not None else rivals.index(me)
    turns = {peer.peer_id: (at - begin) % len(candidates) for at, peer in enumerate(candidates)}
    order = sorted(candidates, key=lambda peer: (speed_difference(me, peer), turns[peer.peer_id]))
    if mine is None:
        return order
    theirs = {peer.peer_id for rival, peer in wanted.items() if rival != me.peer_id}
    like = [peer for peer in order if peer.peer_id not in theirs and is_like(me, mine, peer)]
    like.sort(key=lambda peer: (trips.get(peer.peer_id, NOWHERE), peer.peer_id != mine.peer_id))
    return [*like, *(peer for peer in order if peer not in like)]


def is_like(me: PeerRecord, mine: PeerRecord, other: PeerRecord) -> bool:
    """Whether another volunteer suits `me` about as well as `mine`, the one next to it in speed."""
    return other is mine or speed_difference(me, other) <= max(ALIKE, speed_difference(me, mine))


def matched(rivals: Iterable[PeerRecord], candidates: Iterable[PeerRecord]) -> dict[PeerId, PeerRecord]:
    """Return the candidate that each rival wants, in their order: the free one next to it in speed. No two want the
    same one."""
    remaining = sorted(candidates, key=lambda peer: (peer.tokens_per_second, peer.peer_id))  # the unmeasured come first
    wanted: dict[PeerId, PeerRecord] = {}
    for rival in rivals:
        if not remaining:
            break
        at = bisect(remaining, rival.tokens_per_second, key=lambda peer: peer.tokens_per_second)
        beside = {0, max(0, at - 1), min(at, len(remaining) - 1)}
        best = min(beside, key=lambda place: (speed_difference(rival, remaining[place]), place))
        wanted[rival.peer_id] = remaining.pop(best)
    return wanted


def _fastest_first(peer: PeerRecord) -> tuple[float, PeerId]:
    return -peer.tokens_per_second, peer.peer_id


def better_group(peers: Peers, me: PeerRecord, stages: int) -> Sequence[PeerId] | None:
    """The group in which the volunteer `me` should be, by stage, if all groups changed members so that the quickest are
    together; empty where it should be in none; None where they would not be much quicker, or a group is not whole.

    A group is as quick as its slowest member. The sum of that over all groups is largest where the k-th quickest of the
    first stages that have a group has the k-th quickest volunteer of each stage. All who know the same records come to
    the same.
    """
    volunteers = [me, *(peer for peer in peers if peer.role == "volunteer" and peer.peer_id != me.peer_id)]
    firsts = sorted((peer for peer in volunteers if peer.stage == 0 and peer.leads), key=_fastest_first)
    ranked = [firsts]
    ranked += [sorted((p for p in volunteers if p.stage == stage), key=_fastest_first) for stage in range(1, stages)]
    now = best = 0.0
    for rank, first in enumerate(firsts):
        members = [peer for peer in volunteers if peer.replica == first.peer_id]
        if len({peer.stage for peer in members}) < stages:
            return None
        pace = min(peer.tokens_per_second for peer in members)
        if not pace:  # somebody has not been measured
            return None
        now += pace
        best += min(order[rank].tokens_per_second for order in ranked)
    if not now or best < MUCH_QUICKER * now:
        return None
    slot = ranked[me.stage].index(me) if me in ranked[me.stage] else len(firsts)
    return [order[slot].peer_id for order in ranked] if slot < len(firsts) else []


def backoff_seconds(attempt: int, jitter: float) -> float:
    """The pause after a failed attempt, in seconds: 0.25 doubling to 2, times `jitter` in [0.5, 1.5)."""
    return pause_after(attempt + 1, 0.25, 2.0) * jitter
