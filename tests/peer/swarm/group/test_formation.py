"""Whom a leader invites, over real sockets: who is like it in speed, and of those the nearest."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from grpc.aio import Server

from peer.network.group import GroupService
from peer.swarm.group.formation import fill, pause
from protocol.identity import PeerId
from protocol.net.tasks import Notifier
from protocol.schemas import group_pb2_grpc
from tests.reference.loopback_peers import LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(replicas={"groups": 2, "stages": 2, "datacenters": 0})


def play(folder: Path, scene: Callable[[Village], Awaitable[None]]) -> None:
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

    play(tmp_path, scene)


def test_a_slow_one_is_taken_where_there_is_no_other(tmp_path: Path):
    async def scene(made: Village) -> None:
        quick, slow = await volunteer(made, "a", 0, 900.0), await volunteer(made, "b", 1, 1.0)
        assert await seated(quick) == slow.id

    play(tmp_path, scene)


def test_how_far_away_candidates_are_is_measured_where_there_is_a_choice(tmp_path: Path):
    async def scene(made: Village) -> None:
        leader = await volunteer(made, "a", 0, 90.0)
        one, other = await volunteer(made, "b", 1, 90.0), await volunteer(made, "c", 1, 100.0)
        trips = leader.outer.discovery.trips
        assert not trips
        await seated(leader)
        assert trips.keys() == {one.id, other.id}

    play(tmp_path, scene)


def test_of_two_that_are_alike_the_nearer_is_invited(tmp_path: Path):
    async def scene(made: Village) -> None:
        leader = await volunteer(made, "a", 0, 100.0)
        far, near = await volunteer(made, "b", 1, 100.0), await volunteer(made, "c", 1, 90.0)
        leader.outer.discovery.trips |= {PeerId(far.id): 0.3, PeerId(near.id): 0.03}
        assert await seated(leader) == near.id

    play(tmp_path, scene)


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
