"""The time at which a volunteer moves that should serve another stage than its own (`protocol/staffing.py`). Pure."""

from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.staffing import in_whole_groups, moves
from protocol.trust.records import PeerRecord, Peers

SURPLUS_SECONDS = 60.0
"""A volunteer does not move before it has been surplus for so long: somebody who was lost may be back."""

OVERDUE_MOVE_RATIO = 3
"""The delay after which a volunteer that has not moved is passed over, in times of the usual time and rounds: it may
never move."""


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
