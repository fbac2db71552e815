"""The handover between a volunteer that leaves and its successor: one offer, one answer, and the bytes by their
hash."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from peer.network.gossip import Reconciler
from protocol.errors import FormatError, HetpeerError
from protocol.identity import PeerId
from protocol.net.allowances import Places
from protocol.net.blobs import fetch
from protocol.net.channels import Reachable, caller, handshake, refuse, require_manifest, speaks
from protocol.net.guard import charge
from protocol.net.tasks import Children
from protocol.patience import HANDOVER_TIMEOUT_SECONDS, OFFER_SECONDS
from protocol.schemas import succession_pb2 as pb
from protocol.schemas import succession_pb2_grpc
from protocol.trust.handovers import (
    KIND,
    HandoverOffer,
    Handovers,
    largest_handover,
    read_answer,
    read_handover,
    sign_answer,
    sign_handover,
)

OFFERS_OF_ONE, OFFERS = 2, 64
"""The offers at once, of one giver and of all: a giver that hangs up calls again, and waits for the end of its first
call."""


@dataclass(frozen=True, slots=True)
class PendingHandover:
    """A handover whose bytes are here. `answer` is the reason why it is declined, or empty: it is taken."""

    offer: HandoverOffer
    blob: bytes
    answer: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class HandoverService(succession_pb2_grpc.SuccessionServicer):
    """The service of a volunteer, which leavers of its stage call. What it accepts waits for the peer's own loop, in
    `next`."""

    def __init__(self, reconciler: Reconciler, stage: int, tasks: Children) -> None:
        """`tasks` last as long as this peer: an offer is considered in one of them, and outlives the call that made it.
        Every leaver of `stage` may call."""
        self.reconciler = reconciler
        self.stage = stage
        self.handovers: Handovers | None = None
        """The handovers that this peer has given and taken; None until they are read from its folder."""
        self.open = False
        """Whether handovers are taken now."""
        self.waiting: PendingHandover | None = None
        """The handover whose bytes are here, until the peer's own loop takes it by `next`; None: there is none."""
        self.tasks = tasks
        self._one_at_a_time = asyncio.Lock()
        self.places: Places[PeerId] = Places(OFFERS_OF_ONE, OFFERS, 1)
        """The limit of offers under consideration at once: `OFFERS_OF_ONE` of one giver, `OFFERS` of all."""

    def begin(self, handovers: Handovers) -> None:
        """Answer leavers from now on: this peer has read from its folder what it has given and taken."""
        self.handovers = handovers

    def open_for_offers(self) -> None:
        """Take handovers from now on."""
        self.open = True

    def close_for_offers(self) -> None:
        """Take no handovers from now on."""
        self.open = False

    def next(self) -> PendingHandover | None:
        """The handover that is to be taken now, if there is one. Whoever asks must answer it."""
        pending, self.waiting = self.waiting, None
        return pending

    def lookup(self, sha256: str) -> bytes | None:
        """The bytes that this peer has set aside, if this is their SHA-256; for the blob service."""
        handovers = self.handovers
        return handovers.blob if handovers is not None and handovers.successor and handovers.sha256 == sha256 else None

    async def Bequeath(self, request: pb.Bequest, context: Any) -> pb.BequestReply:
        await require_manifest(context, self.reconciler.manifest)
        if self.handovers is None:  # neither yes nor no: it may have been taken before this process began
            await refuse(context, "this peer does not know yet")
        signer = self.reconciler.intake.signer
        cards = signer.authority.unchecked(request.proof, KIND) - 1
        if cards > 0:
            await charge(context, cards, f"{cards} cards")
        try:
            offer = read_handover(request.proof, signer.authority)
        except FormatError as error:
            self.reconciler.bans.note(caller(context).peer, error)
            await refuse(context, str(error))
        if offer.successor != signer.identity.peer_id:
            await refuse(context, f"this is not peer {offer.successor[-8:]}")
        await speaks(context, offer.giver, "its own bequests")
        if not self.places.take(offer.giver):
            await refuse(context, "what you offered before is still looked at")
        considering = self.tasks.spawn(self._consider(offer, self.handovers))
        considering.add_done_callback(lambda _: self.places.give_back(offer.giver))
        reason = await asyncio.shield(considering)  # a giver that hangs up and calls again waits for the end of this
        return pb.BequestReply(answer=sign_answer(signer, offer, reason))

    async def _consider(self, offer: HandoverOffer, handovers: Handovers) -> str:
        """Consider an offer. Returns why it is declined; empty: it is this peer's."""
        async with self._one_at_a_time:
            if handovers.has_taken(offer):
                return ""
            if objection := self._objection(offer):
                return objection
            contacts = self.reconciler.contacts
            giver = self.reconciler.discovery.records[offer.giver]
            try:
                async with contacts.to(giver) as channel, asyncio.timeout(OFFER_SECONDS):  # then its giver has gone
                    sha256, size = offer.sha256, offer.size
                    blob = await fetch(channel, contacts.manifest, sha256, size, contacts.bandwidth)
            except HetpeerError as error:
                return f"its bytes did not arrive: {error}"
            self.waiting = pending = PendingHandover(offer, blob)
            self.reconciler.discovery.news.ring()
            await asyncio.wait((pending.answer,), timeout=HANDOVER_TIMEOUT_SECONDS)
            if self.waiting is pending:
                self.waiting = None
                return "this peer is busy"
            return await pending.answer

    def _objection(self, offer: HandoverOffer) -> str:
        if not self.open:
            return "this peer takes nothing over now"
        if offer.stage != self.stage:
            return f"this peer serves stage {self.stage}"
        if self.reconciler.intake.has_revoked(offer.giver):
            return "the operator has taken its giver out of the run"
        if offer.size > largest_handover(self.reconciler.manifest, self.stage):
            return f"{offer.size} bytes are more than a stage can have"
        if offer.giver not in self.reconciler.discovery.records:
            return "this peer does not know its giver"
        return ""


async def offer_handover(offer: HandoverOffer, successor: Reachable, reconciler: Reconciler) -> str:
    """Offer a handover to its successor. Returns why it is declined; empty: it is taken.

    Raises:
        HetpeerError: the successor gave no answer.
    """
    signer, metadata = reconciler.intake.signer, handshake(reconciler.manifest)
    async with reconciler.contacts.to(successor) as channel:
        stub = succession_pb2_grpc.SuccessionStub(channel)
        message = pb.Bequest(proof=sign_handover(signer, offer))
        reply = await stub.Bequeath(message, metadata=metadata, timeout=OFFER_SECONDS)
    return read_answer(reply.answer, offer, signer.authority)
