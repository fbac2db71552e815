"""A peer, and an operator's node, with all their services on real sockets; and a certified caller that means harm."""

import asyncio
import gc
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import strategies as st

from bootstrap.admission import Admission
from bootstrap.door import Door
from bootstrap.gatekeeper import Gatekeeper
from bootstrap.node import as_operator
from bootstrap.rates import Limit, Rates
from peer.network.group import GroupService
from peer.network.pipeline import ATTEMPT_KEY, REPLICA_KEY, Attempt, PipelineService, link
from protocol import bequest, certificates, proofs
from protocol.any_bytes import AnyBytes
from protocol.bequest import Bequest, Heritage
from protocol.channels import HANDSHAKE_KEY, channel_to, handshake, knock, listen, options
from protocol.errors import HetpeerError
from protocol.guard import Guard
from protocol.identity import EMBEDDING, PeerId, stage_part
from protocol.ledger import Revocation
from protocol.records import Register
from protocol.run_files import RunFile, describe, file_names
from protocol.schemas import (
    blobs_pb2,
    group_pb2,
    group_pb2_grpc,
    pipeline_pb2,
    pipeline_pb2_grpc,
    reconciliation_pb2,
    run_pb2,
    run_pb2_grpc,
    snapshots_pb2,
    succession_pb2,
)
from tests.fuzz.messages import messages
from tests.reference.loopback_peers import LoopbackPeer, NoDht, Village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
KINDS = (blobs_pb2, group_pb2, pipeline_pb2, reconciliation_pb2, run_pb2, snapshots_pb2, succession_pb2)
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for kind in KINDS
    for service in kind.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
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
SECONDS = 5.0
"""A call that is answered by nothing in so long is hung up by the caller."""


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
    """`victim` is a volunteer of stage 1 and serves everything; `caller` is admitted and certified as it is."""

    victim: LoopbackPeer
    caller: LoopbackPeer
    group: GroupService
    pipeline: PipelineService
    channel: grpc.aio.Channel
    door: grpc.aio.Channel
    known: list[str]
    signed: list[bytes]
    complaints: Complaints = field(default_factory=Complaints)

    def calls(self, path: str) -> st.SearchStrategy[Call]:
        """Calls of one method: bytes that are no message, messages of any fields, and of another method."""
        kind, others = METHODS[path].input_type, [each.input_type for each in METHODS.values()]
        request = st.one_of(
            messages(kind, self.known, self.signed).map(_bytes),
            st.sampled_from(others).flatmap(lambda other: messages(other, self.known, self.signed)).map(_bytes),
            st.binary(max_size=100),
        )
        streams = METHODS[path].client_streaming
        requests = st.lists(request, max_size=6) if streams else request.map(lambda one: [one])
        return st.builds(Call, st.just(path), requests, self.metadata(), st.booleans() if streams else st.just(False))

    def metadata(self) -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
        """Mostly what lets a call in."""
        me = self.caller.id
        right = (*handshake(MANIFEST), (REPLICA_KEY, me), (ATTEMPT_KEY, "1"))
        text = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40)
        values = st.one_of(text, st.sampled_from([me, MANIFEST.digest, "-1", "9" * 5000, "1e9", "1_0", "1.0"]))
        names = st.sampled_from([HANDSHAKE_KEY, REPLICA_KEY, ATTEMPT_KEY, "x"])
        wrong = st.lists(st.tuples(names, values), max_size=4).map(tuple)
        one_wrong = st.tuples(names, values).map(lambda pair: tuple({**dict(right), pair[0]: pair[1]}.items()))
        return st.one_of(st.just(right), st.just(right), one_wrong, wrong)

    async def attempt(self, call: Call) -> grpc.StatusCode:
        """Make a hostile call; how it ended. What was not meant is raised."""
        self.open_the_way(call.path)
        channel = self.door if call.path.startswith(DOOR) else self.channel
        code = await _made(channel, call)
        assert code in MEANT, f"{call} ended as {code}"
        self.assert_calm(call)
        return code

    def open_the_way(self, path: str) -> None:
        """So that a stream is carried, and not refused before."""
        if path.endswith("/Follow"):
            self.group.lease.__init__()  # type: ignore[misc]
        if path.endswith("/Exchange"):
            self.pipeline.expect(Attempt(self.caller.id, 1), self.caller.id, link(MANIFEST, "stage 0"))  # type: ignore[arg-type]

    def assert_calm(self, call: object) -> None:
        """Nothing has complained since the last time."""
        assert not self.complaints.heard, f"{call} made {self.complaints.heard}"

    async def assert_up(self) -> None:
        """An honest caller is served as before."""
        for each in (self.caller, self.victim):
            each.outer.discovery.lost.clear()
        await asyncio.wait_for(self.caller.outer.reconciler.compare(self.victim.outer.discovery.record), SECONDS)
        assert not self.caller.outer.discovery.lost
        answer = await self.door.unary_unary(f"{DOOR}Describe")(b"", timeout=SECONDS)
        assert run_pb2.DescribeReply.FromString(answer).descriptor_json
        while tasks := self.victim.outer.reconciler.tasks:
            await asyncio.wait(tasks)
        gc.collect()  # a task whose error nobody has asked for complains now
        self.assert_calm("all of them")


def _bytes(message: Any) -> bytes:
    said: bytes = message.SerializeToString()
    return said


async def _made(channel: grpc.aio.Channel, call: Call) -> grpc.StatusCode:
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
    code: grpc.StatusCode = await made.code()
    return code


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    """All of it, up and introduced to each other."""
    from contextlib import AsyncExitStack

    from protocol.keys import load_or_create

    async with AsyncExitStack() as stack:
        operator = load_or_create(folder / "operator")
        clock = itertools.count()  # a second a call: nobody's allowance ends
        guard = Guard(clock=lambda: float(next(clock)))
        groups: dict[PeerId, GroupService] = {}
        pipelines: dict[PeerId, PipelineService] = {}

        def serve_more(server: grpc.aio.Server, peer: PeerId) -> None:
            groups[peer], pipelines[peer] = GroupService(MANIFEST, 1, peer), PipelineService(MANIFEST)
            groups[peer].ready = True
            group_pb2_grpc.add_GroupServicer_to_server(groups[peer], server)
            pipeline_pb2_grpc.add_PipelineServicer_to_server(pipelines[peer], server)

        village = Village(MANIFEST, folder, stack, operator, [], [guard, AnyBytes()], serve_more)
        caller, victim = await village.join("caller"), await village.join("victim", 1)
        victim.succession.heritage, victim.succession.open = Heritage(), True
        for round in (1, 2):
            await village.round(round, [caller])
        record = victim.outer.discovery.record
        channel = channel_to(record, MANIFEST, caller.outer.reconciler.contacts.credentials)
        door = await _serve_door(village, stack)
        known, signed = _material(village, caller, victim)
        me = PeerId(victim.id)
        made = Town(victim, caller, groups[me], pipelines[me], channel, door, known, signed)
        stack.push_async_callback(channel.close, None)
        logging.getLogger().addHandler(made.complaints)
        stack.callback(logging.getLogger().removeHandler, made.complaints)
        follower = asyncio.create_task(_follow(made.group))
        stack.callback(follower.cancel)
        yield made
        await village.calm()


async def _follow(group: GroupService) -> None:
    """A volunteer that hears what its leaders order, and does nothing."""
    while True:
        _, reports = await group.wait_for_leader()
        with suppress(HetpeerError):
            while True:
                await reports.receive()


async def _serve_door(village: Village, stack: Any) -> grpc.aio.Channel:
    files = [RunFile(name, "ef" * 32, 5) for name in file_names(MANIFEST)]
    descriptor = describe(MANIFEST, village.operator.peer_id, files)
    credentials = as_operator(village.operator, 3600.0).credentials
    dht: Any = NoDht()
    rates = Rates(Limit(2**30, 1e-9), Limit(2**30, 1e-9))
    place = village.folder / "door"
    place.mkdir()
    register = Register(village.authority, MANIFEST)
    keeper = Gatekeeper(place, rates)
    door = Door(descriptor, dht, register, Admission(MANIFEST), village.operator, credentials, 1, 3600.0, keeper)
    server = grpc.aio.server(options=options(None), interceptors=[AnyBytes()])
    port = listen(server, "127.0.0.1:0", credentials.at_the_door())
    run_pb2_grpc.add_RunServicer_to_server(door, server)
    await server.start()
    stack.push_async_callback(server.stop, None)
    at = knock(f"127.0.0.1:{port}", village.operator.peer_id, credentials.root)
    channel: grpc.aio.Channel = await stack.enter_async_context(at)
    return channel


def _material(village: Village, caller: LoopbackPeer, victim: LoopbackPeer) -> tuple[list[str], list[bytes]]:
    """Names that the victim knows, and what the caller may rightly have signed."""
    ledgers = victim.acceptance.ledgers.values()
    entries = [entry for ledger in ledgers for entry in ledger.all_entries()]
    snapshots = victim.outer.followed.snapshots
    known = [EMBEDDING, stage_part(1), caller.id, victim.id, *snapshots.headers, *snapshots.pieces, "ab" * 32]
    known += [entry.sha256 for entry in entries]
    made = [caller.signer.contribution(EMBEDDING, round, "cd" * 32, size) for round, size in ((3, 1000), (4, 2**62))]
    proofs_made = [each.proof for each in (*entries, *made)]
    offers = [Bequest(caller.id, victim.id, 1, 1, "ef" * 32, size) for size in (10, 2**62)]  # type: ignore[arg-type]
    revoked = proofs.revoke(village.operator, village.authority, Revocation(PeerId("QmNobody"), 1, 1))
    signed = [
        caller.outer.reconciler.statement(),
        victim.outer.reconciler.statement(),
        *proofs_made,
        caller.signer.card,
    ]
    signed += [receipt for entry in entries for receipt in entry.receipts.values()]
    signed += [bequest.offer(caller.signer, each) for each in offers]
    return known, [*signed, revoked, certificates.request(caller.signer.identity)]
