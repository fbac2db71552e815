"""The bytes of contributions, fetched from whoever holds them."""

import asyncio
import random
import time
from dataclasses import dataclass, field

from peer.network.contacts import Contacts
from peer.network.distrust import Distrust
from peer.network.spreading import Wanted
from protocol.blobs import fetch
from protocol.errors import HetpeerError
from protocol.identity import PeerId
from protocol.ledger import Entry
from protocol.records import PeerRecord

Turn = asyncio.Future[PeerId]


@dataclass(slots=True)
class Fetcher:
    """Carries out what `Wanted` decides: from whom next, and how many at once."""

    contacts: Contacts
    distrust: Distrust
    wanted: Wanted[bytes, PeerId] = field(default_factory=Wanted)
    holders: dict[PeerId, PeerRecord] = field(default_factory=dict)
    turns: dict[bytes, Turn] = field(default_factory=dict)
    """By key of an entry: who waits to be told from whom to fetch."""

    def hear(self, lacking: list[bytes], peer: PeerRecord) -> list[bytes]:
        """A peer says that it holds these, which this one lacks; those whose entries to ask it for."""
        self.holders[peer.peer_id] = peer
        unknown = self.wanted.hear(lacking, peer.peer_id)
        self._go_on()
        return unknown

    async def bring(self, entry: Entry, holder: PeerRecord) -> bytes | None:
        """The bytes of an entry, from one of those who hold them; None if they are under way already, or nobody gives
        them. Who gives other bytes is reported, and passed over. The entry is wanted until `Wanted.drop`."""
        self.holders[holder.peer_id] = holder
        if not self.wanted.want(entry.key, holder.peer_id):
            return None
        blob = None
        while blob is None and entry.key in self.wanted.sources:
            turn = self.turns[entry.key] = asyncio.get_running_loop().create_future()
            self._go_on()
            blob = await self._from(await turn, entry)
        self._go_on()
        return blob

    async def _from(self, source: PeerId, entry: Entry) -> bytes | None:
        begun = time.monotonic()
        try:
            async with self.contacts.to(self.holders[source]) as channel:
                manifest, bandwidth = self.contacts.manifest, self.contacts.bandwidth
                blob = await fetch(channel, manifest, entry.sha256, entry.size, bandwidth)
        except HetpeerError as error:  # another has it, too
            self.distrust.note(source, error)
        else:
            self.wanted.came(source, entry.size / max(time.monotonic() - begun, 1e-9))
            return blob
        self.wanted.failed(entry.key, source)
        return None

    def _go_on(self) -> None:
        while (choice := self.wanted.choose(random)) is not None:
            key, source = choice
            self.turns.pop(key).set_result(source)
