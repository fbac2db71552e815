"""Attestations: an operator's observer signs what it has seen of closed rounds, so that nobody who comes later has to
take the past from a majority.

Such an observer closes every round itself, from contributions whose authors have signed them, and signs what each part
was then. The operator has named it (`grant`). Of all attestations the newest is kept and passed on; what it says of a
state stands against any number of claims (`protocol/outer/history.py`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import FormatError
from protocol.identity import Part, PeerId
from protocol.outer.history import Claim
from protocol.trust import signed
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority
from protocol.trust.records import CLAIMS_TOLD

KIND, GRANT = "attestation", "attester"

KEPT, GRANTED = "attestation", "attester"
"""The files of a peer's folder that keep the newest attestation that it has heard of, and, in an attester's, the
operator's word that it is one."""

MOST_PARTS = 1024
"""The most parts of an attestation: as many as a run has stages, at most."""


@dataclass(frozen=True, slots=True)
class Attestation:
    """An attestation: after `round`, which is closed, each part had this digest, and so many contributions counted in
    it. `since` is the last round before it of which the attester had taken others' word; 0: it was there from the
    first."""

    attester: PeerId
    round: int
    since: int
    states: Mapping[Part, tuple[str, int]]

    def claim(self, part: Part) -> Claim | None:
        """The attested state of a part, as if a peer claimed it; None if the part is not in it."""
        if part not in self.states:
            return None
        digest, contributions = self.states[part]
        return Claim(self.round, digest, contributions, author=False)


def grant(operator: Identity, authority: Authority, attester: PeerId) -> bytes:
    """Sign the operator's word that a peer may attest."""
    return signed.sign_fields(operator, GRANT, [authority.run, attester])


def read_grant(data: bytes, authority: Authority) -> PeerId:
    """Check a grant. Returns the peer that may attest.

    Raises:
        FormatError: it is not this run's operator's word.
    """
    signer, fields = signed.read_signed(data, GRANT)
    match fields:
        case [authority.run, str(attester)] if signer == authority.operator:
            return PeerId(attester)
    raise FormatError("an attester whom this run's operator has not named")


def attest(identity: Identity, authority: Authority, attestation: Attestation, granted: bytes) -> bytes:
    """Sign an attestation. `granted` is the operator's word that this peer may."""
    states = {part: [bytes.fromhex(digest), count] for part, (digest, count) in sorted(attestation.states.items())}
    return signed.sign_fields(identity, KIND, [authority.run, attestation.round, attestation.since, states, granted])


def read_attestation(data: bytes, authority: Authority) -> Attestation:
    """Check an attestation, and the operator's grant that comes with it.

    Raises:
        FormatError: it is malformed, of another run, or its signer has no grant of the operator.
    """
    signer, fields = signed.read_signed(data, KIND)
    match fields:
        case [authority.run, int(round), int(since), dict(states), bytes(granted)] if (
            0 <= since < round < 2**31 and 1 <= len(states) <= MOST_PARTS
        ):
            if read_grant(granted, authority) != signer:
                raise FormatError(f"peer {signer[-8:]} attests with another's grant")
            return Attestation(signer, round, since, dict(_state(part, state) for part, state in states.items()))
    raise FormatError(f"peer {signer[-8:]} attested nothing that can be read")


def _state(part: Any, state: Any) -> tuple[Part, tuple[str, int]]:
    match part, state:
        case [str(name), [bytes(digest), int(count)]] if (
            1 <= len(name) <= 64 and name.isprintable() and len(digest) == 32 and type(count) is int and count >= 0
        ):
            return Part(name), (digest.hex(), count)
    raise FormatError("an attestation of a state that cannot be read")


def contradicted(attested: Claim, said: Collection[Claim]) -> bool:
    """Whether a peer with these claims about its closed rounds holds another past than the attested one."""
    return any(claim.folded == attested.folded and claim.digest != attested.digest for claim in said)


def vague(attested: Claim, said: Collection[Claim]) -> bool:
    """Whether a peer speaks of rounds shortly after the attested one and does not name that, for which its statement
    has room: what it says of them is no vote."""
    named = attested.folded in {claim.folded for claim in said}
    return not named and any(0 < claim.folded - attested.folded < CLAIMS_TOLD for claim in said)
