"""Peers of a part exchange what they lack: contributions, receipts, revocations, and what they say of themselves."""

import asyncio
import random
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from peer.events import Listener, Refused
from peer.network.acceptance import Acceptance
from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from protocol import statement
from protocol.channels import handshake
from protocol.claims import Claim
from protocol.errors import FormatError, HetpeerError, PeerError
from protocol.identity import Part, PeerId
from protocol.ledger import Entry, Ledger
from protocol.limits import CALL_SECONDS
from protocol.manifest import Manifest
from protocol.reconciliation import Summary, lacking, summary
from protocol.records import PeerRecord
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc

COMPARE_SECONDS = 1.0
"""How often a peer compares. Also its heartbeat: who does not answer in `ANSWER_SECONDS` is gone."""

ANSWER_SECONDS = 3.0

ALL_CONTACTS = 12
"""Up to so many peers all are compared with; of more, a random few each time, since news spreads by itself."""

FANOUT = 3
"""To so many peers news is told at once. They tell it on, so all have it in about log₃ M steps."""

ENTRIES_ASKED = 64
"""At most so many in one message: 1 KiB each."""


@dataclass(slots=True)
class Reconciler:
    """What this peer has accepted, kept equal to what the others have."""

    manifest: Manifest
    discovery: Discovery
    contacts: Contacts
    acceptance: Acceptance
    emit: Listener
    claims: dict[Part, list[Claim]] = field(default_factory=dict)
    """This peer's own closed rounds."""
    others_claims: dict[PeerId, statement.Claims] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def statement(self) -> bytes:
        """What this peer says of itself: its record and its closed rounds, signed."""
        signer = self.acceptance.signer
        return statement.make(signer.identity, signer.authority.run, self.discovery.record, self.claims)

    async def publish(self, part: Part, round: int, blob: bytes) -> None:
        """Keep and announce this peer's own contribution."""
        entry = await self.acceptance.own(part, round, blob)
        if entry is not None:
            self._spread([entry])

    def hear(self, said: bytes) -> PeerRecord:
        """Check a peer's statement, and remember it.

        Raises:
            FormatError: it is none.
        """
        heard = statement.read(said, self.acceptance.signer.authority.run)
        self.others_claims[heard.record.peer_id] = heard.claims
        self.discovery.meet(heard.record, in_person=True)
        clock = self.discovery.common_round(self.manifest.outer.liars) + 1
        for ledger in self.acceptance.ledgers.values():
            ledger.clock = max(ledger.clock, clock)  # before anything is accepted: this peer may have slept
        return heard.record

    async def receive(self, messages: Iterable[pb.Entry], sender: PeerRecord) -> None:
        """Take what another peer passed on, and tell on what is new."""
        taken = await asyncio.gather(*(self._take(message, sender) for message in messages))
        news = [entry for entries in taken for entry in entries]
        if news:
            self._spread(news)

    async def _take(self, message: pb.Entry, sender: PeerRecord) -> list[Entry]:
        try:
            return await self.acceptance.take(message.proof, list(message.receipts), sender)
        except PeerError as error:
            self.emit(Refused(sender.peer_id, str(error)))
            return []

    def revoke(self, revocations: Iterable[bytes], sender: PeerId) -> None:
        """Heed the operator's revocations, whoever passes them on."""
        for signed in revocations:
            try:
                self.acceptance.revoke(signed)
            except FormatError as error:
                self.emit(Refused(sender, str(error)))

    # Talking

    async def keep_comparing(self) -> None:
        """Compare with others again and again, for as long as this peer lives."""
        busy: dict[PeerId, asyncio.Task[None]] = {}
        try:
            while True:
                for peer in self._contacts_now():
                    if peer.peer_id not in busy or busy[peer.peer_id].done():
                        busy[peer.peer_id] = asyncio.create_task(self.compare(peer))
                await asyncio.sleep(COMPARE_SECONDS * random.uniform(0.75, 1.25))
        finally:
            for task in (*busy.values(), *self.tasks):
                task.cancel()

    def _contacts_now(self) -> list[PeerRecord]:
        known = [*self.discovery.others(), *self._returning()]
        return known if len(known) <= ALL_CONTACTS else random.sample(known, FANOUT)

    def _returning(self) -> list[PeerRecord]:
        """One of those that did not answer: it may be back."""
        gone = [self.discovery.records[peer] for peer in self.discovery.lost]
        return random.sample(gone, min(1, len(gone)))

    async def compare(self, peer: PeerRecord) -> None:
        """Compare with one peer, and take from it what is lacking here. A peer that does not answer is lost."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self.contacts.to(peer.address) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                told = await stub.Compare(self._comparison(), metadata=handshake(self.manifest), timeout=ANSWER_SECONDS)
            await self._learn(peer, self.hear(told.statement), told)
        except PeerError as error:
            self.emit(Refused(peer.peer_id, str(error)))
        except (HetpeerError, TimeoutError):
            self.discovery.lose(peer.peer_id)

    async def _learn(self, peer: PeerRecord, said: PeerRecord, told: pb.Differences) -> None:
        if said.peer_id != peer.peer_id:
            raise FormatError(f"peer {said.peer_id[-8:]} answers at the address of {peer.peer_id[-8:]}")
        self.revoke(told.revocations, said.peer_id)
        for part_keys in told.parts:
            ledger = self.acceptance.ledgers.get(Part(part_keys.part))
            if ledger is not None:
                await self._ask(said, ledger, [key.to_bytes(8, "big") for key in part_keys.keys])

    async def _ask(self, peer: PeerRecord, ledger: Ledger, keys: list[bytes]) -> None:
        for key in keys:
            self.acceptance.vouch(ledger.part, key, peer.peer_id)
        missing = lacking(ledger, keys)
        for start in range(0, len(missing), ENTRIES_ASKED):
            wanted = [int.from_bytes(key, "big") for key in missing[start : start + ENTRIES_ASKED]]
            question = pb.Question(part=ledger.part, keys=wanted)
            async with self.contacts.to(peer.address) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                answer = await stub.Ask(question, metadata=handshake(self.manifest), timeout=ANSWER_SECONDS)
            await self.receive(answer.entries, peer)

    def _comparison(self) -> pb.Comparison:
        return pb.Comparison(
            statement=self.statement(), parts=[_to_wire(summary(ledger)) for ledger in self.acceptance.ledgers.values()]
        )

    def _spread(self, news: list[Entry]) -> None:
        """Tell a few peers at once; they tell it on."""
        peers = [peer for peer in self.discovery.others() if peer.peer_id != news[0].name.author]
        for peer in random.sample(peers, min(FANOUT, len(peers))):
            self.start(self._tell(peer, news))

    async def _tell(self, peer: PeerRecord, news: list[Entry]) -> None:
        message = pb.News(
            statement=self.statement(),
            entries=[entry_to_wire(entry) for entry in news],
            revocations=list(self.acceptance.revocations.values()),
        )
        try:
            async with self.contacts.to(peer.address) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                await stub.Tell(message, metadata=handshake(self.manifest), timeout=CALL_SECONDS)
        except HetpeerError:
            return  # comparing will find out

    async def hand_out(self) -> None:
        """Tell everybody this peer's own contributions and its record, and wait until they have them: it leaves."""
        me = self.discovery.record.peer_id
        own = [
            entry
            for ledger in self.acceptance.ledgers.values()
            for entry in ledger.all_entries()
            if entry.name.author == me
        ]
        await asyncio.gather(*(self._tell(peer, own) for peer in self.discovery.others()))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside everything else."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


def _to_wire(mine: Summary) -> pb.PartSummary:
    rounds = [pb.RoundCheck(round=round, check=int.from_bytes(check, "big")) for round, check in mine.checks.items()]
    return pb.PartSummary(part=mine.part, clock=mine.clock, folded=mine.folded, rounds=rounds)


def entry_to_wire(entry: Entry) -> pb.Entry:
    """An entry as it travels."""
    return pb.Entry(proof=entry.proof, receipts=list(entry.receipts.values()))


async def tell_revocation(address: str, signed: bytes, contacts: Contacts) -> bool:
    """Bring the operator's revocation to one peer, which tells it on; whether it heard."""
    try:
        async with contacts.to(address) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            message = pb.Revocations(revocations=[signed])
            await stub.Revoke(message, metadata=handshake(contacts.manifest), timeout=ANSWER_SECONDS)
    except HetpeerError:
        return False
    return True
