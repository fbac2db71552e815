"""Spot checks over the network: a stage asks, and an observer that audits computes again what the stage received."""

import asyncio
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from peer.network.attested import Attested
from peer.network.contacts import Contacts
from peer.network.gossip import Reconciler
from peer.network.gossip_policy import some
from protocol.clock import monotonic
from protocol.codec.spot_check import (
    Likeness,
    ReceivedPass,
    pack_likeness,
    pack_question,
    unpack_likeness,
    unpack_question,
)
from protocol.errors import FormatError, HetpeerError
from protocol.identity import PeerId
from protocol.limits import SPOT_CHECK_SAVED_SECONDS, SPOT_CHECK_SHARE, SPOT_CHECKS_OF_ONE, SPOT_CHECKS_WAIT
from protocol.manifest import Manifest
from protocol.net.allowances import Places, TokenBucket
from protocol.net.channels import caller, handshake, refuse, require_manifest
from protocol.patience import CALL_SECONDS
from protocol.schemas import spot_checks_pb2 as pb
from protocol.schemas import spot_checks_pb2_grpc
from protocol.trust.attestations import read_grant
from protocol.trust.records import PeerRecord

OBSERVERS_ASKED = 4
"""While it is not known which observer is the operator's, so many are tried."""

PASSES_ANSWERED = 256
"""Microbatches of which it is remembered what each peer was told."""

SpotCheck = Callable[[ReceivedPass], Awaitable[Likeness]]
"""Tells how like a pass of the round in hand is."""


@dataclass(slots=True)
class SpotCheckService(spot_checks_pb2_grpc.SpotChecksServicer):
    """The service of the operator's own observer. What it computes for others takes a share of its time: it refuses
    more than that, and more than `SPOT_CHECKS_OF_ONE` a stage of a group for one peer in a round."""

    manifest: Manifest
    attested: Attested
    check: SpotCheck | None = None
    """The check of a received microbatch; None: this peer does not audit, or not yet."""
    clock: Callable[[], int] = lambda: 0
    """Tells the round in hand."""
    time: TokenBucket = field(default_factory=lambda: TokenBucket(SPOT_CHECK_SHARE, SPOT_CHECK_SAVED_SECONDS))
    waiting: Places[PeerId] = field(default_factory=lambda: Places(1, SPOT_CHECKS_WAIT, 0))
    asked: Counter[PeerId] = field(default_factory=Counter)
    """The checks that each peer has had in the round `round`."""
    round: int = 0
    answered: OrderedDict[bytes, dict[PeerId, tuple[float, float]]] = field(default_factory=OrderedDict)
    """The likeness of what peers received, by the SHA-256 of the microbatch's tokens; of the last `PASSES_ANSWERED`."""
    found: list[float] = field(default_factory=list)
    """The least likeness of each check that nobody has been told of."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def answer_with(self, check: SpotCheck, clock: Callable[[], int]) -> None:
        """Answer stages by `check` from now on; `clock` returns the round in hand."""
        self.check, self.clock = check, clock

    def take_stock(self) -> tuple[int, float]:
        """Return the number of checks since the last call, and the least likeness of them; 0 and 1: none."""
        found, self.found = self.found, []
        return len(found), min(found, default=1.0)

    async def Check(self, request: pb.SpotCheckQuestion, context: Any) -> pb.SpotCheckAnswer:
        await require_manifest(context, self.manifest)
        try:
            question = unpack_question(request, self.manifest)
        except FormatError as error:
            await refuse(context, str(error))
        who, check = caller(context).peer, self.check
        if check is None or not self.attested.granted:
            await refuse(context, "this peer does not audit for the operator")
        if self.time.left(monotonic()) <= 0:
            await refuse(context, "as much has been checked as there is time for")
        if question.round != (now := self.clock()):
            await refuse(context, f"this peer is at round {now}")
        if now != self.round:
            self.round, self.asked = now, Counter()
        if self.asked[who] >= (most := SPOT_CHECKS_OF_ONE * self.manifest.replicas.stages):
            await refuse(context, f"{most} spot checks of a round are checked for one peer")
        if not self.waiting.take(who):
            await refuse(context, "others wait for spot checks")
        self.asked[who] += 1
        try:
            async with self.one_at_a_time:
                started = monotonic()
                like = await check(question)
                self.time.take(monotonic() - started, monotonic())
            last = self.manifest.replicas.stages - 1
            likenesses_seen = [like.activations] * (question.stage > 0) + [like.gradients] * (question.stage < last)
            self.found.append(min(likenesses_seen, default=1.0))
        finally:
            self.waiting.give_back(who)
        return pack_likeness(replace(like, neighbours=self._beside(who, question, like)), self.attested.granted)

    def _beside(self, who: PeerId, asked: ReceivedPass, like: Likeness) -> dict[PeerId, tuple[float, float]]:
        """Note what a peer is told of a microbatch; what its neighbours have been told of the same."""
        answered = self.answered.setdefault(sha256(asked.tokens.tobytes()).digest(), {})
        answered[who] = like.activations, like.gradients
        if len(self.answered) > PASSES_ANSWERED:
            self.answered.popitem(last=False)
        return {peer: answered[peer] for peer in asked.neighbours if peer in answered}


async def ask(asked: ReceivedPass, reconciler: Reconciler) -> Likeness | None:
    """Ask the operator's own observer how like a pass is. None: it does not answer, or nobody here can show that it is
    the operator's."""
    records, attested = reconciler.discovery.records, reconciler.attested
    attester = attested.newest.attester if attested.round and attested.newest is not None else None
    observers = [
        record for record in records.values() if record.role == "observer" and attester in (None, record.peer_id)
    ]
    for record in some(observers, OBSERVERS_ASKED, random):
        try:
            answer = await _ask(record, asked, reconciler.contacts)
            if read_grant(answer.granted, attested.signer.authority) == record.peer_id:
                return unpack_likeness(answer)
        except (HetpeerError, TimeoutError):
            continue
    return None


async def _ask(observer: PeerRecord, asked: ReceivedPass, contacts: Contacts) -> pb.SpotCheckAnswer:
    async with asyncio.timeout(CALL_SECONDS), contacts.to(observer) as channel:
        stub = spot_checks_pb2_grpc.SpotChecksStub(channel)
        metadata = handshake(contacts.manifest)
        answer: pb.SpotCheckAnswer = await stub.Check(pack_question(asked), metadata=metadata, timeout=CALL_SECONDS)
        return answer
