"""The volunteers that leave their seats, as one that waits for a seat sees it: how soon it may get one. Pure."""

from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.trust.records import PeerRecord, Peers
from protocol.wording import so_many

SEEN_ROUNDS_APART = 2
"""The most rounds between two looks of one wait: after more, this peer had a seat meanwhile, and counts anew."""


LEAST_ROUNDS_SEEN = 5
"""The rounds below which what was seen says nothing about how often members leave."""


@dataclass(slots=True)
class Departures:
    """The members of a stage that were in a group and are gone, since the round `since` in which this peer's wait
    began. One that is without a group for a moment has not left."""

    since: int = 0
    looked: int = -SEEN_ROUNDS_APART - 1
    left: int = 0
    seated: frozenset[PeerId] = field(default_factory=frozenset)

    def look(self, peers: Peers, me: PeerRecord) -> None:
        """Compare the members of the stage of `me` with those of the last look."""
        if me.round > self.looked + SEEN_ROUNDS_APART:
            self.since, self.left, self.seated = me.round, 0, frozenset()
        of_stage = {peer.peer_id: peer for peer in peers if peer.role == "volunteer" and peer.stage == me.stage}
        self.left += len(self.seated - of_stage.keys())
        in_groups = {peer for peer, record in of_stage.items() if record.replica}
        self.seated = frozenset(in_groups | (self.seated & of_stage.keys())) - {me.peer_id}
        self.looked = me.round

    def outlook(self, spares: int, rounds_left: int) -> str:
        """Say how soon this peer may get a seat, as one of so many `spares`, in a run that has `rounds_left`."""
        rounds_seen = roughly(self.looked - self.since)
        others = {1: "nobody else waits", 2: "1 other waits"}.get(spares, f"{spares - 1} others wait")
        if rounds_seen < LEAST_ROUNDS_SEEN:
            return f"{others}; how often a seat becomes free is not known yet"
        rounds = f"the last {rounds_seen} rounds or more"
        if not self.left:
            return f"{others}, and nobody has left a seat of this stage in {rounds}"
        until = roughly(round((self.looked - self.since) / self.left * (spares + 1) / 2))
        soon = f"about {so_many(max(1, until), 'round')} until its turn, if that goes on"
        soon = "more than the run has left, if that goes on" if until > rounds_left else soon
        return f"{others}, and {self.left} left a seat of this stage in {rounds}: {soon}"


def roughly(count: int) -> int:
    """A number of rounds, rounded down to 1, 2 or 5 times a power of ten: words with it change seldom."""
    power = 10 ** (len(str(count)) - 1)
    return max((step * power for step in (1, 2, 5) if step * power <= count), default=0)
