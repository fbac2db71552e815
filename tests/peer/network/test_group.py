"""A link between two stages, over real sockets: who calls is welcomed or refused in words, silence is noticed, and
either side can end it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from peer.network.duplex import BreachError
from peer.network.group import BETWEEN_STEPS, REPLICA_KEY, Link, PipelineService, call, make_link, welcome_nobody
from protocol.codec.frames import MOST_IN_FLIGHT, FrameRules
from protocol.codec.seating import pack_seats, pack_start, unpack_seats, unpack_start
from protocol.errors import LostMemberError, RefusedError
from protocol.identity import PeerId, ReplicaId
from protocol.net.channels import handshake, listen, options
from protocol.net.lenient import AnyBytes
from protocol.patience import SILENT_BEATS
from protocol.schemas import pipeline_pb2 as pb
from protocol.schemas import pipeline_pb2_grpc
from tests.reference.admitted import There, contacts, credentials, identity, there
from tests.reference.small_manifest import small_manifest
from tests.reference.waiting import until

MANIFEST = small_manifest()
REPLICA = ReplicaId(identity("stage 0").peer_id)
BEHIND = identity("stage 1").peer_id


def to(neighbour: str, on_end: Callable[[], None] = lambda: None) -> Link:
    return make_link(MANIFEST, identity(neighbour).peer_id, neighbour, on_end=on_end)


@dataclass
class Neighbours:
    """Stage 1, which takes one call, and whoever calls it."""

    at: There
    service: PipelineService
    upstream: Link = field(default_factory=lambda: to("stage 0"))
    downstream: Link = field(default_factory=lambda: to("stage 1"))
    called: list[tuple[PeerId, ReplicaId]] = field(default_factory=list)
    """Who has called, and for which replica."""

    def welcome(self, neighbour: PeerId, replica: ReplicaId) -> Link:
        self.called.append((neighbour, replica))
        if len(self.called) > 1:
            raise RefusedError("this peer is in another group")
        return self.upstream

    async def carry(self, name: str = "stage 0", replica: ReplicaId = REPLICA) -> None:
        """Call, and carry frames until the link ends."""
        calling = contacts(name, MANIFEST)
        try:
            await call(self.at, calling, replica, self.downstream)
        finally:
            await calling.close()

    async def words(self, name: str = "stage 0", metadata: tuple[tuple[str, str], ...] | None = None) -> str:
        """What one that calls is told as it is refused."""
        metadata = (*handshake(MANIFEST), (REPLICA_KEY, REPLICA)) if metadata is None else metadata
        calling = contacts(name, MANIFEST)
        stub = pipeline_pb2_grpc.PipelineStub
        try:
            async with calling._channel_to(self.at) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stub(channel).Exchange(metadata=metadata).read()
        finally:
            await calling.close()
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        return error.value.details() or ""


@asynccontextmanager
async def stage_1() -> AsyncIterator[Neighbours]:
    server, service = grpc.aio.server(options=options(MANIFEST), interceptors=[AnyBytes()]), PipelineService(MANIFEST)
    pipeline_pb2_grpc.add_PipelineServicer_to_server(service, server)
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('stage 1').serving())}"
    await server.start()
    made = Neighbours(there("stage 1", address), service)
    service.answer_calls(made.welcome)
    try:
        yield made
    finally:
        await server.stop(None)


@asynccontextmanager
async def linked(stopped: bool = False) -> AsyncIterator[tuple[Neighbours, asyncio.Task[None]]]:
    """Both ends of a link, and the task that carries it; of a stage 0 that has `stopped` nothing is heard, nor does it
    listen."""
    async with stage_1() as made:
        if stopped:
            made.downstream.beat = None
        made.downstream.send(pack_start(7, ""))
        carrying = asyncio.create_task(made.carry())
        assert unpack_start(await made.upstream.receive(), 0, 7) == (7, "")
        try:
            yield made, carrying
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)


def play(scene: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene, 30)

    asyncio.run(bounded())


def forward(number: int) -> pb.Frame:
    return pb.Frame(forward=pb.Forward(embedding_digest=bytes([number])))


# Calls


def test_a_call_that_is_welcomed_carries_what_both_say_until_one_hangs_up():
    async def scene() -> None:
        async with linked() as (made, carrying):
            assert made.called == [(identity("stage 0").peer_id, REPLICA)]
            made.upstream.send(pack_seats([BEHIND]))
            assert unpack_seats(await made.downstream.receive(), BEHIND, 1) == (BEHIND,)
            for number in (1, 2, 3):
                made.downstream.send(forward(number))
            assert [(await made.upstream.receive()).forward.embedding_digest[0] for _ in range(3)] == [1, 2, 3]
            made.upstream.abort("another group")
            with pytest.raises(LostMemberError, match="stage 1 has hung up"):
                await made.downstream.receive()
            await carrying

    play(scene())


def test_who_takes_the_call_goes_by_the_certificate_of_whoever_calls():
    async def scene() -> None:
        async with stage_1() as made:
            made.downstream.send(pack_start(7, ""))
            calling = asyncio.create_task(made.carry("another", ReplicaId("any")))
            await made.upstream.receive()
            assert made.called == [(identity("another").peer_id, ReplicaId("any"))]
            made.downstream.abort("enough")
            await calling

    play(scene())


def test_a_call_that_is_refused_is_told_why_and_its_link_has_ended():
    async def scene() -> None:
        async with linked() as (made, _):
            assert await made.words("another") == "this peer is in another group"
            late, made.downstream = made.downstream, to("stage 1")
            await made.carry("another")
            with pytest.raises(LostMemberError):
                await made.downstream.receive()
            late.send(forward(1))  # who was there first is not disturbed
            assert (await made.upstream.receive()).forward.embedding_digest == b"\1"

    play(scene())


def test_who_is_not_ready_yet_welcomes_nobody():
    async def scene() -> None:
        async with stage_1() as made:
            made.service.answer_calls(welcome_nobody)
            assert await made.words() == "this peer takes no part in groups now"

    play(scene())


def test_a_caller_of_another_run_is_refused_before_anybody_welcomes_it():
    async def scene() -> None:
        async with stage_1() as made:
            for metadata in ((), handshake(small_manifest(run={"seed": 8}))):
                assert "manifest" in await made.words(metadata=(*metadata, (REPLICA_KEY, REPLICA)))
            assert made.called == []

    play(scene())


def test_who_names_no_replica_calls_for_none():
    async def scene() -> None:
        async with stage_1() as made:
            made.called.append((PeerId("another"), REPLICA))
            assert await made.words(metadata=handshake(MANIFEST))
            assert made.called[-1] == (identity("stage 0").peer_id, "")

    play(scene())


def test_the_link_to_a_peer_that_is_not_there_ends():
    async def scene() -> None:
        async with stage_1() as made:
            pass
        await made.carry()
        assert made.downstream.ended
        with pytest.raises(LostMemberError):
            await made.downstream.receive()

    play(scene())


# Silence


def test_a_stage_that_falls_silent_is_noticed_in_seconds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peer.network.duplex.STREAM_HEARTBEAT_SECONDS", 0.1)

    async def scene() -> None:
        async with linked(stopped=True) as (made, _):
            with pytest.raises(LostMemberError, match="stage 0 has been silent for"):
                await made.upstream.receive()

    play(scene())


def test_who_has_nothing_to_say_gives_signs_of_life_that_nobody_has_to_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peer.network.duplex.STREAM_HEARTBEAT_SECONDS", 0.05)

    async def scene() -> None:
        async with linked() as (made, _):
            await asyncio.sleep(0.05 * 3 * SILENT_BEATS)
            assert not made.upstream.ended
            assert not made.downstream.ended
            made.upstream.send(pack_seats([BEHIND]))
            assert (await made.downstream.receive()).WhichOneof("kind") == "seats"

    play(scene())


def test_a_machine_that_stood_still_hears_what_has_come_before_it_takes_anybody_for_gone(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("peer.network.duplex.STREAM_HEARTBEAT_SECONDS", 0.1)

    async def scene() -> None:
        async with linked() as (made, _):
            hearing = asyncio.create_task(made.upstream.receive())
            for _ in range(3):
                await asyncio.sleep(0.15)
                time.sleep(1.0)  # noqa: ASYNC251 - both sides stand still, for longer than either may be silent
            made.downstream.send(forward(1))
            assert (await hearing).forward.embedding_digest == b"\1"

    play(scene())


# The end


Ends = Callable[[Neighbours], None]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda made: made.downstream.close(), id="the stage that called"),
        pytest.param(lambda made: made.upstream.close(), id="the stage that was called"),
        pytest.param(lambda made: (made.downstream.close(), made.upstream.close()), id="both at once"),
    ],
)
def test_when_one_side_closes_a_link_what_it_had_sent_arrives_and_the_stream_is_over_on_both(end: Ends):
    async def scene() -> None:
        async with linked() as (made, carrying):
            made.downstream.send(forward(1))
            assert (await made.upstream.receive()).forward.embedding_digest == b"\1"
            made.upstream.send(pb.Frame(backward=pb.Backward(gradients=pb.Tensor(data=b"2"))))
            end(made)
            assert (await made.downstream.receive()).backward.gradients.data == b"2"
            await carrying
            for each in (made.upstream, made.downstream):
                with pytest.raises(LostMemberError):
                    await each.receive()

    play(scene())


@pytest.mark.parametrize("first", ["downstream", "upstream"])
def test_who_hangs_up_is_gone_for_the_other_at_once_and_knows_why_itself(first: str):
    """Several times, as gRPC reports a stream that breaks in one of three ways, by chance. What is queued
    is dropped."""

    async def scene() -> None:
        for _ in range(25):
            async with linked() as (made, carrying):
                ends, other = (
                    (made.downstream, made.upstream) if first == "downstream" else (made.upstream, made.downstream)
                )
                for number in (1, 2, 3):
                    ends.send(forward(number))
                ends.abort("the group is broken")
                with pytest.raises(LostMemberError, match="the group is broken"):
                    await ends.receive()
                with pytest.raises(LostMemberError, match="has hung up"):
                    await other.receive()
                await carrying

    play(scene())


def test_a_link_says_once_that_it_has_ended():
    async def scene() -> None:
        ends: list[str] = []
        link = to("stage 1", lambda: ends.append("ended"))
        assert not ends
        link.abort("the group is broken")
        link.abort("again")
        assert ends == ["ended"]

    play(scene())


def test_the_end_of_a_link_stays_the_end():
    async def scene() -> None:
        async with linked() as (made, carrying):
            carrying.cancel()
            for _ in range(3):
                with pytest.raises(LostMemberError):
                    await made.upstream.receive()

    play(scene())


def test_who_sends_more_than_the_schedule_lets_it_is_cut_off_and_who_sends_as_much_is_not():
    """The messages of as many microbatches as may be in flight, and what stages say between steps."""
    rules = FrameRules.of(MANIFEST.at(min(MANIFEST.compressions)))
    in_flight = MOST_IN_FLIGHT * MANIFEST.replicas.stages * max(rules.activations.messages, rules.gradients.messages)

    async def scene(more: int) -> None:
        async with linked() as (made, _):
            for _ in range(in_flight + BETWEEN_STEPS + more):
                made.downstream.send(forward(1))
            made.downstream.close()
            await until(lambda: made.upstream.ended)  # nobody reads meanwhile
            for _ in range(in_flight + BETWEEN_STEPS):
                await made.upstream.receive()
            with pytest.raises(BreachError if more else LostMemberError) as error:
                await made.upstream.receive()
            assert ("ran ahead of the protocol" in str(error.value)) == bool(more)

    play(scene(0))
    play(scene(1))


def test_the_link_of_a_caller_whose_address_has_changed_is_ended_at_once():
    async def scene() -> None:
        async with linked() as (made, carrying):
            made.service.hang_up(BEHIND, "another's address has changed")
            assert not made.upstream.ended
            made.service.hang_up(identity("stage 0").peer_id, "its address has changed")
            with pytest.raises(LostMemberError, match="its address has changed"):
                await made.upstream.receive()
            await carrying

    play(scene())
