"""What a certified caller that means harm does to a peer, and to the operator's node, and how it may end."""

import asyncio
import gc
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import strategies as st

from peer.network.group import REPLICA_KEY
from peer.swarm.group.seats import GroupSeats
from protocol.net.channels import HANDSHAKE_KEY, handshake
from protocol.schemas import (
    blobs_pb2,
    credit_pb2,
    monitor_pb2,
    pipeline_pb2,
    reconciliation_pb2,
    run_pb2,
    snapshots_pb2,
    succession_pb2,
)
from tests.fuzz.messages import messages
from tests.reference.loopback_peers import LoopbackPeer
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
KINDS = (
    blobs_pb2,
    credit_pb2,
    monitor_pb2,
    pipeline_pb2,
    reconciliation_pb2,
    run_pb2,
    snapshots_pb2,
    succession_pb2,
)
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for kind in KINDS
    for service in kind.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
PIPELINE = f"/{pipeline_pb2.DESCRIPTOR.services_by_name['Pipeline'].full_name}/"
DOOR = f"/{run_pb2.DESCRIPTOR.services_by_name['Run'].full_name}/"
MEANT = {
    grpc.StatusCode.OK,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # gRPC's own, of messages and metadata that are too long
    grpc.StatusCode.DEADLINE_EXCEEDED,  # the caller's own
    grpc.StatusCode.CANCELLED,
}
CALLERS_OWN = "Internal error from Core"
"""With the code INTERNAL: the caller was still writing when it was refused."""

SECONDS = 5.0
"""Then the caller hangs up, if nothing answers."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a hostile caller does once. It sends `requests`, and then says that this was all, or hangs up."""

    path: str
    requests: Sequence[bytes]
    metadata: Sequence[tuple[str, str]]
    hangs_up: bool = False


class Complaints(logging.Handler):
    """What gRPC and asyncio say of handlers that raised what they may not."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage() + repr(record.exc_info and record.exc_info[1]))


@dataclass(slots=True)
class Town:
    """`victim` is a volunteer of stage 1 and serves everything; `caller` is admitted and certified as it is, and so is
    `before`, of the stage before the victim's."""

    victim: LoopbackPeer
    caller: LoopbackPeer
    before: LoopbackPeer
    seats: GroupSeats
    """Of the victim."""
    channel: grpc.aio.Channel
    registration: grpc.aio.Channel
    link: grpc.aio.Channel
    """Of the stage before."""
    known: list[str]
    signed: list[bytes]
    honest: dict[str, Any]
    complaints: Complaints = field(default_factory=Complaints)

    def calls(self, path: str) -> st.SearchStrategy[Call]:
        """Calls of one method: bytes that are no message, messages of any fields, and of another method."""
        kind, others = METHODS[path].input_type, [each.input_type for each in METHODS.values()]
        like = messages(kind, self.known, self.signed, self.honest[path]).map(_bytes)
        request = st.one_of(
            *(like, like, like),
            messages(kind, self.known, self.signed).map(_bytes),
            st.sampled_from(others).flatmap(lambda other: messages(other, self.known, self.signed)).map(_bytes),
            st.binary(max_size=100),
        )
        streams = METHODS[path].client_streaming
        requests = st.lists(request, max_size=6) if streams else request.map(lambda one: [one])
        return st.builds(Call, st.just(path), requests, self.metadata(), st.booleans() if streams else st.just(False))

    def metadata(self) -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
        """Mostly what lets a call in."""
        me = self.before.id
        right = (*handshake(MANIFEST), (REPLICA_KEY, me))
        text = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40)
        values = st.one_of(text, st.sampled_from([me, MANIFEST.digest, "-1", "9" * 5000, "1e9", "1_0", "1.0"]))
        names = st.sampled_from([HANDSHAKE_KEY, REPLICA_KEY, "x"])
        wrong = st.lists(st.tuples(names, values), max_size=4).map(tuple)
        one_wrong = st.tuples(names, values).map(lambda pair: tuple({**dict(right), pair[0]: pair[1]}.items()))
        return st.one_of(*[st.just(right)] * 6, one_wrong, wrong)

    async def attempt(self, call: Call) -> grpc.StatusCode:
        """Make a hostile call; how it ended. What was not meant is raised."""
        self.open_the_way(call.path)
        channels = {DOOR: self.registration, PIPELINE: self.link}
        channel = next((at for service, at in channels.items() if call.path.startswith(service)), self.channel)
        code, details = await _made(channel, call)
        assert code in MEANT or details == CALLERS_OWN, f"{call} ended as {code}: {details}"
        self.assert_calm(call)
        return code

    async def attempt_all(self, calls: Sequence[Call]) -> None:
        """Make many at once."""
        await asyncio.gather(*map(self.attempt, calls))

    def open_the_way(self, path: str) -> None:
        """So that a stream is carried, and not refused before."""
        if path.startswith(PIPELINE):
            self.seats.hang_up("another calls")
            self.seats.close()
            self.seats.called, self.seats.open = None, True

    def assert_calm(self, call: object) -> None:
        """Nothing has complained since the last time."""
        assert not self.complaints.heard, f"{call} made {self.complaints.heard}"

    async def assert_up(self) -> None:
        """An honest caller is served as before."""
        for each in (self.caller, self.victim):
            each.outer.discovery.lost.clear()
        await asyncio.wait_for(self.caller.outer.reconciler.compare(self.victim.outer.discovery.record), SECONDS)
        assert not self.caller.outer.discovery.lost
        answer = await self.registration.unary_unary(f"{DOOR}Describe")(b"", timeout=SECONDS)
        assert run_pb2.DescribeReply.FromString(answer).descriptor_json
        while tasks := self.victim.outer.reconciler.tasks:
            await asyncio.wait(tasks)
        gc.collect()  # a task whose error nobody has asked for complains now
        self.assert_calm("all of them")


def _bytes(message: Any) -> bytes:
    said: bytes = message.SerializeToString()
    return said


async def _made(channel: grpc.aio.Channel, call: Call) -> tuple[grpc.StatusCode, str]:
    method = METHODS[call.path]
    if not method.client_streaming:
        kind = channel.unary_stream if method.server_streaming else channel.unary_unary
        made = kind(call.path)(call.requests[0], metadata=call.metadata, timeout=SECONDS)
    else:
        made = channel.stream_stream(call.path)(metadata=call.metadata, timeout=SECONDS)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for request in call.requests:
                await made.write(request)
            if call.hangs_up:
                made.cancel()
            else:
                await made.done_writing()
    with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        if method.server_streaming:
            async for _ in made:
                pass
        else:
            await made
    return await made.code(), await made.details() or ""
