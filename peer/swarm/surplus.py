"""The volunteers that should serve another stage than theirs: those for which groups have no seat, while another stage
is short. Pure: all that read the same records come to the same."""

from bisect import bisect
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.trust.records import PeerRecord, Peers

SURPLUS_SECONDS = 60.0
"""A volunteer does not move before it has been surplus for so long: somebody who was lost may be back."""

OVERDUE_MOVE_RATIO = 3
"""The delay after which a volunteer that has not moved is passed over, in times of the usual time and rounds: it may
never move."""


def moves(peers: Peers, stages: int, without: Collection[PeerId] = (), anywhere: bool = False) -> dict[PeerId, int]:
    """The stage to which each volunteer should move, so that as many groups as possible can form; empty: no moves would
    make another group possible.

    Those move who are in no whole group, and have agreed to (`PeerRecord.moves_to`), or all of them where `anywhere`;
    but for those `without` whom it has to do. A stage gives only what it has beyond one volunteer for each group, so
    that no stage becomes short, and no move is followed by one back. Nobody moves to a stage whose state nobody holds.
    """
    volunteers = [peer for peer in peers if peer.role == "volunteer" and peer.stage < stages]
    counts = Counter(peer.stage for peer in volunteers)
    fewest, most = min(counts[stage] for stage in range(stages)), len(volunteers) // stages
    if fewest == most:
        return {}

    def choice(peer: PeerRecord) -> Collection[int]:
        return range(stages) if anywhere else peer.moves_to

    def order(peer: PeerRecord) -> tuple[int, bool, int, PeerId]:  # first who has least choice, and is least missed
        return len(choice(peer)), bool(peer.replica), peer.contributed, peer.peer_id

    stay, held = in_whole_groups(peers, stages).union(without), _held(peers, stages)
    movable = sorted((peer for peer in volunteers if peer.peer_id not in stay), key=order)

    def plan(groups: int) -> dict[PeerId, int] | None:
        """The moves after which so many groups are possible; None: there are none such."""
        spare, planned = {stage: counts[stage] - groups for stage in range(stages)}, dict[PeerId, int]()
        for stage in [stage for stage in held if spare[stage] < 0]:
            for peer in movable:
                able = peer.peer_id not in planned and spare[peer.stage] > 0 and stage in choice(peer)
                if able and spare[stage] < 0:
                    planned[peer.peer_id] = stage
                    spare[peer.stage], spare[stage] = spare[peer.stage] - 1, spare[stage] + 1
        return planned if min(spare.values()) >= 0 else None

    possible = bisect(range(fewest + 1, most + 1), False, key=lambda groups: plan(groups) is None)
    return plan(fewest + possible) or {}


def stage_in_need(peers: Peers, me: PeerRecord, stages: int) -> int | None:
    """The stage where the volunteer `me`, or another surplus one of its stage, would make another group possible; None:
    there is none such, or this peer is in a group."""
    if me.peer_id in in_whole_groups(peers, stages):
        return None
    own, at = moves(peers, stages).get(me.peer_id), {peer.peer_id: peer.stage for peer in peers}
    others = (stage for peer, stage in moves(peers, stages, anywhere=True).items() if at[peer] == me.stage)
    return own if own is not None else next(others, None)


def in_whole_groups(peers: Peers, stages: int) -> set[PeerId]:
    """The members of groups that have one for each stage, as they say themselves."""
    groups: dict[str, dict[PeerId, int]] = {}
    for peer in peers:
        if peer.role == "volunteer" and peer.replica:
            groups.setdefault(peer.replica, {})[peer.peer_id] = peer.stage
    return {peer for members in groups.values() if len({*members.values()}) == stages for peer in members}


def _held(peers: Peers, stages: int) -> list[int]:
    """The stages whose state somebody holds; all of them where there is none yet, as no round is over."""
    holders = [peer for peer in peers if max(peer.round, peer.contributed)]
    if any(peer.role != "volunteer" for peer in holders) or not any(peer.round for peer in peers):
        return list(range(stages))
    return sorted({peer.stage for peer in holders})


@dataclass(slots=True)
class Watch:
    """The volunteers that should move and have not yet, as one peer has seen it: the stage, the time and the round of
    each that it saw first."""

    since: dict[PeerId, tuple[int, float, int]] = field(default_factory=dict)
    late: set[PeerId] = field(default_factory=set)

    def look(self, peers: Peers, me: PeerRecord, stages: int, now: float) -> int | None:
        """The stage to which `me` should move now; None: it stays for now. It moves when it has been surplus for long,
        and a round has ended meanwhile, if anybody trains and one has ended before (until then the run may gather); and
        not between its contribution to a round and the end of that."""
        planned = moves(peers, stages, self.late - {me.peer_id})
        still_planned = {
            peer: since_seen for peer, since_seen in self.since.items() if planned.get(peer) == since_seen[0]
        }
        self.since = {peer: still_planned.get(peer, (stage, now, me.round)) for peer, stage in planned.items()}
        trains = any(peer.role == "datacenter" for peer in peers) or bool(in_whole_groups(peers, stages))

        def lasts(peer: PeerId, times: int) -> bool:
            _, began, round = self.since[peer]
            return now - began >= times * SURPLUS_SECONDS and (me.round >= round + times or not trains or not me.round)

        self.late |= {peer for peer in planned if lasts(peer, OVERDUE_MOVE_RATIO)}
        is_due = me.peer_id in planned and lasts(me.peer_id, 1) and me.contributed <= me.round
        return planned[me.peer_id] if is_due else None
