"""The DHT of the simulated world: records that lie at some of the nodes that could be reached when they were told.

As hivemind does it, a record lies at the few nodes that are nearest to its key; who reads asks those that it can reach.
What may lie there follows from the product's own rules. libp2p's daemon and its streams are not simulated.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import msgpack

from protocol.errors import UnreachableError
from protocol.identity import PeerId
from protocol.net.dht import ATTACH_AGAIN_SECONDS
from protocol.net.dht_checks import Offence, Rules, is_valid, no_offence
from tests.world.loop import HOST
from tests.world.network import Network

HOLDERS = 5
"""So many nodes keep a record."""

HOPS = 2
"""Round trips of a search."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What lies under a subkey."""

    value: bytes
    expiration: float


class SilentStreams:
    """libp2p's streams, of which there are none: nobody is behind a router."""

    async def serve(self, name: str, answer: Callable[..., Awaitable[None]]) -> None:
        """Nobody opens one."""

    async def connected(self) -> set[PeerId]:
        return set()

    async def hang_up(self, peer: PeerId) -> None:
        """Nobody is connected."""

    def withdraw(self, name: str) -> None:
        """Nobody opens one."""


@dataclass(eq=False, slots=True)
class DhtNode:
    """A node of the DHT: `protocol.net.dht.Dht`, as far as the product uses it."""

    directory: "Directory"
    process: Any
    rules: Rules
    hidden: bool
    addresses: tuple[str, ...]
    kept: dict[tuple[str, str], Kept] = field(default_factory=dict)
    met: tuple[str, ...] = ()
    say: Any = None
    streams: SilentStreams = field(default_factory=SilentStreams)

    async def move(self, host: str, hidden: bool) -> None:
        """`protocol.net.dht.Dht.move`."""
        await self._trip()
        kind, _, rest = self.addresses[0].split("/", 3)[1:]
        self.hidden, self.addresses = hidden, (f"/{kind}/{host}/{rest}",)

    async def attach(self, addresses: Sequence[str]) -> int:
        """Meet other nodes. Returns how many answered."""
        self.met = tuple(addresses) or self.met
        await self._trip()
        return sum(each.addresses[0] in self.met for each in self.directory.reached(self) if each is not self)

    async def keep_attached(self, addresses: Callable[[], Sequence[str]]) -> None:
        while True:
            await self.attach(addresses())
            await asyncio.sleep(ATTACH_AGAIN_SECONDS * random.uniform(0.75, 1.25))

    async def store(self, key: str, subkey: str, value: bytes, expiration: float) -> bool:
        """Store a record at the nodes nearest to its key."""
        await self._trip()
        holders = self.directory.nearest(self, key)
        for each in holders:
            each.take(key, subkey, Kept(value, expiration))
        return bool(holders)

    def take(self, key: str, subkey: str, told: Kept) -> None:
        """Keep what another node tells, if it is valid and newer than what is known."""
        known, now = self.kept.get((key, subkey)), self.directory.wall(self.process)
        packed = msgpack.packb(subkey), msgpack.packb(told.value)
        if (known is None or known.expiration < told.expiration) and is_valid(
            self.rules, key, *packed, told.expiration, now
        ):
            self.kept[key, subkey] = told

    async def read_all(self) -> dict[str, object]:
        """Read what lies under all keys of the rules, by subkey, at the nodes that can be reached."""
        return await self._read(self.rules.keys)

    async def read(self, key: str) -> dict[str, object]:
        """Read what lies under one key."""
        return await self._read([key])

    async def _read(self, keys: Sequence[str]) -> dict[str, object]:
        await self._trip()
        now = self.directory.wall(self.process)
        newest: dict[tuple[str, str], Kept] = {}
        for node in self.directory.reached(self):
            for where, kept in node.kept.items():
                if kept.expiration > now and (where not in newest or newest[where].expiration < kept.expiration):
                    newest[where] = kept
        found: dict[str, object] = {}
        for key in keys:
            found |= {subkey: kept.value for (under, subkey), kept in newest.items() if under == key}
        return found

    async def while_alive(self, work: Coroutine[Any, Any, object]) -> None:
        await work

    async def stop(self) -> None:
        self.directory.nodes.pop(self, None)

    async def _trip(self) -> None:
        await asyncio.sleep(HOPS * 4 * self.process.machine.latency)


class Directory:
    """All nodes of the DHT."""

    def __init__(self, network: Network, wall: Callable[[Any], float]) -> None:
        self.network, self.wall = network, wall
        self.nodes: dict[DhtNode, None] = {}

    def reached(self, node: DhtNode) -> list[DhtNode]:
        """The nodes that answer one, itself among them."""
        here = node.process.machine
        return [
            each
            for each in self.nodes
            if not each.process.dead
            and each.process.held is None
            and self.network.reachable(here, each.process.machine)
        ]

    def nearest(self, node: DhtNode, key: str) -> list[DhtNode]:
        """The nodes that keep a record of one."""
        there = [each for each in self.reached(node) if not each.hidden]
        return sorted(there, key=lambda each: (crc32(f"{key} {each.addresses[0]}".encode()), each.addresses[0]))[
            :HOLDERS
        ]

    async def start(
        self,
        identity: Any,
        host: str,
        port: int,
        rules: Rules,
        bootstraps: Sequence[str] = (),
        hidden: bool = False,
        say: Callable[[str], None] = lambda said: None,
        offence: Offence = no_offence,
    ) -> DhtNode:
        """`protocol.net.dht.start`."""
        process = HOST.get()
        address = f"/ip4/{process.machine.address}/tcp/{port or next(process.machine.ports)}/p2p/{identity.peer_id}"
        node = DhtNode(self, process, rules, hidden, (address,))
        self.nodes[node] = None
        if bootstraps and not await node.attach(bootstraps):
            await node.stop()
            raise UnreachableError(f"no bootstrap node answered; tried {', '.join(bootstraps)}")
        return node
