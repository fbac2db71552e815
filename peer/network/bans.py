"""Bans: the peers to which this peer does not talk, for good if they were taken out of the run, for a while if they
broke the protocol."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.clock import monotonic
from protocol.errors import HetpeerError, PeerError
from protocol.events.activity import Refused
from protocol.events.decisions import Avoided
from protocol.events.event import Listener
from protocol.identity import PeerId
from protocol.net.allowances import pause_after
from protocol.trust.records import PeerRecord

FIRST_BAN_SECONDS = 10.0
"""The time of a first ban: a moment, for a peer that has a broken link or memory, or another version."""

LONGEST_BAN_SECONDS = 3600.0

OFFENDERS_KEPT = 4096
"""The offenders that are remembered, more than a run has peers; the longest forgiven are forgotten first."""


@dataclass(slots=True)
class Offences:
    """The offences of one peer: how often it broke the protocol, and until when it is avoided. Each ban is twice as
    long."""

    count: int = 0
    until: float = 0.0
    reason: str = ""


@dataclass(slots=True)
class Bans:
    """The bans of this peer. `records` are the known peers' newest, which name the gateways that let them in. Each of
    `listeners` is called with a peer that is banned from now on."""

    emit: Listener
    clock: Callable[[], float] = monotonic
    revoked: set[PeerId] = field(default_factory=set)
    offenders: dict[PeerId, Offences] = field(default_factory=dict)
    records: Mapping[PeerId, PeerRecord] = field(default_factory=dict)
    listeners: list[Callable[[PeerId], None]] = field(default_factory=list)

    def objection(self, peer: PeerId) -> str:
        """The reason why this peer does not talk to another now; empty: it does."""
        if peer in self.revoked:
            return f"the operator has taken peer {peer[-8:]} out of the run"
        if peer in self.records and self.records[peer].issuer in self.revoked:
            return f"the operator has taken out the gateway that let peer {peer[-8:]} in"
        known = self.offenders.get(peer)
        if known is not None and (left := known.until - self.clock()) > 0:
            return f"peer {peer[-8:]} is avoided for {left:.0f} s: {known.reason}"
        return ""

    def note(self, peer: PeerId, error: HetpeerError) -> None:
        """Note a peer's error. If it broke the protocol, it is avoided for a while; a refusal or an honest mistake
        costs it nothing."""
        if not isinstance(error, PeerError) or self.objection(peer):
            return
        self.emit(Refused(peer, str(error)))
        offences = self.offenders.pop(peer, None) or Offences()
        offences.count += 1
        seconds = pause_after(offences.count, FIRST_BAN_SECONDS, LONGEST_BAN_SECONDS)
        offences.until = self.clock() + seconds
        offences.reason = str(error)[:200]
        self.emit(Avoided(peer, seconds, f"offence {offences.count}: {offences.reason}"))
        self.offenders[peer] = offences
        if len(self.offenders) > OFFENDERS_KEPT:
            del self.offenders[next(iter(self.offenders))]
        self._tell(peer)

    def is_revoked(self, peer: PeerId) -> bool:
        """Whether the operator has taken a peer out."""
        return peer in self.revoked

    def revoke(self, peer: PeerId) -> None:
        """Ban a peer for good: the operator has taken it out."""
        if peer not in self.revoked:
            self.revoked.add(peer)
            self.emit(Avoided(peer, None, "the operator has taken it out of the run"))
            self._tell(peer)

    def _tell(self, banned: PeerId) -> None:
        for listener in self.listeners:
            listener(banned)
