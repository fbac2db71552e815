"""Routes to peers: where they say, or, if they cannot be dialled, through libp2p. Above a channel nobody sees which.

Of a peer that names several addresses, the first at which its key answers is dialled, and that is kept until it fails.

For who cannot be dialled, a listener on this machine's loopback takes the channel's connection and carries it: over the
connection of libp2p's that the peer has to this one, if it dialled us; else by the relays that its record names. It is
TLS between the channel and the peer's own port, so it does not matter who else is on the way.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from protocol.addresses import is_loopback, join_address, split_address
from protocol.clock import monotonic
from protocol.errors import FormatError, HetpeerError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import ADDRESS_CHANGE_SECONDS, ADDRESS_CHANGES, PEERS_KEPT, RELAY_OPEN_SECONDS
from protocol.net.allowances import RateLimit
from protocol.net.channels import Reachable
from protocol.net.relay import call_by
from protocol.net.streams import BROKEN_STREAM_ERRORS, Stream, Streams, open_tunnel, splice
from protocol.net.tls_probe import first_answering
from protocol.trust.membership_card import Signer

LOCAL_DIAL_SECONDS = 0.5
"""The time for an answer from a peer that may be behind the same router and then answers within milliseconds."""

TRIED_SECONDS = 60.0
"""The time for which what was found out about a route is believed."""


@dataclass(slots=True)
class Passage:
    """The passage to one peer that cannot be dialled: a listener, and what last went wrong behind it."""

    listener: asyncio.Server
    address: str
    trouble: str = ""
    carrying: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(slots=True)
class Routes:
    """The routes to others. `relays_of` names the relays of a peer that cannot be dialled, as far as they are known
    here, and none for one that can. `others_of` names the addresses of a peer beside its first one."""

    streams: Streams
    signer: Signer
    relays_of: Callable[[PeerId], Sequence[str]]
    others_of: Callable[[Reachable], Sequence[str]] = lambda peer: ()
    passages: dict[PeerId, Passage] = field(default_factory=dict)
    near: dict[tuple[PeerId, str], tuple[bool, float]] = field(default_factory=dict)
    """Whether a peer behind relays answers where it listens, and until when that is believed."""
    silent: dict[str, float] = field(default_factory=dict)
    """The relays that did not answer or refused, and until when they are tried last."""
    named: OrderedDict[PeerId, tuple[str, ...]] = field(default_factory=OrderedDict)
    """The addresses at which each peer was dialled last."""
    answering: dict[PeerId, str] = field(default_factory=dict)
    """The address at which each peer that names several was found."""
    changes: RateLimit = field(
        default_factory=lambda: RateLimit(ADDRESS_CHANGES, ADDRESS_CHANGE_SECONDS, keys_kept=PEERS_KEPT)
    )
    """The limit on changes of each peer's addresses."""

    async def address(self, peer: Reachable) -> str:
        """The address that a channel to a peer dials.

        Raises:
            UnreachableError: it answers at none of several, or names new ones too often.
        """
        if not self.relays_of(peer.peer_id) or await self._is_near(peer):
            addresses = tuple(dict.fromkeys((peer.address, *self.others_of(peer))))
            self._follow(peer.peer_id, addresses)
            if len(addresses) == 1:
                return peer.address
            if peer.peer_id not in self.answering:
                self.answering[peer.peer_id] = await first_answering(peer.peer_id, addresses, RELAY_OPEN_SECONDS)
            return self.answering[peer.peer_id]
        if peer.peer_id not in self.passages:
            self.passages[peer.peer_id] = await self._open(peer.peer_id)
        return self.passages[peer.peer_id].address

    def failed(self, peer: Reachable) -> str:
        """Note that a channel found nobody: somebody else may be at that address of this network. Returns what went
        wrong on the way to a peer that cannot be dialled, as far as known; empty: nothing."""
        self.answering.pop(peer.peer_id, None)
        key, passage = (peer.peer_id, peer.address), self.passages.get(peer.peer_id)
        if self.near.get(key, (False, 0.0))[0]:
            self.near[key] = False, monotonic() + TRIED_SECONDS
            return ""
        return passage.trouble if passage is not None else ""

    async def close(self) -> None:
        """Close all passages."""
        passages, self.passages = list(self.passages.values()), {}
        for passage in passages:
            passage.listener.close()
            for task in passage.carrying:
                task.cancel()
            await asyncio.gather(*passage.carrying, return_exceptions=True)

    def _follow(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Note the addresses at which a peer is dialled now.

        Raises:
            UnreachableError: they have changed too often.
        """
        if self.named.get(peer) != addresses:
            if wait := self.changes.wait_seconds(peer, monotonic()):
                raise UnreachableError(
                    f"peer {peer[-8:]} names new addresses too often: it is not dialled for {wait:.0f} s"
                )
            self.named[peer] = addresses
            self.answering.pop(peer, None)
        self.named.move_to_end(peer)
        if len(self.named) > PEERS_KEPT:
            forgotten, _ = self.named.popitem(last=False)
            self.answering.pop(forgotten, None)

    async def _is_near(self, peer: Reachable) -> bool:
        """Whether something answers where a peer listens that others cannot dial."""
        key = peer.peer_id, peer.address
        answers, until = self.near.get(key, (False, 0.0))
        if until < monotonic():
            answers = await _answers(peer.address)
            self.near[key] = answers, monotonic() + TRIED_SECONDS
        return answers

    async def _open(self, peer: PeerId) -> Passage:
        """Listen for the channels to a peer."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            passage.carrying.add(task)
            stream = Stream(reader, writer)
            try:
                await splice(stream, await self._way(peer))
                passage.trouble = ""
            except HetpeerError as error:
                passage.trouble = str(error)
            except asyncio.CancelledError:  # `close`: nobody waits for this task
                pass
            finally:
                passage.carrying.discard(task)
                stream.close()

        listener = await asyncio.start_server(take, "127.0.0.1", 0)
        passage = Passage(listener, join_address(*listener.sockets[0].getsockname()[:2]))
        return passage

    async def _way(self, peer: PeerId) -> Stream:
        """Open a tunnel to a peer: direct if it is connected to this one, else by its relays, one after the other.

        Raises:
            UnreachableError: there is none.
        """
        tried: list[str] = []
        if peer in await self.streams.connected():
            try:
                return await open_tunnel(self.streams, peer)
            except HetpeerError as error:
                tried.append(str(error))
                if isinstance(error, UnreachableError):  # its address may have changed: it connects anew
                    await self.streams.hang_up(peer)
        now = monotonic()
        for address in sorted(self.relays_of(peer), key=lambda relay: self.silent.get(relay, 0.0) > now):
            try:
                return await call_by(self.streams, address, self.signer.card, peer)
            except HetpeerError as error:
                tried.append(str(error))
                self.silent[address] = monotonic() + TRIED_SECONDS
        raise UnreachableError("; ".join(tried) or f"peer {peer[-8:]} names no relay")


async def _answers(address: str) -> bool:
    """Whether something listens at an address nearby; on loopback only this machine itself would answer."""
    try:
        host, port = split_address(address)
        if is_loopback(host):
            return False
        async with asyncio.timeout(LOCAL_DIAL_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (FormatError, *BROKEN_STREAM_ERRORS):
        return False
    writer.close()
    with suppress(*BROKEN_STREAM_ERRORS):
        await writer.wait_closed()
    return True
