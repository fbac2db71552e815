"""Whom a leader invites, and whom it dismisses: who broke the protocol, who is accused, who accuses too many, and who
holds the group up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpc.aio import Server

from peer.network.bans import Bans
from peer.network.duplex import Duplex
from peer.network.group import GroupService, Orders, Reports, Seat, orders_to
from peer.swarm.group.compression import Choice
from peer.swarm.group.leader import Leader
from peer.swarm.group.member import Member
from peer.swarm.group.seats import fill, pause
from peer.swarm.group.stragglers import FIRST_SECONDS, StepPace
from peer.telemetry.events import Event, GroupBroken
from peer.telemetry.group_decisions import Dismissed
from protocol.identity import PeerId
from protocol.net.tasks import Notifier
from protocol.schemas import group_pb2 as pb
from protocol.schemas import group_pb2_grpc
from tests.reference.admitted import identity
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

ATTEMPT = 3
SECONDS = 20.0


@dataclass
class Here:
    """The leader's own stage, of which only its links and its clock matter here."""

    outer: Any
    pace: StepPace = field(default_factory=StepPace)
    waits_for: PeerId | None = None
    interrupted: list[str] = field(default_factory=list)
    round: int = 5
    steps: int = 2

    async def abandon(self, reason: str) -> None:
        self.interrupt(reason)

    def interrupt(self, reason: str) -> None:
        self.interrupted.append(reason)


def named(stage: int) -> PeerId:
    return identity(f"stage {stage}").peer_id


def member_of(orders: Orders) -> Reports:
    """The other end of a control stream, joined in memory."""
    reports: Reports = Duplex(named(0), "the leader", 8)
    reports._outgoing, orders._outgoing = orders._incoming, reports._incoming  # type: ignore[assignment]
    return reports


class Group:
    """A leader of stages 1 to 3, and its members' ends."""

    def __init__(self) -> None:
        self.said: list[Event] = []
        self.bans = Bans(self.said.append)
        outer = SimpleNamespace(reconciler=SimpleNamespace(bans=self.bans), emit=self.said.append)
        self.here = Here(outer)
        self.leader = Leader(self.here, None, Choice((8,), 1, False, 8), attempt=ATTEMPT)  # type: ignore[arg-type]
        self.members: dict[int, Reports] = {}
        for stage in (1, 2, 3):
            seat = Seat(named(stage), "")
            self.leader.seats[stage], self.leader.orders[stage] = seat, orders_to(stage, seat)
            self.members[stage] = member_of(self.leader.orders[stage])

    def accuse(self, stage: int, culprit: PeerId, attempt: int = ATTEMPT) -> None:
        said = pb.Report(broken=pb.Broken(attempt=attempt, reason="no frame", culprit=culprit))
        self.leader._notice(stage, said)

    @property
    def dismissed(self) -> set[int]:
        """The stages whose members are avoided; their streams have ended."""
        avoided = {stage for stage in (1, 2, 3) if self.bans.objection(named(stage))}
        assert avoided == {stage for stage, stream in self.leader.orders.items() if stream.ended}
        return avoided

    async def halt(self, waited_for: dict[int, int]) -> None:
        """Members answer that they waited for the frame of a stage (0: for none)."""
        for stage, neighbour in waited_for.items():
            due = named(neighbour) if neighbour else ""
            self.members[stage].send(pb.Report(halted=pb.Halted(attempt=ATTEMPT, waited_for=due)))
        await self.leader._halt("called off")


def in_a_loop(scene: Any) -> None:
    asyncio.run(asyncio.wait_for(scene(), SECONDS))


def test_who_is_accused_by_its_neighbour_is_dismissed_and_the_step_is_called_off():
    group = Group()
    group.accuse(1, named(2))
    assert group.dismissed == {2}
    assert group.here.interrupted
    (told,) = [event for event in group.said if isinstance(event, Dismissed)]
    assert (told.peer, told.round, told.step) == (named(2), 5, 2)
    assert "says of its neighbour: no frame" in told.reason


def test_who_accuses_a_second_neighbour_is_dismissed_itself():
    group = Group()
    group.accuse(2, named(1))
    group.accuse(2, named(3))
    assert group.dismissed == {1, 2}


def test_an_accusation_counts_only_against_a_neighbour_and_in_this_attempt():
    group = Group()
    group.accuse(1, named(3))
    group.accuse(1, named(0))
    group.accuse(1, PeerId("nobody"))
    group.accuse(1, named(2), attempt=ATTEMPT - 1)
    assert group.dismissed == set()


def test_who_held_a_step_up_that_took_too_long_is_found_by_what_the_members_waited_for():
    async def scene() -> None:
        group = Group()
        group.here.waits_for = named(1)
        group.leader._watch(FIRST_SECONDS - 1)
        assert not group.here.interrupted
        group.leader._watch(FIRST_SECONDS + 1)
        await group.halt({1: 2, 2: 3, 3: 0})
        assert group.bans.objection(named(3))
        assert not group.bans.objection(named(1))
        assert sorted(group.leader.seats) == [1, 2]

    in_a_loop(scene)


def test_nobody_is_blamed_for_a_step_that_another_reason_called_off():
    async def scene() -> None:
        group = Group()
        await group.halt({1: 2, 2: 3, 3: 0})
        assert group.dismissed == set()

    in_a_loop(scene)


def test_nobody_is_blamed_while_the_leader_itself_is_at_work():
    group = Group()
    group.leader._watch(10 * FIRST_SECONDS)
    assert group.dismissed == set()
    assert not group.here.interrupted


def test_a_member_that_does_not_halt_is_dismissed():
    async def scene() -> None:
        group = Group()
        group.here.pace = SimpleNamespace(bound=lambda: 0.05)  # type: ignore[assignment]
        await group.halt({1: 0, 3: 0})
        assert group.bans.objection(named(2))
        assert sorted(group.leader.seats) == [1, 3]

    in_a_loop(scene)


def test_a_member_leaves_a_leader_that_neither_ends_a_step_nor_calls_it_off():
    group = Group()
    member, reports = Member(group.here, None), group.members[1]  # type: ignore[arg-type]
    member._watch(reports, 4 * FIRST_SECONDS - 1)
    assert not group.bans.objection(named(0))
    member._watch(reports, 4 * FIRST_SECONDS)
    assert "called it off" in group.bans.objection(named(0))
    assert reports.ended


def test_a_member_that_is_silent_while_seats_are_filled_ends_the_attempt_and_not_the_leader(
    monkeypatch: pytest.MonkeyPatch,
):
    attempts: list[Leader] = []

    async def fill_seats(leader: Leader) -> bool:
        attempts.append(leader)
        if len(attempts) == 1:
            raise TimeoutError
        return False

    async def done() -> None:
        """What a stage does beside this."""

    async def scene() -> None:
        group = Group()
        outer, group.here.take_up, group.here.contribute = group.here.outer, done, done  # type: ignore[attr-defined]
        outer.contributed, outer.discovery = (
            False,
            SimpleNamespace(news=Notifier(), record=SimpleNamespace(peer_id=named(0))),
        )
        for stage in (1, 2, 3):
            group.members[stage].send(pb.Report(halted=pb.Halted(attempt=ATTEMPT)))
        await group.leader.serve()
        assert len(attempts) == 2
        (broken,) = [event for event in group.said if isinstance(event, GroupBroken)]
        assert broken.reason == "a member did not answer"

    monkeypatch.setattr(Leader, "_fill_seats", fill_seats)
    in_a_loop(scene)


def test_a_member_that_finishes_a_round_by_itself_hears_its_leader_meanwhile():
    """The leader may be the one whose contribution it waits for, and need this member to make it."""

    async def scene() -> None:
        group, news = Group(), Notifier()
        order = pb.Order(begin=pb.Begin(attempt=ATTEMPT, round=5))

        async def finish(interrupted: Callable[[], bool] = lambda: False) -> None:
            group.leader.orders[1].send(order)
            while not interrupted():
                await news.wait(0.05)

        outer = SimpleNamespace(
            discovery=SimpleNamespace(news=news), over=False, leaving=False, begun=True, others_at=lambda: 5, clock=5
        )
        here = SimpleNamespace(outer=outer, handover=None, pipeline=None, steps=0, finish=finish)
        member = Member(here, None)  # type: ignore[arg-type]
        assert await member._next_order(group.members[1], named(0)) == order

    in_a_loop(scene)


# Whom a leader invites, over real sockets: who is like it in speed, and of those the nearest


MANIFEST = small_manifest(replicas={"groups": 2, "stages": 2, "datacenters": 0})


def invite_over_sockets(folder: Path, scene: Callable[[Village], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder) as made:
            made.more_services = free_member
            await asyncio.wait_for(scene(made), 60)

    asyncio.run(run())


def free_member(server: Server, peer: PeerId) -> None:
    service = GroupService(MANIFEST, 1, peer)
    service.ready = True
    group_pb2_grpc.add_GroupServicer_to_server(service, server)


async def volunteer(made: Village, name: str, stage: int, speed: float) -> LoopbackPeer:
    peer = await made.join(name, stage)
    peer.outer.discovery.tell(tokens_per_second=speed)
    made.introduce()
    return peer


async def seated(leader: LoopbackPeer, attempt: int = 0) -> str:
    return (await fill(leader.outer.reconciler, {}, attempt))[1].peer_id


def test_each_leader_gets_who_is_like_it_and_the_last_one_whoever_is_left(tmp_path: Path):
    async def scene(made: Village) -> None:
        slow, quick = await volunteer(made, "a", 0, 90.0), await volunteer(made, "b", 0, 900.0)
        like_quick, like_slow = await volunteer(made, "c", 1, 1000.0), await volunteer(made, "d", 1, 100.0)
        assert await seated(slow) == like_slow.id
        assert await seated(quick) == like_quick.id

    invite_over_sockets(tmp_path, scene)


def test_a_slow_one_is_taken_where_there_is_no_other(tmp_path: Path):
    async def scene(made: Village) -> None:
        quick, slow = await volunteer(made, "a", 0, 900.0), await volunteer(made, "b", 1, 1.0)
        assert await seated(quick) == slow.id

    invite_over_sockets(tmp_path, scene)


def test_how_far_away_candidates_are_is_measured_where_there_is_a_choice(tmp_path: Path):
    async def scene(made: Village) -> None:
        leader = await volunteer(made, "a", 0, 90.0)
        one, other = await volunteer(made, "b", 1, 90.0), await volunteer(made, "c", 1, 100.0)
        trips = leader.outer.discovery.trips
        assert not trips
        await seated(leader)
        assert trips.keys() == {one.id, other.id}

    invite_over_sockets(tmp_path, scene)


def test_of_two_that_are_alike_the_nearer_is_invited(tmp_path: Path):
    async def scene(made: Village) -> None:
        leader = await volunteer(made, "a", 0, 100.0)
        far, near = await volunteer(made, "b", 1, 100.0), await volunteer(made, "c", 1, 90.0)
        leader.outer.discovery.trips |= {PeerId(far.id): 0.3, PeerId(near.id): 0.03}
        assert await seated(leader) == near.id

    invite_over_sockets(tmp_path, scene)


def test_who_has_failed_again_and_again_is_not_hurried_by_news():
    async def seconds(failures: int) -> float:
        news, loop = Notifier(), asyncio.get_running_loop()
        began = loop.time()
        pausing = asyncio.create_task(pause(news, failures))
        while not pausing.done():
            news.ring()
            await asyncio.sleep(0)
        return loop.time() - began

    assert asyncio.run(seconds(0)) < 0.1
    assert asyncio.run(seconds(3)) >= 0.9
