"""The closed states of others: which of several stands, by whose word, and how a peer takes one over."""

import asyncio
import random
from collections.abc import Iterable

from peer.network.gossip_policy import ALL_CONTACTS, some
from peer.network.snapshot_transfer import fetch_snapshot
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import to_torch
from protocol.errors import HetpeerError, PeerError, UnreachableError
from protocol.events.activity import Progress
from protocol.events.decisions import Adopted, Resynchronised
from protocol.identity import Part, PeerId
from protocol.outer.history import Claim, latest_standing, outvoted
from protocol.outer.window import SKEW
from protocol.trust.attestations import contradicted, vague
from protocol.trust.records import PeerRecord
from protocol.wording import size


async def take_later_states(outer: OuterLoop) -> None:
    """Begin where the others are, and say once by whose word."""
    taken: list[Adopted] = []
    try:
        for part in outer.followed.parts:
            taken += await _take_later_state(outer, part)
    finally:
        if taken:
            round, since = max(state.round for state in taken), max(state.since for state in taken)
            fewest = min(state.peers for state in taken)
            outer.emit(Adopted(round, fewest, all(state.attested for state in taken), since))


async def _take_later_state(outer: OuterLoop, part: Part) -> list[Adopted]:
    """Begin with the attested state of a part, if that is later than this peer's and anybody holds it; else with the
    one that prevails among the others, by their word."""
    attested = later_attested(outer, part)
    held = attested or _prevailing_state(outer, part)
    if held is None or held.folded <= outer.followed.parts[part].ledger.folded:
        return []
    peers, newest_attested = len(claimants(outer, held)), outer.reconciler.attested.newest
    try:
        await take_over(outer, part, held)
    except UnreachableError:
        if attested is not None:
            outer.refuted.add(attested.digest)  # by the next round another is attested
        raise
    since = newest_attested.since if attested is not None and newest_attested is not None else 0
    return [Adopted(held.folded, peers, attested is not None, since)]


async def agree_on_states(outer: OuterLoop) -> None:
    """Take over, loudly, the states of others that closed a round otherwise than this peer, where theirs prevail or the
    operator's observer attests them."""
    for part in outer.followed.parts:
        attested = refuting(outer, part)
        held = attested or (_prevailing_state(outer, part) if _is_outvoted(outer, part) else None)
        if held is None:
            continue
        try:
            returned = await take_over(outer, part, held)
        except UnreachableError as error:
            outer.refuted.add(held.digest)
            outer.emit(Progress(f"another state of {part} is said to stand, and cannot be had: {error}"))
            continue
        outer.emit(Resynchronised(part, held.folded, returned, attested is not None))
        outer.reconciler.intake.catch_up(part, outer.clock - 1, vouchers_needed(outer, part))
        await compare_with_all(outer)
        if outer.reconciler.intake.caught_up(part):
            outer.reconciler.intake.reconsider(part)
        await outer.settle_part(part)


def _is_outvoted(outer: OuterLoop, part: Part) -> bool:
    """Whether the others closed a round with another state than this peer, and theirs stands."""
    liars = outer.manifest.outer.liars
    for mine in outer.followed.parts[part].claims:
        said = [claim for claim in votes(outer, part) if claim.folded == mine.folded]
        credible = [claim for claim in said if claim.digest not in outer.refuted]
        standing = outvoted(mine, credible, liars, _all_have_spoken(outer, part, mine.folded))
        if standing is not None and goes_by_votes(outer, part, mine):
            return True
    return False


def closed_otherwise(outer: OuterLoop) -> bool:
    """Whether somebody who is here holds another closed state than this peer, after the same round."""
    return any(
        said.folded == mine.folded and said.digest != mine.digest
        for part, followed in outer.followed.parts.items()
        for mine in followed.claims
        for peer in outer.holders(part)
        for said in claims_of(outer, peer.peer_id, part)
    )


async def take_over(outer: OuterLoop, part: Part, held: Claim) -> int:
    """Fetch a state from all who hold it, and put it in the place of ours; how many of our contributions went back into
    the error feedback.

    Raises:
        UnreachableError: nobody gives it, or it is not what was said of it.
    """
    sources = claimants(outer, held)

    def failed(peer: PeerRecord, error: HetpeerError) -> None:
        outer.reconciler.bans.note(peer.peer_id, error)
        if not isinstance(error, PeerError):
            outer.emit(Progress(f"peer {peer.peer_id[-8:]} does not give us the state of {part}: {error}"))

    def progress(done: int, total: int) -> None:
        outer.emit(Progress(f"fetching the state of {part} after round {held.folded}", done, total))

    store = outer.followed.snapshots
    fetched = await fetch_snapshot(sources, held.digest, outer.reconciler.contacts, store, progress, failed)
    if fetched.header.history.total() != held.contributions:
        raise UnreachableError(f"it has {fetched.header.history.total()} contributions, not {held.contributions}")
    tensors = await asyncio.to_thread(store.read, fetched.header)
    for peer, count in fetched.served.items():
        outer.emit(Progress(f"{size(count)} of {part} came from peer {peer[-8:]}"))
    returned = await outer.followed.adopt(fetched.header, to_torch(tensors))
    outer.followed.forget(part)
    outer.reconciler.attested.trust_up_to(held.folded)
    outer.publish_claims()
    return returned


def _prevailing_state(outer: OuterLoop, part: Part) -> Claim | None:
    """The latest closed state that prevails among the others, and that enough of them hold, or all that there are have
    spoken of."""
    claims = list(votes(outer, part)) or [
        claim for peer in outer.holders(part) for claim in claims_of(outer, peer.peer_id, part)
    ]
    needed = vouchers_needed(outer, part)
    return latest_standing(claims, needed, lambda folded: _all_have_spoken(outer, part, folded), outer.refuted)


def claims_of(outer: OuterLoop, peer: PeerId, part: Part) -> list[Claim]:
    return list(outer.reconciler.others_claims.get(peer, {}).get(part, []))


def vouchers_needed(outer: OuterLoop, part: Part) -> int:
    return min(outer.manifest.outer.liars + 1, len(outer.holders(part)))


def _all_have_spoken(outer: OuterLoop, part: Part, folded: int) -> bool:
    """Whether all others that hold a part have said what it was after a round; but for those far behind: who is will
    take over what stands."""
    least = max(outer.clock - 1, outer.others_at()) - SKEW
    abreast = [peer.peer_id for peer in outer.holders(part) if peer.round >= least]
    return all(any(claim.folded == folded for claim in claims_of(outer, peer, part)) for peer in abreast)


async def compare_with_all(outer: OuterLoop) -> bool:
    """Take from the others what this peer has not, and their word for what it has: from everybody, or in a large swarm
    from some of each part. Whether all of them hold what is here."""
    others = outer.others()
    if len(others) > ALL_CONTACTS:
        by_part = [some(outer.reconciler.followers(part), ALL_CONTACTS, random) for part in outer.followed.parts]
        others = tuple({peer.peer_id: peer for peers in by_part for peer in peers}.values())
    return all(await asyncio.gather(*(outer.reconciler.compare(peer, whole=True) for peer in others)))


# Which past a peer goes by, where the operator's observer attests one: that, against any number of claims


def later_attested(outer: OuterLoop, part: Part) -> Claim | None:
    """The attested state, where this peer has not come so far and somebody says that it holds it."""
    attested = outer.reconciler.attested.claim(part)
    if attested is None or attested.folded <= outer.followed.parts[part].ledger.folded:
        return None
    return attested if _can_be_had(outer, attested) else None


def refuting(outer: OuterLoop, part: Part) -> Claim | None:
    """The attested state, if it is not what this peer held after that round, and somebody says that it holds it."""
    attested = outer.reconciler.attested.claim(part)
    if attested is None or not contradicted(attested, outer.followed.parts[part].claims):
        return None
    return attested if _can_be_had(outer, attested) else None


def goes_by_votes(outer: OuterLoop, part: Part, mine: Claim) -> bool:
    """Whether others can outvote what this peer holds after a round. An attester goes by nobody's word, and who holds
    what is attested, by nobody's word of that."""
    attested = outer.reconciler.attested.claim(part)
    return not outer.reconciler.attested.granted and (attested is None or mine.folded > attested.folded)


def votes(outer: OuterLoop, part: Part) -> Iterable[Claim]:
    """The claims of others on a part that decide: those of peers that are believed. Of peers that speak of the rounds
    right after the attested one, only those that name it as well are."""
    attested = outer.reconciler.attested.claim(part)
    for peer in outer.others():
        said = claims_of(outer, peer.peer_id, part)
        if attested is None or not (contradicted(attested, said) or vague(attested, said)):
            yield from said


def claimants(outer: OuterLoop, held: Claim) -> list[PeerRecord]:
    """The peers that claim to hold a closed state."""
    claims = outer.reconciler.others_claims
    digests = {peer: {claim.digest for part in told.values() for claim in part} for peer, told in claims.items()}
    return [peer for peer in outer.others() if held.digest in digests.get(peer.peer_id, ())]


def _can_be_had(outer: OuterLoop, held: Claim) -> bool:
    return held.digest not in outer.refuted and bool(claimants(outer, held))
