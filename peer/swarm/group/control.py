"""What the stages of a group agree on in each inner step: one clip factor over the whole replica.

The leader adds the squared gradient norms in stage order, so that the factor is the one float that a
replica in one process would compute.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from peer.network.group import Orders, Reports
from peer.optim.inner import clip_factor
from protocol.errors import LostMemberError
from protocol.schemas import group_pb2 as pb

MOST_SQUARED_NORM = 1e80
"""Norms are of float32, whose largest is 3.4 · 10³⁸; sums of such squares stay numbers."""


class HaltedError(LostMemberError):
    """The leader has called off the inner step in flight."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a stage knows when its backward passes of an inner step are done: Σ g², the mean loss if it is the last
    stage, the seconds that its passes of a microbatch took, and those from its first pass to its last."""

    squared_norm: float
    loss: float | None = None
    passes: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Agreed:
    """The outcome of an inner step. `loss` is known to the leader and to the last stage; `last`: the round's inner loop
    ends with it."""

    clip_factor: float
    loss: float | None
    last: bool


class Control(Protocol):
    """A stage's side of the control streams."""

    async def agree(self, round: int, step: int, own: Gradients) -> Agreed:
        """Exchange this stage's Σ g² for the replica's clip factor.

        Raises:
            LostMemberError: somebody is gone; nobody takes this step.
            BreachError: somebody broke the protocol.
        """


@dataclass(slots=True)
class LeaderControl:
    """Stage 0's side. `orders` are the control streams by stage; `last` is asked once all gradients are in. The
    last step took this stage `seconds`, of which a microbatch's `passes` took so many on each stage."""

    orders: Mapping[int, Orders]
    clip: float
    last: Callable[[], bool] = lambda: False
    seconds: float = 0.0
    passes: Sequence[float] = ()

    async def agree(self, round: int, step: int, own: Gradients) -> Agreed:
        squared_norms, loss, passes = [own.squared_norm], own.loss, [own.passes]
        for _, stream in sorted(self.orders.items()):
            gradients = (await report(stream, "gradients")).gradients
            if (gradients.round, gradients.step) != (round, step):
                raise stream.breach(f"did not report the gradients of round {round}, step {step}")
            if not (0.0 <= gradients.squared_norm <= MOST_SQUARED_NORM and math.isfinite(gradients.loss)):
                raise stream.breach("reported gradients, or a loss, that are no numbers")
            if not 0.0 <= gradients.passes < math.inf:
                raise stream.breach("reported passes that took no time there is")
            squared_norms.append(gradients.squared_norm)
            passes.append(gradients.passes)
            loss = gradients.loss
        self.seconds, self.passes = own.seconds, passes
        factor, last = clip_factor(squared_norms, self.clip), self.last()
        order = pb.Order(step=pb.Step(round=round, step=step, clip_factor=factor, last=last))
        for stream in self.orders.values():
            stream.send(order)
        return Agreed(factor, loss, last)


@dataclass(frozen=True, slots=True)
class MemberControl:
    """The side of stages 1, 2, …"""

    reports: Reports

    async def agree(self, round: int, step: int, own: Gradients) -> Agreed:
        gradients = pb.Gradients(
            round=round, step=step, squared_norm=own.squared_norm, loss=own.loss or 0.0, passes=own.passes
        )
        self.reports.send(pb.Report(gradients=gradients))
        order = await self.reports.receive()
        if order.WhichOneof("kind") == "halt":
            raise HaltedError(f"{self.reports.with_whom} called the step off")
        if order.WhichOneof("kind") != "step":
            raise self.reports.breach(f"ordered {order.WhichOneof('kind')} where a step was due")
        if (order.step.round, order.step.step) != (round, step) or not 0.0 < order.step.clip_factor <= 1.0:
            raise self.reports.breach(f"ordered no valid step of round {round}, step {step}")
        return Agreed(order.step.clip_factor, own.loss, order.step.last)


async def report(stream: Orders, kind: str) -> pb.Report:
    """The next report of a member, which must be of a kind.

    Raises:
        LostMemberError: it is gone, or misses a neighbour.
        BreachError: it reported something else.
    """
    said = await stream.receive()
    if said.WhichOneof("kind") == "broken":
        raise LostMemberError(f"{stream.with_whom} misses a neighbour: {said.broken.reason[:200]}")
    if said.WhichOneof("kind") != kind:
        raise stream.breach(f"reported {said.WhichOneof('kind')} where {kind} was due")
    return said
