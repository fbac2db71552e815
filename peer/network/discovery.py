"""The peers of the run: what they tell of themselves in the DHT and, fresher, in person."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer.network.gossip_policy import read_seconds, some
from protocol.clock import monotonic, unix_time
from protocol.identity import PeerId, RunId
from protocol.limits import PEERS_KEPT
from protocol.manifest import Manifest
from protocol.net.dht import Dht
from protocol.net.tasks import Notifier
from protocol.patience import HEARTBEAT_SECONDS, RECORD_SECONDS
from protocol.trust.membership_card import Signer
from protocol.trust.records import PeerRecord, Peers, Register, expiration, sign_record
from protocol.trust.ticket import remember_addresses

WRITE_SECONDS = 5.0
"""The shortest interval at which the addresses of others are written down."""


@dataclass(slots=True)
class Discovery:
    """This peer's place in the run, and its address book. `record` is what it tells the others, in the name of
    `signer`."""

    dht: Dht
    signer: Signer
    manifest: Manifest
    record: PeerRecord
    nodes: Sequence[str] = ()
    """libp2p addresses of the operator's nodes."""
    records: dict[PeerId, PeerRecord] = field(default_factory=dict)
    seen: dict[PeerId, float] = field(default_factory=dict)
    """The last sign of life of each peer, by `monotonic`."""
    lost: dict[PeerId, int] = field(default_factory=dict)
    """The peers that did not answer, and the sequence number of the last record that each had told until then."""
    trips: dict[PeerId, float] = field(default_factory=dict)
    """The round trips to others, in seconds, as far as they were measured (`peer.network.contacts.timed`)."""
    namesake: PeerRecord | None = None
    """The newest record of this peer's own key that it has not published itself: a copy of its folder may run."""
    news: Notifier = field(default_factory=Notifier)
    on_move: Callable[[PeerRecord, PeerRecord], None] = lambda before, now: None
    """A function that is told when a peer has given up one of its addresses, with its record before and now."""
    on_read: Callable[[Sequence[PeerRecord], Mapping[str, object]], None] = lambda records, signed: None
    """A function that is called with the valid records that lie in the DHT, and their signed bytes by peer id."""
    objection: Callable[[PeerId], str] = lambda peer: ""
    """A function that tells why this peer does not talk to another; empty: it does. A peer that is avoided counts as
    absent: nobody waits for it."""

    def report_reads_to(self, listener: Callable[[Sequence[PeerRecord], Mapping[str, object]], None]) -> None:
        """Call `listener` with the valid records that lie in the DHT, whenever they have been read."""
        self.on_read = listener

    def report_moves_to(self, listener: Callable[[PeerRecord, PeerRecord], None]) -> None:
        """Call `listener` with a peer's record before and now, whenever it has given up one of its addresses."""
        self.on_move = listener

    @property
    def run_id(self) -> RunId:
        """The run's id."""
        return self.signer.authority.run

    @property
    def register(self) -> Register:
        """The register of the run's records in the DHT."""
        return Register(self.signer.authority, self.manifest)

    def update_record(self, **changes: object) -> None:
        """Change what this peer says of itself from now on."""
        sequence = max(self.record.sequence + 1, int(unix_time() * 1000))
        self.record = self.record.model_copy(update={**changes, "sequence": sequence})
        self.news.ring()

    async def publish(self, **changes: object) -> None:
        """Tell everybody something new about this peer."""
        self.update_record(**changes)
        record = self.record
        key = self.register.key(record.peer_id)
        await self.dht.store(key, record.peer_id, sign_record(self.signer, record), expiration(record))

    async def keep_publishing(self) -> None:
        """Renew the record for as long as this peer lives."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self.publish()

    async def keep_attached(self) -> None:
        """Stay in the DHT that the others are in, for as long as this peer lives: by the operator's nodes, and by any
        other, so that halves that have lost each other meet again."""

        def addresses() -> list[str]:
            known = [peer.libp2p for peer in self.records.values() if peer.libp2p]
            return [*self.nodes, *some(known, 1, random)]

        await self.dht.keep_attached(addresses)

    async def keep_reading(self) -> None:
        """Read the DHT for as long as this peer lives."""
        while True:
            await self.read()
            await asyncio.sleep(read_seconds(len(self.records)))

    async def own_record(self) -> PeerRecord | None:
        """Read what lies in the DHT as the record of this peer's key; None: nothing valid."""
        me = self.record.peer_id
        found = await self.dht.read(self.register.key(me))
        own = self.register.read({me: found[me]} if me in found else {})
        return own[0] if own else None

    async def read(self) -> None:
        """Read the DHT once, and take what is newer than what is known."""
        found = await self.dht.read_all()
        records = self.register.read(found)
        for record in records:
            self.meet(record, in_person=False)
        self.on_read(records, found)

    def meet(self, record: PeerRecord, in_person: bool) -> None:
        """Note a peer's record. A peer met in person is alive; one found in the DHT is, if its record is new."""
        peer = record.peer_id
        previous = self.records.get(peer)
        newer = previous is None or record.sequence > previous.sequence
        if peer == self.record.peer_id:
            if record.sequence > self.record.sequence:
                self.namesake = record
            return
        if not (newer or in_person):
            return
        if newer:
            self.records[peer] = record
        if newer and previous is not None and not set(previous.addresses) <= set(record.addresses):
            self.on_move(previous, record)
        if in_person or record.sequence > self.lost.get(peer, -1):
            self.lost.pop(peer, None)
            self.seen[peer] = monotonic()
        if len(self.records) > PEERS_KEPT:
            longest_silent = min(self.records, key=lambda peer: self.seen.get(peer, 0.0))
            for table in (self.records, self.seen, self.lost, self.trips):
                table.pop(longest_silent, None)
        self.news.ring()

    def relays_of(self, peer: PeerId) -> list[str]:
        """The relays by which a peer is reached that cannot be dialled; none: it can, or it is not known."""
        return self.records[peer].via if peer in self.records else []

    def other_addresses_of(self, peer: PeerId) -> list[str]:
        """The addresses that a peer names beside its first one; none, if it is not known."""
        return self.records[peer].other_addresses if peer in self.records else []

    def let_in_by(self, gateway: PeerId) -> list[PeerId]:
        """The peers that are known to have been let in by a gateway."""
        return [record.peer_id for record in self.records.values() if record.issuer == gateway]

    def lose(self, peer: PeerId) -> None:
        """Note that a peer does not answer: it counts as lost until it says something new."""
        if peer in self.records and peer not in self.lost:
            self.lost[peer] = self.records[peer].sequence
            self.news.ring()

    def peers(self) -> Peers:
        """The records of this peer and of all others that are alive, as far as is known, and to which it talks, by peer
        id."""
        horizon = monotonic() - RECORD_SECONDS
        alive = [self.records[peer] for peer, at in self.seen.items() if at >= horizon and peer not in self.lost]
        here = [peer for peer in alive if not (peer.gone or self.objection(peer.peer_id))]
        return tuple(sorted([self.record, *here], key=lambda peer: peer.peer_id))

    def missed(self) -> list[PeerId]:
        """The peers that do not answer, and have not said goodbye."""
        return [peer for peer in self.lost if not (self.records[peer].gone or self.objection(peer))]

    def others(self) -> Peers:
        """The records of all peers but this one."""
        return tuple(peer for peer in self.peers() if peer.peer_id != self.record.peer_id)


async def keep_remembering(folder: Path, discovery: Discovery) -> None:
    """Keep the addresses of others in `folder`, for as long as this peer lives. A peer that has lost all others keeps
    the last addresses."""
    written: list[str] = []
    while True:
        known = [peer.libp2p for peer in discovery.others() if peer.libp2p]
        if known and known != written:
            await asyncio.to_thread(remember_addresses, folder, known)
            written = known
        await (asyncio.sleep(WRITE_SECONDS) if written else discovery.news.wait(WRITE_SECONDS))
