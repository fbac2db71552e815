"""What a stranger does, who needs no name and no certificate: calls at the door that are sent by half, a dashboard's
readers that do not read, and in the DHT calls full of signatures, calls that are too large, and others' records with a
later expiry.

HTTP/2 is spoken by hand here (RFC 9113), because no library sends half of a message.
"""

import asyncio
import os
import ssl
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgpack

from protocol.addresses import split_address
from protocol.errors import HetpeerError
from protocol.identity import RunId
from protocol.net.dht import Dht, start
from protocol.net.tasks import Children, apart
from protocol.net.tls_probe import anybody
from protocol.patience import RECORD_SECONDS
from protocol.trust import signed
from protocol.trust.keys import PUBLIC_BYTES, SIGNATURE_BYTES, Identity, load_or_create
from protocol.trust.membership_card import Card, issue
from protocol.trust.records import RECORD, Register

CONNECTIONS = 12
STREAMS = 64
MESSAGE_BYTES = 1_000_000
"""Each call announces so many and sends all but one."""

READERS, HALF_REQUESTS = 300, 300

DATA, HEADERS, SETTINGS, PING, WINDOW = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_FRAME = 16384

SIGNATURES = 3_000
LARGE_BYTES = 3_900_000
EVERY_LARGE, EVERY_OTHERS = 5, 3
PAUSE_SECONDS = 0.2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def headers(path: str) -> bytes:
    """A gRPC call's header block: literals that no table remembers (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": "door",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b""
    for key, value in fields.items():
        block += b"\0" + bytes([len(key)]) + key.encode() + bytes([len(value)]) + value.encode()
    return block


class HalfSender:
    """One connection to a door on which calls are begun, sent but for their last byte, and left."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.initial, self.room = 65535, 65535
        self.rooms: dict[int, int] = {}
        self.news = asyncio.Event()

    async def listen(self) -> None:
        """Follow what the server allows, until it hangs up."""
        while True:
            head = await self.reader.readexactly(9)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream = int.from_bytes(head[5:], "big")
            payload = await self.reader.readexactly(length)
            if kind == SETTINGS and not flags & ACK:
                for at in range(0, length, 6):
                    key, value = struct.unpack_from(">HI", payload, at)
                    if key == INITIAL_WINDOW:
                        for each in self.rooms:
                            self.rooms[each] += value - self.initial
                        self.initial = value
                self.writer.write(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self.writer.write(frame(PING, ACK, 0, payload))
            elif kind == WINDOW and stream:
                self.rooms[stream] = self.rooms.get(stream, self.initial) + int.from_bytes(payload, "big")
            elif kind == WINDOW:
                self.room += int.from_bytes(payload, "big")
            self.news.set()

    async def begin(self, stream: int, path: str) -> None:
        """Send one call but for its last byte."""
        self.writer.write(frame(HEADERS, END_HEADERS, stream, headers(path)))
        left = b"\0" + struct.pack(">I", MESSAGE_BYTES) + bytes(MESSAGE_BYTES - 1)
        self.rooms.setdefault(stream, self.initial)
        while left:
            allowed = min(self.room, self.rooms[stream], LARGEST_FRAME, len(left))
            if allowed <= 0:
                self.news.clear()
                await self.news.wait()
                continue
            self.writer.write(frame(DATA, 0, stream, left[:allowed]))
            await self.writer.drain()
            self.room, self.rooms[stream], left = self.room - allowed, self.rooms[stream] - allowed, left[allowed:]

    async def begin_all(self, path: str) -> None:
        """Begin as many calls as a connection may have, until the server hangs up."""
        with suppress(OSError):
            for number in range(STREAMS):
                await self.begin(2 * number + 1, path)


@asynccontextmanager
async def opened(
    address: str, secure: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is closed at the end of the block."""
    host, port = split_address(address)
    reader, writer = await asyncio.open_connection(host, port, ssl=secure)
    try:
        yield reader, writer
    finally:
        writer.close()


async def door(address: str) -> None:
    """Hold as many half-sent calls open as the door lets this address; again when it hangs up."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(_half_calls(address))


async def _half_calls(address: str) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            async with opened(address, anybody()) as (reader, writer):
                writer.write(PREFACE + frame(SETTINGS, 0, 0))
                sender = HalfSender(reader, writer)
                async with Children() as children:
                    children.spawn(sender.begin_all("/hetpeer.v1.Run/Measure"))
                    await sender.listen()
        await asyncio.sleep(1.0)


async def dashboard(address: str) -> None:
    """Streams of events that nobody reads, and requests that never end."""
    half = f"GET /view.json HTTP/1.1\r\nHost: {address}\r\nX-Half: "
    whole = f"GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n"
    async with asyncio.TaskGroup() as tasks:
        for number in range(READERS + HALF_REQUESTS):
            tasks.create_task(_stay(address, whole if number < READERS else half))


async def _stay(address: str, said: str) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            async with opened(address, None) as (reader, writer):
                writer.write(said.encode())
                await writer.drain()
                await reader.read(1)
                await asyncio.Event().wait() if not reader.at_eof() else None
        await asyncio.sleep(1.0)


async def meet(folder: Path, nodes: Sequence[str], register: Register) -> Dht | None:
    """A node of the DHT; None if nobody there answers."""
    try:
        return await start(load_or_create(folder / "stranger"), "127.0.0.1", 0, register, nodes)
    except HetpeerError:
        return None


def _forged(me: Identity, run: RunId, records: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Make a record with a card that claims to be the operator's, whose key stands in others' cards. Returns what is
    before the card's signature and what is behind it: only checking that signature shows that it is none."""
    public = me.public
    for card in (signed.claimed_fields(each, RECORD)[1][-1] for each in records):
        public = card[SIGNATURE_BYTES : SIGNATURE_BYTES + PUBLIC_BYTES]
    own = issue(me, run, Card(me.peer_id, "volunteer", 0, 0))
    card = own[:SIGNATURE_BYTES] + public + own[SIGNATURE_BYTES + PUBLIC_BYTES :]
    before, _, after = signed.sign_fields(me, RECORD, [run, os.urandom(300), card]).partition(card)
    return before, card[SIGNATURE_BYTES:] + after


async def dht(here: Dht, folder: Path, register: Register) -> None:
    """Store what is no peer's record at every node that can be found, as fast as it is answered."""
    me = load_or_create(folder / "stranger")
    key = register.keys[0]
    name = type(here.node.node_id).generate(key)
    found = await here.read(key)
    records = {owner: value for owner, value in found.items() if isinstance(value, bytes)}
    before, after = _forged(me, register.authority.run, list(records.values()))

    async def trouble(target: Any) -> None:
        for turn in count():
            signatures = [os.urandom(SIGNATURE_BYTES) for _ in range(SIGNATURES)]
            junk = [bytes(msgpack.packb(before + signature + after)) for signature in signatures]
            await _store(here, target, name, me.peer_id, junk)
            if turn % EVERY_LARGE == 0:
                await _store(here, target, name, me.peer_id, [bytes(LARGE_BYTES)])
            if turn % EVERY_OTHERS == 0:
                for owner, value in records.items():
                    await _store(here, target, name, owner, [bytes(msgpack.packb(value))])
            await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        for target in list(here.node.protocol.routing_table.peer_id_to_uid):
            tasks.create_task(trouble(target))


async def _store(here: Dht, target: Any, name: Any, owner: str, values: list[bytes]) -> None:
    until = time.time() + 1.5 * RECORD_SECONDS
    await apart(
        here.node.protocol.call_store(target, [name] * len(values), values, until, subkeys=[owner] * len(values))
    )
