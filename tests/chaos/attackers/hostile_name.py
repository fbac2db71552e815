"""A name of a crowd: a key with a place in the run, what it says, and a small server of its own.

It signs and speaks as an ordinary peer does, over the same TLS, and knows no mathematics: so a hundred of them fit into
one process, and what a run loses is by what they do, not by what they cost.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from protocol.errors import FormatError
from protocol.identity import Endpoint, Part, PeerId
from protocol.layout import model_layout
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest
from protocol.net.channels import Credentials, channel_to, handshake, listen, options
from protocol.outer.ledger import Entry
from protocol.schemas import blobs_pb2
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.membership_card import Signer
from protocol.trust.proofs import read_entry
from protocol.trust.records import PeerRecord, make_statement, read_statement

ASKED = 64
"""Entries in one question, as many as peers answer."""

CALL_SECONDS = 5.0
TRICKLE_SECONDS = 20.0
"""From one byte to the next, of who is slow: under what a peer waits for a chunk."""

CALLS_A_SECOND, BYTES_A_SECOND = 400, 32e6
"""Of all names together: a crowd takes a part of one core, and most of that where it does harm."""

ADDRESS = "127.0.0.1:0"


@dataclass(slots=True)
class CallPace:
    """All calls of a crowd take their turns here. `due` is when the next is, by the event loop's clock."""

    due: float = 0.0

    async def turn(self, size: int) -> None:
        """Wait for the turn of a call of so many bytes."""
        now = asyncio.get_running_loop().time()
        self.due = max(self.due, now) + 1 / CALLS_A_SECOND + size / BYTES_A_SECOND
        await asyncio.sleep(self.due - now)


def as_bytes(message: Any) -> bytes:
    """A message as the bytes that travel; bytes as they are."""
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def key_of(entry: Entry) -> int:
    """The number that stands for an entry in a message."""
    return int.from_bytes(entry.key, "big")


@dataclass(slots=True)
class HostilePeer:
    """One hostile name. `entries`, by key, and `blobs`, by hash, are what it serves; `outcomes` counts its calls by how
    they ended."""

    kind: str
    signer: Signer
    credentials: Credentials
    manifest: Manifest
    targets: Sequence[Endpoint]
    record: PeerRecord
    pace: CallPace = field(default_factory=CallPace)
    entries: dict[tuple[Part, int], pb.Entry] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    known: dict[PeerId, PeerRecord] = field(default_factory=dict)
    """What others have told this name of themselves."""
    trickles: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    channels: dict[PeerId, grpc.aio.Channel] = field(default_factory=dict)
    server: Any = None

    @property
    def peer_id(self) -> PeerId:
        """The peer id of this name."""
        return self.signer.identity.peer_id

    # What it says

    def statement(self, **changes: object) -> bytes:
        """This name's signed statement, newer than its last."""
        sequence = max(self.record.sequence + 1, time.time_ns() // 1_000_000)
        self.record = self.record.model_copy(update={**changes, "sequence": sequence})
        return make_statement(self.signer, self.record, {})

    def news(self, entries: Iterable[pb.Entry] = (), held: Iterable[pb.PartKeys] = (), **changes: object) -> pb.News:
        """A message for `Tell`."""
        return pb.News(statement=self.statement(**changes), entries=entries, held=held)

    def held(self) -> list[pb.PartKeys]:
        """The keys of all entries that this name serves, by part."""
        keys: dict[Part, list[int]] = {}
        for part, key in self.entries:
            keys.setdefault(part, []).append(key)
        return [pb.PartKeys(part=part, keys=each) for part, each in keys.items()]

    # Calling

    async def call(self, target: Endpoint, method: str, message: Any, seconds: float = CALL_SECONDS) -> bytes | None:
        """The answer to a call, as it travels; None: there is none."""
        unary: Any = self._channel(target).unary_unary(f"/hetpeer.v1.{method}", as_bytes, bytes)
        data = as_bytes(message)
        await self.pace.turn(len(data))
        try:
            answer: bytes = await unary(data, metadata=handshake(self.manifest), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            self.outcomes[_outcome(error)] += 1
            return None
        except (grpc.aio.UsageError, asyncio.CancelledError):
            if asyncio.current_task() and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            self.outcomes["hung up"] += 1
            return None
        self.outcomes["answered"] += 1
        return answer

    def _channel(self, target: Endpoint) -> grpc.aio.Channel:
        if target.peer_id not in self.channels:
            self.channels[target.peer_id] = channel_to(target, self.manifest, self.credentials)
        return self.channels[target.peer_id]

    async def everywhere(self, method: str, message: Any, seconds: float = CALL_SECONDS) -> None:
        """Make the same call to all targets."""
        data = as_bytes(message)
        await asyncio.gather(*(self.call(target, method, data, seconds) for target in self.targets))

    async def compare(self, target: Endpoint) -> list[pb.PartKeys]:
        """What a peer holds of all parts, by its own word; who it is is remembered."""
        parts = [pb.PartSummary(part=part) for part in model_layout(self.manifest)]
        question = pb.Comparison(statement=self.statement(), parts=parts)
        answer = await self.call(target, "Reconciliation/Compare", question)
        if answer is None:
            return []
        told = pb.Differences.FromString(answer)
        with suppress(FormatError):
            said = read_statement(told.statement, self.signer.authority)
            self.known[said.record.peer_id] = said.record
        return list(told.parts)

    async def learn(self) -> list[tuple[Part, int, pb.Entry]]:
        """The entries that others hold and this name did not know: (part, key, entry)."""
        new = []
        for target in self.targets:
            for each in await self.compare(target):
                part = Part(each.part)
                lacking = [key for key in each.keys if (part, key) not in self.entries][:ASKED]
                if not lacking:
                    continue
                answer = await self.call(target, "Reconciliation/Ask", pb.Question(part=part, keys=lacking))
                for entry in pb.Entries.FromString(answer or b"").entries:
                    with suppress(FormatError):
                        key = key_of(read_entry(entry.proof, [], self.signer.authority))
                        self.entries[part, key] = entry
                        new.append((part, key, entry))
        return new

    async def fetch(self, target: Endpoint, sha256: str) -> bytes | None:
        """A blob that a peer serves; None: it does not."""
        request = blobs_pb2.FetchRequest(sha256=sha256)
        stream: Any = self._channel(target).unary_stream(
            "/hetpeer.v1.Blobs/Fetch", as_bytes, blobs_pb2.Chunk.FromString
        )
        pieces = []
        try:
            async for chunk in stream(request, metadata=handshake(self.manifest), timeout=CALL_SECONDS):
                pieces.append(chunk.data)
        except grpc.aio.AioRpcError as error:
            self.outcomes[_outcome(error)] += 1
            return None
        return b"".join(pieces)

    # Answering

    async def serve(self) -> None:
        """Listen, and say from now on where."""
        self.server = grpc.aio.server(options=options(self.manifest))
        unary, streaming = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        answers = {
            "Compare": unary(self._compared, pb.Comparison.FromString, as_bytes),
            "Ask": unary(self._asked, pb.Question.FromString, as_bytes),
            "Tell": unary(self._told, pb.News.FromString, as_bytes),
        }
        blobs = {"Fetch": streaming(self._fetched, blobs_pb2.FetchRequest.FromString, as_bytes)}
        generic = grpc.method_handlers_generic_handler
        handlers = generic("hetpeer.v1.Reconciliation", answers), generic("hetpeer.v1.Blobs", blobs)
        self.server.add_generic_rpc_handlers(handlers)
        port = listen(self.server, ADDRESS, self.credentials.serving())
        await self.server.start()
        self.record = self.record.model_copy(update={"address": f"127.0.0.1:{port}"})

    async def _compared(self, request: pb.Comparison, context: Any) -> pb.Differences:
        return pb.Differences(statement=self.statement(), parts=self.held())

    async def _asked(self, request: pb.Question, context: Any) -> pb.Entries:
        wanted = ((Part(request.part), key) for key in request.keys)
        return pb.Entries(entries=[self.entries[each] for each in wanted if each in self.entries])

    async def _told(self, request: pb.News, context: Any) -> pb.Heard:
        return pb.Heard()

    async def _fetched(self, request: blobs_pb2.FetchRequest, context: Any) -> AsyncIterator[blobs_pb2.Chunk]:
        if self.trickles:
            self.outcomes["trickled"] += 1
            while True:
                yield blobs_pb2.Chunk(data=b"\0")
                await asyncio.sleep(TRICKLE_SECONDS)
        blob = self.blobs.get(request.sha256, b"")[request.offset :]
        blob = blob[: request.length] if request.length else blob
        for at in range(0, len(blob), CHUNK_BYTES):
            yield blobs_pb2.Chunk(data=blob[at : at + CHUNK_BYTES])

    async def stop(self) -> None:
        """Close all channels, and the server."""
        channels, self.channels = list(self.channels.values()), {}
        await asyncio.gather(*(channel.close(None) for channel in channels), return_exceptions=True)
        if self.server is not None:
            await self.server.stop(None)


def _outcome(error: grpc.aio.AioRpcError) -> str:
    """How a call ended, in a word."""
    match error.code():
        case grpc.StatusCode.PERMISSION_DENIED:
            return "shut out"
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED | grpc.StatusCode.CANCELLED:
            return "not answered"
        case _:
            return "refused"
