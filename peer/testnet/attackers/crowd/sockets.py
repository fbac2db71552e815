"""What needs no name at all: calls at the door that are sent by half, and a dashboard's readers that do not read.

HTTP/2 is spoken by hand here (RFC 9113), because no library sends half of a message.
"""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from protocol.addresses import split
from protocol.net.tasks import Children
from protocol.net.tls_probe import anybody

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
        """Send one call by all but its end."""
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


@asynccontextmanager
async def opened(
    address: str, secure: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, and its end."""
    host, port = split(address)
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
                    children.spawn(_send_all(sender))
                    await sender.listen()
        await asyncio.sleep(1.0)


async def _send_all(sender: HalfSender) -> None:
    with suppress(OSError):
        for number in range(STREAMS):
            await sender.begin(2 * number + 1, "/hetpeer.v1.Run/Measure")


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
