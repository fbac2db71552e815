"""Receipts: what the neighbours of a peer in a pipeline sign of its work, for the peer to keep; and credit: what its
receipts show together. With the run's id and its operator anybody can check them without asking.

A receipt names the microbatches that the two exchanged in a round, in inner steps that were taken; what was rolled back
is none. One receipt has all of a round since the signer's process began, so that a later one stands in the place of an
earlier one, and a group that breaks loses little.

Nobody's receipt for itself is one, nor that of who is on trial. `docs/design/credit.md` says what they prove.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import FormatError
from protocol.identity import PeerId, ReplicaId, RunId
from protocol.manifest import Manifest
from protocol.trust import signed
from protocol.trust.keys import PUBLIC_BYTES, SIGNATURE_BYTES
from protocol.trust.membership_card import Authority, Card, Signer

WORK = "work"

RETIRED = b"counted"
"""The kind of receipts that older versions signed for contributions, which lie in their folders. They are passed over:
the history in each state says what counted."""

MOST_RECEIPT_BYTES = 2048
"""The size of one receipt: 0.5 KiB, or 0.7 KiB with the card of a gateway."""

MOST_LINE = 4 * -(-MOST_RECEIPT_BYTES // 3) + 1
"""The length of one receipt in a file: base64 and a newline."""

MOST = 2**53
"""The most of anything that is counted: whole numbers that JSON's readers keep."""


@dataclass(frozen=True, slots=True)
class Work:
    """A receipt of work: what a neighbour saw. `stage` is the receiver's, `beside` the signer's; `replica` names the
    last group in which they met, in so many `attempts`; `since` is when the signer began to count, in ms since 1970.
    `forward` and `backward` are the microbatches that went over their link each way, and `tokens` those of the
    pairs."""

    signer: PeerId
    receiver: PeerId
    round: int
    replica: ReplicaId
    stage: int
    beside: int
    since: int
    attempts: int
    forward: int
    backward: int
    tokens: int

    @property
    def stands_for(self) -> tuple[object, ...]:
        """The key of receipts that replace each other: of all with the same, the one with the largest `amount`
        stands."""
        return self.round, self.signer, self.receiver, self.stage, self.beside, self.since

    @property
    def amount(self) -> tuple[int, ...]:
        """The amounts of work, which only ever grow."""
        return self.tokens, self.forward, self.backward, self.attempts


def sign_credit_receipt(signer: Signer, receipt: Work) -> bytes:
    """Sign a receipt as this peer, whose card tells its own stage."""
    counts = [receipt.attempts, receipt.forward, receipt.backward, receipt.tokens]
    where = [receipt.replica, receipt.stage, receipt.since]
    fields = [signer.authority.run, receipt.receiver, receipt.round, *where, *counts, signer.card]
    return signed.sign_fields(signer.identity, WORK, fields)


def read_receipt(data: bytes, authority: Authority) -> Work:
    """Check a receipt.

    Raises:
        FormatError: it is none of this run, or its signer was not admitted, or to a place that could not see this.
    """
    if len(data) > MOST_RECEIPT_BYTES:
        raise FormatError(f"a receipt of {len(data)} bytes, where {MOST_RECEIPT_BYTES} are allowed")
    signer, fields, card = authority.read_signed(data, WORK)
    if card.on_trial:
        raise FormatError(f"peer {signer[-8:]} was on trial when it signed")
    receipt = _work(signer, fields, card)
    if receipt.receiver == signer:
        raise FormatError(f"peer {signer[-8:]} signed a receipt for itself")
    return receipt


def is_retired(data: bytes) -> bool:
    """Whether it says that it is a receipt of the kind that is not signed any more."""
    return data[SIGNATURE_BYTES + PUBLIC_BYTES :].startswith(RETIRED + b"\0")


def _work(signer: PeerId, fields: list[Any], card: Card) -> Work:
    match fields:
        case [
            str(_),
            str(receiver),
            int(round),
            str(replica),
            int(stage),
            int(since),
            int(attempts),
            int(forward),
            int(backward),
            int(tokens),
            _,
        ] if (
            _is_peer(receiver)
            and _is_peer(replica)
            and 1 <= round < 2**31
            and 0 <= stage < 1024
            and 1 <= attempts < 2**31
            and all(0 <= number < MOST for number in (since, forward, backward, tokens))
        ):
            beside = card.stage
        case _:
            raise FormatError(f"peer {signer[-8:]} signed a receipt with other fields than one of work has")
    if card.role != "volunteer" or abs(beside - stage) != 1:
        raise FormatError(f"peer {signer[-8:]} is no neighbour of stage {stage}")
    if (stage == 0 and replica != receiver) or (beside == 0 and replica != signer):
        raise FormatError(f"peer {signer[-8:]} signed for a group that another than its stage 0 leads")
    counts = since, attempts, forward, backward, tokens
    return Work(signer, PeerId(receiver), round, ReplicaId(replica), stage, beside, *counts)


def _is_peer(name: str) -> bool:
    return 1 <= len(name) <= 64 and name.isprintable()


@dataclass(frozen=True, slots=True)
class Verifier:
    """The facts that receipts are checked against: the run, and the receiver, if they are to be one peer's. `revoked`
    is the first round without a peer that the operator has taken out; `tokens` are those of a microbatch, 0: not
    known."""

    authority: Authority
    receiver: PeerId | None = None
    revoked: Mapping[PeerId, int] = field(default_factory=dict)
    tokens: int = 0

    @property
    def run(self) -> RunId:
        """The run's id."""
        return self.authority.run

    def check(self, data: bytes) -> Work:
        """Check a receipt.

        Raises:
            FormatError: it does not hold, and why.
        """
        receipt = read_receipt(data, self.authority)
        if self.receiver is not None and receipt.receiver != self.receiver:
            raise FormatError(f"it is peer {receipt.receiver[-8:]}'s, not peer {self.receiver[-8:]}'s")
        for who, what in ((receipt.signer, "its signer"), (receipt.receiver, "its receiver")):
            if receipt.round >= (start := self.revoked.get(who, 2**31)):
                raise FormatError(f"the operator has taken {what}, peer {who[-8:]}, out from round {start} on")
        if self.tokens:
            pairs = min(receipt.forward, receipt.backward)
            if receipt.tokens != pairs * self.tokens:
                raise FormatError(f"{receipt.tokens} tokens are not those of {pairs} microbatches")
        return receipt


# In a file: a line each


def receipt_to_line(data: bytes) -> bytes:
    """Encode a receipt as a line."""
    return base64.b64encode(data) + b"\n"


def receipt_from_line(line: bytes) -> bytes:
    """Decode a line that `receipt_to_line` made. A newline at the end may be missing.

    Raises:
        FormatError: it is none.
    """
    if len(line) > MOST_LINE:
        raise FormatError("a line that is longer than any receipt")
    try:
        data = base64.b64decode(line.removesuffix(b"\n"), validate=True)
    except binascii.Error:
        raise FormatError("not a receipt in base64") from None
    if base64.b64encode(data) != line.removesuffix(b"\n"):
        raise FormatError("not the base64 of a receipt, but another that means the same")
    return data


# Credit


@dataclass(frozen=True, slots=True)
class RoundCredit:
    """The credit of one round. With two neighbours both sign the same work: `tokens` and `microbatches` are what the
    receipts of one side show, the side that says more; `tokens_of_both` what those of both sides show."""

    round: int
    tokens: int = 0
    microbatches: int = 0
    tokens_of_both: int = 0
    neighbours: tuple[PeerId, ...] = ()
    """The peers that signed any of the receipts."""


def standing(receipts: Iterable[Work]) -> list[Work]:
    """Select the receipts that no later one has replaced, each once, in order."""
    kept: dict[tuple[object, ...], Work] = {}
    for receipt in receipts:
        known = kept.get(receipt.stands_for)
        if known is None or receipt.amount > known.amount:
            kept[receipt.stands_for] = receipt
    return sorted(kept.values(), key=lambda receipt: (receipt.round, receipt.signer))


def by_round(receipts: Iterable[Work]) -> list[RoundCredit]:
    """Sum up the receipts of one receiver, by round."""
    rounds: dict[int, list[Work]] = {}
    for receipt in standing(receipts):
        rounds.setdefault(receipt.round, []).append(receipt)
    return [_sum(round, found) for round, found in sorted(rounds.items())]


def _sum(round: int, work: list[Work]) -> RoundCredit:
    tokens = microbatches = of_both = 0
    for stage in {receipt.stage for receipt in work}:
        sides = [(0, 0), (0, 0)]
        for side, beside in enumerate((stage - 1, stage + 1)):
            seen = [receipt for receipt in work if (receipt.stage, receipt.beside) == (stage, beside)]
            pairs = sum(min(receipt.forward, receipt.backward) for receipt in seen)
            sides[side] = sum(receipt.tokens for receipt in seen), pairs
        more = max(sides)
        tokens, microbatches, of_both = tokens + more[0], microbatches + more[1], of_both + min(sides)[0]
    return RoundCredit(round, tokens, microbatches, of_both, tuple(sorted({receipt.signer for receipt in work})))


def microbatch_tokens(manifest: Manifest) -> int:
    """The number of tokens of one microbatch."""
    return manifest.inner.microbatch * manifest.model.context
