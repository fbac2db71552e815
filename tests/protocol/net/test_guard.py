"""What a caller may do before any handler sees it: how often, how long, and until when."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.network.duplex import Duplex
from protocol.errors import LostMemberError, RefusedError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import CALLERS_KEPT, CALLS_PER_SECOND, CALLS_SAVED
from protocol.net import guard as guards
from protocol.net.channels import EOF, caller, channel_to, connect, listen, options
from protocol.net.guard import Allowance, Guard
from protocol.schemas import blobs_pb2, blobs_pb2_grpc, pipeline_pb2_grpc, run_pb2, run_pb2_grpc
from protocol.trust.certificates import Caller
from tests.reference.admitted import by_gateway, certified, credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
CALLER = identity("caller").peer_id


class Services(run_pb2_grpc.RunServicer, blobs_pb2_grpc.BlobsServicer, pipeline_pb2_grpc.PipelineServicer):
    """One method of each kind. They are answered once `let_go` is set."""

    def __init__(self) -> None:
        self.entered, self.let_go, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.arrivals: asyncio.Queue[PeerId] = asyncio.Queue()
        self.let_go.set()

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        self.entered.set()
        try:
            await self.let_go.wait()
            yield
        finally:
            self.left.set()

    async def Describe(self, request: Any, context: Any) -> run_pb2.DescribeReply:
        async with self.answering():
            return run_pb2.DescribeReply(descriptor_json=b"here")

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[blobs_pb2.Chunk]:
        async with self.answering():
            while True:
                yield blobs_pb2.Chunk(data=bytes(2**18))

    async def Exchange(self, request_iterator: Any, context: Any) -> None:
        async with self.answering():
            self.arrivals.put_nowait(caller(context).peer)
            upstream: Duplex[Any, Any] = Duplex(CALLER, "the caller", 4)
            await upstream.carry(context)


@dataclass(slots=True)
class Scene:
    """A guarded server, and a channel of one caller to it."""

    guard: Guard
    services: Services
    address: str
    channel: grpc.aio.Channel = field(repr=False)

    async def describe(self) -> bytes:
        reply = await run_pb2_grpc.RunStub(self.channel).Describe(run_pb2.DescribeRequest(), timeout=20)
        return bytes(reply.descriptor_json)


def play(scene: Callable[[Scene], Any], guard: Guard | None = None) -> None:
    async def run() -> None:
        asked = guard or Guard()
        server, services = grpc.aio.server(options=options(MANIFEST), interceptors=[asked]), Services()
        run_pb2_grpc.add_RunServicer_to_server(services, server)
        blobs_pb2_grpc.add_BlobsServicer_to_server(services, server)
        pipeline_pb2_grpc.add_PipelineServicer_to_server(services, server)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials('server').serving())}"
        await server.start()
        try:
            async with channel_to(there("server", address), MANIFEST, credentials("caller")) as channel:
                await scene(Scene(asked, services, address, channel))
        finally:
            await server.stop(None)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_call_that_is_admitted_tells_the_gate_whose_connection_it_came_by():
    admitted: list[tuple[str, str]] = []

    async def scene(on: Scene) -> None:
        await on.describe()
        (name, peer), *_ = admitted
        assert name.startswith("ipv4:127.0.0.1:")
        assert peer == identity("caller").peer_id

    play(scene, Guard(authenticated=lambda name, peer: admitted.append((name, peer))))
    admitted.clear()

    async def refused(on: Scene) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await on.describe()

    play(refused, Guard(lambda peer: "banned", lambda name, peer: admitted.append((name, peer))))
    assert not admitted


# The allowance

Waits = st.lists(st.integers(0, 100_000), max_size=80)


@given(Waits, st.floats(0, 3))
def test_an_allowance_is_a_bucket_that_fills_with_time(waits: list[int], left: float):
    """Against the same in fractions: full at most, and spent only by what is allowed. Times are in milliseconds."""
    bucket, plain, now = Allowance().calls, Fraction(left), 0
    bucket.take(CALLS_SAVED - left, 0.0)
    for wait in waits:
        now += wait
        plain = min(Fraction(CALLS_SAVED), plain + Fraction(wait, 1000) * Fraction(CALLS_PER_SECOND))
        allowed = not bucket.spend(1.0, now / 1000)
        if abs(plain - 1) > 1e-4:  # sums of floats
            assert allowed == (plain >= 1)
        plain -= allowed
        assert abs(Fraction(bucket.left(now / 1000)) - plain) < 1e-4


@given(st.integers(1, 5000))
def test_who_comes_all_at_once_gets_what_was_saved_and_no_more(calls: int):
    bucket = Allowance().calls
    assert sum(not bucket.spend(1.0, 0.0) for _ in range(calls)) == min(calls, CALLS_SAVED)


def test_who_called_longest_ago_is_forgotten_first_and_nobody_whose_call_is_open():
    guard = Guard(clock=lambda: 0.0)
    guard._allowance(PeerId("open")).open["a call"] = None  # type: ignore[assignment]
    for number in range(CALLERS_KEPT):
        guard._allowance(PeerId(str(number)))
    assert len(guard.allowances) == CALLERS_KEPT
    assert "open" in guard.allowances
    assert "0" not in guard.allowances


def test_a_newcomer_is_counted_though_all_others_are_busy():
    guard = Guard(clock=lambda: 0.0)
    for number in range(CALLERS_KEPT):
        guard._allowance(PeerId(str(number))).open["a call"] = None  # type: ignore[assignment]
    newcomer = guard._allowance(PeerId("new"))
    assert guard.allowances[PeerId("new")] is newcomer


# Over real sockets


def test_asking_again_and_again_brings_nobody_more_calls():
    now = [0.0]

    async def scene(on: Scene) -> None:
        assert await on.describe() == b"here"
        on.guard.allowances[CALLER].calls.take(CALLS_SAVED - 1, now[0])
        for _ in range(3):  # 0.75 of a call has come together after the third, and 1 after the fourth
            now[0] += 0.25 / CALLS_PER_SECOND
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError, match="too many calls"):
                    await on.describe()
        now[0] += 0.2500001 / CALLS_PER_SECOND
        assert await on.describe() == b"here"
        with pytest.raises(grpc.aio.AioRpcError, match="too many calls"):
            await on.describe()

    play(scene, Guard(clock=lambda: now[0]))


def test_too_many_calls_are_refused_in_words_and_who_waits_is_answered_again():
    now = [0.0]

    async def scene(on: Scene) -> None:
        assert await on.describe() == b"here"
        on.guard.allowances[CALLER].calls.take(CALLS_SAVED - 2, now[0])
        assert await on.describe() == b"here"
        async with connect(there("server", on.address), MANIFEST, credentials("caller")) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="too many calls: wait a moment"):
                await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)
            async with channel_to(there("server", on.address), MANIFEST, credentials("another")) as others:
                assert await run_pb2_grpc.RunStub(others).Describe(run_pb2.DescribeRequest(), timeout=20)
            now[0] += 1 / CALLS_PER_SECOND
            assert await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)

    play(scene, Guard(clock=lambda: now[0]))


def test_a_caller_has_so_many_calls_open_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guards, "CALLS_AT_ONCE", 1)

    async def scene(on: Scene) -> None:
        on.services.let_go.clear()
        first = asyncio.create_task(on.describe())
        await on.services.entered.wait()
        with pytest.raises(grpc.aio.AioRpcError, match="too many calls"):
            await on.describe()
        on.services.let_go.set()
        assert await first == b"here"
        assert await on.describe() == b"here"

    play(scene)


def test_an_objection_refuses_and_its_end_admits_again():
    objection = ["this peer is avoided for 10 s"]

    async def scene(on: Scene) -> None:
        with pytest.raises(RefusedError, match="refused: this peer is avoided for 10 s"):
            async with connect(there("server", on.address), MANIFEST, credentials("caller")) as channel:
                await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)
        assert not on.services.entered.is_set()
        objection[0] = ""
        assert await on.describe() == b"here"

    play(scene, Guard(lambda peer: objection[0]))


async def _described(on: Scene) -> None:
    await on.describe()


async def _fetched(on: Scene) -> None:
    await blobs_pb2_grpc.BlobsStub(on.channel).Fetch(blobs_pb2.FetchRequest()).read()


async def _exchanged(on: Scene) -> None:
    await pipeline_pb2_grpc.PipelineStub(on.channel).Exchange().read()


@pytest.mark.parametrize("call", [_described, _fetched, _exchanged], ids=["a question", "a download", "a stream"])
def test_cutting_off_a_peer_ends_its_open_calls_and_tells_it_why(call: Callable[[Scene], Any]):
    revoked: set[PeerId] = set()

    async def scene(on: Scene) -> None:
        on.services.let_go.clear()
        waiting = asyncio.create_task(call(on))
        await on.services.entered.wait()
        revoked.add(CALLER)
        on.guard.cut_off(CALLER)
        with pytest.raises(grpc.aio.AioRpcError, match="it was taken out") as error:
            await waiting
        assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
        await on.services.left.wait()
        if answering := [*on.guard.allowances[CALLER].open.values()]:  # the caller may hear of it before it is over
            await asyncio.wait(answering)
        assert not on.guard.allowances[CALLER].open

    play(scene, Guard(lambda peer: "it was taken out" if peer in revoked else ""))


def test_cutting_off_ends_a_stream_in_the_middle_and_no_other_peers():
    async def scene(on: Scene) -> None:
        ours: Duplex[Any, Any] = Duplex(CALLER, "the server", 4)
        theirs: Duplex[Any, Any] = Duplex(CALLER, "the server", 4)
        async with channel_to(there("server", on.address), MANIFEST, credentials("another")) as others:
            carried = [
                asyncio.create_task(link.carry(pipeline_pb2_grpc.PipelineStub(channel).Exchange()))
                for link, channel in ((ours, on.channel), (theirs, others))
            ]
            another = identity("another").peer_id
            assert {await on.services.arrivals.get(), await on.services.arrivals.get()} == {CALLER, another}
            on.guard.cut_off(CALLER)
            with pytest.raises(LostMemberError):
                await ours.receive()
            assert on.guard.allowances[another].open
            assert not theirs.ended
            theirs.close()
            await asyncio.wait(carried[:1])
            carried[1].cancel()
            await asyncio.wait(carried)

    play(scene)


def test_a_handler_that_does_not_answer_ends_after_the_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guards, "CALL_SECONDS", 0.05)

    async def scene(on: Scene) -> None:
        on.services.let_go.clear()
        with pytest.raises(UnreachableError, match="no answer within"):
            async with connect(there("server", on.address), MANIFEST, credentials("caller")) as channel:
                await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)
        await on.services.left.wait()

    guard = Guard()
    play(scene, guard)
    assert not guard.allowances[CALLER].open


def test_a_caller_that_takes_nothing_of_what_it_asked_for_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guards, "CALL_SECONDS", 0.2)

    async def scene(on: Scene) -> None:
        call = blobs_pb2_grpc.BlobsStub(on.channel).Fetch(blobs_pb2.FetchRequest())
        await call.read()
        await on.services.left.wait()  # the handler was closed, too
        assert on.guard.allowances[CALLER].open  # a chunk is still on its way: it counts
        with pytest.raises(grpc.aio.AioRpcError, match="nothing was taken for"):
            await to_the_end(call)
        assert await on.describe() == b"here"

    play(scene)


def test_a_caller_that_takes_nothing_and_goes_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guards, "CALL_SECONDS", 0.2)

    async def scene(on: Scene) -> None:
        call = blobs_pb2_grpc.BlobsStub(on.channel).Fetch(blobs_pb2.FetchRequest())
        await call.read()
        await on.services.left.wait()
        (answering,) = on.guard.allowances[CALLER].open.values()
        call.cancel()
        await asyncio.wait({answering})
        assert not on.guard.allowances[CALLER].open

    play(scene)


async def to_the_end(call: Any) -> None:
    while await call.read() is not EOF:
        pass


def test_a_caller_that_goes_away_leaves_nothing_open():
    async def scene(on: Scene) -> None:
        on.services.let_go.clear()
        waiting = asyncio.create_task(on.describe())
        await on.services.entered.wait()
        (answering,) = on.guard.allowances[CALLER].open.values()
        waiting.cancel()
        await asyncio.wait({answering})
        assert on.services.left.is_set()
        assert not on.guard.allowances[CALLER].open

    play(scene)


def test_with_a_gateway_fall_those_whom_it_let_in_and_nobody_else():
    revoked: set[PeerId] = set()
    gateway, newcomer = identity("gateway"), identity("newcomer")

    async def scene(on: Scene) -> None:
        on.services.let_go.clear()
        shown = by_gateway(newcomer, gateway, identity("operator"))
        async with channel_to(there("server", on.address), MANIFEST, shown) as channel:
            stub = run_pb2_grpc.RunStub(channel)
            waiting = asyncio.create_task(asyncio.wait_for(stub.Describe(run_pb2.DescribeRequest()), 20))
            await on.services.entered.wait()
            on.services.entered.clear()
            another = asyncio.create_task(on.describe())
            await on.services.entered.wait()
            revoked.add(gateway.peer_id)
            on.guard.cut_off(gateway.peer_id)
            words = f"{newcomer.peer_id[-8:]} was let in by a gateway, but it was taken out"
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await waiting
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await stub.Describe(run_pb2.DescribeRequest(), timeout=20)
        on.services.let_go.set()
        assert await another == b"here"
        again = certified(newcomer, identity("operator"))  # the operator's own node has let it in anew
        async with channel_to(there("server", on.address), MANIFEST, again) as channel:
            assert await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)

    play(scene, Guard(lambda peer: "it was taken out" if peer in revoked else ""))


def test_a_method_that_does_not_exist_is_said_to():
    async def scene(on: Scene) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await on.channel.unary_unary("/hetpeer.v1.Run/Unknown")(b"", timeout=20)
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED

    play(scene)


def test_an_ended_certificate_is_refused_by_its_own_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guards, "caller", lambda context: Caller(CALLER, 1.0, certifies=False))

    async def scene(on: Scene) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match=f"certificate of peer {CALLER[-8:]} has ended"):
            await on.describe()
        assert not on.services.entered.is_set()

    play(scene)


@pytest.mark.parametrize("call", [_described, _fetched, _exchanged], ids=["a question", "a download", "a stream"])
def test_an_open_call_ends_some_time_after_the_certificate_it_was_made_with(
    call: Callable[[Scene], Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(guards, "CERTIFICATE_SLACK_SECONDS", 0.1)
    monkeypatch.setattr(guards, "caller", lambda context: Caller(CALLER, time.time() + 0.1, certifies=False))

    async def scene(on: Scene) -> None:
        on.services.let_go.clear()
        with pytest.raises(grpc.aio.AioRpcError, match="has ended: renew it, and connect again") as error:
            await call(on)
        assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert on.services.entered.is_set()
        await on.services.left.wait()

    play(scene)


def test_a_stream_goes_on_whose_caller_shows_a_new_certificate_in_another_call(monkeypatch: pytest.MonkeyPatch):
    """Two streams are opened with certificates that end at once; one of the callers then shows another."""
    monkeypatch.setattr(guards, "CERTIFICATE_SLACK_SECONDS", 0.5)
    ends: dict[PeerId, float] = {}
    monkeypatch.setattr(
        guards, "caller", lambda context: Caller(caller(context).peer, ends[caller(context).peer], False)
    )

    async def scene(on: Scene) -> None:
        ours: Duplex[Any, Any] = Duplex(CALLER, "the server", 4)
        theirs: Duplex[Any, Any] = Duplex(CALLER, "the server", 4)
        another = identity("another").peer_id
        async with channel_to(there("server", on.address), MANIFEST, credentials("another")) as others:
            ends[CALLER] = ends[another] = time.time() + 1
            carried = [
                asyncio.create_task(link.carry(pipeline_pb2_grpc.PipelineStub(channel).Exchange()))
                for link, channel in ((ours, on.channel), (theirs, others))
            ]
            assert {await on.services.arrivals.get(), await on.services.arrivals.get()} == {CALLER, another}
            ends[another] = time.time() + 3600
            await run_pb2_grpc.RunStub(others).Describe(run_pb2.DescribeRequest(), timeout=20)
            with pytest.raises(LostMemberError):
                await ours.receive()
            assert time.time() > ends[CALLER]
            assert on.guard.allowances[another].open
            assert not theirs.ended
            for each in carried:
                each.cancel()
            await asyncio.wait(carried)

    play(scene)


def test_hanging_up_under_a_call_is_an_error_of_that_call_and_cancels_nobody():
    """gRPC raises CancelledError in whoever waits on a channel that is closed, though nobody cancelled that task."""

    async def scene(on: Scene) -> None:
        on.services.let_go.clear()
        peer = there("server", on.address)

        async def ask() -> None:
            async with connect(peer, MANIFEST, credentials("caller")) as channel:
                channels.append(channel)
                await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)

        channels: list[grpc.aio.Channel] = []
        asking = asyncio.create_task(ask())
        await on.services.entered.wait()
        await channels[0].close(None)
        with pytest.raises(UnreachableError, match="was closed"):
            await asking

        asking = asyncio.create_task(ask())
        on.services.entered.clear()
        await on.services.entered.wait()
        asking.cancel()  # and whoever is cancelled is cancelled
        with pytest.raises(asyncio.CancelledError):
            await asking

    play(scene)
