"""One conversation over a real gRPC stream: who breaks it is known, and who does not end it keeps nobody."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from peer.network.duplex import BreachError, Duplex
from peer.network.group import Link, PipelineService, call, make_link
from protocol.errors import FormatError, LostMemberError
from protocol.identity import ReplicaId
from protocol.net.bandwidth import Bandwidth
from protocol.net.channels import listen, options
from protocol.net.lenient import AnyBytes
from protocol.schemas import pipeline_pb2 as pb
from protocol.schemas import pipeline_pb2_grpc
from tests.reference.admitted import contacts, credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
REPLICA = ReplicaId("r")
SECONDS = 20.0

Handler = Callable[[Any, Any], Awaitable[None]]


@asynccontextmanager
async def calling(handler: Handler, line: Bandwidth | None = None) -> AsyncIterator[tuple[Link, asyncio.Task[None]]]:
    """The link to a stage behind ours that does what `handler` does, with bytes; and the task that carries it."""
    raw = grpc.stream_stream_rpc_method_handler(handler, request_deserializer=bytes)
    server = grpc.aio.server(options=options(None), interceptors=[AnyBytes()])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("hetpeer.v1.Pipeline", {"Exchange": raw}),))
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('stage 1').serving())}"
    await server.start()
    ours = contacts("stage 0", MANIFEST)
    downstream = make_link(MANIFEST, identity("stage 1").peer_id, "stage 1", line)
    carrying = asyncio.create_task(call(there("stage 1", address), ours, REPLICA, downstream))
    try:
        yield downstream, carrying
    finally:
        carrying.cancel()
        await ours.close()
        await server.stop(None)


def run(scene: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scene, SECONDS)

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\xff" * 50, "stage 1 sent bytes that are no message"),
        (b"\x12\xff\xff\xff\xff\x07abc", "stage 1 sent bytes that are no message"),
        (b"\x12" + bytes(8 << 20), "stage 1 sent a message that is larger than any"),
    ],
    ids=["garbage", "a length beyond the end", "too large"],
)
def test_a_server_that_sends_no_message_is_named(sent: bytes, words: str):
    async def scene() -> None:
        async def misbehave(requests: Any, context: Any) -> None:
            await context.write(sent)
            await asyncio.Event().wait()

        async with calling(misbehave) as (downstream, _):
            with pytest.raises(BreachError, match=words) as error:
                await downstream.receive()
            assert error.value.peer == identity("stage 1").peer_id

    run(scene())


def test_a_caller_that_sends_no_message_is_named():
    async def scene() -> None:
        server, service = grpc.aio.server(interceptors=[AnyBytes()]), PipelineService(MANIFEST)
        pipeline_pb2_grpc.add_PipelineServicer_to_server(service, server)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('stage 1').serving())}"
        await server.start()
        upstream, ours = make_link(MANIFEST, identity("stage 0").peer_id, "stage 0"), contacts("stage 0", MANIFEST)
        service.answer_calls(lambda neighbour, replica: upstream)
        metadata = (("hetpeer-manifest", MANIFEST.digest), ("hetpeer-replica", "r"))
        async with ours.alone(there("stage 1", address)) as channel:
            stream: Any = channel.stream_stream("/hetpeer.v1.Pipeline/Exchange")(metadata=metadata)
            await stream.write(b"\xff" * 50)
            with pytest.raises(BreachError, match="no message") as error:
                await upstream.receive()
            assert error.value.peer == identity("stage 0").peer_id
        await ours.close()
        await server.stop(None)

    run(scene())


def test_a_server_that_neither_reads_nor_ends_the_stream_keeps_nobody_who_hangs_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peer.network.duplex.PARTING_SECONDS", 0.2)

    async def scene() -> None:
        async def hold(requests: Any, context: Any) -> None:
            await asyncio.Event().wait()

        async with calling(hold) as (downstream, carrying):
            for _ in range(200):  # more than gRPC holds for a reader that does not come
                downstream.send(pb.Frame(forward=pb.Forward(tokens=bytes(60_000))))
            downstream.abort("it does not read")
            await carrying
            with pytest.raises(LostMemberError, match="does not read"):
                await downstream.receive()

    run(scene())


def test_a_server_that_does_not_end_the_stream_in_its_turn_is_hung_up_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peer.network.duplex.PARTING_SECONDS", 0.2)

    async def scene() -> None:
        async def hold(requests: Any, context: Any) -> None:
            await asyncio.Event().wait()

        async with calling(hold) as (downstream, carrying):
            downstream.close()
            await carrying

    run(scene())


def test_what_does_not_parse_is_blamed_on_who_sent_it():
    stream: Duplex[pb.Frame, pb.Frame] = Duplex(identity("stage 1").peer_id, "stage 1", 8)
    with pytest.raises(BreachError, match="stage 1 sent what cannot be: no frame") as error, stream.blamed():
        raise FormatError("no frame")
    assert error.value.peer == identity("stage 1").peer_id


def test_frames_take_their_turn_on_this_peers_own_line_both_ways():
    """Never faster than the limit; how much slower is the machine's affair."""
    there, back, size = 20, 8, 50_000

    async def scene(line: Bandwidth) -> None:
        async def exchange(requests: Any, context: Any) -> None:
            for _ in range(back):
                await context.write(pb.Frame(rest=bytes(size)).SerializeToString())
            assert sum([len(message) async for message in requests]) > there * size

        async with calling(exchange, line) as (downstream, carrying):
            began = asyncio.get_running_loop().time()
            for _ in range(there):
                downstream.send(pb.Frame(rest=bytes(size)))
            downstream.close()
            for _ in range(back):
                assert len((await downstream.receive()).rest) == size
            if line.up.rate:
                await carrying
            seconds = asyncio.get_running_loop().time() - began
        assert seconds > 0.8 * size * 8 * (there / 16e6 if line.up.rate else (back - 3) / 2e6)

    run(scene(Bandwidth.of(16, None)))
    run(scene(Bandwidth.of(None, 2)))
