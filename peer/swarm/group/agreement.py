"""The agreement of a group's stages on a round. The first stage offers a round; each stage passes the offer on once it
has loaded what it needs; the answer comes back from the last stage, and the first one has all of them start."""

import asyncio
from dataclasses import dataclass

from peer.network.group import Link
from peer.swarm import waits
from peer.swarm.group.stage_round import GroupLoop
from protocol.codec.seating import AnswerFrame, OfferFrame
from protocol.errors import LostMemberError
from protocol.events.event import Listener
from protocol.net.tasks import Children
from protocol.patience import AGREEMENT_TIMEOUT_SECONDS, FURTHER_STAGE_SECONDS, LONG_WAIT_SECONDS
from protocol.schemas import pipeline_pb2 as pb


class SilentError(LostMemberError):
    """A neighbour, `peer`, has not answered in time."""

    def __init__(self, link: Link, seconds: float) -> None:
        super().__init__(f"{link.with_whom} has not answered for {seconds:.0f} s")
        self.peer = link.peer


@dataclass(frozen=True, slots=True)
class Agreed:
    """An offer, and the answer of the stages behind this one: all of them hold what it needs."""

    offer: OfferFrame
    answer: AnswerFrame


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a group's inner loop: the offer that all have agreed on, this stage's place between its neighbours,
    the inner step (from 0), and the digest over the outer state from which all begin."""

    offer: OfferFrame
    loop: GroupLoop
    step: int
    group_digest: str


async def receive_in_time(link: Link, stage: int, stages: int, round: int, emit: Listener) -> pb.Frame:
    """Receive the next message of a neighbour, which serves `stage`, about a round that `stages` of the group have to
    agree on. A long wait for it is emitted as an event.

    Raises:
        SilentError: it has not come in time.
        LostMemberError, BreachError: the neighbour is gone, or broke the protocol.
    """
    async with Children() as children:
        answering = children.spawn(link.receive())
        await asyncio.wait((answering,), timeout=LONG_WAIT_SECONDS)
        most_seconds = AGREEMENT_TIMEOUT_SECONDS + FURTHER_STAGE_SECONDS * stages
        if not answering.done():
            emit(waits.for_a_member(link.peer, stage, round))
            await asyncio.wait((answering,), timeout=most_seconds - LONG_WAIT_SECONDS)
        if not answering.done():
            raise SilentError(link, most_seconds)
        return answering.result()
