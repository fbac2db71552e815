"""The messages by which the stages of a replica group agree on their seats and on the next round, checked once at the
edge.

The first stage offers a round. Each stage that holds the round's state and token embedding passes the offer downstream.
The answer comes back from the last stage, or from the first one that cannot take the offer; then the first stage sends
the start. "Behind" a stage is downstream of it, "before" it upstream.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import FormatError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.schemas import pipeline_pb2 as pb

DIGEST_LETTERS = 64
"""SHA-256 in hexadecimal."""

MOST_LETTERS = 128
"""The most letters of a peer id; those in use have about fifty."""


@dataclass(frozen=True, slots=True)
class OfferFrame:
    """A round that a group is to begin, or to go on with, as its first stage offers it."""

    round: int
    step: int
    """The number of inner steps of the round that the first stage has taken."""
    members: tuple[PeerId, ...]
    """The group, by stage."""
    attempt: int
    """The number of groups that the first stage has formed, this one included."""
    slot: int
    """The slot of the group's replica, which decides what text it reads."""
    embedding_digest: str
    """The digest of the token embedding that all stages must hold; empty if they need none."""
    compression: int
    """d / k of the frames."""
    goal: int
    """The number of inner steps that the group means to take in the round."""
    patience: float
    """The longest inner step of the group, in seconds (`StepPace.bound` of its first stage)."""


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """The answer to an offer, of a stage for itself and all stages behind it: the offered round and token embedding; or
    the ones that they hold instead, which declines the offer."""

    round: int
    step: int = 0
    """The number of inner steps of the round that the furthest of them has taken."""
    embedding_digest: str = ""
    group_digest: str = ""
    """The digest of the outer state from which they begin the round (`protocol.codec.spot_check.group_digest`)."""

    def holds(self, offer: OfferFrame) -> bool:
        """Whether the stage and all behind it hold what was offered."""
        return (self.round, self.embedding_digest) == (offer.round, offer.embedding_digest)


def pack_seats(members: Sequence[PeerId]) -> pb.Frame:
    """The message that tells the stage before who serves this stage and those behind it."""
    return pb.Frame(seats=pb.Seats(members=members))


def unpack_seats(message: pb.Frame, first: PeerId, stages: int) -> tuple[PeerId, ...]:
    """Check a list of the peers seated behind a stage: its sender, `first`, then the peers behind that one. They are
    different peers, and at most as many as there are `stages`.

    Raises:
        FormatError: it is no such list.
    """
    require_kind(message, "seats")
    members = tuple(map(PeerId, message.seats.members))
    if not 1 <= len(members) <= stages or members[0] != first or not _are_peers(members):
        raise FormatError(f"{len(members)} seats, of {stages} stages, that are not of as many peers")
    return members


def pack_offer(offer: OfferFrame) -> pb.Frame:
    """The message that offers a round to the stage behind."""
    return pb.Frame(
        offer=pb.RoundOffer(
            round=offer.round,
            step=offer.step,
            members=offer.members,
            attempt=offer.attempt,
            slot=offer.slot,
            embedding_digest=offer.embedding_digest,
            compression=offer.compression,
            goal=offer.goal,
            patience=offer.patience,
        )
    )


def unpack_offer(message: pb.Frame, manifest: Manifest, stage: int, me: PeerId, before: PeerId) -> OfferFrame:
    """Check an offer that the peer `before` sent to this peer, `me`, which serves `stage`.

    Raises:
        FormatError: a field is outside this run's bounds, or the group does not seat these two peers side by side.
    """
    require_kind(message, "offer")
    offer, inner = message.offer, manifest.inner
    members = tuple(map(PeerId, offer.members))
    if len(members) != manifest.replicas.stages or not _are_peers(members):
        raise FormatError(f"a group of {len(members)} members, of {manifest.replicas.stages} stages")
    if members[stage] != me or members[stage - 1] != before:
        raise FormatError("a group in which another has this seat, or that of who offers it")
    if not 1 <= offer.round <= manifest.outer.rounds or offer.step > inner.steps_at_most:
        raise FormatError(f"round {offer.round} at step {offer.step}, which are none of this run")
    if offer.compression not in manifest.compressions:
        raise FormatError(f"d / k = {offer.compression}, which this run does not have")
    if not inner.steps <= offer.goal <= inner.steps_at_most:
        raise FormatError(f"{offer.goal} inner steps in a round")
    if not 0.0 <= offer.patience < math.inf:
        raise FormatError("a patience of no time there is")
    return OfferFrame(
        round=offer.round,
        step=offer.step,
        members=members,
        attempt=offer.attempt,
        slot=offer.slot,
        embedding_digest=check_digest(offer.embedding_digest),
        compression=offer.compression,
        goal=offer.goal,
        patience=offer.patience,
    )


def pack_answer(answer: AnswerFrame) -> pb.Frame:
    """The message that answers the stage before."""
    told = pb.RoundAnswer(round=answer.round, step=answer.step, embedding_digest=answer.embedding_digest)
    told.group_digest = answer.group_digest
    return pb.Frame(answer=told)


def unpack_answer(message: pb.Frame, manifest: Manifest) -> AnswerFrame:
    """Check what the stage behind, and those behind it, have of a round.

    Raises:
        FormatError: it is no answer, or of no round of this run, or has more steps than a round has.
    """
    require_kind(message, "answer")
    answer = message.answer
    if not 1 <= answer.round <= manifest.outer.rounds + 1:
        raise FormatError(f"round {answer.round}, which is none of this run, and not the end of it")
    if answer.step > manifest.inner.steps_at_most:
        raise FormatError(f"{answer.step} inner steps of a round, more than it has")
    return AnswerFrame(
        answer.round, answer.step, check_digest(answer.embedding_digest), check_digest(answer.group_digest)
    )


def pack_start(step: int, group_digest: str) -> pb.Frame:
    """The message that has the stage behind start at inner step `step` (from 0). `group_digest`: over all stages."""
    return pb.Frame(start=pb.RoundStart(step=step, group_digest=group_digest))


def unpack_start(message: pb.Frame, least: int, goal: int) -> tuple[int, str]:
    """Check a start, and return its inner step (from 0) and the group digest. `least`: the number of steps that this
    stage, or one behind it, has taken already; it may be more than the `goal`, where the group's first stage is new.

    Raises:
        FormatError: it is no start, its step is taken already or is beyond the `goal`, or its digest is malformed.
    """
    require_kind(message, "start")
    if not least <= message.start.step <= max(least, goal):
        raise FormatError(f"a start at step {message.start.step}, where {least} are done, of {goal}")
    return int(message.start.step), check_digest(message.start.group_digest)


def require_kind(message: pb.Frame, kind: str) -> None:
    """Raise FormatError if a message is of another kind than is due."""
    if (got := message.WhichOneof("kind")) != kind:
        raise FormatError(f"expected the {kind} of a round, got {got}")


def _are_peers(members: Sequence[PeerId]) -> bool:
    """Whether these are valid peer ids, and no two are the same."""
    return len({*members}) == len(members) and all(0 < len(member) <= MOST_LETTERS for member in members)


def check_digest(told: str) -> str:
    """Check and return a SHA-256 that a peer sent, in lower-case hexadecimal, or an empty string.

    Raises:
        FormatError: it is neither.
    """
    if told and (len(told) != DIGEST_LETTERS or any(letter not in "0123456789abcdef" for letter in told)):
        raise FormatError("a digest that is none")
    return told
