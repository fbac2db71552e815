"""A microbatch computed again from the outer state, as a group of volunteers would compute it at the beginning of the
round, and how like that is what a stage received (`protocol/codec/spot_check.py`)."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer.compute.design import design
from peer.compute.evaluation import Evaluator
from peer.compute.trainer import GridView
from peer.model.number_format import NumberFormat, number_format
from protocol.codec.spot_check import Likeness, PayloadSample, ReceivedPass, likeness, places, whole_group_digest
from protocol.identity import Part

COMPUTED_KEPT = 4
"""Microbatches whose payloads are kept: when one is doubted, all stages of a group ask about it."""


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """The payloads of a microbatch at each boundary, by the stage before the boundary, as they go over the wire."""

    activations: list[Tensor]
    gradients: list[Tensor]


@dataclass(slots=True)
class Recomputation:
    """Computes microbatches again, with an evaluator's stages. The last few are kept."""

    evaluator: Evaluator
    kept: OrderedDict[tuple[str, int, bytes], Payloads] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """Keep only what comes into each layer, in a backward pass: the rest is computed again, and takes no memory."""
        for stage in self.evaluator.stages:
            stage.recompute = True

    def likeness(self, grids: Mapping[Part, GridView], digests: Mapping[str, str], asked: ReceivedPass) -> Likeness:
        """Return how like the computed payloads those are that a stage received; `grids` are the outer state of the
        round, and `digests` those of its parts."""
        digest = whole_group_digest(digests, self.evaluator.manifest)
        key = digest, asked.compression, asked.tokens.tobytes()
        if key not in self.kept:
            self.kept[key] = self.compute(grids, torch.from_numpy(asked.tokens), asked.compression)
            if len(self.kept) > COMPUTED_KEPT:
                self.kept.popitem(last=False)
        payloads, manifest = self.kept[key], self.evaluator.manifest.at(asked.compression)
        forward, backward = (number_format(wire, manifest.k) for wire in manifest.replicas.wires)

        def compared(came: PayloadSample, sent: Tensor, numbers: NumberFormat) -> float:
            return likeness(came, sample_payload(numbers.unpack(sent), asked.seed).cpu().numpy())

        first, last = asked.stage == 0, asked.stage == len(self.evaluator.stages) - 1
        return Likeness(
            0.0 if first else compared(asked.activations, payloads.activations[asked.stage - 1], forward),
            0.0 if last else compared(asked.gradients, payloads.gradients[asked.stage], backward),
            same_state=asked.group_digest == digest,
        )

    def compute(self, grids: Mapping[Part, GridView], tokens_BM: Tensor, compression: int) -> Payloads:
        """Compute the payloads of a group at d / k = `compression` for a microbatch [b, L + 1] with the weights of
        `grids`. One stage's activations are in memory at a time, so each stage is run forward twice, and its layers a
        third time."""
        evaluator = self.evaluator
        manifest, device, stages = evaluator.manifest.at(compression), evaluator.device, evaluator.stages
        te_VD = evaluator.load(grids)
        tokens_BM = tokens_BM.to(device)
        tokens_BL = tokens_BM[:, :-1]
        x_BLD = te_VD[tokens_BL]
        boundaries = design(manifest, "group", evaluator.basis_DD, device).boundaries(te_VD)  # which uses TE up
        entered = [x_BLD]
        activations: list[Tensor] = []
        with torch.no_grad():
            for index, stage in enumerate(stages[:-1]):
                activations.append(boundaries(index).encode(stage(entered[index], tokens_BL), tokens_BL))
                entered.append(boundaries(index).decode(activations[index], tokens_BL))
        gradients: list[Tensor] = []
        gradient_in: Tensor | None = None
        for index in reversed(range(1, len(stages))):
            x_BLD = entered.pop().requires_grad_()
            out = stages[index](x_BLD, tokens_BL)
            if gradient_in is None:
                out = stages[-1].lm_head(out, tokens_BM[:, 1:]) / manifest.inner.microbatches
            (gradient,) = torch.autograd.grad(out, x_BLD, gradient_in)
            gradients.insert(0, boundaries(index - 1).encode_gradient(gradient))
            gradient_in = boundaries(index - 1).decode_gradient(gradients[0])
        return Payloads(activations, gradients)


def places_in(values: Tensor, seed: int) -> Tensor:
    """The places of a seed in a payload of this size (`protocol.codec.spot_check.places`), on its device."""
    return torch.from_numpy(places(seed, values.numel())).to(values.device)


def sample_payload(values: Tensor, seed: int) -> Tensor:
    """The numbers of a payload at the places of a seed: float32, on its device."""
    return values.flatten()[places_in(values, seed)].float()
