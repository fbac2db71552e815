"""Gossip between the peers of a part: contributions, receipts, revocations and statements, in bounded messages."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from peer.network.attested import Attested
from peer.network.bans import Bans
from peer.network.contacts import Contacts, timed
from peer.network.discovery import Discovery
from peer.network.gossip_bounds import require_differences
from peer.network.gossip_policy import (
    ALL_CONTACTS,
    HEARERS,
    NEWS_SECONDS,
    compare_seconds,
    favoured,
    first_hearers,
    partners,
    some,
)
from peer.network.intake import Intake
from peer.network.learning import Learner
from peer.network.run_progress import KnownProgress
from peer.network.witnesses import Witnesses
from protocol.errors import FormatError, HetpeerError, PeerError, RefusedError
from protocol.events.activity import Warned
from protocol.identity import Part, PeerId
from protocol.layout import follows
from protocol.limits import ENTRIES_NAMED, KEYS_NAMED, REVOCATIONS_NAMED, ROUNDS_NAMED
from protocol.manifest import Manifest
from protocol.net.channels import Reachable, handshake
from protocol.net.tasks import Children
from protocol.outer.history import Claim
from protocol.outer.ledger import Entry
from protocol.outer.set_difference import Summary, summary
from protocol.outer.window import Window
from protocol.patience import CALL_SECONDS, COMPARISON_TIMEOUT_SECONDS
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc
from protocol.trust.records import Claims, PeerRecord, make_statement, read_statement, require_rounds


@dataclass(slots=True)
class Reconciler:
    """The exchange of accepted entries (contributions and their receipts) with other peers, until all have the same.

    `publish` and `_spread` push news to a few peers; `compare` asks one peer, and finds whatever a push has lost.
    """

    manifest: Manifest
    discovery: Discovery
    contacts: Contacts
    intake: Intake
    bans: Bans
    attested: Attested
    on_copy: Callable[[PeerRecord], None] = lambda record: None
    """A function that is called with the record of a caller that has this peer's own key."""
    claims: dict[Part, list[Claim]] = field(default_factory=dict)
    """The claims of this peer about its own closed rounds."""
    said: tuple[tuple[bytes, PeerRecord, Claims], bytes] | None = None
    """The last statement of this peer: its card, record and claims, and the signed bytes of the three."""
    tasks: Children = field(default_factory=Children)
    learning: set[asyncio.Task[None]] = field(default_factory=set)
    """The tasks that ask for, or fetch, what others hold."""
    pending_news: dict[Part, list[bytes]] = field(default_factory=dict)
    """The keys of the entries accepted since the last news went out, by part."""
    news_timer: asyncio.TimerHandle | None = None
    """The timer of the next news; None: the next accepted entry is sent at once."""
    learner: Learner = field(init=False)
    witnesses: Witnesses = field(init=False)
    """The witnesses of where the others are in the run."""
    progress: KnownProgress = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing learnt or shown."""
        self.learner = Learner(
            self.manifest,
            self.contacts,
            self.intake,
            self.bans,
            self.attested.believes,
            self._spread,
            self.start_learning,
        )
        self.witnesses = Witnesses(self.discovery, self.intake)
        self.progress = KnownProgress(
            manifest=self.manifest, authority=self.intake.signer.authority, folder=self.attested.folder
        )
        self.discovery.report_reads_to(self.progress.see)
        self.intake.early_listeners.append(self.witnesses.follow)

    def claim(self, claims: dict[Part, list[Claim]]) -> None:
        """Say in every statement from now on what of this peer's rounds is closed."""
        self.claims = self.attested.close(claims)

    def statement(self) -> bytes:
        """This peer's statement: its record and its closed rounds, signed anew where either has changed."""
        says = self.intake.signer.card, self.discovery.record, {part: [*last] for part, last in self.claims.items()}
        if self.said is None or self.said[0] != says:
            self.said = says, make_statement(self.intake.signer, self.discovery.record, self.claims)
        return self.said[1]

    async def publish(self, part: Part, round: int, blob: bytes) -> None:
        """Keep and announce this peer's own contribution."""
        entry = await self.intake.own(part, round, blob)
        if entry is not None:
            for peer in first_hearers(self.discovery.record, *self._sorted(self.followers(part)), random):
                self.start(self._send_news(peer, [entry]))

    def receive_statement(self, said: bytes, speaker: PeerId) -> PeerRecord:
        """Check the statement of the peer at the other end, and remember it. Returns the record in it.

        Raises:
            FormatError: it is none, or another's.
            RefusedError: it is of this peer's own key: a copy of its folder was started.
        """
        statement = read_statement(said, self.intake.signer.authority)
        folded = (claim.folded for claims in statement.claims.values() for claim in claims)
        require_rounds(statement.record, self.manifest, folded)
        if statement.record.peer_id != speaker:
            raise FormatError(f"peer {speaker[-8:]} speaks for {statement.record.peer_id[-8:]}")
        if speaker == self.discovery.record.peer_id:
            self.on_copy(statement.record)
            raise RefusedError("this peer runs already, with a copy of this folder")
        ledgers = self.intake.ledgers
        self.attested.look(speaker, {part: claims for part, claims in statement.claims.items() if part in ledgers})
        self.discovery.meet(statement.record, in_person=True)
        self.witnesses.follow()  # before anything is accepted: this peer may have slept
        return statement.record

    @property
    def others_claims(self) -> dict[PeerId, Claims]:
        """The claims of others about their closed rounds, as they told them last."""
        return self.attested.others_claims

    def revocations(self) -> list[bytes]:
        """The operator's revocations to pass on: as many as one message may have."""
        return some([*self.intake.revocations.values()], REVOCATIONS_NAMED, random)

    def revoke(self, revocations: Iterable[bytes], sender: PeerId) -> None:
        """Heed the operator's revocations, whoever passes them on."""
        try:
            for signed in revocations:
                self.intake.revoke(signed)
        except FormatError as error:
            self.bans.note(sender, error)

    # Talking

    async def keep_comparing(self) -> None:
        """Compare with others again and again, for as long as this peer lives."""
        busy: dict[PeerId, asyncio.Task[bool]] = {}
        async with Children() as comparing:
            while True:
                for peer in self._partners_now():
                    if peer.peer_id not in busy or busy[peer.peer_id].done():
                        busy[peer.peer_id] = comparing.spawn(self.compare(peer))
                pause = compare_seconds(len(self.discovery.others()))
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))

    async def stop(self) -> None:
        """End what is sent, asked for and fetched, and wait until it has ended. Nothing is begun from now on."""
        if self.news_timer is not None:
            self.news_timer.cancel()
        await self.tasks.end()

    def _partners_now(self) -> list[PeerRecord]:
        """The peers to compare with now: in a large swarm some followers of one of this peer's parts, another part each
        time; and one of the peers that did not answer, which may be back."""
        discovery = self.discovery
        others = list(discovery.others())
        if len(others) > ALL_CONTACTS:
            others = self.followers(random.choice([*self.intake.ledgers]))
        gone = [discovery.records[peer] for peer in discovery.lost if not discovery.objection(peer)]
        return [*partners(*self._sorted(others), random), *some(gone, 1, random)]

    def followers(self, part: Part) -> list[PeerRecord]:
        """The other peers that follow a part."""
        return [peer for peer in self.discovery.others() if follows(peer.role, peer.stage, part, self.manifest)]

    def _sorted(self, peers: Iterable[PeerRecord]) -> tuple[list[PeerRecord], list[PeerRecord]]:
        """Sort peers into those whose contributions count and the others."""
        known = self.witnesses.contributing()
        contributing, others = list[PeerRecord](), list[PeerRecord]()
        for peer in peers:
            (contributing if peer.peer_id in known else others).append(peer)
        return contributing, others

    async def compare(self, peer: PeerRecord, whole: bool = False) -> bool:
        """Compare with one peer, and begin to fetch the entries that it has and this peer has not. A peer that does not
        answer is marked as lost.

        With `whole`, the peer names the keys of all entries that it holds, which counts as its word for each of them.
        Returns whether it named every entry held here; always False without `whole`.
        """
        try:
            async with asyncio.timeout(COMPARISON_TIMEOUT_SECONDS), self.contacts.to(peer) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                mine = [summary(ledger) for ledger in self.intake.ledgers.values()]
                mine = [replace(part_summary, checks={}) for part_summary in mine] if whole else mine
                parts = [summary_to_wire(part_summary) for part_summary in mine]
                newest = {
                    "attested": self.attested.round,
                    "rewound": self.progress.rewound,
                    "proven": self.progress.run,
                }
                question = pb.Comparison(statement=self.statement(), parts=parts, **newest)
                with timed(channel, peer.peer_id, self.discovery.trips):
                    answer = await stub.Compare(
                        question, metadata=handshake(self.manifest), timeout=COMPARISON_TIMEOUT_SECONDS
                    )
            require_differences(answer, self.manifest)
            record = self.receive_statement(answer.statement, peer.peer_id)
            self.revoke(answer.revocations, record.peer_id)
            self.attested.receive(answer.attestation, record.peer_id)
            self.progress.learn_from_peer(record, answer.holders, self.discovery.record.peer_id)
            if self.progress.learn_rewind(answer.rewind):
                own_round = self.discovery.record.round
                if words := self.progress.rewind_words(own_round, record.round):
                    self.bans.emit(Warned(f"WARNING: {words}"))
            learning = self.start_learning(self.learner.learn(answer.parts, record))
            await asyncio.wait((learning,), timeout=COMPARISON_TIMEOUT_SECONDS)  # it goes on if it takes longer
            if not whole:
                return False
            followed = [part for part in self.intake.ledgers if follows(record.role, record.stage, part, self.manifest)]
            for part in followed:
                if self.attested.believes(record.peer_id, part):
                    self.intake.note_spoken(part, record.peer_id, record.round)
            held_here = {(part, entry.key) for part in followed for entry in self.intake.ledgers[part].all_entries()}
            return held_here <= keys_of(answer.parts)
        except PeerError as error:
            self.bans.note(peer.peer_id, error)
        except (HetpeerError, TimeoutError):
            self.discovery.lose(peer.peer_id)
        return False

    def keep_promises(self) -> None:
        """Send news of all entries held here, after a start. A signed receipt promises that its entry is passed on, and
        this peer may have died before it did so."""
        self._spread(entry for ledger in self.intake.ledgers.values() for entry in ledger.all_entries())

    def _spread(self, news: Iterable[Entry]) -> None:
        """Send a few followers the keys of newly accepted entries: at once if the last news is `NEWS_SECONDS`
        old, else with the next ones."""
        for entry in news:
            self.pending_news.setdefault(entry.name.part, []).append(entry.key)
        if self.news_timer is None:
            self._send_pending_news()

    def _send_pending_news(self) -> None:
        """Send `pending_news` to a few followers of each part; look again after `NEWS_SECONDS` if there were any."""
        news, self.pending_news = self.pending_news, {}
        self.news_timer = asyncio.get_running_loop().call_later(NEWS_SECONDS, self._send_pending_news) if news else None
        keys_by_peer: dict[PeerId, dict[Part, list[bytes]]] = {}
        for part, keys in news.items():
            for peer in favoured(*self._sorted(self.followers(part)), HEARERS, random):
                keys_by_peer.setdefault(peer.peer_id, {})[part] = keys
        for peer_id, held in keys_by_peer.items():
            self.start(self._send_news(self.discovery.records[peer_id], held=held))

    async def _send_news(
        self, peer: PeerRecord, news: Iterable[Entry] = (), held: Mapping[Part, list[bytes]] = MappingProxyType({})
    ) -> None:
        message = pb.News(
            statement=self.statement(),
            entries=[entry_to_wire(entry, Window.of(self.manifest)) for entry in news],
            revocations=self.revocations(),
            held=[keys_to_wire(part, keys) for part, keys in some_named(held).items()],
        )
        try:
            async with self.contacts.to(peer) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                await stub.Tell(message, metadata=handshake(self.manifest), timeout=CALL_SECONDS)
        except HetpeerError:
            return  # comparing will find out

    async def hand_out(self) -> None:
        """Send this peer's own contributions and its record to a few peers, and wait for them, before this peer
        leaves."""
        me = self.discovery.record.peer_id
        entries = (entry for ledger in self.intake.ledgers.values() for entry in ledger.all_entries())
        own = [entry for entry in entries if entry.name.author == me]
        messages = [own[at : at + ENTRIES_NAMED] for at in range(0, len(own), ENTRIES_NAMED)] or [[]]
        hearers = favoured(*self._sorted(self.discovery.others()), HEARERS, random)
        await asyncio.gather(*(self._send_news(peer, entries_sent) for peer in hearers for entries_sent in messages))

    def start_learning(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start `work`, which asks for or fetches what others hold, beside everything else."""
        task = self.start(work)
        self.learning.add(task)
        task.add_done_callback(self.learning.discard)
        return task

    async def learnt(self) -> None:
        """Wait until every entry that others have named is here or cannot be had; `compare` may return before."""
        while self.learning:
            await asyncio.wait(self.learning)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start `work` beside everything else."""
        return self.tasks.spawn(work)


async def send_revocation(peer: Reachable, signed: bytes, contacts: Contacts) -> bool:
    """Bring the operator's revocation to one peer, which tells it on. Returns whether the peer heard it."""
    try:
        async with contacts.to(peer) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            message = pb.Revocations(revocations=[signed])
            await stub.Revoke(message, metadata=handshake(contacts.manifest), timeout=COMPARISON_TIMEOUT_SECONDS)
    except HetpeerError:
        return False
    return True


# Messages


def summary_to_wire(mine: Summary) -> pb.PartSummary:
    """Encode a summary."""
    newest = [*mine.checks.items()][-ROUNDS_NAMED:]
    rounds = [pb.RoundCheck(round=round, check=int.from_bytes(check, "big")) for round, check in newest]
    return pb.PartSummary(part=mine.part, clock=mine.clock, folded=mine.folded, rounds=rounds)


def some_named(keys: Mapping[Part, Sequence[bytes]]) -> dict[Part, list[bytes]]:
    """Select the keys that go into one message: all if they fit, else up to an equal number of each part, at random."""
    share = KEYS_NAMED if sum(map(len, keys.values())) <= KEYS_NAMED else KEYS_NAMED // len(keys)
    return {part: some(part_keys, share, random) for part, part_keys in keys.items()}


def keys_to_wire(part: Part, keys: list[bytes]) -> pb.PartKeys:
    """Encode the keys of a part's entries."""
    return pb.PartKeys(part=part, keys=[int.from_bytes(key, "big") for key in keys])


def entry_to_wire(entry: Entry, window: Window) -> pb.Entry:
    """Encode an entry, with as many receipts as are told."""
    return pb.Entry(proof=entry.proof, receipts=[*entry.receipts.values()][: window.most_told])


def summary_of(theirs: pb.PartSummary) -> Summary:
    """Decode a summary that another peer sent."""
    checks: Mapping[int, bytes] = {
        round_check.round: round_check.check.to_bytes(8, "big") for round_check in theirs.rounds
    }
    return Summary(Part(theirs.part), theirs.clock, theirs.folded, checks)


def keys_of(held: Iterable[pb.PartKeys]) -> set[tuple[Part, bytes]]:
    """Decode all keys that another peer says it holds."""
    return {(Part(part_keys.part), key.to_bytes(8, "big")) for part_keys in held for key in part_keys.keys}
