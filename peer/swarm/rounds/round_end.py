"""The end of a round at one peer: it waits for the contributions that are due, settles what counts, and goes on."""

from collections.abc import Callable

from peer.network.witnesses import LATELY
from peer.swarm import waits
from peer.swarm.roles import authors
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.round_policy import RoundSeen
from peer.swarm.rounds.round_view import awaited_authors, see_round
from protocol.clock import monotonic
from protocol.events.activity import RoundDone
from protocol.events.waiting import Waiting
from protocol.identity import EMBEDDING
from protocol.patience import LOGGED_WAIT_SECONDS, LOST_STATE_SECONDS


async def finish_round(outer: OuterLoop, round: int) -> dict[str, int]:
    """Wait for the contributions that are due, settle, and go on to the next round. Returns the number of contributions
    in the state, by part; none, if the round is not finished here: the run is over elsewhere, or further ahead of this
    peer than messages take, which then has to catch up."""
    applied = outer.manifest.outer.applied(round)
    for applied_round in applied:
        if not await wait_for_round(outer, applied_round):
            return {}
        await _ask_who_is_ahead(outer, applied_round)
        for part in outer.followed.parts:
            arrivals = outer.arrivals_of(applied_round)
            expected = awaited_authors(outer, part, applied_round) | arrivals.missed(part)
            outer.pace.remember(arrivals.started, arrivals.arrived(part), len(expected))
        outer.credited.look(applied_round, outer.discovery.record)
    await outer.finish(max(round, outer.clock - 1))
    counts: dict[str, int] = {  # more may be accepted by now than when the state was settled
        part: sum(len(followed.settled.get(applied_round, ())) for applied_round in applied)
        for part, followed in outer.followed.parts.items()
    }
    for applied_round in applied if outer.workload.looks else ():
        arrivals, awaited = outer.arrivals_of(applied_round), awaited_authors(outer, EMBEDDING, applied_round)
        outer.workload.note(applied_round, monotonic() - arrivals.started, arrivals.lasted(EMBEDDING), awaited)
    if outer.discovery.record.contributed < round:
        await outer.save({})
    outer.forget_arrivals()
    await outer.discovery.publish()
    return counts


def emit_round_done(
    outer: OuterLoop, round: int, started: float, steps: int, counts: dict[str, int], sent: tuple[int, int]
) -> None:
    """Emit that a round is finished that has lasted since `started`. `steps` are the inner steps whose tokens this peer
    counts, `counts` what `finish_round` returned, and `sent` the bytes that it has sent so far in the pipeline and in
    contributions."""
    tokens, digests = outer.manifest.tokens_per_step * steps, outer.followed.digests
    outer.emit(RoundDone(round, monotonic() - started, tokens, counts, digests, *sent))


async def wait_for_round(
    outer: OuterLoop,
    round: int,
    interrupted: Callable[[], bool] = lambda: False,
    wait: Callable[[], Waiting] | None = None,
) -> bool:
    """Wait until the contributions of all who train are here, the deadline has passed, or the others have gone on.
    Returns False if interrupted before, if the run is over elsewhere, or if this peer has to catch up with it. `wait`
    is what this peer waits for, where it is not the contributions."""
    began = monotonic()
    while outer.missed_end or outer.is_behind or not round_policy.is_complete(see_round(outer, round, trains=False)):
        if outer.missed_end or outer.is_behind or interrupted():
            return False
        outer.record_arrivals()
        round_seen, now = see_round(outer, round, trains=False), monotonic()
        if round_seen.passed is None and (round_policy.others_have_gone_on(round_seen) or not round_seen.led):
            outer.arrivals_of(round).mark_passed(now)
        seconds_left = round_policy.seconds_left(round_seen, outer.pace, now)
        if seconds_left is not None and seconds_left <= 0:
            furthest = outer.reconciler.witnesses.most_shown()
            seconds_left = began + round_policy.most_wait_for_those_behind(round_seen, outer.pace, furthest) - now
        if seconds_left is not None and seconds_left <= 0:
            parts, me = outer.followed.parts, outer.followed.me
            expected = {part: view.awaited - {me} for part, view in zip(parts, round_seen.parts, strict=True)}
            outer.credited.go_on(expected, round, round_policy.why_go_on(round_seen, now))
            break
        lost = outer.lost_state if now - began >= LOST_STATE_SECONDS else None
        outer.emit(lost or (wait() if wait is not None else _wait_of(outer, round_seen, began, now, seconds_left)))
        await outer.discovery.news.wait(min(seconds_left, 1.0) if seconds_left is not None else 1.0)
    outer.record_arrivals()
    return True


def _wait_of(outer: OuterLoop, seen: RoundSeen, began: float, now: float, left: float | None) -> Waiting:
    """The wait for contributions that `began` then, and lasts for `left` seconds more at most; None: that is not known
    yet. Until the run has begun it is that for its beginning."""
    if not outer.begun:
        return waits.for_the_beginning(outer.discovery.peers(), outer.manifest)
    if outer.discovery.record.role == "observer" and not any(part.awaited for part in seen.parts):
        return waits.for_somebody_who_trains(seen.round)
    others = [(part.awaited - {outer.followed.me}, part.here) for part in seen.parts]
    expected_from = frozenset().union(*(expected for expected, _ in others))
    missing = frozenset().union(*(expected - arrived for expected, arrived in others))
    most_seconds = None if left is None else float(round(now + left - began))
    brief = now - began < max(LOGGED_WAIT_SECONDS, outer.pace.usual)
    if (missed := outer.arrivals_of(seen.round).last_missed(missing)) is not None:
        seconds = float(round(missed + outer.pace.return_seconds - began))
        return waits.for_a_return(seen.round, missing, min(seconds, most_seconds or seconds), brief)
    return waits.for_contributions(seen.round, expected_from, missing, seen.least, most_seconds, brief)


async def _ask_who_is_ahead(outer: OuterLoop, round: int) -> None:
    """Ask peers for contributions that their records do not tell of: with overlap, a peer that has contributed to the
    next round may have contributed to this one, or have come since."""
    later = range(round + 1, round + 1 + outer.manifest.outer.delay)
    for part, followed in outer.followed.parts.items():
        lately = followed.ledger.counted_since(round - LATELY)
        missing = lately - followed.ledger.accepted.get(round, {}).keys()
        for peer in authors(outer.discovery.others(), part):
            if peer.contributed in later and peer.peer_id in missing:
                await outer.reconciler.compare(peer)
