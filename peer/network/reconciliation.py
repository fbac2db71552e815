"""Peers of a part exchange what they lack: contributions, receipts, revocations, and what they say of themselves."""

import asyncio
import random
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from peer.network.acceptance import Acceptance
from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.distance import timed
from peer.network.distrust import Distrust
from peer.network.reconciliation_wire import entry_to_wire, keys_of, keys_to_wire, summary_to_wire
from peer.network.spreading import HEARERS, TELL_SECONDS, compare_seconds, first_hearers, follows, partners, some
from protocol import statement
from protocol.channels import Reachable, handshake
from protocol.claims import Claim
from protocol.errors import FormatError, HetpeerError, PeerError
from protocol.identity import Part, PeerId
from protocol.ledger import Entry, Ledger
from protocol.limits import CALL_SECONDS
from protocol.manifest import Manifest
from protocol.reconciliation import lacking, summary
from protocol.records import PeerRecord
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc

ANSWER_SECONDS = 3.0
"""Comparing is also a peer's heartbeat: who does not answer in so long is gone."""

ENTRIES_ASKED = 64
"""At most so many in one message: 1 KiB each."""


@dataclass(slots=True)
class Reconciler:
    """What this peer has accepted, kept equal to what the others have."""

    manifest: Manifest
    discovery: Discovery
    contacts: Contacts
    acceptance: Acceptance
    distrust: Distrust
    claims: dict[Part, list[Claim]] = field(default_factory=dict)
    """This peer's own closed rounds."""
    others_claims: dict[PeerId, statement.Claims] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    learning: set[asyncio.Task[None]] = field(default_factory=set)
    """Those of them that ask for, or fetch, what others hold."""
    untold: dict[Part, list[bytes]] = field(default_factory=dict)
    """Keys of what has been accepted since others were told last."""
    telling: asyncio.TimerHandle | None = None

    def statement(self) -> bytes:
        """What this peer says of itself: its record and its closed rounds, signed."""
        return statement.make(self.acceptance.signer, self.discovery.record, self.claims)

    async def publish(self, part: Part, round: int, blob: bytes) -> None:
        """Keep and announce this peer's own contribution."""
        entry = await self.acceptance.own(part, round, blob)
        if entry is not None:
            for peer in first_hearers(self.discovery.record, self.followers(part), random):
                self.start(self._tell(peer, [entry]))

    def hear(self, said: bytes, speaker: PeerId) -> PeerRecord:
        """Check the statement of the peer at the other end, and remember it.

        Raises:
            FormatError: it is none, or another's.
        """
        heard = statement.read(said, self.acceptance.signer.authority)
        if heard.record.peer_id != speaker:
            raise FormatError(f"peer {speaker[-8:]} speaks for {heard.record.peer_id[-8:]}")
        self.others_claims[heard.record.peer_id] = heard.claims
        self.discovery.meet(heard.record, in_person=True)
        clock = self.discovery.common_round(self.manifest.outer.liars) + 1
        for ledger in self.acceptance.ledgers.values():
            ledger.clock = max(ledger.clock, clock)  # before anything is accepted: this peer may have slept
        return heard.record

    async def receive(self, messages: Iterable[pb.Entry], sender: PeerRecord) -> None:
        """Take what another peer passed on, and tell on what is new. It goes on if nobody waits for it any longer."""
        if taking := self._begin(messages, sender):
            await asyncio.wait(taking)

    def _begin(self, messages: Iterable[pb.Entry], sender: PeerRecord) -> list[asyncio.Task[None]]:
        return [self.start_learning(self._take(message, sender)) for message in messages]

    async def _take(self, message: pb.Entry, sender: PeerRecord) -> None:
        try:
            self._spread(await self.acceptance.take(message.proof, list(message.receipts), sender))
        except PeerError as error:
            self.distrust.note(sender.peer_id, error)

    async def learn(self, held: Iterable[pb.PartKeys], peer: PeerRecord) -> None:
        """A peer says what it holds: take from it, or from whoever else says so, what is lacking here.

        Raises:
            HetpeerError: it does not answer when asked.
        """
        ledgers = self.acceptance.ledgers
        known = [(ledgers[Part(each.part)], each.keys) for each in held if each.part in ledgers]
        asking = (self._ask(peer, ledger, [key.to_bytes(8, "big") for key in keys]) for ledger, keys in known)
        await asyncio.gather(*asking)

    def revoke(self, revocations: Iterable[bytes], sender: PeerId) -> None:
        """Heed the operator's revocations, whoever passes them on."""
        for signed in revocations:
            try:
                self.acceptance.revoke(signed)
            except FormatError as error:
                self.distrust.note(sender, error)

    # Talking

    async def keep_comparing(self) -> None:
        """Compare with others again and again, for as long as this peer lives."""
        busy: dict[PeerId, asyncio.Task[bool]] = {}
        try:
            while True:
                for peer in self._contacts_now():
                    if peer.peer_id not in busy or busy[peer.peer_id].done():
                        busy[peer.peer_id] = asyncio.create_task(self.compare(peer))
                pause = compare_seconds(len(self.discovery.others()))
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
        finally:
            if self.telling is not None:
                self.telling.cancel()
            for task in (*busy.values(), *self.tasks):
                task.cancel()

    def _contacts_now(self) -> list[PeerRecord]:
        """In a large swarm, some of those who follow one of this peer's parts, each time another."""
        others = self.discovery.others()
        chosen = partners(others, random)
        if len(chosen) < len(others):
            chosen = partners(self.followers(random.choice([*self.acceptance.ledgers])), random)
        return [*chosen, *self._returning()]

    def followers(self, part: Part) -> list[PeerRecord]:
        """Others that hold a part."""
        return [peer for peer in self.discovery.others() if follows(peer, part, self.manifest)]

    def _returning(self) -> list[PeerRecord]:
        """One of those that did not answer: it may be back."""
        discovery = self.discovery
        gone = [discovery.records[peer] for peer in discovery.lost if not discovery.objection(peer)]
        return random.sample(gone, min(1, len(gone)))

    async def compare(self, peer: PeerRecord, whole: bool = False) -> bool:
        """Compare with one peer, and take from it what is lacking here. A peer that does not answer is lost.

        `whole`: it is to name all that it holds, also what is here: as its word for it. Only then returns True,
        and only if it named all that is here.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self.contacts.to(peer) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                question, metadata = self._comparison(whole), handshake(self.manifest)
                with timed(channel, peer.peer_id, self.discovery.trips):
                    told = await stub.Compare(question, metadata=metadata, timeout=ANSWER_SECONDS)
            said = self.hear(told.statement, peer.peer_id)
            await self._learn(said, told)
            if not whole:
                return False
            followed = [part for part in self.acceptance.ledgers if follows(said, part, self.manifest)]
            for part in followed:
                self.acceptance.note_spoken(part, said.peer_id)
            return self._held(followed) <= keys_of(told.parts)
        except PeerError as error:
            self.distrust.note(peer.peer_id, error)
        except (HetpeerError, TimeoutError):
            self.discovery.lose(peer.peer_id)
        return False

    def _held(self, parts: Iterable[Part]) -> set[tuple[Part, bytes]]:
        return {(part, entry.key) for part in parts for entry in self.acceptance.ledgers[part].all_entries()}

    async def _learn(self, said: PeerRecord, told: pb.Differences) -> None:
        self.revoke(told.revocations, said.peer_id)
        await self.learn(told.parts, said)

    async def heed(self, held: Iterable[pb.PartKeys], peer: PeerRecord) -> None:
        """Learn what a peer told unasked. If it does not answer a question, comparing will find out."""
        with suppress(HetpeerError):
            await self.learn(held, peer)

    async def _ask(self, peer: PeerRecord, ledger: Ledger, keys: list[bytes]) -> None:
        for key in keys:
            self.acceptance.vouch(ledger.part, key, peer.peer_id)
        unknown = self.acceptance.fetcher.hear(lacking(ledger, keys), peer)
        taking: list[asyncio.Task[None]] = []
        try:
            for at in range(0, len(unknown), ENTRIES_ASKED):
                answer = await self._entries(peer, ledger.part, unknown[at : at + ENTRIES_ASKED])
                taking += self._begin(answer.entries, peer)
            if taking:
                await asyncio.wait(taking)
        finally:
            self.acceptance.fetcher.wanted.forget(unknown)

    async def _entries(self, peer: PeerRecord, part: Part, keys: list[bytes]) -> pb.Entries:
        question = pb.Question(part=part, keys=[int.from_bytes(key, "big") for key in keys])
        async with self.contacts.to(peer) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            metadata = handshake(self.manifest)
            entries: pb.Entries = await stub.Ask(question, metadata=metadata, timeout=ANSWER_SECONDS)
        return entries

    def _comparison(self, whole: bool) -> pb.Comparison:
        mine = [summary(ledger) for ledger in self.acceptance.ledgers.values()]
        parts = [summary_to_wire(replace(each, checks={}) if whole else each) for each in mine]
        return pb.Comparison(statement=self.statement(), parts=parts)

    def keep_promises(self) -> None:
        """After a start: say what this peer holds. It may have signed receipts, and died before it had passed on what
        they are for; liars that heard them may use them later."""
        self._spread(entry for ledger in self.acceptance.ledgers.values() for entry in ledger.all_entries())

    def _spread(self, news: Iterable[Entry]) -> None:
        """Tell others what is here now: at once, but what comes shortly after goes with the next message."""
        for entry in news:
            self.untold.setdefault(entry.name.part, []).append(entry.key)
        if self.telling is None:
            self._tell_on()

    def _tell_on(self) -> None:
        told, self.untold = self.untold, {}
        self.telling = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell_on) if told else None
        heard: dict[PeerId, dict[Part, list[bytes]]] = {}
        for part, keys in told.items():
            for peer in some(self.followers(part), HEARERS, random):
                heard.setdefault(peer.peer_id, {})[part] = keys
        for peer_id, held in heard.items():
            self.start(self._tell(self.discovery.records[peer_id], held=held))

    async def _tell(
        self, peer: PeerRecord, news: Iterable[Entry] = (), held: Mapping[Part, list[bytes]] = MappingProxyType({})
    ) -> None:
        message = pb.News(
            statement=self.statement(),
            entries=[entry_to_wire(entry) for entry in news],
            revocations=list(self.acceptance.revocations.values()),
            held=[keys_to_wire(part, keys) for part, keys in held.items()],
        )
        try:
            async with self.contacts.to(peer) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                await stub.Tell(message, metadata=handshake(self.manifest), timeout=CALL_SECONDS)
        except HetpeerError:
            return  # comparing will find out

    async def hand_out(self) -> None:
        """Tell others this peer's own contributions and its record, and wait until they have them: it leaves."""
        me = self.discovery.record.peer_id
        entries = (entry for ledger in self.acceptance.ledgers.values() for entry in ledger.all_entries())
        own = [entry for entry in entries if entry.name.author == me]
        await asyncio.gather(*(self._tell(peer, own) for peer in some(self.discovery.others(), HEARERS, random)))

    def start_learning(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Ask for, or fetch, what others hold, beside everything else."""
        task = self.start(work)
        self.learning.add(task)
        task.add_done_callback(self.learning.discard)
        return task

    async def learnt(self) -> None:
        """Until all that others told is here, or cannot be had: `compare` does not wait for what is on its way."""
        while self.learning:
            await asyncio.wait(self.learning)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside everything else."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


async def tell_revocation(peer: Reachable, signed: bytes, contacts: Contacts) -> bool:
    """Bring the operator's revocation to one peer, which tells it on; whether it heard."""
    try:
        async with contacts.to(peer) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            message = pb.Revocations(revocations=[signed])
            await stub.Revoke(message, metadata=handshake(contacts.manifest), timeout=ANSWER_SECONDS)
    except HetpeerError:
        return False
    return True
