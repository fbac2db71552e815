"""The exchange of receipts: this peer signs what it has seen of others' work, and asks others to sign what they have
seen of its own. What comes is checked and kept.

Nobody is waited for: a peer that does not sign, does not answer, or has seen less than this one is asked again a few
times, and that is all.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from peer.network.gossip import Reconciler
from peer.network.group import Attempt
from peer.store.receipt_file import KeptReceipts
from protocol.clock import unix_time
from protocol.errors import FormatError, HetpeerError, ResourceError
from protocol.events.activity import Credited, Progress
from protocol.events.decisions import Recalled
from protocol.events.event import Listener
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.net.channels import caller, handshake, refuse, require_manifest
from protocol.net.guard import charge
from protocol.net.tasks import wait_at_most
from protocol.schemas import credit_pb2 as pb
from protocol.schemas import credit_pb2_grpc
from protocol.trust.membership_card import Card, Signer
from protocol.trust.receipts import Work, by_round, microbatch_tokens, read_receipt, sign_credit_receipt, standing

RECEIPT_ROUNDS_KEPT = 16
"""The rounds of which a peer knows what it has seen: one that was away for longer gets no receipt."""

ROUNDS_ASKED = 8
"""The rounds in one call: so many signatures take a millisecond."""

RECEIPT_ATTEMPTS = 6
"""The number of times that one peer is asked for the same."""

RECEIPT_TIMEOUT_SECONDS = 3.0
"""The time for the answer to a small question, for which nobody waits."""

RECEIPT_INTERVAL_SECONDS = 60.0
"""The interval at which neighbours are asked in a long round: if one dies, this much of its word is lost at most."""

RECEIPT_RETRY_SECONDS = 0.5
"""The time until a neighbour is asked again, which may be in the midst of the step that this peer has ended."""


# Signing


@dataclass(slots=True)
class Tally:
    """The tally of what went over the link to a neighbour in a round, at this peer's `stage`, in inner steps that were
    taken."""

    stage: int
    attempt: Attempt
    attempts: int = 1
    microbatches: int = 0


@dataclass(slots=True)
class SeenWork:
    """The work of others that this peer has seen, by round."""

    signer: Signer
    manifest: Manifest
    since: int = field(default_factory=lambda: int(unix_time() * 1000))
    """The time when this peer began to count, in ms since 1970."""
    work: dict[int, dict[PeerId, Tally]] = field(default_factory=dict)

    @property
    def me(self) -> PeerId:
        """The id of this peer."""
        return self.signer.identity.peer_id

    @property
    def card(self) -> Card:
        """This peer's card."""
        return self.signer.authority.admitted(self.me, self.signer.card)

    def exchange(self, round: int, neighbour: PeerId, stage: int, attempt: Attempt) -> None:
        """Count an inner step that was taken: all its microbatches went to a neighbour, of `stage`, and back."""
        tallies = self.work.setdefault(round, {})
        tally = tallies.setdefault(neighbour, Tally(stage, attempt))
        if attempt != tally.attempt:
            tally.attempt, tally.attempts = attempt, tally.attempts + 1
        tally.microbatches += self.manifest.inner.microbatches
        for old in sorted(self.work)[:-RECEIPT_ROUNDS_KEPT]:
            del self.work[old]

    def of_work(self, round: int, receiver: PeerId) -> Work | None:
        """The receipt of work that this peer signs for a neighbour; None if it was none."""
        tally = self.work.get(round, {}).get(receiver)
        if tally is None:
            return None
        count, card = tally.microbatches, self.card
        where = tally.attempt.replica, tally.stage, card.stage, self.since, tally.attempts
        return Work(self.me, receiver, round, *where, count, count, count * microbatch_tokens(self.manifest))


class CreditService(credit_pb2_grpc.CreditServicer):
    """The service that signs receipts."""

    def __init__(self, seen: SeenWork) -> None:
        self.seen = seen

    async def Sign(self, request: pb.CreditQuestion, context: Any) -> pb.CreditReceipts:
        await require_manifest(context, self.seen.manifest)
        if len(request.worked) > ROUNDS_ASKED:
            await refuse(context, f"receipts of {ROUNDS_ASKED} rounds at a time")
        await charge(context, len(request.worked), "signatures")
        who, exchange = caller(context).peer, self.seen
        if who == exchange.me:
            await refuse(context, "nobody signs for itself")
        receipts = [] if exchange.card.on_trial else [exchange.of_work(round, who) for round in request.worked]
        return pb.CreditReceipts(
            receipts=[sign_credit_receipt(exchange.signer, receipt) for receipt in receipts if receipt is not None]
        )


# Collecting

PeerRound = tuple[PeerId, int]
"""A neighbour and a round."""


@dataclass(slots=True)
class ReceiptCollector:
    """The receipts of this peer's last rounds, and how it comes by more."""

    seen: SeenWork
    reconciler: Reconciler
    kept: KeptReceipts
    emit: Listener
    rounds: dict[int, dict[Work, None]] = field(default_factory=dict)
    """The receipts by round, each a set in order."""
    tries: Counter[tuple[PeerId, int, int]] = field(default_factory=Counter)
    """The number of requests by neighbour, round, and microbatches."""
    recalled: Counter[PeerRound] = field(default_factory=Counter)
    """The microbatches that were signed for before this process began."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ask_soon(self) -> None:
        """Ask soon: a round is over, or a group."""
        self.wake.set()

    # Asking

    async def keep_asking(self) -> None:
        """Ask when a round is over, and now and then in a long one, for as long as this peer lives."""
        if recalled := await asyncio.to_thread(self._recall):
            self.emit(recalled)
        again: list[PeerRound] = []
        while True:
            await wait_at_most(RECEIPT_RETRY_SECONDS if again else RECEIPT_INTERVAL_SECONDS, self.wake.wait())
            over = self.wake.is_set()
            self.wake.clear()
            again = await self.ask(None if over or not again else again)

    def _recall(self) -> Recalled | None:
        """Take up what this peer's folder has of the last rounds. Returns a summary of all that it has; None:
        nothing."""
        own_receipts: list[Work] = []
        with suppress(ResourceError):  # a disk that errs costs receipts, and no more
            own_receipts += (receipt for receipt in self.kept.read() if receipt.receiver == self.seen.me)
        for receipt in own_receipts:
            self._remember(receipt)
        for round, credits_of_round in self.rounds.items():
            for neighbour in {credit.signer for credit in credits_of_round}:
                self.recalled[neighbour, round] = _forward(credits_of_round, neighbour)
        credits = by_round(own_receipts)
        recent = [(credit.round, credit.tokens) for credit in credits if credit.round in self.rounds]
        older = sum(credit.tokens for credit in credits if credit.round not in self.rounds)
        return Recalled(len(credits), older, recent) if credits else None

    async def ask(self, only: Collection[PeerRound] | None = None) -> list[PeerRound]:
        """Ask neighbours for what is lacking, or for `only` these. Returns the neighbours and rounds for which less was
        signed than was asked for: these may be asked again."""
        async with self.one_at_a_time:
            questions: dict[PeerId, list[int]] = {}
            pairs_asked = {pair: self._tallied(*pair) for pair in self._lacking() if only is None or pair in only}
            for (neighbour, round), count in pairs_asked.items():
                self.tries[neighbour, round, count] += 1
                questions.setdefault(neighbour, []).append(round)
            answers = await asyncio.gather(*(self._ask(peer, rounds) for peer, rounds in questions.items()))
            await self._keep([receipt for answer in answers for receipt in answer])
            return [pair for pair in self._lacking() if self._signed(*pair) < pairs_asked.get(pair, 0)]

    def _tallied(self, neighbour: PeerId, round: int) -> int:
        return self.seen.work[round][neighbour].microbatches

    def _lacking(self) -> list[PeerRound]:
        """The neighbours, each with a round, that have signed for fewer microbatches than this peer has counted, and
        have not been asked too often."""
        seen = [(neighbour, round) for round, tallies in self.seen.work.items() for neighbour in tallies]
        self.tries = Counter({key: count for key, count in self.tries.items() if key[1] in self.seen.work})
        return [
            pair
            for pair in seen
            if self._signed(*pair) < (count := self._tallied(*pair)) and self.tries[*pair, count] < RECEIPT_ATTEMPTS
        ]

    def _signed(self, neighbour: PeerId, round: int) -> int:
        """The microbatches that a neighbour has signed for since this process began, as its own tally is."""
        return _forward(self.rounds.get(round, ()), neighbour) - self.recalled[neighbour, round]

    async def _ask(self, peer: PeerId, rounds: list[int]) -> list[tuple[bytes, Work]]:
        """Ask a peer to sign what it has seen in these rounds. Returns the receipts that it signed; none if it did not
        answer or broke the protocol."""
        record = self.reconciler.discovery.records.get(peer)
        if record is None:
            return []
        worked = rounds[:ROUNDS_ASKED]
        message = pb.CreditQuestion(worked=worked)
        contacts = self.reconciler.contacts
        try:
            async with asyncio.timeout(RECEIPT_TIMEOUT_SECONDS), contacts.to(record) as channel:
                stub = credit_pb2_grpc.CreditStub(channel)
                answer = await stub.Sign(
                    message, metadata=handshake(contacts.manifest), timeout=RECEIPT_TIMEOUT_SECONDS
                )
        except (HetpeerError, TimeoutError):
            return []
        receipts: list[tuple[bytes, Work]] = []
        try:
            if len(answer.receipts) > len(worked):
                raise FormatError(
                    f"peer {peer[-8:]} signed {len(answer.receipts)} receipts, more than it was asked for"
                )
            for data in answer.receipts:
                receipt = read_receipt(data, self.seen.signer.authority)
                if receipt.signer != peer or receipt.receiver != self.seen.me or receipt.round not in worked:
                    raise FormatError(f"peer {peer[-8:]} gave a receipt that it was not asked for")
                receipts.append((data, receipt))
        except FormatError as error:
            self.reconciler.bans.note(peer, error)
            return []
        return receipts

    # Keeping

    async def _keep(self, answers: list[tuple[bytes, Work]]) -> None:
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
                self.emit(Credited(round, credit.tokens, list(credit.neighbours)))

    def _remember(self, receipt: Work) -> bool:
        """Remember a receipt. Returns whether it says something new."""
        known = self.rounds.setdefault(receipt.round, {})
        if receipt in known or receipt not in standing([*known, receipt]):
            return False
        self.rounds[receipt.round] = dict.fromkeys(standing([*known, receipt]))
        for old in sorted(self.rounds)[:-RECEIPT_ROUNDS_KEPT]:
            del self.rounds[old]
        return True


def _forward(receipts: Iterable[Work], neighbour: PeerId) -> int:
    """The number of microbatches for which a neighbour signed."""
    return sum(receipt.forward for receipt in receipts if receipt.signer == neighbour)
