"""Which past a peer goes by, where the operator's observer attests one: that, against any number of claims."""

from collections.abc import Iterable

from peer.swarm.rounds.outer_round import OuterLoop
from protocol.identity import Part
from protocol.outer.history import Claim
from protocol.trust.attestations import contradicted, vague
from protocol.trust.records import PeerRecord


def later_attested(outer: OuterLoop, part: Part) -> Claim | None:
    """The attested state, where this peer has not come so far and somebody says that it holds it."""
    attested = outer.reconciler.attested.claim(part)
    if attested is None or attested.folded <= outer.followed.parts[part].ledger.folded:
        return None
    return attested if _can_be_had(outer, part, attested) else None


def refuting(outer: OuterLoop, part: Part) -> Claim | None:
    """The attested state, if it is not what this peer held after that round, and somebody says that it holds it."""
    attested = outer.reconciler.attested.claim(part)
    if attested is None or not contradicted(attested, outer.followed.parts[part].claims):
        return None
    return attested if _can_be_had(outer, part, attested) else None


def goes_by_votes(outer: OuterLoop, part: Part, mine: Claim) -> bool:
    """Whether others can outvote what this peer holds after a round. An attester goes by nobody's word, and who holds
    what is attested, by nobody's word of that."""
    attested = outer.reconciler.attested.claim(part)
    return not outer.reconciler.attested.granted and (attested is None or mine.folded > attested.folded)


def votes(outer: OuterLoop, part: Part) -> Iterable[Claim]:
    """What others say of a part that decides: of who is believed, and names the attested round if it speaks of those
    right after it."""
    attested = outer.reconciler.attested.claim(part)
    for peer in outer.others():
        said = outer.reconciler.others_claims.get(peer.peer_id, {}).get(part, [])
        if attested is None or not (contradicted(attested, said) or vague(attested, said)):
            yield from said


def believed(outer: OuterLoop, part: Part) -> list[PeerRecord]:
    """Others that hold a part, but for who claims another past than the attested one."""
    reconciler, others = outer.reconciler, outer.others()
    following = [peer for peer in reconciler.followers(part) if peer in others]
    return [peer for peer in following if reconciler.attested.believes(peer.peer_id, part)]


def holders(outer: OuterLoop, part: Part, held: Claim) -> list[PeerRecord]:
    """Who says that it holds a state."""
    claims = outer.reconciler.others_claims
    said = {peer: {claim.digest for claim in told.get(part, [])} for peer, told in claims.items()}
    return [peer for peer in outer.others() if held.digest in said.get(peer.peer_id, ())]


def _can_be_had(outer: OuterLoop, part: Part, held: Claim) -> bool:
    return held.digest not in outer.refuted and bool(holders(outer, part, held))
