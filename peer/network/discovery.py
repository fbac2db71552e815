"""Who else is in the run: this peer's record in the DHT, and everybody's, checked."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from protocol.dht import Dht
from protocol.errors import FormatError, UnreachableError
from protocol.identity import RunId
from protocol.limits import HEARTBEAT_SECONDS, RECORD_SECONDS
from protocol.records import PeerRecord, pack, peers_key, unpack

POLL_SECONDS = 0.5
"""How often a wait looks again. The DHT has no notifications; a look costs 15 ms."""

Peers = tuple[PeerRecord, ...]


@dataclass(slots=True)
class Discovery:
    """This peer's place in the DHT. `record` is what it tells the others."""

    dht: Dht
    run_id: RunId
    record: PeerRecord

    async def publish(self, record: PeerRecord) -> None:
        """Tell everybody something new about this peer."""
        self.record = record
        key, value = peers_key(self.run_id), pack(record)
        stored = await self.dht.store(key, record.peer_id, value, RECORD_SECONDS)
        if not stored and (await self.dht.read(key)).get(record.peer_id) != value:
            raise UnreachableError("the DHT takes no records: is this machine's clock right?")

    async def keep_publishing(self) -> None:
        """Renew the record for as long as this peer lives."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self.publish(self.record)

    async def peers(self) -> Peers:
        """Every peer of the run with a valid record, by peer id. Invalid records are passed over."""
        return await read_peers(self.dht, self.run_id)

    async def wait_until(self, holds: Callable[[Peers], bool]) -> Peers:
        """Look again and again until what peers tell fulfils a condition."""
        while True:
            peers = await self.peers()
            if holds(peers):
                return peers
            await asyncio.sleep(POLL_SECONDS)


async def read_peers(dht: Dht, run_id: RunId) -> Peers:
    """Every valid record of a run, by peer id."""
    found = await dht.read(peers_key(run_id))
    peers = []
    for owner in sorted(found):
        try:
            peers.append(unpack(found[owner], owner))
        except FormatError:
            continue
    return tuple(peers)
