"""The end of a run at one peer: nobody goes before all have finished, and hold the same; and a peer that has missed the
end is told, and takes the last state."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from peer.swarm import waits
from peer.swarm.node import AskNode, Node
from peer.swarm.roles import all_at
from peer.swarm.rounds.catch_up import catch_up
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.states import agree_on_states, closed_otherwise, compare_with_all
from protocol.clock import monotonic, unix_time
from protocol.errors import HetpeerError
from protocol.events.activity import Notice, Progress, Warned
from protocol.events.event import Listener
from protocol.events.waiting import Waiting
from protocol.identity import PeerId
from protocol.net.tasks import Children, wait_at_most
from protocol.patience import (
    END_KNOWN_POLL_SECONDS,
    END_KNOWN_SECONDS,
    FAREWELL_SECONDS,
    IDLE_RUN_POLL_SECONDS,
    IDLE_RUN_SECONDS,
    LAST_STATE_SECONDS,
    NODE_AWAY_SECONDS,
    NODE_POLL_SECONDS,
    NODE_TIMEOUT_SECONDS,
    RETURNED_SECONDS,
    SETTLE_PATIENCE_SECONDS,
)

CLOCK_POLL_SECONDS = 1.0
SLEPT_SECONDS = 5.0
"""A machine has slept if its clock went on by this much more than the time between two looks at it. The run may have
ended meanwhile."""

STAY_POLL_SECONDS = 5.0
"""The interval at which a peer that stays with the last state looks for more contributions to the last rounds."""


async def serve_the_end(node: Node, outer: OuterLoop) -> None:
    """Stay as long as others, or the operator's node, need this peer at the run's end."""
    stays = node.settings.stay
    if not outer.leaving:
        await (take_last_state(outer, node.settings.hold) if outer.missed_end else serve_until_all_finished(outer))
    if outer.finished and not (outer.missed_end or stays):
        await stay_until_known(outer, node.ask_node)
        while not (outer.leaving or outer.followed.is_settled(outer.last_settled)):  # more has come meanwhile
            await serve_until_all_finished(outer)
    if stays and outer.finished and not outer.leaving:
        await stay(outer)


async def stay_until_known(outer: OuterLoop, ask: AskNode) -> None:
    """Stay until the operator's node says that the run is over, and has the last state if it is about to take it: it
    learns and takes both from who has finished, and gives them to those who come afterwards. It does not call the run
    over as long as somebody is at work who has not finished, and may still need the others for that. A node that is
    away is waited for `NODE_AWAY_SECONDS`, one that answers for `END_KNOWN_SECONDS`, and one that does not know of the
    end by a peer that comes back to it for `RETURNED_SECONDS`."""
    began = monotonic()
    ends, wait = began + NODE_AWAY_SECONDS, waits.for_the_node_to_know(NODE_AWAY_SECONDS)
    while not outer.leaving and monotonic() < ends:
        with suppress(HetpeerError, TimeoutError):
            async with asyncio.timeout(NODE_TIMEOUT_SECONDS):
                word = await ask()
                over = word.finished == outer.manifest.outer.rounds
                if over and not word.taking:
                    return
                most_seconds = RETURNED_SECONDS if outer.ended_before and not over else END_KNOWN_SECONDS
                wait = (waits.for_the_node_to_take if over else waits.for_the_node_to_know)(most_seconds)
                ends = min(began + most_seconds, monotonic() + NODE_AWAY_SECONDS)
        outer.emit(wait)
        await asyncio.sleep(END_KNOWN_POLL_SECONDS)


async def serve_until_all_finished(outer: OuterLoop) -> None:
    """Serve until every peer has finished the last round and all hold the same: what one has heard last, the others
    hear from it. Who does not answer, and has not said goodbye, may be cut off: it is waited for as well, for a while.
    Who was killed at the end and is back has met nobody yet, and looks for others first: they may hold more. A peer
    that its owner stops meanwhile goes at once, and does the same when it is started again.
    """
    clock, rounds = asyncio.get_running_loop().time, outer.manifest.outer.rounds
    farewell = clock() + _farewell_seconds(outer)
    ended, lost = 0.0, dict[PeerId, float]()
    met = clock() + (LAST_STATE_SECONDS if outer.ended_before else 0.0)

    def waits_for_nobody() -> bool:
        nonlocal lost
        lost = {peer: lost.get(peer, clock()) for peer in outer.discovery.missed()}
        return clock() >= met and all(clock() >= since + SETTLE_PATIENCE_SECONDS for since in lost.values())

    while clock() < farewell and not outer.leaving:
        together = waits_for_nobody() and all_at(outer.discovery.peers(), rounds)
        ended = (ended or clock()) if together else 0.0
        if together:
            async with reporting_a_long_wait(outer.emit, lambda: _of_the_end(outer)):
                same = await _have_all(outer) or clock() >= ended + SETTLE_PATIENCE_SECONDS
            if same and not closed_otherwise(outer) and waits_for_nobody():  # some may only have seemed to be there
                break
        outer.emit(_of_the_end(outer))
        await outer.discovery.news.wait(1.0)
    else:
        if outer.leaving:
            return
        await _have_all(outer)
    async with reporting_a_long_wait(outer.emit, lambda: _of_the_end(outer)):
        await catch_up(outer)  # what they took and this peer did not, or the other way round, no later round mends
    outer.mark_compared(outer.compared or _has_met_who_knows(outer))
    await outer.settle()
    outer.discovery.update_record(ending=False)
    if not outer.compared:
        outer.emit(
            Progress(f"{run_over_words(outer)}; nobody is here any more with whom its last state could be compared")
        )


def _has_met_who_knows(outer: OuterLoop) -> bool:
    """Whether this peer has trained with the others to the end; or, where it has come back to it, there is somebody
    who has finished the run, or nobody else ever had a part in what this peer holds."""
    rounds, me = outer.manifest.outer.rounds, outer.followed.me
    authors = set[PeerId]().union(*(followed.ledger.counted_since(1) for followed in outer.followed.parts.values()))
    finished = any(peer.round >= rounds for peer in outer.discovery.others())
    return not outer.ended_before or finished or authors <= {me}


async def stay(outer: OuterLoop) -> None:
    """Stay for those who come late, with the last state, until the owner stops this peer. What others still bring of
    the last rounds goes into it."""
    outer.announce_finish()
    outer.emit(Notice("staying, for those who come late: this peer holds the run's last state"))
    while not outer.leaving:
        if not outer.followed.is_settled(outer.last_settled):
            await outer.settle()
        await outer.discovery.news.wait(STAY_POLL_SECONDS)


async def ask_whether_over(outer: OuterLoop, ask: AskNode) -> None:
    """Ask the operator's node how far the run is, and end if it is over without this peer: by the node's word, or, for
    a peer that has no part in the run yet, by proof that its last round is finished. A node that does not answer
    changes nothing."""
    with suppress(HetpeerError, TimeoutError):
        async with asyncio.timeout(NODE_TIMEOUT_SECONDS):
            word = await ask()
        is_news = outer.progress.learn_from_node(word, outer.followed.me)
        if is_news and (words := outer.progress.rewind_words(outer.clock - 1, word.run)):
            outer.emit(Warned(f"WARNING: {words}"))
        rounds, comes_new = outer.manifest.outer.rounds, outer.clock == 1 and not outer.contributed
        if not outer.finished and rounds in (word.finished, outer.progress.finished if comes_new else 0):
            outer.mark_run_over()
            outer.emit(Notice(f"{run_over_words(outer)}: this peer trains no more, and looks for the last state"))


async def keep_asking_the_node(outer: OuterLoop, ask: AskNode, clock: Callable[[], float] = unix_time) -> None:
    """Ask the operator's node how far the run is for as long as this peer trains: when it has slept, while nobody else
    trains here or it waits for a state, while those that were rounds ahead, or had finished the last round, are gone,
    and now and then while no round ends. A peer that has others to train with sees by them how far the run is."""
    asked_at = looked = since = clock()
    finished = outer.clock
    while not outer.over:
        await asyncio.sleep(CLOCK_POLL_SECONDS)
        now = clock()
        if outer.clock != finished:
            finished, since = outer.clock, now
        slept, looked = now - looked > CLOCK_POLL_SECONDS + SLEPT_SECONDS, now
        alone = all(peer.role == "observer" for peer in outer.discovery.others())
        waits_for_state = bool(outer.discovery.record.phase)
        is_left_behind = outer.reconciler.witnesses.were_ahead(outer.clock) or _somebody_has_ended(outer)
        idle = now - since > max(IDLE_RUN_SECONDS, 2 * outer.pace.usual) and now - asked_at >= IDLE_RUN_POLL_SECONDS
        if slept or idle or ((alone or waits_for_state or is_left_behind) and now - asked_at >= NODE_POLL_SECONDS):
            await ask_whether_over(outer, ask)
            asked_at = now


def _somebody_has_ended(outer: OuterLoop) -> bool:
    """Whether this peer works on the last round, and one that had finished it has gone, or does not answer. Anybody can
    say that: before the last round it would have all peers ask for days."""
    here, last = {peer.peer_id for peer in outer.discovery.others()}, outer.manifest.outer.rounds
    known = outer.discovery.records.values()
    return outer.clock >= last and any(peer.round >= last and peer.peer_id not in here for peer in known)


async def take_last_state(outer: OuterLoop, holds: bool = False) -> None:
    """Fetch the last state of a run that has ended without this peer, from any holder that is there within
    `LAST_STATE_SECONDS`; with `holds`, where this peer is meant to hold that state, wait for a holder without a limit.
    Then, while peers still take contributions into that state, take them as well, for `_farewell_seconds` at most, and
    settle."""
    most_seconds = None if holds else LAST_STATE_SECONDS
    ends = math.inf if most_seconds is None else monotonic() + most_seconds
    while not (outer.finished or outer.leaving) and monotonic() < ends:
        await outer.discovery.read()
        await catch_up(outer)
        if not outer.finished:
            outer.emit(waits.for_the_last_state(outer.manifest.outer.rounds, most_seconds))
            await outer.discovery.news.wait(1.0)
    farewell = _farewell_seconds(outer)
    ends = monotonic() + farewell
    while outer.finished and _some_end(outer) and not outer.leaving and monotonic() < ends:
        outer.emit(waits.for_those_who_end(outer.others(), farewell))
        await outer.discovery.news.wait(1.0)
        await catch_up(outer)
    if outer.finished:
        outer.mark_compared()
        await outer.settle()
    else:
        explanation = f"{outer.folder} has the one after round {outer.clock - 1}"
        outer.emit(Notice(f"{run_over_words(outer)}, and nobody who is there holds the last state; {explanation}"))


def run_over_words(outer: OuterLoop) -> str:
    """Say that the run is over, in words."""
    return f"the run is over: its {outer.manifest.outer.rounds} rounds are finished"


def _farewell_seconds(outer: OuterLoop) -> float:
    """The time for which a peer serves the others after the last round: who is slow may be in a step for so long."""
    return max(FAREWELL_SECONDS, outer.pace.usual)


def _some_end(outer: OuterLoop) -> bool:
    """Whether others who have trained to the run's end still settle its last state."""
    return any(peer.ending for peer in outer.others())


def _of_the_end(outer: OuterLoop) -> Waiting:
    """The wait of this peer, which has finished the last round, for the others."""
    others, missed = outer.discovery.others(), outer.discovery.missed()
    return waits.for_the_end(others, missed, outer.manifest.outer.rounds, _farewell_seconds(outer))


@asynccontextmanager
async def reporting_a_long_wait(emit: Listener, wait: Callable[[], Waiting]) -> AsyncIterator[None]:
    """Say what this peer waits for if the block takes long: who does not answer is given time."""

    async def say() -> None:
        await asyncio.sleep(LAST_STATE_SECONDS)
        emit(wait())

    async with Children() as children:
        children.spawn(say())
        yield


async def _have_all(outer: OuterLoop) -> bool:
    """Take what the others have; whether they have all that is here. Who has gone through the last rounds alone meets
    the others' states only now, and no later round mends what it closed otherwise."""
    same = await compare_with_all(outer)
    await agree_on_states(outer)
    await wait_at_most(SETTLE_PATIENCE_SECONDS, outer.reconciler.learnt())
    return same
