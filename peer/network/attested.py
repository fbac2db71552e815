"""The attestations that this peer has heard, and what it makes of others' claims by them."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from peer.network.bans import Bans
from protocol.errors import FormatError, ResourceError
from protocol.events.activity import Refused
from protocol.files import write_atomically
from protocol.identity import Part, PeerId
from protocol.limits import PEERS_KEPT
from protocol.outer.history import Claim
from protocol.trust import attestations
from protocol.trust.attestations import GRANTED, KEPT, Attestation
from protocol.trust.membership_card import Signer

MyClaims = dict[Part, list[Claim]]


@dataclass(slots=True)
class Attested:
    """The newest attestation, kept in `folder`. `revoked` tells whether the operator has taken an attester out."""

    signer: Signer
    bans: Bans
    folder: Path
    revoked: Callable[[PeerId], bool]
    newest: Attestation | None = None
    signed: bytes = b""
    granted: bytes = b""
    """The operator's word that this peer attests; empty: it does not attest."""
    since: int = 0
    """The last round of which this peer itself has taken others' word."""
    mine: MyClaims = field(default_factory=dict)
    """This peer's own closed rounds."""
    others_claims: dict[PeerId, Mapping[Part, list[Claim]]] = field(default_factory=dict)
    """The claims of others, as they told them last; those of the peers that were silent for longest are forgotten
    first."""
    disbelieved: set[tuple[PeerId, Part]] = field(default_factory=set)
    """The peers, and parts, of which it has been said that they claim another past."""

    def __post_init__(self) -> None:
        """Load what the folder keeps. What is damaged there counts as absent."""
        with suppress(OSError, FormatError):
            granted = (self.folder / GRANTED).read_bytes()
            if attestations.read_grant(granted, self.signer.authority) == self.signer.identity.peer_id:
                self.granted = granted
        with suppress(OSError, FormatError):
            self._keep((self.folder / KEPT).read_bytes())

    @property
    def round(self) -> int:
        """The round of the newest attestation that stands; 0: there is none."""
        return self.newest.round if self.newest is not None and not self.revoked(self.newest.attester) else 0

    def receive(self, signed: bytes, sender: PeerId) -> None:
        """Keep an attestation that was passed on, if it is newer than the one here; empty bytes are none."""
        if not signed or signed == self.signed:
            return
        try:
            if self._keep(signed):
                with suppress(ResourceError):  # others have it, too
                    write_atomically(self.folder / KEPT, signed)
        except FormatError as error:
            self.bans.note(sender, error)

    def _keep(self, signed: bytes) -> bool:
        attestation = attestations.read_attestation(signed, self.signer.authority)
        if attestation.round <= self.round or self.revoked(attestation.attester):
            return False
        self.newest, self.signed = attestation, signed
        return True

    # Attesting

    def close(self, claims: MyClaims) -> MyClaims:
        """Note the states that this peer holds from now on. If it attests, and its parts are at one round that it has
        seen itself, it signs that. Returns `claims`."""
        self.mine = claims
        last = {part: rounds_claimed[-1] for part, rounds_claimed in claims.items() if rounds_claimed}
        rounds = {claim.folded for claim in last.values()}
        abreast, round = len(last) == len(claims) and len(rounds) == 1, max(rounds, default=0)
        if self.granted and abreast and round > max(self.round, self.since):
            states = {part: (claim.digest, claim.contributions) for part, claim in last.items()}
            me, authority = self.signer.identity, self.signer.authority
            attestation = Attestation(me.peer_id, round, self.since, states)
            self.receive(attestations.attest(me, authority, attestation, self.granted), me.peer_id)
        return claims

    def trust_up_to(self, round: int) -> None:
        """Note that this peer takes others' word of rounds up to this one."""
        self.since = max(self.since, round)

    def resume(self, folded: int) -> None:
        """Start again from the state after a round. The newest attestation of this peer's own tells up to where it had
        taken others' word; a peer that did not attest does not know that any more."""
        mine = self.newest is not None and self.newest.attester == self.signer.identity.peer_id
        self.trust_up_to(self.newest.since if mine and self.newest is not None else folded)

    # Judging

    def claim(self, part: Part) -> Claim | None:
        """The attested claim about a part. None, if it is not what this peer holds and this peer has been there for
        longer than the attester: a peer that has seen the rounds needs nobody's word."""
        if not self.round or self.newest is None or (attested := self.newest.claim(part)) is None:
            return None
        has_seen_less = self.newest.since > self.since
        return None if has_seen_less and attestations.contradicted(attested, self.mine.get(part, [])) else attested

    def believes(self, peer: PeerId, part: Part) -> bool:
        """Whether a peer's word on a part counts: not while the peer claims another past than the attested one."""
        attested, claimed = self.claim(part), self.others_claims.get(peer, {}).get(part, [])
        return attested is None or not attestations.contradicted(attested, claimed)

    def look(self, peer: PeerId, claims: Mapping[Part, list[Claim]]) -> None:
        """Judge a peer's claims about its closed rounds, and say it once if they are of another past than the attested
        one. The peer may not have heard better yet, so it is not avoided."""
        self.others_claims.pop(peer, None)
        self.others_claims[peer] = claims
        if len(self.others_claims) > PEERS_KEPT:
            forgotten = next(iter(self.others_claims))
            del self.others_claims[forgotten]
            self.disbelieved = {(other, part) for other, part in self.disbelieved if other != forgotten}
        for part in claims.keys() & self.mine.keys():
            if self.believes(peer, part):
                self.disbelieved.discard((peer, part))
            elif (peer, part) not in self.disbelieved:
                self.disbelieved.add((peer, part))
                other = f"its state of {part} after round {self.round} is not the one that the operator attests"
                self.bans.emit(Refused(peer, other))
