"""libp2p's streams: bytes between the daemons of two peers, whichever of them dialled the other.

libp2p knows by their keys who is at both ends, and encrypts; what is carried here is TLS of our own all the same, since
a relay may be in between. A *tunnel* is a stream into the gRPC port of a peer that cannot be dialled.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import HetpeerError, RefusedError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import CHUNK_BYTES, REFUSAL_BYTES, REFUSAL_SECONDS, REFUSALS, RELAY_OPEN_SECONDS
from protocol.net.tasks import first_of

TUNNEL = "hetpeer/tunnel/1"

BROKEN_STREAM_ERRORS = (OSError, EOFError, TimeoutError)
"""The errors of reading from and writing to a stream whose other end has gone."""

_LENGTH_BYTES = 2


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream, both directions. Whoever opened it, or was given it, closes it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send_message(self, message: bytes) -> None:
        """Send a short message: its length in two bytes, little-endian, and it."""
        self.writer.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
        await self.writer.drain()

    async def receive_message(self, most: int) -> bytes:
        """Read the next short message.

        Raises:
            EOFError: the other end has gone, or its message would be longer than `most`.
        """
        length = int.from_bytes(await self.reader.readexactly(_LENGTH_BYTES), "little")
        if length > most:
            raise EOFError("a message that is too long")
        return await self.reader.readexactly(length)

    def close(self) -> None:
        """Hang up; what was written before still goes."""
        self.writer.close()


Spend = Callable[[int], Awaitable[None]]
"""A function that is called, and may wait, before so many bytes are passed on."""

StreamHandler = Callable[[PeerId, Stream], Awaitable[None]]
"""A handler of a stream that a peer has opened. The stream is closed afterwards; the reason of an error of ours that it
raises is sent before."""


@dataclass(slots=True)
class Streams:
    """The streams of this peer's libp2p daemon, which is hivemind's."""

    p2p: Any
    answering: set[asyncio.Task[Any]] = field(default_factory=set)
    served: dict[str, Callable[..., Awaitable[None]]] = field(default_factory=dict)
    """The handlers of streams, by their names."""
    refusing: set[Stream] = field(default_factory=set)
    """The refused streams whose other ends have not hung up yet."""

    async def move(self, p2p: Any) -> None:
        """Use another daemon from now on, which takes the place of one that has died."""
        self.p2p = p2p
        for name, handle in self.served.items():
            await p2p.add_binary_stream_handler(name, handle)

    async def connect(self, address: str) -> PeerId:
        """Connect to a node at its libp2p address. Returns its peer id.

        Raises:
            UnreachableError: it is not there.
        """
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
        from hivemind.proto import p2pd_pb2 as p2pd
        from hivemind.utils.multiaddr import Multiaddr

        where, _, peer = address.rpartition("/p2p/")
        try:
            request = p2pd.ConnectRequest(
                peer=PeerID.from_base58(peer).to_bytes(),
                addrs=[Multiaddr(where).to_bytes()],
                timeout=math.ceil(RELAY_OPEN_SECONDS),
            )
            (await self._ask(p2pd.Request(type=p2pd.Request.CONNECT, connect=request)))[0].close()
        except (ControlFailure, ValueError, *BROKEN_STREAM_ERRORS) as error:  # ValueError: it is no address
            raise UnreachableError(f"no answer from {address} ({str(error)[:100] or 'in time'})") from None
        return PeerId(peer)

    async def connected(self) -> set[PeerId]:
        """The peers that are connected to this peer's daemon, whoever dialled."""
        from hivemind.p2p import PeerID
        from hivemind.proto import p2pd_pb2 as p2pd

        try:
            stream, answer = await self._ask(p2pd.Request(type=p2pd.Request.LIST_PEERS))
        except BROKEN_STREAM_ERRORS:  # the daemon has died, which its keeper sees (`protocol.net.dht`)
            return set()
        stream.close()
        return {PeerId(PeerID(peer.id).to_base58()) for peer in answer.peers}

    async def hang_up(self, peer: PeerId) -> None:
        """End the connection to a peer, and all that goes over it."""
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
        from hivemind.proto import p2pd_pb2 as p2pd

        with suppress(ControlFailure, *BROKEN_STREAM_ERRORS):
            asked = p2pd.DisconnectRequest(peer=PeerID.from_base58(peer).to_bytes())
            (await self._ask(p2pd.Request(type=p2pd.Request.DISCONNECT, disconnect=asked)))[0].close()

    async def open(self, peer: PeerId, name: str) -> Stream:
        """Open a stream to a peer that is connected.

        Raises:
            UnreachableError: it does not answer, or not to this name.
        """
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
        from hivemind.proto import p2pd_pb2 as p2pd

        try:
            request = p2pd.StreamOpenRequest(peer=PeerID.from_base58(peer).to_bytes(), proto=[name])
            return (await self._ask(p2pd.Request(type=p2pd.Request.STREAM_OPEN, streamOpen=request)))[0]
        except (ControlFailure, ValueError, *BROKEN_STREAM_ERRORS) as error:
            reason = str(error)[:100] or "not in time"
            raise UnreachableError(f"peer {peer[-8:]} answers no {name} ({reason})") from None

    async def _ask(self, request: Any) -> tuple[Stream, Any]:
        """Ask the daemon. Returns the connection to it, and its answer. hivemind's own calls leave the connection open
        when they fail."""
        from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
        from hivemind.proto import p2pd_pb2 as p2pd

        async with asyncio.timeout(RELAY_OPEN_SECONDS):
            stream = Stream(*await self.p2p._client.control.daemon_connector.open_connection())
            try:
                await write_pbmsg(stream.writer, request)
                answer = p2pd.Response()
                await read_pbmsg_safe(stream.reader, answer)
                raise_if_failed(answer)
            except BaseException:
                stream.close()
                raise
        return stream, answer

    async def serve(self, name: str, answer: StreamHandler) -> None:
        """Answer every stream of this name from now on."""

        async def handle(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream, task = Stream(reader, writer), asyncio.current_task()
            assert task is not None
            self.answering.add(task)
            try:
                try:
                    await answer(PeerId(info.peer_id.to_base58()), stream)
                except HetpeerError as error:
                    await self._refuse(stream, str(error))
            except BROKEN_STREAM_ERRORS:
                pass
            except asyncio.CancelledError:  # `close`: nobody waits for this task
                pass
            finally:
                self.answering.discard(task)
                stream.close()

        self.served[name] = handle
        await self.p2p.add_binary_stream_handler(name, handle)

    async def _refuse(self, stream: Stream, reason: str) -> None:
        """Send the reason why not, and wait a moment until the other end hangs up: libp2p resets a stream that is
        closed at both ends at once, and what was written last may be lost with it."""
        await stream.send_message(reason.encode()[:REFUSAL_BYTES])
        if len(self.refusing) >= REFUSALS:
            return
        self.refusing.add(stream)
        try:
            async with asyncio.timeout(REFUSAL_SECONDS):
                while await stream.reader.read(CHUNK_BYTES):
                    pass
        finally:
            self.refusing.discard(stream)

    def withdraw(self, name: str) -> None:
        """Answer no stream of this name any more, once another daemon has taken the place of this one."""
        self.served.pop(name, None)

    async def close(self) -> None:
        """Hang up on everybody who is being answered."""
        answering = list(self.answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def open_tunnel(streams: Streams, peer: PeerId) -> Stream:
    """Open a tunnel to a peer whose daemon is connected to this one's.

    Raises:
        UnreachableError: it takes none.
        RefusedError: not from us, as it says.
    """
    stream = await streams.open(peer, TUNNEL)
    try:
        await expect_yes(stream, f"peer {peer[-8:]}")
    except BaseException:
        stream.close()
        raise
    return stream


async def expect_yes(stream: Stream, who: str) -> None:
    """Read the other end's answer: an empty message is a yes, any other the reason why not.

    Raises:
        RefusedError: there is one.
        UnreachableError: `who` says nothing.
    """
    try:
        async with asyncio.timeout(RELAY_OPEN_SECONDS):
            reason = await stream.receive_message(REFUSAL_BYTES)
    except BROKEN_STREAM_ERRORS:
        raise UnreachableError(f"{who} hung up, or said nothing") from None
    if reason:
        raise RefusedError(f"{who} refused: {reason.decode(errors='replace')}")


async def unlimited(count: int) -> None:
    """Let any number of bytes pass at once."""


async def splice(one: Stream, other: Stream, spend: Spend = unlimited) -> None:
    """Carry bytes both ways until an end hangs up; then hang up on the other. No more is read than is taken. `spend` is
    asked before each piece of at most `CHUNK_BYTES` is passed on."""

    async def pump(source: Stream, sink: Stream) -> None:
        with suppress(*BROKEN_STREAM_ERRORS):
            while piece := await source.reader.read(CHUNK_BYTES):
                await spend(len(piece))
                sink.writer.write(piece)
                await sink.writer.drain()

    try:
        await first_of(pump(one, other), pump(other, one))
    finally:
        one.close()
        other.close()
