"""What the stages of a group agree on in each inner step: one clip factor over the whole replica.

The leader adds the squared gradient norms in stage order, so that the factor is the one float that a
replica in one process would compute.
"""

from dataclasses import dataclass
from typing import Protocol

from peer.network.group import Orders, Reports
from peer.optim.inner import clip_factor
from protocol.errors import PeerError
from protocol.identity import ReplicaId
from protocol.schemas import group_pb2 as pb


@dataclass(frozen=True, slots=True)
class Agreed:
    """The outcome of an inner step. `loss` is known to the leader and to the last stage."""

    clip_factor: float
    loss: float | None


class Control(Protocol):
    """A stage's side of the control streams."""

    async def ready(self) -> None:
        """Say that this stage expects its neighbours; the leader waits until all have said so."""

    async def begin(self) -> None:
        """Start together: the leader gives the word, the members wait for it."""

    async def agree(self, round: int, step: int, squared_norm: float, loss: float | None) -> Agreed:
        """Exchange this stage's Σ g² for the replica's clip factor."""

    async def end_round(self, round: int) -> None:
        """Wait until all stages of the group have applied the round."""

    def farewell(self) -> None:
        """The run is over."""


@dataclass(frozen=True, slots=True)
class LeaderControl:
    """Stage 0's side."""

    replica: ReplicaId
    orders: tuple[Orders, ...]
    clip: float

    async def ready(self) -> None:
        for stream in self.orders:
            await self._report(stream, "ready")

    async def begin(self) -> None:
        self._tell(pb.Order(begin=pb.Begin(replica=self.replica)))

    async def agree(self, round: int, step: int, squared_norm: float, loss: float | None) -> Agreed:
        squared_norms = [squared_norm]
        for stream in self.orders:
            gradients = (await self._report(stream, "gradients")).gradients
            if (gradients.round, gradients.step) != (round, step) or not gradients.squared_norm >= 0.0:
                raise PeerError(f"{stream.with_whom} did not report the gradients of round {round}, step {step}")
            squared_norms.append(gradients.squared_norm)
            loss = gradients.loss
        factor = clip_factor(squared_norms, self.clip)
        self._tell(pb.Order(step=pb.Step(round=round, step=step, clip_factor=factor)))
        return Agreed(factor, loss)

    async def end_round(self, round: int) -> None:
        for stream in self.orders:
            if (await self._report(stream, "round_end")).round_end.round != round:
                raise PeerError(f"{stream.with_whom} did not end round {round}")

    def farewell(self) -> None:
        for stream in self.orders:
            stream.close()

    async def _report(self, stream: Orders, kind: str) -> pb.Report:
        report = await stream.receive()
        if report.WhichOneof("kind") != kind:
            raise PeerError(f"{stream.with_whom} reported {report.WhichOneof('kind')} where {kind} was due")
        return report

    def _tell(self, order: pb.Order) -> None:
        for stream in self.orders:
            stream.send(order)


@dataclass(frozen=True, slots=True)
class MemberControl:
    """The side of stages 1, 2, …"""

    reports: Reports

    async def ready(self) -> None:
        self.reports.send(pb.Report(ready=pb.Ready()))

    async def begin(self) -> None:
        await self._receive("begin")

    async def agree(self, round: int, step: int, squared_norm: float, loss: float | None) -> Agreed:
        gradients = pb.Gradients(round=round, step=step, squared_norm=squared_norm, loss=loss or 0.0)
        self.reports.send(pb.Report(gradients=gradients))
        order = (await self._receive("step")).step
        if (order.round, order.step) != (round, step) or not 0.0 < order.clip_factor <= 1.0:
            raise PeerError(f"{self.reports.with_whom} ordered no valid step of round {round}, step {step}")
        return Agreed(order.clip_factor, loss)

    async def end_round(self, round: int) -> None:
        self.reports.send(pb.Report(round_end=pb.RoundEnd(round=round)))

    def farewell(self) -> None:
        self.reports.close()

    async def _receive(self, kind: str) -> pb.Order:
        order = await self.reports.receive()
        if order.WhichOneof("kind") != kind:
            raise PeerError(f"{self.reports.with_whom} ordered {order.WhichOneof('kind')} where {kind} was due")
        return order
