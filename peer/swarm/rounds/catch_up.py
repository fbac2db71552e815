"""How a peer comes to the state of the others: from its own folder, by catching up, or by taking theirs over."""

import asyncio
import random
from collections.abc import Collection, Iterable
from contextlib import suppress

from peer.network.gossip_policy import ALL_CONTACTS, some
from peer.network.snapshot_transfer import fetch_snapshot
from peer.store import checkpoint
from peer.swarm import waits
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import rounds_kept, to_torch
from peer.telemetry.decisions import Adopted, CaughtUp, Resynchronised
from peer.telemetry.events import Progress, Resumed
from protocol.errors import HetpeerError, PeerError, UnreachableError
from protocol.identity import Part, PeerId
from protocol.outer.history import Claim, latest_standing, outvoted
from protocol.outer.phases import RunPhase, lacking, phase_of, target
from protocol.outer.window import SKEW
from protocol.trust.attestations import contradicted, vague
from protocol.trust.records import PeerRecord
from protocol.wording import size

TRIES = 20
"""How often others are asked in one attempt to catch up."""

RETRY_SECONDS = 1.0
"""The pause between two attempts to catch up."""

ABREAST = (RunPhase.GATHERING, RunPhase.TRAINING)


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
    if settled is not None and settled.digests.keys() == {str(part) for part in followed.parts}:
        outer.progress.raise_to(settled.run, {Part(part): round for part, round in settled.held.items()})
    else:
        settled = None
    closed = (each.ledger.folded for each in followed.parts.values())
    outer.begin_after(max(outer.clock - 1, settled.round if settled else 0, *closed))
    outer.compared = settled is not None and outer.finished and settled.compared
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


async def come_abreast(outer: OuterLoop) -> None:
    """Catch up until this peer holds the run's newest state, and say meanwhile what it waits for. It closes no round by
    itself that the run has finished. Returns too when the run is over elsewhere, or this peer is to leave."""
    while not (outer.over or outer.leaving) and await catch_up(outer) not in ABREAST:
        outer.emit(waits.for_the_newest_state(outer.view()))
        await asyncio.sleep(RETRY_SECONDS)


async def catch_up(outer: OuterLoop) -> RunPhase:
    """Try once to take from others what counted while this peer was not there, by their word. Returns the phase that
    this peer is in then.

    Whoever says to be further than it can show is not believed, and the others are looked at again.
    """
    witnesses = outer.reconciler.witnesses
    for _ in range(TRIES):
        await compare_with_all(outer)
        if not witnesses.unanswered():
            break
    outer.learn_progress()
    if not outer.present:  # one that was abreast may have been lied to: others go by its state until it knows
        outer.enter(phase_of(outer.view()))
    try:
        while (vain := await _take_what_counts(outer)) and witnesses.disbelieve(vain):
            outer.emit(Progress(f"round {vain} is said to be over, and nothing of it is to be found"))
    except UnreachableError as error:
        outer.emit(Progress(f"cannot catch up yet: {error}"))
    finally:
        witnesses.target = 0
        for followed in outer.followed.parts.values():
            followed.ledger.fall_back()
        witnesses.follow()
    outer.enter(phase := phase_of(outer.view()))
    return phase


async def _take_what_counts(outer: OuterLoop) -> int:
    """Take the states and contributions up to the round that the run has finished, if those who are here hold them.
    Returns the round that is said to be finished and is not, or 0."""
    view = outer.view()
    if not outer.others() or not max(view.run, view.finished):
        return 0
    if missing := lacking(view):
        return (
            0 if await _is_proved(outer, [part for part in view.parts if part not in missing], view.run) else view.run
        )
    await _take_later_states(outer)
    await compare_with_all(outer)  # fetching may have taken rounds
    goal = max(target(outer.view()), *(followed.ledger.folded for followed in outer.followed.parts.values()))
    for part in [part for part in outer.followed.parts if outer.holders(part) and _is_too_old(outer, part, goal)]:
        if not _is_closed_by_others(outer, part, goal):
            return goal
        raise UnreachableError(
            f"the others have gone on to round {goal}, and keep no contributions to {part} for so long"
        )
    shared = [part for part in outer.followed.parts if not _has_the_last_word(outer, part, goal)]
    if not await _take_contributions(outer, shared, goal):
        outer.emit(Progress(f"cannot catch up with round {goal}: those who hold it do not answer; asking again"))
        return 0
    if goal >= outer.clock:
        if not await _is_proved(outer, shared, goal):
            return goal
        outer.reconciler.attested.hearsay(goal)
        outer.emit(CaughtUp(goal))
    for part in shared:
        outer.reconciler.intake.reconsider(part)
    await outer.finish(goal, took_part=False)
    await outer.save({})
    outer.present = True
    return 0


async def _is_proved(outer: OuterLoop, parts: Collection[Part], round: int) -> bool:
    """Whether the run has finished a round, by the operator's node or by what those who hold these parts can show. From
    then on this peer knows it."""
    if outer.told_over or outer.progress.finished >= round:
        return True
    too_old = [part for part in parts if _is_too_old(outer, part, round)]
    proved = bool(too_old) and all(_is_closed_by_others(outer, part, round) for part in too_old)
    if parts and not too_old:
        await _take_contributions(outer, parts, round)
        proved = outer.reconciler.witnesses.proved_at() >= round
    if proved:
        outer.progress.raise_to(round)
    return proved


def _is_too_old(outer: OuterLoop, part: Part, goal: int) -> bool:
    """Whether this peer's closed state of a part is so old that others no longer keep the contributions since."""
    return outer.followed.parts[part].ledger.folded < _oldest_kept(outer, part, goal)


def _is_closed_by_others(outer: OuterLoop, part: Part, goal: int) -> bool:
    """Whether enough holders of a part claim to have closed the rounds that are closed when `goal` is finished."""
    oldest = _oldest_kept(outer, part, goal)
    claims = [_claims_of(outer, peer.peer_id, part) for peer in outer.holders(part)]
    closed = sum(any(claim.folded >= oldest for claim in told) for told in claims)
    return bool(claims) and closed >= _witnesses(outer, part)


def _oldest_kept(outer: OuterLoop, part: Part, goal: int) -> int:
    """The oldest closed state from which others still keep all contributions to a part when `goal` is finished."""
    return goal - outer.followed.parts[part].ledger.window.width - rounds_kept(outer.manifest, part)


async def _take_contributions(outer: OuterLoop, shared: Collection[Part], goal: int) -> bool:
    """Take what enough of those vouch for who hold the `shared` parts after a round. Returns whether all of it is
    here."""
    intake = outer.reconciler.intake
    for part in outer.followed.parts:
        needed = _witnesses(outer, part)
        least = goal if len(_abreast(outer, part, goal)) >= needed else 0  # one that says so alone may lie
        intake.catch_up(part, goal, needed, least)
    outer.reconciler.witnesses.target = goal
    outer.reconciler.witnesses.follow()
    if goal >= outer.clock:
        outer.emit(Progress(f"catching up with round {goal}"))
    for _ in range(TRIES):
        await compare_with_all(outer)
        if all(map(intake.caught_up, shared)):
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await outer.reconciler.learnt()
    return False


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
    peers, known = len(claimants(outer, held)), outer.reconciler.attested.newest
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
    if outer.is_behind:
        await come_abreast(outer)
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
    outer.reconciler.attested.hearsay(held.folded)
    outer.tell_claims()
    return returned


def _prevailing_state(outer: OuterLoop, part: Part) -> Claim | None:
    """The latest closed state that prevails among the others, and that enough of them hold, or all that there are have
    spoken of."""
    claims = list(votes(outer, part)) or [
        claim for peer in outer.holders(part) for claim in _claims_of(outer, peer.peer_id, part)
    ]
    needed = _witnesses(outer, part)
    return latest_standing(claims, needed, lambda folded: _all_have_spoken(outer, part, folded), outer.refuted)


def _claims_of(outer: OuterLoop, peer: PeerId, part: Part) -> list[Claim]:
    return list(outer.reconciler.others_claims.get(peer, {}).get(part, []))


def _witnesses(outer: OuterLoop, part: Part) -> int:
    return min(outer.manifest.outer.liars + 1, len(outer.holders(part)))


def _abreast(outer: OuterLoop, part: Part, goal: int) -> list[PeerRecord]:
    """The holders of a part that have finished a round: those behind have not accepted what counts in it, and say
    nothing against it."""
    return [peer for peer in outer.holders(part) if peer.round >= goal]


def _has_the_last_word(outer: OuterLoop, part: Part, goal: int) -> bool:
    """Whether what this peer has accepted of a part decides its rounds up to `goal`.

    It does where nobody here holds the part as it is then (a part that others are known to hold newer is caught up with
    only when they are here). And it does where this peer took part in all these rounds, unless more others hold the
    part than may lie, or it was stopped at the run's end.
    """
    abreast = len(_abreast(outer, part, goal))
    took_part = outer.clock if outer.contributed and not outer.told_over else outer.clock - 1
    outvoted_by = 1 if outer.ended_before else max(1, _witnesses(outer, part))
    return not abreast or (goal <= took_part and abreast < outvoted_by)


def _all_have_spoken(outer: OuterLoop, part: Part, folded: int) -> bool:
    """Whether all others that hold a part have said what it was after a round; but for those far behind: who is will
    take over what stands."""
    least = max(outer.clock - 1, outer.others_at()) - SKEW
    abreast = [peer.peer_id for peer in outer.holders(part) if peer.round >= least]
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
    """What others say of a part that decides: of who is believed, and names the attested round if it speaks of those
    right after it."""
    attested = outer.reconciler.attested.claim(part)
    for peer in outer.others():
        said = outer.reconciler.others_claims.get(peer.peer_id, {}).get(part, [])
        if attested is None or not (contradicted(attested, said) or vague(attested, said)):
            yield from said


def claimants(outer: OuterLoop, held: Claim) -> list[PeerRecord]:
    """The peers that claim to hold a closed state."""
    claims = outer.reconciler.others_claims
    digests = {peer: {claim.digest for part in told.values() for claim in part} for peer, told in claims.items()}
    return [peer for peer in outer.others() if held.digest in digests.get(peer.peer_id, ())]


def _can_be_had(outer: OuterLoop, held: Claim) -> bool:
    return held.digest not in outer.refuted and bool(claimants(outer, held))
