"""The signer of receipts: this peer signs what it has seen of others' work."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from peer.network.pipeline import Attempt
from protocol.identity import Part, PeerId
from protocol.manifest import Manifest
from protocol.net.channels import caller, refuse, require_manifest
from protocol.net.guard import charge
from protocol.schemas import credit_pb2 as pb
from protocol.schemas import credit_pb2_grpc
from protocol.trust.membership_card import Card, Signer
from protocol.trust.receipts import CountedReceipt, Work, microbatch_tokens, sign

ROUNDS_KEPT = 16
"""The rounds of which a peer knows what it has seen: one that was away for longer gets no receipt."""

ROUNDS_ASKED = 8
"""The rounds of each kind in one call: so many signatures take a millisecond."""


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
    since: int = field(default_factory=lambda: time.time_ns() // 10**6)
    """The time when this peer began to count, in ms since 1970."""
    work: dict[int, dict[PeerId, Tally]] = field(default_factory=dict)
    closed: dict[int, dict[Part, dict[PeerId, tuple[str, int]]]] = field(default_factory=dict)
    """The contributions that count: by round and part, author → SHA-256, inner steps."""

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
        _forget(self.work)

    def close(self, part: Part, round: int, counted: Mapping[PeerId, tuple[str, int]]) -> None:
        """Note that a round of a part is closed for ever, with these contributions in it."""
        self.closed.setdefault(round, {})[part] = dict(counted)
        _forget(self.closed)

    def of_work(self, round: int, receiver: PeerId) -> Work | None:
        """The receipt of work that this peer signs for a neighbour; None if it was none."""
        tally = self.work.get(round, {}).get(receiver)
        if tally is None:
            return None
        count, card = tally.microbatches, self.card
        where = tally.attempt.replica, tally.stage, card.stage, self.since, tally.attempts
        return Work(self.me, receiver, round, *where, count, count, count * microbatch_tokens(self.manifest))

    def of_contribution(self, round: int, part: Part, receiver: PeerId) -> CountedReceipt | None:
        """The receipt of a contribution that this peer signs for its author; None if the contribution is in no round
        that is closed here."""
        found = self.closed.get(round, {}).get(part, {}).get(receiver)
        if found is None or found[1] < 1:
            return None
        return CountedReceipt(self.me, receiver, round, part, *found)


def _forget(rounds: dict[int, Any]) -> None:
    for round in sorted(rounds)[:-ROUNDS_KEPT]:
        del rounds[round]


class CreditService(credit_pb2_grpc.CreditServicer):
    """The service that signs receipts."""

    def __init__(self, seen: SeenWork) -> None:
        self.seen = seen

    async def Sign(self, request: pb.CreditQuestion, context: Any) -> pb.CreditReceipts:
        await require_manifest(context, self.seen.manifest)
        if max(len(request.worked), len(request.counted)) > ROUNDS_ASKED:
            await refuse(context, f"receipts of {ROUNDS_ASKED} rounds at a time")
        await charge(context, len(request.worked) + len(request.counted), "signatures")
        who, seen = caller(context).peer, self.seen
        if who == seen.me:
            await refuse(context, "nobody signs for itself")
        own, part = seen.card, Part(request.part)
        worked = [] if own.on_trial else request.worked
        counted = request.counted if own.may_author(part) else []
        found = [
            *(seen.of_work(round, who) for round in worked),
            *(seen.of_contribution(round, part, who) for round in counted),
        ]
        return pb.CreditReceipts(receipts=[sign(seen.signer, each) for each in found if each is not None])
