"""The answering side of gossip: comparisons, questions and news arrive here."""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import grpc

from peer.network.gossip import Reconciler, entry_to_wire, keys_to_wire, some_named, summary_of
from peer.network.gossip_bounds import require_comparison, require_news, require_revocations
from protocol.errors import FormatError, RefusedError
from protocol.identity import Part
from protocol.limits import ENTRIES_NAMED, ENTRIES_OF_A_CALL, KEYS_OF_A_CALL
from protocol.manifest import Manifest
from protocol.net.channels import caller, refuse, require_manifest
from protocol.net.guard import charge
from protocol.outer.set_difference import different, entries
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc
from protocol.trust.proofs import CONTRIBUTION, RECEIPT
from protocol.trust.records import STATEMENT, PeerRecord

Message = TypeVar("Message")


class ReconciliationService(reconciliation_pb2_grpc.ReconciliationServicer):
    """The answering side of gossip. The bounds of a message are checked before anything in it, and what it costs beside
    the call is taken from its caller's allowance."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.reconciler = reconciler

    async def Compare(self, request: pb.Comparison, context: Any) -> pb.Differences:
        reconciler = self.reconciler
        await self._require(require_comparison, request, context)
        await self._require_ready(context)
        await self._receive_statement(request.statement, context)
        ledgers, attested, progress = reconciler.intake.ledgers, reconciler.attested, reconciler.progress
        summaries = [part_summary for part_summary in map(summary_of, request.parts) if part_summary.part in ledgers]
        keys = some_named(
            {part_summary.part: different(ledgers[part_summary.part], part_summary) for part_summary in summaries}
        )
        count = sum(map(len, keys.values()))
        await charge(context, count / KEYS_OF_A_CALL, f"an answer with {count} keys")
        return pb.Differences(
            statement=reconciler.statement(),
            parts=[keys_to_wire(part, named) for part, named in keys.items() if named],
            revocations=reconciler.revocations(),
            attestation=attested.signed if attested.round > request.attested else b"",
            rewind=progress.signed_rewind if progress.rewound > request.rewound else b"",
            holders=progress.proofs_beyond(request.proven),
        )

    async def Ask(self, request: pb.Question, context: Any) -> pb.Entries:
        await require_manifest(context, self.reconciler.manifest)
        await self._require_ready(context)
        ledger = self.reconciler.intake.ledgers.get(Part(request.part))
        if ledger is None or len(request.keys) > ENTRIES_NAMED:
            await refuse(context, "this peer does not follow that part, or was asked for too much at once")
        await charge(context, len(request.keys) / ENTRIES_OF_A_CALL, f"{len(request.keys)} entries")
        found = entries(ledger, [key.to_bytes(8, "big") for key in request.keys])
        return pb.Entries(entries=[entry_to_wire(entry, ledger.window) for entry in found])

    async def Tell(self, request: pb.News, context: Any) -> pb.Heard:
        reconciler = self.reconciler
        await self._require(require_news, request, context)
        await self._require_ready(context)
        revocations_known = {*reconciler.intake.revocations.values()}
        cost = sum(1 + len(entry.receipts) for entry in request.entries)
        cost += sum(entry not in revocations_known for entry in request.revocations)
        keys = sum(len(entry.keys) for entry in request.held)
        await charge(context, cost + keys / KEYS_OF_A_CALL, f"{cost} signatures and {keys} keys")
        await self._charge_cards(((entry.proof, CONTRIBUTION) for entry in request.entries), context)
        await self._charge_cards(
            ((receipt, RECEIPT) for entry in request.entries for receipt in entry.receipts), context
        )
        sender = await self._receive_statement(request.statement, context)
        reconciler.revoke(request.revocations, sender.peer_id)
        if request.held:
            reconciler.start_learning(reconciler.learner.learn(request.held, sender))
        if not await reconciler.learner.receive(request.entries, sender):
            await refuse(context, "what you told before is still on its way here: wait a moment")
        return pb.Heard()

    async def Revoke(self, request: pb.Revocations, context: Any) -> pb.Heard:
        await self._require(require_revocations, request, context)
        await charge(context, len(request.revocations), f"{len(request.revocations)} revocations")
        try:
            for signed in request.revocations:
                self.reconciler.intake.revoke(signed)
        except FormatError as error:
            await self._reproach(error, context)
        return pb.Heard()

    async def _require_ready(self, context: Any) -> None:
        """Refuse a call while this peer still reads its folder: an empty answer would be its word that it holds
        nothing."""
        if not self.reconciler.intake.ready:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this peer is not ready yet")

    async def _require(self, bounds: Callable[[Message, Manifest], None], request: Message, context: Any) -> None:
        """Refuse a message that names more than there can be."""
        await require_manifest(context, self.reconciler.manifest)
        try:
            bounds(request, self.reconciler.manifest)
        except FormatError as error:
            await self._reproach(error, context)

    async def _charge_cards(self, messages: Iterable[tuple[bytes, str]], context: Any) -> None:
        """Take the cost of signed messages, each with its kind, beyond one signature: that of cards not yet known."""
        authority = self.reconciler.intake.signer.authority
        cards = sum(max(0, authority.unchecked(data, kind) - 1) for data, kind in messages)
        if cards:
            await charge(context, cards, f"{cards} cards")

    async def _receive_statement(self, said: bytes, context: Any) -> PeerRecord:
        speaker = caller(context).peer
        await self._charge_cards([(said, STATEMENT)], context)
        try:
            async with self.reconciler.intake.turns.of(speaker):
                return self.reconciler.receive_statement(said, speaker)
        except RefusedError as error:
            await refuse(context, str(error))
        except FormatError as error:
            await self._reproach(error, context)

    async def _reproach(self, error: FormatError, context: Any) -> NoReturn:
        """Tell a caller that it broke the protocol, then hang up."""
        try:
            await refuse(context, str(error))
        finally:
            self.reconciler.bans.note(caller(context).peer, error)
