"""The ways of a peer to the state of the others: from its own folder, by catching up, or by adopting theirs."""

import asyncio
from collections.abc import Collection

from peer.store import checkpoint
from peer.swarm import waits
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import rounds_kept, to_torch
from peer.swarm.rounds.states import (
    agree_on_states,
    claims_of,
    compare_with_all,
    take_later_states,
    vouchers_needed,
)
from protocol.errors import UnreachableError
from protocol.events.activity import Notice, Progress, Resumed
from protocol.events.decisions import CaughtUp
from protocol.identity import Part
from protocol.net.tasks import wait_at_most
from protocol.outer.phases import RunPhase, RunView, lacking_parts, phase_of, stands, target
from protocol.patience import CATCH_UP_RETRY_SECONDS, REQUESTS_AN_ATTEMPT
from protocol.trust.records import PeerRecord

ABREAST = (RunPhase.GATHERING, RunPhase.TRAINING)


async def resume_from_folder(outer: OuterLoop) -> None:
    """Take up what this peer's folder holds: closed rounds, open contributions, error feedback, optimizer."""
    followed, reconciler = outer.followed, outer.reconciler
    for part in followed.parts:
        newest = await asyncio.to_thread(followed.snapshots.resume, part)
        if newest is not None:
            await followed.adopt(newest[0], to_torch(newest[1]))
    candidates = await asyncio.to_thread(checkpoint.candidates, outer.folder)
    if candidates:
        await outer.restore(candidates[0])
    if candidates and not candidates[0].parts:  # it has left a stage since, and comes as a newcomer
        outer.discovery.update_record(contributed=0)
        for followed_part in followed.parts.values():
            followed_part.leave_stage(candidates[0].contributed)
    settled = checkpoint.last_settled(outer.folder)
    if settled is not None and settled.digests.keys() == {str(part) for part in followed.parts}:
        outer.progress.raise_to(settled.run, {Part(part): round for part, round in settled.held.items()})
    else:
        settled = None
    closed = (followed_part.ledger.folded for followed_part in followed.parts.values())
    outer.begin_after(max(outer.clock - 1, settled.round if settled else 0, *closed))
    outer.mark_compared(settled is not None and outer.finished and settled.compared)
    for part, followed_part in followed.parts.items():
        followed_part.ledger.advance(outer.clock)
        was = candidates[0].parts.get(part) if candidates else None  # None: this folder served another stage then
        if was is not None and was.contribution is not None and outer.contributed:
            await reconciler.publish(part, candidates[0].contributed, was.contribution)
    reconciler.intake.restore()
    for part, followed_part in followed.parts.items():
        for entry in followed_part.ledger.all_entries():
            if entry.name.author == followed.me:
                followed_part.own[entry.name.round] = entry.sha256
        followed.forget(part)
    if folded := max(followed_part.ledger.folded for followed_part in followed.parts.values()):
        reconciler.attested.resume(folded)
    await outer.settle()
    if candidates and candidates[0].parts:
        outer.emit(Resumed(outer.clock - 1))


async def come_abreast(outer: OuterLoop) -> None:
    """Catch up until this peer holds the run's newest state, and say meanwhile what it waits for. It closes no round by
    itself that the run has finished. Returns too when the run is over elsewhere, or this peer is to leave."""
    while not (outer.over or outer.leaving) and await catch_up(outer) not in ABREAST:
        outer.emit(waits.for_the_newest_state(outer.view()))
        await asyncio.sleep(CATCH_UP_RETRY_SECONDS)


async def catch_up(outer: OuterLoop) -> RunPhase:
    """Try once to take from others what counted while this peer was not there, by their word. Returns the phase that
    this peer is in then.

    Whoever says to be further than it can show is not believed, and the others are looked at again.
    """
    witnesses = outer.reconciler.witnesses
    for _ in range(REQUESTS_AN_ATTEMPT):
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
        for followed in outer.followed.parts.values():
            followed.ledger.fall_back()
        witnesses.catch_up_with(0)
    outer.enter(phase := phase_of(outer.view()))
    return phase


async def _take_what_counts(outer: OuterLoop) -> int:
    """Take the states and contributions up to the round that the run has finished, if those who are here hold them.
    Returns the round that is said to be finished and is not, or 0."""
    view = outer.view()
    if not (outer.others() and view.confirmed and max(view.run, view.finished)):
        return 0
    if missing := lacking_parts(view):
        return (
            0 if await _is_proved(outer, [part for part in view.parts if part not in missing], view.run) else view.run
        )
    await take_later_states(outer)
    await compare_with_all(outer)  # fetching may have taken rounds
    view = outer.view()
    if lacking_parts(view):  # who held it has gone meanwhile
        return 0
    goal = target(view)
    for part in [part for part in outer.followed.parts if outer.holders(part) and _is_too_old(outer, part, goal)]:
        if not _is_closed_by_others(outer, part, goal):
            return goal
        raise UnreachableError(
            f"the others have gone on to round {goal}, and keep no contributions to {part} for so long"
        )
    shared = [part for part in outer.followed.parts if not _has_the_last_word(outer, part, view, goal)]
    if not await _take_contributions(outer, shared, goal):
        outer.emit(Progress(f"cannot catch up with round {goal}: those who hold it do not answer; asking again"))
        return 0
    if goal >= outer.clock:
        if not await _is_proved(outer, shared, goal):
            return goal
        outer.reconciler.attested.trust_up_to(goal)
        outer.emit(CaughtUp(goal))
    for part in shared:
        outer.reconciler.intake.reconsider(part)
    await outer.finish(goal, took_part=False)
    await outer.save({})
    outer.mark_present()
    return 0


async def _is_proved(outer: OuterLoop, parts: Collection[Part], round: int) -> bool:
    """Whether the run has finished a round, by the operator's node or by what those who hold these parts can show. From
    then on this peer knows it."""
    closed = max(followed.ledger.folded for followed in outer.followed.parts.values())
    if outer.missed_end or round <= max(outer.progress.finished, closed):
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
    claims = [claims_of(outer, peer.peer_id, part) for peer in outer.holders(part)]
    closed = sum(any(claim.folded >= oldest for claim in told) for told in claims)
    return bool(claims) and closed >= vouchers_needed(outer, part)


def _oldest_kept(outer: OuterLoop, part: Part, goal: int) -> int:
    """The oldest closed state from which others still keep all contributions to a part when `goal` is finished."""
    return goal - outer.followed.parts[part].ledger.window.width - rounds_kept(outer.manifest, part)


async def _take_contributions(outer: OuterLoop, shared: Collection[Part], goal: int) -> bool:
    """Take what enough of those vouch for who hold the `shared` parts after a round. Returns whether all of it is
    here."""
    intake = outer.reconciler.intake
    for part in outer.followed.parts:
        needed = vouchers_needed(outer, part)
        least = goal if len(_abreast(outer, part, goal)) >= needed else 0  # one that says so alone may lie
        intake.catch_up(part, goal, needed, least)
    outer.reconciler.witnesses.catch_up_with(goal)
    if goal >= outer.clock:
        outer.emit(Notice(f"catching up with round {goal}"))
    for _ in range(REQUESTS_AN_ATTEMPT):
        await compare_with_all(outer)
        if all(map(intake.caught_up, shared)):
            return True
        await wait_at_most(CATCH_UP_RETRY_SECONDS, outer.reconciler.learnt())
    return False


def _abreast(outer: OuterLoop, part: Part, goal: int) -> list[PeerRecord]:
    """The holders of a part that have finished a round: those behind have not accepted what counts in it, and say
    nothing against it."""
    return [peer for peer in outer.holders(part) if peer.round >= goal]


def _has_the_last_word(outer: OuterLoop, part: Part, view: RunView, goal: int) -> bool:
    """Whether what this peer has accepted of a part decides its rounds up to `goal`.

    It does where this peer's own state has closed all these rounds, and where this peer holds the newest state that is
    known of, and nobody here a newer one. And it does where this peer took part in all these rounds, unless more others
    hold the part than may lie, or it was stopped at the run's end. Where this peer has missed that end, it does not
    come so far with a part whose last state nobody here holds: that part is lacking (`lacking_parts`).
    """
    if goal <= view.parts[part].closed:
        return True
    abreast = len(_abreast(outer, part, goal))
    took_part = outer.clock if outer.contributed else outer.clock - 1
    outvoted_by = 1 if outer.ended_before else max(1, vouchers_needed(outer, part))
    return (not abreast and stands(view, view.parts[part])) or (goal <= took_part and abreast < outvoted_by)


async def agree(outer: OuterLoop) -> None:
    """Catch up after a round, if the others have gone on, and go by the states that stand among them."""
    if outer.is_behind:
        await come_abreast(outer)
    await agree_on_states(outer)
