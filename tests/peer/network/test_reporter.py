"""What a peer tells an operator's node, over real sockets."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from peer.network import reporter
from peer.network.reporter import MOST_WAITING, Reporter
from peer.telemetry.status import EventStream, Status
from protocol.events.activity import (
    Contributed,
    Credited,
    Evaluated,
    Finished,
    GroupBroken,
    GroupFormed,
    Progress,
    Refused,
    RoundDone,
    StepDone,
)
from protocol.events.decisions import EndedEarly, Left, WentOn
from protocol.events.event import Event, PeerState
from protocol.events.peer_report import BATCH_BYTES, PeerReport, ReportedStatus, unpack_report
from protocol.events.waiting import Waiting
from tests.reference.admitted import contacts, identity
from tests.reference.watched import MANIFEST, Watched

PEER = identity("peer").peer_id
Scene = Callable[[Watched, Reporter], Awaitable[None]]


def tell(teller: Reporter, event: Event) -> None:
    EventStream([teller], teller.status)(event)


def done(round: int, pipeline: int = 0, outer: int = 0) -> RoundDone:
    return RoundDone(round, 2.0, 96, {"stage-0": 2}, {"stage-0": "ab"}, pipeline, outer)


def batch_of(teller: Reporter) -> PeerReport:
    """What it would send now."""
    took = list(teller.waiting)
    teller.waiting.clear()
    return unpack_report(teller._packed(took))


def heard(watched: Watched) -> ReportedStatus:
    known = watched.monitor.fold.peers.get(PEER)
    return known.status if known else ReportedStatus()


def play(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "BATCH_SECONDS", 0.05)
    monkeypatch.setattr(reporter, "LEAST_PAUSE_SECONDS", 0.05)

    async def run() -> None:
        watched, calling = Watched(), contacts("peer", MANIFEST)
        teller = Reporter(Status())
        teller.start(calling, lambda: watched.at)
        try:
            await scene(watched, teller)
        finally:
            await teller.close("")
            await calling.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_node_hears_of_steps_and_of_what_happened(monkeypatch: pytest.MonkeyPatch):
    async def scene(watched: Watched, teller: Reporter) -> None:
        async with watched.serving():
            tell(teller, StepDone(1, 0, 5.5, 96))
            tell(teller, StepDone(1, 1, 5.25, 96))
            tell(teller, Refused("Qm", "wrong"))
            await watched.until(lambda: heard(watched).step == 2)
            batch = heard(watched)
            assert (batch.round, batch.loss, batch.tokens) == (1, 5.25, 192)
            known = watched.monitor.fold.peers[PEER]
            assert known.streams == 1
            await teller.close("quiet hours")
            await watched.until(lambda: known.streams == 0)
            assert (known.going, known.going_why, known.cut) == (PeerState.PAUSED, "quiet hours", None)

    play(scene, monkeypatch)


def test_who_is_told_to_pause_as_the_run_ends_has_gone(monkeypatch: pytest.MonkeyPatch):
    async def scene(watched: Watched, teller: Reporter) -> None:
        async with watched.serving():
            tell(teller, StepDone(1, 0, 5.5, 96))
            await watched.until(lambda: heard(watched).step == 1)
            tell(teller, Finished(1))
            await teller.close("quiet hours")
            known = watched.monitor.fold.peers[PEER]
            await watched.until(lambda: known.streams == 0)
            assert (known.going, known.going_why) == (PeerState.GONE, "the run is over")

    play(scene, monkeypatch)


def test_a_node_that_comes_later_or_comes_back_is_told_what_waits(monkeypatch: pytest.MonkeyPatch):
    async def scene(watched: Watched, teller: Reporter) -> None:
        tell(teller, StepDone(1, 0, 5.5, 96))
        async with watched.serving():
            await watched.until(lambda: heard(watched).step == 1)
            at = watched.at
        assert at is not None
        tell(teller, StepDone(1, 1, 5.0, 96))
        async with watched.serving(int(at.address.rpartition(":")[2])):
            await watched.until(lambda: heard(watched).step == 2)

    play(scene, monkeypatch)


def test_a_peer_that_dies_leaves_a_broken_stream(monkeypatch: pytest.MonkeyPatch):
    async def scene(watched: Watched, teller: Reporter) -> None:
        async with watched.serving():
            await watched.until(lambda: PEER in watched.monitor.fold.peers and bool(heard(watched).version))
            assert len(teller._children) == 1
            teller._children.cancel()
            await watched.until(lambda: watched.monitor.fold.peers[PEER].cut is not None)

    play(scene, monkeypatch)


def test_who_is_revoked_is_not_heard_any_longer(monkeypatch: pytest.MonkeyPatch):
    async def scene(watched: Watched, teller: Reporter) -> None:
        async with watched.serving():
            await watched.until(lambda: bool(heard(watched).version))
            watched.objections[PEER] = "the operator has revoked you"
            tell(teller, StepDone(9, 0, 5.5, 96))
            await watched.until(lambda: watched.monitor.fold.peers[PEER].streams == 0)
            assert heard(watched).round == 0

    play(scene, monkeypatch)


def test_nothing_is_told_when_nothing_happened(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reporter, "SIGN_OF_LIFE_SECONDS", 600.0)

    async def scene(watched: Watched, teller: Reporter) -> None:
        async with watched.serving():
            await watched.until(lambda: bool(heard(watched).version))
            first = heard(watched)
            tell(teller, Progress("fetching", 1, 2))
            for _ in range(5):
                await asyncio.sleep(reporter.BATCH_SECONDS)
            assert heard(watched) is first
            assert not teller._changed

    play(scene, monkeypatch)


def test_the_node_hears_of_a_peer_in_the_middle_of_a_long_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reporter, "SIGN_OF_LIFE_SECONDS", 0.1)

    async def scene(watched: Watched, teller: Reporter) -> None:
        async with watched.serving():
            tell(teller, StepDone(1, 0, 5.5, 96))
            await watched.until(lambda: heard(watched).step == 1)
            first = heard(watched)
            await watched.until(lambda: heard(watched) is not first)
            assert (heard(watched).step, heard(watched).tokens) == (1, 96)

    play(scene, monkeypatch)


def test_the_node_is_told_what_the_peer_waits_for_while_it_does():
    teller = Reporter(Status())
    tell(teller, Waiting("1 datacenter (0 of 1)", "the run begins when all 2 replicas are there", 1, 2))
    assert teller._changed
    told = batch_of(teller)
    assert told.status.waits_for == "1 datacenter (0 of 1): the run begins when all 2 replicas are there"
    assert not told.events
    tell(teller, Waiting("x" * 400))
    assert batch_of(teller).status.waits_for == "x" * 300
    tell(teller, StepDone(1, 0, 5.0, 96))
    assert batch_of(teller).status.waits_for == ""


def test_each_reported_event_is_told_so_that_a_node_reads_it():
    teller = Reporter(Status())
    events = (
        GroupFormed("QmLeader", 0, ["QmLeader", "QmMember"]),
        GroupBroken("QmLeader", 1, 2, "peer QmMember does not answer"),
        Contributed(1, 3, ((0, 3),)),
        Evaluated(1, 5.0, 4.5),
        WentOn(2, ["QmMember"], "it is late"),
        EndedEarly(2, 1, "others wait"),
        Left("", "stopped"),
        done(1, 100, 200),
        Finished(3),
    )
    for event in (*events, Credited(1, 5, ["QmMember"]), StepDone(1, 0, 5.0, 1), Progress("fetching", 1, 2)):
        tell(teller, event)
    assert [event for _, event in batch_of(teller).events] == list(events)


def test_what_others_said_is_cut_and_moves_no_terminals_cursor():
    teller = Reporter(Status())
    tell(teller, Refused("QmMember", "it sent\x1b[2J what cannot be" + "x" * 1000))
    ((_, refused),) = batch_of(teller).events
    assert isinstance(refused, Refused)
    assert (len(refused.reason), refused.reason[:12]) == (300, "it sent�[2J ")


def test_what_is_no_number_is_not_told_and_harms_nobody():
    teller = Reporter(Status())
    tell(teller, StepDone(1, 0, math.nan, 96))
    tell(teller, Evaluated(1, math.inf, math.nan))
    batch = batch_of(teller)
    assert (batch.status.loss, batch.status.tokens, batch.events, batch.left_out) == (None, 96, [], 1)
    tell(teller, StepDone(1, 1, 1e9, 96))
    assert (batch_of(teller).status.loss, batch_of(teller).status.tokens) == (None, 192)


def test_what_cannot_be_told_is_forgotten_the_oldest_first():
    teller = Reporter(Status())
    for number in range(10 * MOST_WAITING):
        tell(teller, Refused("Qm", f"number {number}"))
    assert len(teller.waiting) == MOST_WAITING
    assert teller.left_out == 9 * MOST_WAITING
    assert teller.waiting[-1][1] == Refused("Qm", f"number {10 * MOST_WAITING - 1}")


def test_a_batch_is_never_longer_than_a_node_takes():
    teller = Reporter(Status())
    for _ in range(60):
        tell(teller, GroupBroken("QmLeader", 1, 2, "ü" * 300))
        tell(teller, GroupFormed("QmLeader", 0, ["Q" * 60] * 128))
    took = list(teller.waiting)[:64]
    packed = teller._packed(took)
    assert 1000 < len(packed) <= BATCH_BYTES
    assert unpack_report(packed).left_out > 0
