"""The answering side of reconciliation: what is compared, asked and told arrives here."""

from typing import Any, NoReturn

from peer.network.reconciliation import ENTRIES_ASKED, Reconciler
from peer.network.reconciliation_wire import entry_to_wire, keys_to_wire, summary_of
from protocol.channels import caller, refuse, require_manifest
from protocol.errors import FormatError
from protocol.identity import Part
from protocol.reconciliation import different, entries
from protocol.records import PeerRecord
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc


class ReconciliationService(reconciliation_pb2_grpc.ReconciliationServicer):
    """The answering side."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.reconciler = reconciler

    async def Compare(self, request: pb.Comparison, context: Any) -> pb.Differences:
        reconciler = self.reconciler
        await self._hear(request.statement, context)
        parts = []
        for theirs in map(summary_of, request.parts):
            ledger = reconciler.acceptance.ledgers.get(theirs.part)
            if ledger is not None and (keys := different(ledger, theirs)):
                parts.append(keys_to_wire(theirs.part, keys))
        return pb.Differences(
            statement=reconciler.statement(), parts=parts, revocations=list(reconciler.acceptance.revocations.values())
        )

    async def Ask(self, request: pb.Question, context: Any) -> pb.Entries:
        await require_manifest(context, self.reconciler.manifest)
        ledger = self.reconciler.acceptance.ledgers.get(Part(request.part))
        if ledger is None or len(request.keys) > ENTRIES_ASKED:
            await refuse(context, "this peer does not follow that part, or was asked for too much at once")
        found = entries(ledger, [key.to_bytes(8, "big") for key in request.keys])
        return pb.Entries(entries=map(entry_to_wire, found))

    async def Tell(self, request: pb.News, context: Any) -> pb.Heard:
        sender = await self._hear(request.statement, context)
        self.reconciler.revoke(request.revocations, sender.peer_id)
        self.reconciler.start_learning(self.reconciler.heed(request.held, sender))
        await self.reconciler.receive(request.entries, sender)
        return pb.Heard()

    async def Revoke(self, request: pb.Revocations, context: Any) -> pb.Heard:
        await require_manifest(context, self.reconciler.manifest)
        try:
            for signed in request.revocations:
                self.reconciler.acceptance.revoke(signed)
        except FormatError as error:
            await self._reproach(error, context)
        return pb.Heard()

    async def _hear(self, said: bytes, context: Any) -> PeerRecord:
        await require_manifest(context, self.reconciler.manifest)
        speaker = caller(context).peer
        try:
            record = self.reconciler.hear(said, speaker)
        except FormatError as error:
            await self._reproach(error, context)
        return record

    async def _reproach(self, error: FormatError, context: Any) -> NoReturn:
        """Tell a caller that it broke the protocol, then hang up."""
        try:
            await refuse(context, str(error))
        finally:
            self.reconciler.distrust.note(caller(context).peer, error)
