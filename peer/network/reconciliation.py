"""Peers of a part exchange what they lack: contributions, receipts, revocations, and what they say of themselves."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from peer.events import Listener, Refused
from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.shelf import Shelf
from protocol import statement
from protocol.blobs import fetch
from protocol.channels import handshake
from protocol.contribution import digest, max_bytes
from protocol.errors import FormatError, HetpeerError, PeerError, RefusedError, UnreachableError
from protocol.identity import ContributionName, Part, PeerId
from protocol.ledger import Claim, Entry, Ledger, Revocation, Standing
from protocol.limits import CALL_SECONDS
from protocol.manifest import Manifest
from protocol.proofs import Signer, read_entry, read_revocation
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

FETCHES = 4
"""Blobs that come in at the same time."""

Check = Callable[[bytes, Entry], Awaitable[None]]
"""Raises FormatError unless the bytes are that contribution, and valid."""


async def _nothing_is_valid(blob: bytes, entry: Entry) -> None:
    """Before the outer state is loaded."""
    raise FormatError("this peer is not ready yet")


@dataclass(slots=True)
class Reconciler:
    """The ledgers of a peer, kept equal to those of the others. `discovery.news` rings whenever one has changed."""

    manifest: Manifest
    signer: Signer
    discovery: Discovery
    contacts: Contacts
    shelf: Shelf
    ledgers: dict[Part, Ledger]
    emit: Listener
    check: Check = _nothing_is_valid
    claims: dict[Part, list[Claim]] = field(default_factory=dict)
    """This peer's own closed rounds."""
    others_claims: dict[PeerId, statement.Claims] = field(default_factory=dict)
    vouched: dict[Part, dict[bytes, set[PeerId]]] = field(default_factory=dict)
    """While catching up: who says that an entry was accepted in time."""
    catching_up: dict[Part, int] = field(default_factory=dict)
    """Rounds up to this one are taken from others' word."""
    witnesses: dict[Part, int] = field(default_factory=dict)
    """So many must give it."""
    revocations: dict[Revocation, bytes] = field(default_factory=dict)
    fetching: set[str] = field(default_factory=set)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # What this peer says

    def statement(self) -> bytes:
        """Its record and its closed rounds, signed."""
        return statement.make(self.signer.identity, self.signer.authority.run, self.discovery.record, self.claims)

    async def publish(self, part: Part, round: int, blob: bytes) -> Entry:
        """Keep and announce this peer's own contribution."""
        entry = self.signer.contribution(part, round, digest(blob), len(blob))
        await asyncio.to_thread(self.shelf.put, entry, blob)
        if self.ledgers[part].take(entry) is Standing.ACCEPTED:
            self.discovery.news.ring()
            self._spread([entry])
        return entry

    def revoke(self, signed: bytes) -> None:
        """Take an author out, by the operator's word."""
        revocation = read_revocation(signed, self.signer.authority)
        if revocation not in self.revocations:
            self.revocations[revocation] = signed
            for ledger in self.ledgers.values():
                ledger.revoke(revocation)
            self.discovery.news.ring()

    # What others say

    def hear(self, said: bytes) -> PeerRecord:
        """Check a peer's statement, and remember it.

        Raises:
            FormatError: it is none.
        """
        heard = statement.read(said, self.signer.authority.run)
        self.others_claims[heard.record.peer_id] = heard.claims
        self.discovery.meet(heard.record, in_person=True)
        clock = self.discovery.common_round(self.manifest.outer.liars) + 1
        for ledger in self.ledgers.values():
            ledger.clock = max(ledger.clock, clock)  # before anything is accepted: this peer may have slept
        return heard.record

    async def receive(self, messages: Iterable[pb.Entry], sender: PeerRecord) -> None:
        """Take what another peer passed on; fetch what is wanted, from it."""
        news: list[Entry] = []
        for message in messages:
            try:
                entry = read_entry(message.proof, list(message.receipts), self.signer.authority)
                if await self._take(entry, sender):
                    news.append(entry)
            except PeerError as error:
                self.emit(Refused(sender.peer_id, str(error)))
        if news:
            self._spread(news)

    async def _take(self, entry: Entry, sender: PeerRecord) -> bool:
        """Whether the entry is accepted, and was not before.

        Raises:
            FormatError: it, or what it stands for, is not valid.
        """
        ledger = self.ledgers.get(entry.name.part)
        if ledger is None:
            return False
        if entry.size > max_bytes(self.manifest, entry.name.part):
            raise FormatError(f"{entry.name}: {entry.size} bytes, more than possible")
        vouched = self._is_vouched(entry)
        if ledger.offer(entry, vouched) is not Standing.WANTED or entry.sha256 in self.fetching:
            return False
        self.fetching.add(entry.sha256)
        try:
            async with self.slots, self.contacts.to(sender.address) as channel:
                blob = await fetch(channel, self.manifest, entry.sha256, entry.size)
            await self.check(blob, entry)
            await asyncio.to_thread(self.shelf.put, entry, blob)
        except (UnreachableError, RefusedError):
            return False  # another has it, too
        finally:
            self.fetching.discard(entry.sha256)
        return await self._accept(ledger, entry, vouched)

    async def _accept(self, ledger: Ledger, entry: Entry, vouched: bool) -> bool:
        if ledger.take(entry, vouched) is not Standing.ACCEPTED:
            return False
        if ledger.wants_receipt(entry.name, entry.sha256):
            ledger.sign(entry.name, entry.sha256, self.signer.receipt(entry))
            await asyncio.to_thread(self.shelf.note, entry)
        self.discovery.news.ring()
        return True

    async def restore(self) -> None:
        """Take up what the shelf holds: it was accepted before this process began."""
        for proof, receipts in self.shelf.found():
            entry = read_entry(proof, receipts, self.signer.authority)
            ledger = self.ledgers.get(entry.name.part)
            if ledger is not None:
                ledger.take(entry, vouched=True)
        self.discovery.news.ring()

    def _is_vouched(self, entry: Entry) -> bool:
        """While catching up: whether enough of those who were there accepted it."""
        part = entry.name.part
        if entry.name.round > self.catching_up.get(part, 0):
            return False
        return len(self.vouched.get(part, {}).get(entry.key, ())) >= self.witnesses[part]

    def catch_up(self, part: Part, target: int, witnesses: int) -> None:
        """From now on, take rounds up to `target` from the word of others, `witnesses` at least: this peer was not
        there."""
        self.catching_up[part], self.witnesses[part] = target, witnesses
        self.vouched[part] = {}

    @property
    def caught_up(self) -> bool:
        """Whether everything that enough others vouch for is here."""
        return all(
            key in {entry.key for round in ledger.open_rounds() for entry in ledger.entries(round)}
            for part, ledger in self.ledgers.items()
            for key, peers in self.vouched.get(part, {}).items()
            if len(peers) >= self.witnesses[part]
        )

    # Talking

    async def keep_comparing(self) -> None:
        """Compare with others again and again, for as long as this peer lives."""
        busy: dict[PeerId, asyncio.Task[None]] = {}
        while True:
            for peer in self._contacts_now():
                if peer.peer_id not in busy or busy[peer.peer_id].done():
                    busy[peer.peer_id] = asyncio.create_task(self.compare(peer))
            await asyncio.sleep(COMPARE_SECONDS * random.uniform(0.75, 1.25))

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
        except (UnreachableError, TimeoutError):
            self.discovery.lose(peer.peer_id)
        except PeerError as error:
            self.emit(Refused(peer.peer_id, str(error)))
        except HetpeerError:
            self.discovery.lose(peer.peer_id)

    async def _learn(self, peer: PeerRecord, said: PeerRecord, told: pb.Differences) -> None:
        if said.peer_id != peer.peer_id:
            raise FormatError(f"peer {said.peer_id[-8:]} answers at the address of {peer.peer_id[-8:]}")
        for revocation in told.revocations:
            self.revoke(revocation)
        for part_keys in told.parts:
            ledger = self.ledgers.get(Part(part_keys.part))
            if ledger is not None:
                await self._ask(said, ledger, [key.to_bytes(8, "big") for key in part_keys.keys])

    async def _ask(self, peer: PeerRecord, ledger: Ledger, keys: list[bytes]) -> None:
        if self.catching_up.get(ledger.part, 0):
            for key in keys:
                self.vouched.setdefault(ledger.part, {}).setdefault(key, set()).add(peer.peer_id)
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
            statement=self.statement(), parts=[_to_wire(summary(ledger)) for ledger in self.ledgers.values()]
        )

    def _spread(self, news: list[Entry]) -> None:
        """Tell a few peers that follow the part at once; they tell it on."""
        for peer in self._followers(news[0].name):
            self.start(self._tell(peer, news))

    def _followers(self, name: ContributionName) -> list[PeerRecord]:
        peers = [peer for peer in self.discovery.others() if peer.peer_id != name.author]
        return random.sample(peers, min(FANOUT, len(peers)))

    async def _tell(self, peer: PeerRecord, news: list[Entry]) -> None:
        message = pb.News(
            statement=self.statement(),
            entries=[entry_to_wire(entry) for entry in news],
            revocations=list(self.revocations.values()),
        )
        try:
            async with self.contacts.to(peer.address) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                await stub.Tell(message, metadata=handshake(self.manifest), timeout=CALL_SECONDS)
        except HetpeerError:
            return  # comparing will find out

    async def hand_out(self) -> None:
        """Tell everybody this peer's own contributions and its record, and wait until they have them: it leaves."""
        me = self.signer.identity.peer_id
        own = [
            entry
            for ledger in self.ledgers.values()
            for round in ledger.open_rounds()
            for entry in ledger.entries(round)
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
