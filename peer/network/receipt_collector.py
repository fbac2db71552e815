"""The collector of receipts: what others have signed of this peer's work is asked for beside everything else, checked,
and kept.

Nobody is waited for: who does not sign, does not answer, or has seen less than this peer is asked again a few times,
and that is all.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from peer.network.gossip import Reconciler
from peer.network.gossip_policy import some
from peer.network.receipt_signer import ROUNDS_ASKED, ROUNDS_KEPT, SeenWork
from peer.store.receipt_file import KeptReceipts
from peer.telemetry.decisions import Recalled
from peer.telemetry.events import Credited, Listener, Progress
from protocol.errors import FormatError, HetpeerError, ResourceError
from protocol.identity import EMBEDDING, Part, PeerId, contributes_to, stage_part
from protocol.net.channels import handshake
from protocol.schemas import credit_pb2 as pb
from protocol.schemas import credit_pb2_grpc
from protocol.trust.receipts import CountedReceipt, Receipt, Work, by_round, read_receipt, standing

WITNESSES = 2
"""The number of peers that are asked to sign that a contribution counted. With two neighbours, a round brings four
receipts."""

TRIES = 6
"""The number of times that one peer is asked for the same, and that anybody is for a contribution."""

ASK_SECONDS = 3.0
"""The time for the answer to a small question, for which nobody waits."""

PAUSE_SECONDS = 60.0
"""The interval at which neighbours are asked in a long round: if one dies, this much of its word is lost at most."""

AGAIN_SECONDS = 0.5
"""The time until a neighbour is asked again, which may be in the midst of the step that this peer has ended."""


PeerRound = tuple[PeerId, int]
"""A neighbour and a round."""


@dataclass(slots=True)
class Own:
    """A contribution of this peer's to a round that it has closed. `tries` is how often others were asked for its
    receipt."""

    part: Part
    sha256: str
    steps: int
    tries: int = 0


@dataclass(slots=True)
class Question:
    """A question to a peer: the rounds of which work, and contributions, are to be signed."""

    worked: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Earned:
    """The receipts of this peer's last rounds, and how it comes by more."""

    seen: SeenWork
    reconciler: Reconciler
    kept: KeptReceipts
    emit: Listener
    own: dict[int, Own] = field(default_factory=dict)
    rounds: dict[int, dict[Receipt, None]] = field(default_factory=dict)
    """The receipts by round, each a set in order."""
    tries: Counter[tuple[PeerId, int, int]] = field(default_factory=Counter)
    """By neighbour, round, and microbatches that were asked for."""
    recalled: Counter[PeerRound] = field(default_factory=Counter)
    """The microbatches that were signed for before this process began."""
    due: asyncio.Event = field(default_factory=asyncio.Event)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ask_soon(self) -> None:
        """Ask soon: a round is over, or a group."""
        self.due.set()

    def close(self, part: Part, round: int, counted: Mapping[PeerId, tuple[str, int]]) -> None:
        """Note that a round of a part is closed for ever, with these authors' contributions (SHA-256, inner steps) in
        it."""
        self.seen.close(part, round, counted)
        mine = counted.get(self.seen.me)
        if mine is not None and part == self._standing_for():
            self.own[round] = Own(part, *mine)
            for old in sorted(self.own)[:-ROUNDS_KEPT]:
                del self.own[old]

    def _standing_for(self) -> Part:
        """The one part that receipts are asked for. A datacenter contributes to all, and everybody follows this one."""
        card = self.seen.card
        return stage_part(card.stage) if card.role == "volunteer" else EMBEDDING

    # Asking

    async def keep_asking(self) -> None:
        """Ask when a round is over, and now and then in a long one, for as long as this peer lives."""
        if recalled := await asyncio.to_thread(self._recall):
            self.emit(recalled)
        again: list[PeerRound] = []
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS if again else PAUSE_SECONDS):
                    await self.due.wait()
            over = self.due.is_set()
            self.due.clear()
            again = await self.ask(None if over or not again else again, witnesses=over)

    def _recall(self) -> Recalled | None:
        """Take up what this peer's folder has of the last rounds. Returns a summary of all that it has; None:
        nothing."""
        own: list[Receipt] = []
        with suppress(ResourceError):  # a disk that errs costs receipts, and no more
            own += (receipt for receipt in self.kept.read() if receipt.receiver == self.seen.me)
        for receipt in own:
            self._remember(receipt)
        for round, known in self.rounds.items():
            for neighbour in {each.signer for each in known}:
                self.recalled[neighbour, round] = _forward(known, neighbour)
        credits = by_round(own)
        recent = [(each.round, each.tokens) for each in credits if each.round in self.rounds]
        older = sum(each.tokens for each in credits if each.round not in self.rounds)
        return Recalled(len(credits), older, recent) if credits else None

    async def ask(self, only: Collection[PeerRound] | None = None, witnesses: bool = True) -> list[PeerRound]:
        """Ask neighbours for what is lacking, or for `only` these; and `witnesses`, which may have closed a round
        since, for what counts. Returns the neighbours and rounds for which less was signed than was asked for: these
        may be asked again."""
        async with self.one_at_a_time:
            questions: dict[PeerId, Question] = {}
            asked = {pair: self._tallied(*pair) for pair in self._lacking() if only is None or pair in only}
            for (neighbour, round), count in asked.items():
                self.tries[neighbour, round, count] += 1
                questions.setdefault(neighbour, Question()).worked.append(round)
            for witness, round in self._witnesses() if witnesses else ():
                questions.setdefault(witness, Question()).counted.append(round)
            answers = await asyncio.gather(*(self._ask(peer, each) for peer, each in questions.items()))
            await self._keep([each for answer in answers for each in answer])
            return [pair for pair in self._lacking() if self._signed(*pair) < asked.get(pair, 0)]

    def _tallied(self, neighbour: PeerId, round: int) -> int:
        return self.seen.work[round][neighbour].microbatches

    def _lacking(self) -> list[PeerRound]:
        """Neighbours that have not signed yet what this peer has seen of them: both see the same."""
        seen = [(neighbour, round) for round, tallies in self.seen.work.items() for neighbour in tallies]
        self.tries = Counter({key: count for key, count in self.tries.items() if key[1] in self.seen.work})
        return [
            pair
            for pair in seen
            if self._signed(*pair) < (count := self._tallied(*pair)) and self.tries[*pair, count] < TRIES
        ]

    def _signed(self, neighbour: PeerId, round: int) -> int:
        """The microbatches that a neighbour has signed for since this process began, as its own tally is."""
        return _forward(self.rounds.get(round, ()), neighbour) - self.recalled[neighbour, round]

    def _witnesses(self) -> list[PeerRound]:
        """Choose the peers to ask whether a contribution counted, with its round."""
        found = []
        for round, own in sorted(self.own.items()):
            known = {each.signer for each in self.rounds.get(round, {}) if isinstance(each, CountedReceipt)}
            if len(known) >= WITNESSES or own.tries >= TRIES:
                continue
            others = [
                peer
                for peer in self.reconciler.followers(own.part)
                if contributes_to(peer.role, peer.stage, own.part) and not peer.on_trial and peer.peer_id not in known
            ]
            own.tries += 1
            found += [(peer.peer_id, round) for peer in some(others, WITNESSES - len(known), random)]
        return found

    async def _ask(self, peer: PeerId, question: Question) -> list[tuple[bytes, Receipt]]:
        """Ask a peer to sign. Returns the receipts that it signed; none if it did not answer or broke the protocol."""
        record = self.reconciler.discovery.records.get(peer)
        if record is None:
            return []
        worked, counted = question.worked[:ROUNDS_ASKED], question.counted[:ROUNDS_ASKED]
        message = pb.CreditQuestion(worked=worked, counted=counted, part=self._standing_for())
        contacts = self.reconciler.contacts
        try:
            async with asyncio.timeout(ASK_SECONDS), contacts.to(record) as channel:
                stub = credit_pb2_grpc.CreditStub(channel)
                answer = await stub.Sign(message, metadata=handshake(contacts.manifest), timeout=ASK_SECONDS)
        except (HetpeerError, TimeoutError):
            return []
        found: list[tuple[bytes, Receipt]] = []
        try:
            if len(answer.receipts) > len(worked) + len(counted):
                raise FormatError(
                    f"peer {peer[-8:]} signed {len(answer.receipts)} receipts, more than it was asked for"
                )
            for data in answer.receipts:
                receipt = read_receipt(data, self.seen.signer.authority)
                asked = worked if isinstance(receipt, Work) else counted
                if receipt.signer != peer or receipt.receiver != self.seen.me or receipt.round not in asked:
                    raise FormatError(f"peer {peer[-8:]} gave a receipt that it was not asked for")
                found.append((data, receipt))
        except FormatError as error:
            self.reconciler.bans.note(peer, error)
            return []
        return found

    # Keeping

    async def _keep(self, answers: list[tuple[bytes, Receipt]]) -> None:
        news: dict[int, list[bytes]] = {}
        for data, receipt in answers:
            if self._remember(receipt):
                news.setdefault(receipt.round, []).append(data)
        for round, signed in sorted(news.items()):
            try:
                await asyncio.to_thread(self.kept.append, round, signed)
            except ResourceError as error:
                self.emit(Progress(str(error)))
            for credit in by_round(self.rounds.get(round, ())):
                self.emit(Credited(round, credit.tokens, list(credit.signers), credit.counts))

    def _remember(self, receipt: Receipt) -> bool:
        """Remember a receipt. Returns whether it says something new."""
        known = self.rounds.setdefault(receipt.round, {})
        if receipt in known or receipt not in standing([*known, receipt]):
            return False
        self.rounds[receipt.round] = dict.fromkeys(standing([*known, receipt]))
        for old in sorted(self.rounds)[:-ROUNDS_KEPT]:
            del self.rounds[old]
        return True


def _forward(receipts: Iterable[Receipt], neighbour: PeerId) -> int:
    """The number of microbatches for which a neighbour signed."""
    return sum(each.forward for each in receipts if isinstance(each, Work) and each.signer == neighbour)
