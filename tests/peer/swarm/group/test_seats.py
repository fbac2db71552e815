"""Who sits beside whom, over real sockets: groups grow from their first stage on, like goes with like, and nobody is
held by who finds nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from grpc.aio import Server

from peer.network.duplex import Duplex
from peer.network.group import PipelineService, call, make_link
from peer.swarm.group import seats as seating
from peer.swarm.group.seats import GroupSeats, pause_before_regrouping
from protocol.clock import monotonic
from protocol.codec.seating import pack_seats
from protocol.errors import LostMemberError, PeerError
from protocol.identity import PeerId, ReplicaId
from protocol.net.tasks import Children, Notifier
from protocol.patience import UNANSWERED_SECONDS
from protocol.schemas import pipeline_pb2_grpc
from protocol.trust.records import PeerRecord
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

STAGES = 3
MANIFEST = small_manifest(
    model={"d": 16, "layers": STAGES, "heads": 2, "kv_heads": 2, "ffn": 24, "vocabulary": 300, "context": 16},
    replicas={"groups": 2, "stages": STAGES, "datacenters": 0, "compression": 4},
)


@dataclass
class Town:
    """Volunteers without their training: each takes the seat that it is called to, and fills the one behind."""

    made: Village
    tasks: asyncio.TaskGroup
    services: dict[PeerId, PipelineService] = field(default_factory=dict)
    seats: dict[PeerId, GroupSeats] = field(default_factory=dict)
    running: Children = field(default_factory=Children)

    def serve(self, server: Server, peer: PeerId) -> None:
        self.services[peer] = PipelineService(MANIFEST)
        pipeline_pb2_grpc.add_PipelineServicer_to_server(self.services[peer], server)

    async def join(self, name: str, stage: int, speed: float = 100.0) -> LoopbackPeer:
        """A volunteer that takes calls, but of the first stage, which is to look for members yet."""
        peer = await self.made.join(name, stage)
        peer.outer.discovery.update_record(tokens_per_second=speed)
        seats = GroupSeats(peer.outer.reconciler, self.services[PeerId(peer.id)], self.tasks)
        self.seats[PeerId(peer.id)], seats.open = seats, True
        if stage:
            self.running.spawn(self._sit(seats))
        self.made.introduce()
        return peer

    async def _sit(self, seats: GroupSeats) -> None:
        news = seats.reconciler.discovery.news
        while True:
            while not seats.is_called:
                await news.wait(0.1)
            seats.sit_down()
            self.publish(seats)
            async with Children() as filling:
                task = filling.spawn(seats.fill())
                while not seats.before_is_gone:
                    if task.done():
                        task.result()
                    await news.wait(0.1)
            seats.hang_up("the stage before is gone")
            seats.leave()
            self.publish(seats)

    def publish(self, seats: GroupSeats) -> None:
        seats.reconciler.discovery.update_record(replica=seats.replica)
        self.made.introduce()

    def of(self, peer: LoopbackPeer) -> GroupSeats:
        return self.seats[PeerId(peer.id)]

    async def fill(self, first: LoopbackPeer) -> list[str]:
        """The group of a first stage, once it is whole."""
        seats = self.of(first)
        seats.replica = ReplicaId(PeerId(first.id))
        await seats.fill()
        self.publish(seats)
        return [*seats.members]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that no event tells of."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def play(folder: Path, scene: Callable[[Town], Awaitable[None]]) -> None:
    async def run() -> None:
        async with village(MANIFEST, folder) as made, asyncio.TaskGroup() as tasks:
            town = Town(made, tasks)
            made.more_services = town.serve
            await asyncio.wait_for(scene(town), 60)
            await town.running.end()
            for each in town.seats.values():
                each.hang_up("the test is over")

    asyncio.run(run())


def test_a_group_grows_from_its_first_stage_on_and_all_know_who_is_behind_them(tmp_path: Path):
    async def scene(town: Town) -> None:
        first, middle, last = [await town.join(name, stage) for stage, name in enumerate("abc")]
        assert await town.fill(first) == [first.id, middle.id, last.id]
        assert town.of(middle).members == (middle.id, last.id)
        assert town.of(middle).replica == town.of(last).replica == first.id
        assert town.of(last).whole

    play(tmp_path, scene)


def test_who_comes_later_fills_the_seat_that_is_left(tmp_path: Path):
    async def scene(town: Town) -> None:
        first, middle = await town.join("a", 0), await town.join("b", 1)
        async with Children() as children:
            filling = children.spawn(town.fill(first))
            await until(lambda: len(town.of(first).members) == 2)
            assert not filling.done()
            last = await town.join("c", 2)
            assert await filling == [first.id, middle.id, last.id]

    play(tmp_path, scene)


def test_the_end_of_a_group_frees_all_of_it_and_the_same_find_each_other_again(tmp_path: Path):
    async def scene(town: Town) -> None:
        first, *members = [await town.join(name, stage) for stage, name in enumerate("abc")]
        others = [await town.join(name, 1 + at) for at, name in enumerate("de")]
        usual = await town.fill(first)
        assert sorted(usual[1:]) != sorted(each.id for each in others) or usual[1:] == [each.id for each in others]
        town.of(first).hang_up("over")
        town.of(first).leave()
        await until(lambda: not any(town.of(each).replica for each in members + others))
        for each in others:  # now likelier by speed, if it were not for what was
            each.outer.discovery.update_record(tokens_per_second=100.0)
        assert await town.fill(first) == usual

    play(tmp_path, scene)


def test_each_gets_who_is_like_it_and_the_last_one_whoever_is_left(tmp_path: Path):
    async def scene(town: Town) -> None:
        slow, quick = await town.join("a", 0, 90.0), await town.join("b", 0, 900.0)
        like_quick, like_slow = await town.join("c", 1, 1000.0), await town.join("d", 1, 100.0)
        ends = [await town.join(name, 2, speed) for name, speed in (("e", 80.0), ("f", 800.0))]
        assert await town.fill(slow) == [slow.id, like_slow.id, ends[0].id]
        assert await town.fill(quick) == [quick.id, like_quick.id, ends[1].id]

    play(tmp_path, scene)


def test_how_far_away_candidates_are_is_measured_where_there_is_a_choice_and_the_nearer_is_called(tmp_path: Path):
    async def scene(town: Town) -> None:
        first = await town.join("a", 0, 100.0)
        one, other = await town.join("b", 1, 100.0), await town.join("c", 1, 90.0)
        seats, trips = town.of(first), first.outer.discovery.trips
        assert not trips
        assert await seats._candidate(0) is not None
        assert trips.keys() == {one.id, other.id}
        for near, far in ((one, other), (other, one)):
            trips |= {PeerId(far.id): 0.3, PeerId(near.id): 0.03}
            found = await seats._candidate(0)
            assert found is not None
            assert found.peer_id == near.id

    play(tmp_path, scene)


def test_who_finds_nobody_behind_it_gives_way_to_another_of_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The only last one does not talk to the middle one that is called first."""
    monkeypatch.setattr(seating, "FILL_SECONDS", 0.5)

    async def scene(town: Town) -> None:
        first = await town.join("a", 0)
        middles, last = [await town.join(name, 1) for name in "bc"], await town.join("d", 2)
        found = await town.of(first)._candidate(0)
        alone, able = sorted(middles, key=lambda each: found is None or each.id != found.peer_id)
        last.outer.reconciler.bans.note(PeerId(alone.id), PeerError("it did wrong"))
        assert await town.fill(first) == [first.id, able.id, last.id]

    play(tmp_path, scene)


def test_where_there_is_no_other_who_finds_nobody_keeps_its_seat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(seating, "FILL_SECONDS", 0.2)

    async def scene(town: Town) -> None:
        first, middle = await town.join("a", 0), await town.join("b", 1)
        async with Children() as children:
            filling = children.spawn(town.fill(first))
            await until(lambda: len(town.of(first).members) == 2)
            held, looked = town.of(first).downstream, list[PeerId | None]()
            candidate = GroupSeats._candidate

            async def noted(seats: GroupSeats, attempt: int, without: PeerId | None = None) -> PeerRecord | None:
                looked.append(without)
                return await candidate(seats, attempt, without)

            monkeypatch.setattr(GroupSeats, "_candidate", noted)
            await until(lambda: looked.count(PeerId(middle.id)) == 3)  # its time was over three times
            assert town.of(first).downstream is held
            last = await town.join("c", 2)
            assert await filling == [first.id, middle.id, last.id]

    play(tmp_path, scene)


def test_who_is_wished_is_waited_for_and_then_anybody_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(town: Town) -> None:
        first = await town.join("a", 0)
        one, other = [await town.join(name, 1) for name in "bc"]
        seats = town.of(first)
        found = await seats._candidate(0)
        unlikely = one if found is not None and found.peer_id == other.id else other
        seats.wait_for(PeerId(unlikely.id))
        assert (await seats._candidate(0)).peer_id == unlikely.id  # type: ignore[union-attr]
        seats.wait_for(PeerId("who never comes"))
        assert await seats._candidate(0) is None
        seats.until = 0.0
        assert await seats._candidate(0) == found

    play(tmp_path, scene)


def test_who_did_not_answer_in_time_is_called_again_when_it_has_finished_another_round_or_time_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene(town: Town) -> None:
        first, only = await town.join("a", 0), await town.join("b", 1)
        seats = town.of(first)
        seats.usual = only.id
        discovery, now = seats.reconciler.discovery, monotonic()
        monkeypatch.setattr(seating, "monotonic", lambda: now)
        seats.note_silence(only.id)
        assert await seats._candidate(0) is None
        now += UNANSWERED_SECONDS
        assert await seats._candidate(0) is not None
        seats.note_silence(only.id)
        now += 2 * UNANSWERED_SECONDS - 0.1
        assert await seats._candidate(0) is None
        discovery.records[only.id] = discovery.records[only.id].model_copy(update={"round": 1})
        assert await seats._candidate(0) is not None

    play(tmp_path, scene)


def test_a_neighbour_that_was_slow_is_called_last_and_not_waited_for(tmp_path: Path):
    async def scene(town: Town) -> None:
        first = await town.join("a", 0)
        for name in "bc":
            await town.join(name, 1)
        seats = town.of(first)
        usual = await seats._candidate(0)
        assert usual is not None
        seats.usual = usual.peer_id
        seats.replace(usual.peer_id)
        assert (await seats._candidate(0)).peer_id != usual.peer_id  # type: ignore[union-attr]
        assert (await seats._candidate(1)).peer_id == usual.peer_id  # type: ignore[union-attr]
        seats.wait_for(usual.peer_id)
        assert seats.wished is None

    play(tmp_path, scene)


def test_a_first_stage_that_was_slow_is_refused_for_a_moment_while_another_looks_for_members(tmp_path: Path):
    async def scene(town: Town) -> None:
        slow, middle = await town.join("a", 0), await town.join("b", 1)
        await town.running.end()  # nobody takes calls
        town.of(middle).replace(PeerId(slow.id))
        assert await called(town, slow, middle, slow.id)
        town.of(middle).called = None
        other = await town.join("c", 0)
        assert not await called(town, slow, middle, slow.id)
        assert await called(town, other, middle, other.id)
        town.of(middle).called = None
        town.of(middle).replacing_until = 0.0  # the other one has not called in time
        assert await called(town, slow, middle, slow.id)

    play(tmp_path, scene)


Refusal = Callable[[GroupSeats, LoopbackPeer], Any]


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda seats, caller: setattr(seats, "open", False), id="it has not caught up"),
        pytest.param(
            lambda seats, caller: seats.reconciler.bans.note(PeerId(caller.id), PeerError("no")),
            id="it avoids the caller",
        ),
        pytest.param(
            lambda seats, caller: setattr(seats, "upstream", Duplex(PeerId("another"), "another", 8)),
            id="it has a stage before it",
        ),
        pytest.param(
            lambda seats, caller: setattr(seats, "called", Duplex(PeerId("another"), "another", 8)),
            id="another has called",
        ),
    ],
)
def test_a_call_is_refused(tmp_path: Path, prepare: Refusal):
    async def scene(town: Town) -> None:
        first, middle = await town.join("a", 0), await town.join("b", 1)
        await town.running.end()  # nobody takes calls
        assert await called(town, first, middle, first.id)
        town.of(middle).called = None
        prepare(town.of(middle), first)
        assert not await called(town, first, middle, first.id)

    play(tmp_path, scene)


async def called(town: Town, caller: LoopbackPeer, other: LoopbackPeer, replica: str) -> bool:
    """Whether a call is welcomed, and not refused."""
    made, contacts = make_link(MANIFEST, PeerId(other.id), "the other"), caller.outer.reconciler.contacts
    record: PeerRecord = other.outer.discovery.record

    def welcomed() -> bool:
        its = town.of(other).called
        return its is not None and its.peer == caller.id and not its.ended

    async with Children() as children:
        carrying = children.spawn(call(record, contacts, ReplicaId(replica), made))
        await until(lambda: carrying.done() or welcomed())
        yes = welcomed()
        made.abort("enough")
        return yes


def test_only_the_stage_before_may_call_and_a_group_is_named_for_its_first_stage(tmp_path: Path):
    async def scene(town: Town) -> None:
        first, another, middle, last = [
            await town.join(name, at) for name, at in zip("abcd", (0, 0, 1, 2), strict=True)
        ]
        await town.running.end()
        assert not await called(town, first, last, first.id)
        assert not await called(town, last, middle, first.id)
        assert not await called(town, first, middle, another.id)
        assert await called(town, middle, last, another.id)

    play(tmp_path, scene)


@pytest.mark.parametrize("name", ["", "nobody", "x" * 5000, "a later stage", "a datacenter"])
def test_a_name_that_is_no_first_stages_takes_nobody_into_a_group(tmp_path: Path, name: str):
    """Who takes its seat tells the name to all: in its record."""

    async def scene(town: Town) -> None:
        middle, last = await town.join("c", 1), await town.join("d", 2)
        center = await town.made.join("e")
        await town.running.end()
        told = {"a later stage": middle.id, "a datacenter": center.id}.get(name, name)
        assert not await called(town, middle, last, told)

    play(tmp_path, scene)


def test_who_names_seats_that_cannot_be_is_avoided(tmp_path: Path):
    async def scene(town: Town) -> None:
        first, middle = await town.join("a", 0), await town.join("b", 1)
        await town.running.end()
        async with Children() as children:
            filling = children.spawn(town.fill(first))
            await until(lambda: town.of(middle).is_called)
            upstream = town.of(middle).called
            assert upstream is not None
            upstream.send(pack_seats([PeerId("another")]))
            await until(lambda: bool(first.outer.reconciler.bans.objection(PeerId(middle.id))))
            filling.cancel()
        assert town.of(first).behind == ()

    play(tmp_path, scene)


def test_a_neighbour_that_is_gone_is_missed(tmp_path: Path):
    async def scene(town: Town) -> None:
        first, middle, last = [await town.join(name, stage) for stage, name in enumerate("abc")]
        await town.fill(first)
        town.of(first).require_neighbours()
        town.of(last).hang_up("it leaves")
        await until(lambda: town.of(middle).lost is not None)
        town.of(middle).hang_up("the one behind it is gone")
        await until(lambda: town.of(first).lost is not None)
        with pytest.raises(LostMemberError, match=r"stage 1 of this group .* has hung up"):
            town.of(first).require_neighbours()

    play(tmp_path, scene)


def test_who_has_failed_again_and_again_is_not_hurried_by_news():
    async def seconds(failures: int) -> float:
        news, loop = Notifier(), asyncio.get_running_loop()
        began = loop.time()
        pausing = asyncio.create_task(pause_before_regrouping(news, failures))
        while not pausing.done():
            news.ring()
            await asyncio.sleep(0)
        return loop.time() - began

    assert asyncio.run(seconds(1)) < 0.1
    assert asyncio.run(seconds(4)) >= 0.9
