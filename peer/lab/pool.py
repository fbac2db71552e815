"""A pool of volunteers in one process: microbatches take loose paths, and each member takes inner steps of its own.

A member is a replica of its stage: it has weights, AdamW's or Muon's state and error feedback of its own, and takes a
step whenever `inner.sequences` have come back through it. Gradients are those of the weights at the time of the
backward pass, which computes the activations again; how many steps newer these are than the forward pass's is told.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.lab.late import ClipFactors
from peer.lab.paths import Pass
from peer.telemetry.events import Listener, StepDone


@dataclass(slots=True)
class PoolMember:
    """One member of one stage, within a round: its steps so far, how many microbatches have come back through it since
    the last, and after how many steps it saw each microbatch first."""

    trainer: StageTrainer
    steps: int = 0
    back: int = 0
    begun: dict[int, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


@dataclass(slots=True)
class PoolRound:
    """A round of a pool. `members[m][s]` is member m of stage s, loaded and with its optimizer; `drawn` gives the
    microbatches [b, L + 1], of `total`, in the order in which they are drawn."""

    members: list[list[PoolMember]]
    drawn: Iterator[Tensor]
    total: int
    round: int
    clip: ClipFactors
    emit: Listener
    tokens: dict[int, Tensor] = field(default_factory=dict)
    """By the place at which they are drawn."""
    payloads: dict[int, Tensor | None] = field(default_factory=lambda: defaultdict(lambda: None))
    """Of a microbatch, what the last pass has sent on: activations, and then gradients."""
    entered: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    """What a stage was sent of a microbatch, until its gradient comes back."""
    back: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """How many microbatches have come back through each stage."""
    lateness: list[int] = field(default_factory=list)
    """By how many steps each gradient was late."""

    @staticmethod
    def begin(
        wholes: Sequence[WholeReplica],
        drawn: Iterator[Tensor],
        total: int,
        round: int,
        clip: ClipFactors,
        emit: Listener,
    ) -> "PoolRound":
        """A round in which `wholes[m].stages[s]` is member m of stage s."""
        return PoolRound(
            [[PoolMember(stage) for stage in whole.stages] for whole in wholes], drawn, total, round, clip, emit
        )

    def play(self, passes: Sequence[Pass]) -> None:
        """Compute all passes in their order, and then the steps for which there were too few microbatches."""
        for each in passes:
            member = self.members[each.member][each.stage]
            while each.text not in self.tokens:
                self.tokens[len(self.tokens)] = next(self.drawn)
            if each.way == "forward":
                self._forward(member, each)
            else:
                self._backward(member, each)
        for member in (each for of in self.members for each in of if each.back):
            gradients = [each.grad for each in member.trainer.parameters if each.grad is not None]
            torch._foreach_mul_(gradients, member.trainer.manifest.inner.microbatches / member.back)
            self._step(member, self.total)

    @property
    def steps(self) -> list[list[int]]:
        """How many inner steps member m of stage s has taken: steps[m][s]."""
        return [[each.steps for each in of] for of in self.members]

    def _forward(self, member: PoolMember, each: Pass) -> None:
        """A pass forward, of which nothing is kept but what has come in."""
        entered = self.entered[each.microbatch, each.stage] = self.payloads[each.microbatch]
        with torch.no_grad():
            sent = member.trainer.forward(each.microbatch, self.tokens[each.text], entered)
        member.trainer.in_flight.clear()
        self.payloads[each.microbatch] = sent
        member.begun[each.microbatch] = member.steps

    def _backward(self, member: PoolMember, each: Pass) -> None:
        """Both passes of the last stage; or at another one the pass forward once more, and the pass back."""
        trainer, came = member.trainer, self.payloads.pop(each.microbatch, None)
        entered = came if trainer.last else self.entered.pop((each.microbatch, each.stage))
        left = trainer.forward(each.microbatch, self.tokens[each.text], entered)
        if trainer.last:
            member.losses.append(left.item())
        self.payloads[each.microbatch] = trainer.backward(each.microbatch, None if trainer.last else came)
        self.lateness.append(member.steps - member.begun.pop(each.microbatch, member.steps))
        member.back += 1
        self.back[each.stage] += 1
        if member.back == trainer.manifest.inner.microbatches:
            self._step(member, self.back[each.stage] - member.back)

    def _step(self, member: PoolMember, back: int) -> None:
        """An inner step of a member, at the rate of the share of the round that is behind its stage: `back` of all
        microbatches, where those that were lost elsewhere have come back more than once."""
        trainer, inner = member.trainer, member.trainer.manifest.inner
        at = (self.round - 1) * inner.steps + inner.steps * min(back, self.total) / self.total
        trainer.update(self.clip.of_stage(trainer.squared_norm(), len(self.members[0])), at)
        if member.losses:
            loss = sum(member.losses) / len(member.losses)
            self.emit(StepDone(self.round, member.steps, loss, trainer.manifest.tokens_per_step))
            member.losses.clear()
        member.steps, member.back = member.steps + 1, 0
