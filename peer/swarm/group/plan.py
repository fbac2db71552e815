"""What to do next, decided from what is known. Pure functions: call them with an invented swarm."""

import math
from bisect import bisect
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from zlib import crc32

from peer.swarm.roles import free
from protocol.identity import PeerId
from protocol.net.allowances import pause_after
from protocol.trust.records import PeerRecord, Peers

ALIKE = math.log(1.5)
"""Speeds that differ by less are alike: machines are busy now and then, and a step has other costs, too."""

UNKNOWN = math.log(2)
"""Who has not been measured counts as twice as fast, or half as fast."""

MUCH_QUICKER = 1.2
"""Groups change members for this and no less: speeds that are measured differ from round to round."""

TURN_SECONDS = 20.0
"""Of two leaders that cannot both fill their groups, one has so much time for it, then perhaps the other."""

NOWHERE = math.inf
"""How far away somebody is whose distance is not known."""


def difference(one: PeerRecord, other: PeerRecord) -> float:
    """How unlike two volunteers' speeds are: |ln| of their ratio, since a group is as fast as its slowest member."""
    if not (one.tokens_per_second and other.tokens_per_second):
        return UNKNOWN
    return abs(math.log(one.tokens_per_second / other.tokens_per_second))


def preferred(
    peers: Peers, me: PeerRecord, stage: int, trips: Mapping[PeerId, float] = MappingProxyType({})
) -> list[PeerRecord]:
    """The free volunteers of a stage, in the order in which the leader `me` should ask them.

    Like goes with like: a group is as fast as its slowest member, and who is much faster waits. Leaders that look at
    the same time see the same lists, so each can tell whom the others want: from the fastest on, each takes whoever is
    next to it in speed, and they do not get in each other's way. Of those that nobody wants, a leader may take one that
    is nearer, and as like it; `trips` are round trips, in seconds, as far as they are known.
    """
    leaders = sorted({peer.peer_id: peer for peer in (*free(peers, 0), me)}.values(), key=_fastest_first)
    candidates = sorted(free(peers, stage), key=lambda peer: peer.peer_id)
    wanted = matched(leaders, candidates)
    mine = wanted.get(me.peer_id)
    begin = candidates.index(mine) if mine is not None else leaders.index(me)
    turns = {peer.peer_id: (at - begin) % len(candidates) for at, peer in enumerate(candidates)}
    order = sorted(candidates, key=lambda peer: (difference(me, peer), turns[peer.peer_id]))
    if mine is None:
        return order
    others = {peer.peer_id for leader, peer in wanted.items() if leader != me.peer_id}
    like = [peer for peer in order if peer.peer_id not in others and is_like(me, mine, peer)]
    like.sort(key=lambda peer: (trips.get(peer.peer_id, NOWHERE), peer.peer_id != mine.peer_id))
    return [*like, *(peer for peer in order if peer not in like)]


def is_like(me: PeerRecord, mine: PeerRecord, other: PeerRecord) -> bool:
    """Whether another volunteer suits `me` about as well as `mine`, the one next to it in speed."""
    return other is mine or difference(me, other) <= max(ALIKE, difference(me, mine))


def matched(leaders: Iterable[PeerRecord], candidates: Iterable[PeerRecord]) -> dict[PeerId, PeerRecord]:
    """Whom each leader wants, in their turn: who is left and next to it in speed. No two want the same."""
    left = sorted(candidates, key=lambda peer: (peer.tokens_per_second, peer.peer_id))  # the unmeasured come first
    wanted: dict[PeerId, PeerRecord] = {}
    for leader in leaders:
        if not left:
            break
        at = bisect(left, leader.tokens_per_second, key=lambda peer: peer.tokens_per_second)
        beside = {0, max(0, at - 1), min(at, len(left) - 1)}
        best = min(beside, key=lambda place: (difference(leader, left[place]), place))
        wanted[leader.peer_id] = left.pop(best)
    return wanted


def _fastest_first(peer: PeerRecord) -> tuple[float, PeerId]:
    return -peer.tokens_per_second, peer.peer_id


def choose_members(
    peers: Peers,
    me: PeerRecord,
    stages: int,
    taken: Container[int] = (),
    attempt: int = 0,
    trips: Mapping[PeerId, float] = MappingProxyType({}),
) -> dict[int, PeerRecord]:
    """Who should serve each of the stages 1, 2, … of the group that `me` (a stage-0 peer) leads, where none does yet.
    Who was declined asks the next one."""
    asked = {stage: preferred(peers, me, stage, trips) for stage in range(1, stages) if stage not in taken}
    return {stage: order[attempt % len(order)] for stage, order in asked.items() if order}


def better_members(peers: Peers, me: PeerRecord, stages: int, mine: Mapping[int, PeerId]) -> dict[int, PeerRecord]:
    """Whom the leader `me` should have at the stages where it has others (`mine`, by stage), if all groups changed
    members so that the quickest are together; empty where they would not be much quicker, or a group is not whole.

    A group is as quick as its slowest member. The sum of that over all groups is largest where the k-th quickest leader
    has the k-th quickest volunteer of each stage. All leaders who know the same records come to the same.
    """
    volunteers = [peer for peer in peers if peer.role == "volunteer" and peer.peer_id != me.peer_id]
    leaders = sorted([me, *(peer for peer in volunteers if peer.stage == 0 and peer.leads)], key=_fastest_first)
    now = best = 0.0
    ranked = {
        stage: sorted((p for p in volunteers if p.stage == stage), key=_fastest_first) for stage in range(1, stages)
    }
    for rank, leader in enumerate(leaders):
        own = [peer for peer in volunteers if peer.replica == leader.peer_id and peer.stage]
        if len({peer.stage for peer in own}) < stages - 1:
            return {}
        pace = min(peer.tokens_per_second for peer in (leader, *own))
        if not pace:  # somebody has not been measured
            return {}
        now += pace
        best += min(peer.tokens_per_second for peer in (leader, *(ranked[stage][rank] for stage in ranked)))
    if best < MUCH_QUICKER * now:
        return {}
    place = leaders.index(me)
    return {stage: order[place] for stage, order in ranked.items() if order[place].peer_id != mine.get(stage)}


def goes_first(peers: Peers, me: PeerRecord, stages: int, taken: Container[int], unix_seconds: float) -> PeerId | None:
    """The leader whose group is to be filled before that of the leader `me`, which has members at the stages `taken`;
    None: nobody's is.

    Where there are not enough volunteers, each of two leaders may hold some, and lack what the other holds: then the
    one that does not go first has to let its members go, and may invite none. First goes a group that trains
    already, of the others another one in each turn of `TURN_SECONDS`: some leader may be unable to reach somebody.
    """
    held: dict[str, set[int]] = {}
    for peer in peers:
        if peer.role == "volunteer" and peer.replica and peer.stage:
            held.setdefault(peer.replica, set()).add(peer.stage)
    lacked = [stage for stage in range(1, stages) if stage not in taken and not free(peers, stage)]
    turn = int(unix_seconds // TURN_SECONDS)

    def place(leader: PeerRecord) -> tuple[bool, int, PeerId]:
        return not leader.leads, crc32(f"{turn} {leader.peer_id}".encode()), leader.peer_id

    groups = {leader for leader, its in held.items() if len(its) < stages - 1 and its.intersection(lacked)}
    leaders = [peer for peer in peers if peer.role == "volunteer" and peer.stage == 0 and peer.peer_id != me.peer_id]
    first = min([me, *(leader for leader in leaders if leader.peer_id in groups)], key=place)
    return None if first is me else first.peer_id


def backoff_seconds(attempt: int, jitter: float) -> float:
    """How long a leader waits after a failed attempt: 0.25 s doubling to 2 s, times `jitter` in [0.5, 1.5)."""
    return pause_after(attempt + 1, 0.25, 2.0) * jitter
