"""The lease of a volunteer to one group: a state machine without I/O, as a table.

FREE ──invited──▶ LEASED ──leader calls──▶ MEMBER ──leader's stream ends──▶ FREE
                  LEASED ──the lease runs out──▶ FREE
"""

from dataclasses import dataclass
from enum import Enum

from protocol.identity import ReplicaId
from protocol.limits import LEASE_SECONDS


class LeaseState(Enum):
    """The state of a volunteer."""

    FREE = "free"
    LEASED = "leased"
    MEMBER = "member"


class LeaseEvent(Enum):
    """An act of a leader."""

    INVITED = "invited"
    CALLED = "called"
    LEFT = "left"


TRANSITIONS = {
    (LeaseState.FREE, LeaseEvent.INVITED): LeaseState.LEASED,
    (LeaseState.LEASED, LeaseEvent.INVITED): LeaseState.LEASED,  # by the same leader: the lease begins anew
    (LeaseState.LEASED, LeaseEvent.CALLED): LeaseState.MEMBER,
    (LeaseState.MEMBER, LeaseEvent.LEFT): LeaseState.FREE,
}


@dataclass(slots=True)
class Lease:
    """A volunteer's engagement. Times are seconds on any monotonic clock."""

    state: LeaseState = LeaseState.FREE
    leader: ReplicaId | None = None
    until: float = 0.0

    def take(self, event: LeaseEvent, leader: ReplicaId, now: float) -> bool:
        """Apply what `leader` did; False if it may not do that now, and then nothing changes."""
        if self.state is LeaseState.LEASED and now >= self.until:
            self.state, self.leader = LeaseState.FREE, None
        if self.leader not in (None, leader):
            return False
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            return False
        self.state = following
        self.leader = None if following is LeaseState.FREE else leader
        self.until = now + LEASE_SECONDS
        return True
