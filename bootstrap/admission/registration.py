"""The registration service of a run: what the run is, a place in it, and the certificate by which the others know a
peer."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bootstrap.admission.admission_policy import AdmissionPolicy
from bootstrap.admission.database import Trials
from bootstrap.admission.places import Admission, PlaceRole
from bootstrap.admission.registration_answers import Dialler, Measuring, StatusAnswers
from protocol.clock import monotonic, unix_time
from protocol.errors import FormatError, RefusedError, ResourceError
from protocol.identity import PeerId
from protocol.monitor import NodeWord
from protocol.net.channels import Credentials, refuse, require_manifest
from protocol.net.dht import Dht
from protocol.outer.whereabouts import common_round
from protocol.run.run_files import Descriptor
from protocol.schemas import run_pb2 as pb
from protocol.schemas import run_pb2_grpc
from protocol.trust import certificates
from protocol.trust.keys import Identity, peer_id_of
from protocol.trust.membership_card import Card, issue
from protocol.trust.records import Register, may_author

ROLE_NAMES: dict[int, PlaceRole] = {
    pb.VOLUNTEER: "volunteer",
    pb.DATACENTER: "datacenter",
    pb.OBSERVER: "observer",
    pb.GATEWAY: "gateway",
}

CONTRIBUTING = ("volunteer", "datacenter")
"""The roles that are tried where newcomers are, except for peers that have been let in as one of them before."""

GATEWAY_SECONDS = 30 * 86400.0
"""The validity of a gateway's certificate in seconds: it is there for when the operator's node is not."""


@dataclass(slots=True)
class RegistrationService(run_pb2_grpc.RunServicer):
    """The registration service, for callers that have no certificate yet, or one that ends soon. `port` is where those
    with one are served; `certificate_seconds` is how long a peer's lasts; `own_card` is a gateway's, the operator
    itself needs none."""

    descriptor: Descriptor
    dht: Dht
    register: Register
    admission: Admission
    identity: Identity
    credentials: Credentials
    port: int
    certificate_seconds: float
    admission_policy: AdmissionPolicy
    own_card: bytes = b""
    dialler: Dialler = field(default_factory=Dialler)
    measuring: Measuring = field(default_factory=Measuring)
    mirrors: tuple[str, ...] = ()
    named: Callable[[str], str] = str
    """A function that gives the true name of a caller, from its name behind the gate (`protocol.net.gate`)."""
    status: StatusAnswers | None = None
    """The node's view of the run; None: it has none."""
    word: Callable[[], NodeWord] = NodeWord
    """The progress of the run, as this node sees it."""

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        canonical = self.descriptor.canonical()
        word = self.word()
        return pb.DescribeReply(
            descriptor_json=canonical,
            finished=word.finished,
            taking=word.taking,
            run=word.run,
            holders=word.holders,
            rewind=word.rewind,
            keeps=word.keeps,
        )

    async def Measure(self, request: pb.MeasureRequest, context: Any) -> pb.MeasureReply:
        now, pace = unix_time(), self.measuring.pace
        try:
            piece = self.measuring.answer(self.named(context.peer()), request.piece, request.wanted)
        except RefusedError as error:
            await refuse(context, str(error))
        return pb.MeasureReply(piece=piece, time=now, round=pace.round, round_seconds=pace.seconds(now))

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        try:
            if self.status is None:
                raise RefusedError("this node does not watch the run")
            return pb.StatusReply(view_json=self.status.answer(self.named(context.peer())))
        except RefusedError as error:
            await refuse(context, str(error))

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        await require_manifest(context, self.descriptor.manifest)
        caller, peer = self.named(context.peer()), PeerId("")
        try:
            self.admission_policy.count_attempt(caller, request.token)
        except RefusedError as error:
            await refuse(context, str(error))  # and not written down: a flood would push everything else out of the log
        try:
            key = certificates.read_request(request.signing_request)
            peer = peer_id_of(key)
            role = self._role(request)
            invitation = await asyncio.to_thread(
                self.admission_policy.require_welcome, peer, request.token, role == "gateway"
            )
            closed = await asyncio.to_thread(self.admission_policy.is_closed)
            tried = await asyncio.to_thread(self.admission_policy.trials)
            held = await asyncio.to_thread(self._admitted_before, peer, request.card)
            card = await self._admit(peer, role, request, held, tried)
            await asyncio.to_thread(self.admission_policy.note_admitted, card, caller, invitation, held == card)
        except (FormatError, RefusedError, ResourceError) as error:
            await asyncio.to_thread(self.admission_policy.note_refused, peer, caller, str(error))
            ours = isinstance(error, ResourceError)  # no business of strangers
            await refuse(context, "this node cannot keep its records now" if ours else str(error))
        gateway, now = card.role == "gateway", unix_time()
        seconds = GATEWAY_SECONDS if gateway else self.certificate_seconds
        seconds = min(seconds, self.credentials.ends - now)  # TLS takes none that outlasts its issuer's
        if seconds <= 0:
            await refuse(context, "this node's own certificate has ended")
        certificate = certificates.certify(self.identity, key, now, seconds, gateway)
        return pb.RegisterReply(
            stage=card.stage,
            slot=card.slot,
            card=issue(self.identity, self.descriptor.run_id, card, self.own_card),
            certificate=certificate + (self.credentials.chain if self.own_card else b""),
            authority=self.credentials.root,
            port=self.port,
            closed=closed,
            trials=tried.required,
            mirrors=self.mirrors,
            attestation=await asyncio.to_thread(self.admission_policy.attestation),
            time=unix_time(),
        )

    async def DialBack(self, request: pb.DialBackRequest, context: Any) -> pb.DialBackReply:
        try:
            dialled, objection = await self.dialler.dial(self.named(context.peer()), request.peer_id, request.address)
        except (FormatError, RefusedError) as error:
            await refuse(context, str(error))
        return pb.DialBackReply(dialled=dialled, objection=objection)

    def _role(self, request: pb.RegisterRequest) -> PlaceRole:
        """Return the role that a caller asks for.

        Raises:
            RefusedError: nothing that there is, or what this node cannot make it.
        """
        role = ROLE_NAMES.get(request.role)
        if role is None:
            raise RefusedError("this is no request for a place")
        if role == "gateway" and self.own_card:
            raise RefusedError("only the operator's own node can admit another one that admits")
        return role

    async def _admit(
        self, peer: PeerId, role: PlaceRole, request: pb.RegisterRequest, held: Card | None, tried: Trials
    ) -> Card:
        """The place of a peer: the one it has, or a new one.

        Raises:
            RefusedError: there is none for it.
        """
        records = self.register.read(await self.dht.read_all())
        for record in records:
            self.admission.see(record, monotonic())
        if held is not None and held.role == role:
            self.admission.recall(held, role, monotonic())
        stage = request.stage if request.HasField("stage") else None
        alive = {record.peer_id for record in records}
        slot = self.admission.admit(peer, role, stage, alive, monotonic(), request.stages)
        finished = (record.round for record in records if may_author(record))
        has_begun = common_round(finished, self.descriptor.manifest.outer.liars) > 0
        counted = held is not None and held.role in CONTRIBUTING and not held.on_trial
        on_trial = slot.role in CONTRIBUTING and has_begun and not counted and tried.must_try(peer)
        return Card(peer, slot.role, slot.stage, slot.slot, on_trial)

    def _admitted_before(self, peer: PeerId, shown: bytes) -> Card | None:
        """The place that a peer was given before, here or at another node of the run that is still one."""
        with suppress(FormatError):
            card = self.register.authority.admitted(peer, shown)
            return None if card.issuer and self.admission_policy.objection(card.issuer) else card
        return None
