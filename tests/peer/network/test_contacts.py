"""Channels that are kept, renewed and dropped, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from peer.network import contacts as contacts_module
from peer.network.contacts import Contacts, timed
from protocol.errors import RefusedError, UnreachableError
from protocol.identity import PeerId
from protocol.net.channels import caller, listen, options
from protocol.schemas import pipeline_pb2, pipeline_pb2_grpc, run_pb2, run_pb2_grpc
from protocol.trust.certificates import Caller
from tests.reference.admitted import There, certified, credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
SERVER = identity("server").peer_id


class Listening(run_pb2_grpc.RunServicer, pipeline_pb2_grpc.PipelineServicer):
    """Notes who calls, with which certificate, and from which port: one a connection."""

    def __init__(self) -> None:
        self.calls: list[tuple[Caller, str]] = []
        self.entered, self.let_go = asyncio.Event(), asyncio.Event()
        self.let_go.set()

    def _note(self, context: Any) -> None:
        self.calls.append((caller(context), context.peer()))
        self.entered.set()

    async def Describe(self, request: Any, context: Any) -> run_pb2.DescribeReply:
        self._note(context)
        await self.let_go.wait()
        return run_pb2.DescribeReply()

    async def Exchange(self, request_iterator: Any, context: Any) -> None:
        self._note(context)
        while (frame := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            await context.write(frame)


@dataclass
class Street:
    """A peer that calls and one that listens."""

    contacts: Contacts
    service: Listening
    to: There

    async def describe(self) -> None:
        async with self.contacts.to(self.to) as channel:
            await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Any]:
        async with self.contacts.alone(self.to) as channel:
            yield pipeline_pb2_grpc.PipelineStub(channel).Exchange()


async def echoed(stream: Any, attempt: bytes) -> bool:
    """Whether a frame goes there and comes back."""
    frame = pipeline_pb2.Frame(forward=pipeline_pb2.Forward(embedding_digest=attempt))
    await stream.write(frame)
    return bool(await stream.read() == frame)


def play(scene: Callable[[Street], Awaitable[None]]) -> None:
    async def run() -> None:
        server, service = grpc.aio.server(options=options(MANIFEST)), Listening()
        run_pb2_grpc.add_RunServicer_to_server(service, server)
        pipeline_pb2_grpc.add_PipelineServicer_to_server(service, server)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('server').serving())}"
        await server.start()
        contacts = Contacts(MANIFEST, credentials("caller"))
        try:
            await scene(Street(contacts, service, there("server", address)))
        finally:
            await contacts.close()
            await server.stop(None)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_calls_to_one_peer_share_a_connection():
    async def scene(on: Street) -> None:
        for _ in range(3):
            await on.describe()
        assert len({port for _, port in on.service.calls}) == 1

    play(scene)


def test_so_many_channels_are_kept_and_none_in_use_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contacts_module, "CHANNELS_KEPT", 2)
    peers = [there(f"peer {number}", f"127.0.0.1:{number + 1}") for number in range(4)]

    async def scene(on: Street) -> None:
        async with on.contacts.to(peers[0]):
            for peer in peers[1:]:
                async with on.contacts.to(peer):
                    pass
        assert [peer for peer, _ in on.contacts.channels] == [peers[0].peer_id, peers[3].peer_id]
        assert not on.contacts.in_use

    play(scene)


def test_after_a_renewal_calls_show_the_new_certificate_and_an_open_stream_goes_on():
    async def scene(on: Street) -> None:
        async with on.stream() as stream:
            assert await echoed(stream, b"1")
            await on.describe()
            renewed = certified(identity("caller"), identity("operator"), 7200.0)
            on.contacts.credentials.chain = renewed.chain
            assert await echoed(stream, b"2")
            await on.describe()
            assert await echoed(stream, b"3")
            await stream.done_writing()
        shown = [who.ends for who, _ in on.service.calls]
        assert shown[0] == shown[1] < shown[2] == renewed.ends

    play(scene)


def test_a_call_that_is_open_ends_well_though_a_new_connection_has_taken_over():
    async def scene(on: Street) -> None:
        on.service.let_go.clear()
        waiting = asyncio.create_task(on.describe())
        await on.service.entered.wait()
        on.contacts.credentials.chain = certified(identity("caller"), identity("operator"), 7200.0).chain
        on.service.entered.clear()
        second = asyncio.create_task(on.describe())
        await on.service.entered.wait()
        on.service.let_go.set()
        await asyncio.gather(waiting, second)
        assert len({port for _, port in on.service.calls}) == 2

    play(scene)


def test_who_is_objected_to_is_not_called():
    async def scene(on: Street) -> None:
        on.contacts.objection = lambda peer: "it was taken out" if peer == SERVER else ""
        with pytest.raises(RefusedError, match="it was taken out"):
            await on.describe()
        with pytest.raises(RefusedError, match="it was taken out"):
            async with on.stream():
                pass
        assert not on.service.calls

    play(scene)


def test_hanging_up_ends_calls_and_streams_to_that_peer_and_the_next_call_starts_afresh():
    async def scene(on: Street) -> None:
        async def talk() -> None:
            async with on.stream() as stream:
                await echoed(stream, b"1")
                talking.set()
                await stream.read()

        talking = asyncio.Event()
        stream = asyncio.create_task(talk())
        await talking.wait()
        on.service.let_go.clear()
        on.service.entered.clear()
        asking = asyncio.create_task(on.describe())
        await on.service.entered.wait()
        on.contacts.hang_up(PeerId("another"))
        assert len(on.contacts.channels) == len(on.contacts.streams) == 1
        on.contacts.hang_up(SERVER)
        for each in (asking, stream):
            with pytest.raises(UnreachableError, match="was closed"):
                await each
        assert not on.contacts.channels
        assert not on.contacts.streams
        on.service.let_go.set()
        await on.describe()

    play(scene)


def test_after_a_failure_the_next_call_connects_anew():
    async def scene(on: Street) -> None:
        await on.describe()
        nobody = There(identity("nobody").peer_id, on.to.address)
        with pytest.raises(UnreachableError, match="somebody else"):
            async with on.contacts.to(nobody) as channel:
                await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)
        assert list(on.contacts.channels) == [(SERVER, on.to.address)]
        await on.describe()

    play(scene)


def test_the_first_question_opens_the_channel_and_the_next_ones_measure():
    async def scene(on: Street) -> None:
        trips: dict[PeerId, float] = {}

        async def ask() -> None:
            async with on.contacts.to(on.to) as channel:
                with timed(channel, SERVER, trips):
                    await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)

        await ask()
        assert trips == {}
        await ask()
        assert 0 < trips[SERVER] < 20
        trips[SERVER] = 1e-9
        await ask()
        assert 1e-9 < trips[SERVER] < 2e-9  # the least that was measured, slowly forgotten

    play(scene)


def test_when_an_address_of_this_machine_is_gone_nothing_is_waited_for_on_any_channel():
    async def scene(on: Street) -> None:
        on.service.let_go.clear()
        waiting = asyncio.create_task(on.describe())
        await on.service.entered.wait()
        opened = asyncio.Event()

        async def listen_on() -> None:
            async with on.stream() as stream:
                assert await echoed(stream, b"1")
                opened.set()
                await stream.read()

        listening = asyncio.create_task(listen_on())
        await opened.wait()
        on.contacts.hang_up_all()
        with pytest.raises(UnreachableError):
            await listening
        with pytest.raises(UnreachableError):
            await waiting
        on.service.let_go.set()
        await on.describe()

    play(scene)
