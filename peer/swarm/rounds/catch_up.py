"""How a peer comes to the state of the others: from its own folder, by catching up, or by taking theirs over."""

import asyncio
import random
from collections.abc import Iterable

from peer.network.gossip_policy import ALL_CONTACTS, some
from peer.network.snapshot_transfer import fetch_snapshot
from peer.store import checkpoint
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import rounds_kept, to_torch
from peer.telemetry.decisions import Adopted, CaughtUp, Resynchronised
from peer.telemetry.events import Progress, Resumed
from protocol.errors import HetpeerError, PeerError, UnreachableError
from protocol.identity import Part, PeerId
from protocol.outer.history import Claim, latest_standing, outvoted
from protocol.outer.window import SKEW
from protocol.trust.attestations import contradicted, vague
from protocol.trust.records import PeerRecord
from protocol.wording import size

TRIES = 20


async def resume(outer: OuterLoop) -> None:
    """Take up what this peer's folder holds: closed rounds, open contributions, error feedback, optimizer."""
    followed, reconciler = outer.followed, outer.reconciler
    for part in followed.parts:
        newest = await asyncio.to_thread(followed.snapshots.resume, part)
        if newest is not None:
            await followed.adopt(newest[0], to_torch(newest[1]))
    kept = await asyncio.to_thread(checkpoint.candidates, outer.folder)
    if kept:
        await outer.restore(kept[0])
    if kept and not kept[0].parts:  # it has left a stage since, and comes as a newcomer
        outer.discovery.tell(contributed=0)
        for each in followed.parts.values():
            each.left_after = kept[0].contributed
    settled = checkpoint.last_settled(outer.folder)
    ended = outer.manifest.outer.rounds if settled and settled.round >= outer.manifest.outer.rounds else 0
    closed = (each.ledger.folded for each in followed.parts.values())
    outer.begin_after(max(outer.clock - 1, ended, *closed))
    outer.compared = settled is not None and bool(ended) and settled.compared
    for part, each in followed.parts.items():
        each.ledger.advance(outer.clock)
        was = kept[0].parts.get(part) if kept else None  # None: this folder served another stage then
        if was is not None and was.contribution is not None and outer.contributed:
            await reconciler.publish(part, kept[0].contributed, was.contribution)
    reconciler.intake.restore()
    for part, each in followed.parts.items():
        each.own |= {
            entry.name.round: entry.sha256 for entry in each.ledger.all_entries() if entry.name.author == followed.me
        }
        followed.forget(part)
    if folded := max(each.ledger.folded for each in followed.parts.values()):
        reconciler.attested.resume(folded)
    await outer.settle()
    if kept and kept[0].parts:
        outer.emit(Resumed(outer.clock - 1))


async def catch_up(outer: OuterLoop) -> None:
    """Go to where the others are: take from them, by their word, what counted while this peer was not there.

    If they are gone meanwhile, that waits for the next time. Who says to be further than it can show is not believed,
    and the others are looked at again.
    """
    witnesses = outer.reconciler.witnesses
    try:
        while (vain := await _catch_up(outer)) and witnesses.disbelieve(vain):
            outer.emit(Progress(f"round {vain} is said to be over, and nothing of it is to be found"))
    except UnreachableError as error:
        outer.emit(Progress(f"cannot catch up yet: {error}"))
    finally:
        witnesses.target = 0
        for each in outer.followed.parts.values():
            each.ledger.fall_back()
        witnesses.follow()


async def _catch_up(outer: OuterLoop) -> int:
    """The round that is said to be over and is not, or 0."""
    witnesses = outer.reconciler.witnesses
    for _ in range(TRIES):
        await compare_with_all(outer)
        if not witnesses.unanswered():
            break
    if not max(outer.shown_at(), outer.clock - 1) or not outer.others():
        return 0
    await _take_later_states(outer)
    await compare_with_all(outer)  # fetching may have taken rounds
    target = witnesses.target = max(outer.shown_at(), outer.clock - 1)
    for part, each in outer.followed.parts.items():
        oldest = target - each.ledger.window.width - rounds_kept(outer.manifest, part)
        if each.ledger.folded < oldest:
            told = (_claims_of(outer, peer.peer_id, part) for peer in outer.reconciler.followers(part))
            if sum(any(claim.folded >= oldest for claim in claims) for claims in told) < _witnesses(outer, part):
                return target  # too few others say that they have closed that round
            raise UnreachableError(f"the others have gone on to round {target}, and keep {part} from {oldest + 1} on")
        needed = _witnesses(outer, part)
        least = target if len(_abreast(outer, part, target)) >= needed else 0  # one that says so alone may lie
        outer.reconciler.intake.catch_up(part, target, needed, least)
    if lacks_holder(outer):
        return 0
    witnesses.follow()
    if target >= outer.clock:
        outer.emit(Progress(f"catching up with round {target}"))
    caught_up = False
    for _ in range(TRIES):
        await compare_with_all(outer)
        shared = [part for part in outer.followed.parts if not _stands_by(outer, part, target)]
        caught_up = all(map(outer.reconciler.intake.caught_up, shared))
        if caught_up:
            break
    if not caught_up:
        outer.emit(Progress(f"cannot catch up with round {target}: those who hold it do not answer; asking again"))
        return 0
    if target >= outer.clock and outer.others_at() < target:
        return target
    for part in shared:
        outer.reconciler.intake.reconsider(part)
    if target >= outer.clock:
        outer.reconciler.attested.hearsay(target)
        outer.emit(CaughtUp(target))
    outer.discovery.tell(round=target)
    await outer.settle()
    await outer.save({})
    return 0


async def _take_later_states(outer: OuterLoop) -> None:
    """Begin where the others are, and say once by whose word."""
    taken: list[Adopted] = []
    try:
        for part in outer.followed.parts:
            taken += await _take_later_state(outer, part)
    finally:
        if taken:
            round, since = max(each.round for each in taken), max(each.since for each in taken)
            fewest = min(each.peers for each in taken)
            outer.emit(Adopted(round, fewest, all(each.attested for each in taken), since))


async def _take_later_state(outer: OuterLoop, part: Part) -> list[Adopted]:
    """Begin with the attested state of a part, if that is later than this peer's and anybody holds it; else with the
    one that prevails among the others, by their word."""
    attested = later_attested(outer, part)
    held = attested or _prevailing_state(outer, part)
    if held is None or held.folded <= outer.followed.parts[part].ledger.folded:
        return []
    peers, known = len(holders(outer, part, held)), outer.reconciler.attested.newest
    try:
        await take_over(outer, part, held)
    except UnreachableError:
        if attested is not None:
            outer.refuted.add(attested.digest)  # by the next round another is attested
        raise
    since = known.since if attested is not None and known is not None else 0
    return [Adopted(held.folded, peers, attested is not None, since)]


async def agree(outer: OuterLoop) -> None:
    """If the others have gone on, catch up. If they closed a round with another state than this peer, and theirs
    prevails, or another is attested, take it over, loudly."""
    if outer.shown_at() >= outer.clock + SKEW:
        await catch_up(outer)
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
        outer.reconciler.intake.catch_up(part, outer.clock - 1, _witnesses(outer, part))
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


async def take_over(outer: OuterLoop, part: Part, held: Claim) -> int:
    """Fetch a state from all who hold it, and put it in the place of ours; how many of our contributions went back into
    the error feedback.

    Raises:
        UnreachableError: nobody gives it, or it is not what was said of it.
    """
    sources = holders(outer, part, held)

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
    outer.reconciler.attested.hearsay(held.folded)
    outer.tell_claims()
    return returned


def _prevailing_state(outer: OuterLoop, part: Part) -> Claim | None:
    """The latest closed state that prevails among the others, and that enough of them hold, or all that there are have
    spoken of."""
    claims = list(votes(outer, part)) or [
        claim for peer in believed(outer, part) for claim in _claims_of(outer, peer.peer_id, part)
    ]
    needed = _witnesses(outer, part)
    return latest_standing(claims, needed, lambda folded: _all_have_spoken(outer, part, folded), outer.refuted)


def _claims_of(outer: OuterLoop, peer: PeerId, part: Part) -> list[Claim]:
    return list(outer.reconciler.others_claims.get(peer, {}).get(part, []))


def _witnesses(outer: OuterLoop, part: Part) -> int:
    return min(outer.manifest.outer.liars + 1, len(believed(outer, part)))


def _abreast(outer: OuterLoop, part: Part, target: int) -> list[PeerRecord]:
    """Who holds a part and says that it has finished round `target`: those behind have not accepted what counts in it,
    and say nothing against it."""
    return [peer for peer in believed(outer, part) if peer.round >= target]


def _stands_by(outer: OuterLoop, part: Part, target: int) -> bool:
    """Whether this peer has taken part in the rounds of a part up to `target`, and nobody, or, where it was there all
    the time, fewer than could outvote it hold the part as it is after that round: what it has accepted is the last word
    on them then. Not in a round that others have finished while it was away: what counts in it is what they had."""
    taken_part = outer.clock if outer.contributed and not outer.told_over else outer.clock - 1
    most = 0 if outer.ended_before else max(0, _witnesses(outer, part) - 1)
    return target <= taken_part and len(_abreast(outer, part, target)) <= most


def lacks_holder(outer: OuterLoop) -> bool:
    """Whether this peer is new, the others have finished rounds, and nobody else who is here holds one of its parts."""
    new = outer.clock == 1 and not outer.contributed and outer.shown_at() > 0
    return new and any(not each.ledger.folded and not believed(outer, p) for p, each in outer.followed.parts.items())


def _all_have_spoken(outer: OuterLoop, part: Part, folded: int) -> bool:
    """Whether all others that hold a part have said what it was after a round; but for those far behind: who is will
    take over what stands."""
    least = max(outer.clock - 1, outer.others_at()) - SKEW
    abreast = [peer.peer_id for peer in believed(outer, part) if peer.round >= least]
    return all(any(claim.folded == folded for claim in _claims_of(outer, peer, part)) for peer in abreast)


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
