"""The number of layers of each stage of a pipeline: by count, or so that the dearest stage costs as little as it can.

All arithmetic is of integers, so every peer, whatever machine it is on, cuts a model alike. Costs only rank cuts: what
a stage really takes of a machine is estimated where torch is.

Letters: d width of the residual stream, V token ids, k dimensions of the subspace between stages of a compressed group.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.architectures import architecture_of
from protocol.model_sizes import Model

Balance = Literal["count", "memory", "compute"]

CUT_TRAINED_BYTES = 16
"""The bytes of a trained value on the device: weight, gradient and AdamW's two moments, in fp32."""

FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage before it has a layer, and for each layer; in a unit that all stages of a cut share."""

    fixed: int
    a_layer: int


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The sizes of a group of volunteers that a cut depends on, beside its stages.

    `subspace` is k, or 0 where groups send all of d. `factored`: a compressed group trains the token embedding by its
    factor Z, and not whole. `microbatch`: sequences of a microbatch. `microbatches`: microbatches of an inner step.
    `looked_up`: values of the n-gram tables that each stage has but the first.
    """

    subspace: int
    factored: bool
    microbatch: int
    microbatches: int
    looked_up: int = 0


def cut_by(balance: Balance, model: Model, stages: int, sizes: GroupSizes) -> tuple[int, ...]:
    """The number of layers of each stage, where there are at least as many layers as stages.

    Args:
        balance: what the dearest stage has the least of. By count the first stages have one layer more where they
            cannot all have as many (9 in 4: 3 2 2 2).
    """
    if balance == "compute":
        return cheapest_cut(model.layers, compute_costs(model, stages, sizes))
    if balance == "memory":
        return cheapest_cut(model.layers, memory_costs(model, stages, sizes))
    return even_cut(model.layers, stages)


def even_cut(layers: int, stages: int) -> tuple[int, ...]:
    """The number of layers of each stage, by count."""
    return cheapest_cut(layers, [StageCost(0, 1)] * stages)


def cheapest_cut(layers: int, costs: Sequence[StageCost]) -> tuple[int, ...]:
    """The number of layers of each stage, at least one, for which the dearest stage costs least.

    Each stage begins with one layer. Each layer that is left goes to the stage that then costs least, the earliest
    among equals. No cut is better: in one whose dearest stage costs B, stages take these layers at costs of at most B,
    and the costs at which this rule gives layers away are the lowest of all.
    """
    cut = [1] * len(costs)
    with_one_more = [(cost.fixed + 2 * cost.a_layer, stage) for stage, cost in enumerate(costs)]
    heapq.heapify(with_one_more)
    for _ in range(layers - len(costs)):
        then, stage = with_one_more[0]
        cut[stage] += 1
        heapq.heapreplace(with_one_more, (then + costs[stage].a_layer, stage))
    return tuple(cut)


def matrix_values(model: Model) -> int:
    """The values of a layer's matrices."""
    return sum(math.prod(shape) for shape in architecture_of(model).layer_layout(model).values() if len(shape) == 2)


def compute_costs(model: Model, stages: int, sizes: GroupSizes) -> list[StageCost]:
    """The operations for one token of each stage of a group, forward and backward.

    A matrix takes 6 for each value, attention 6 for each multiplication, and the head 6 d V.
    What a stage projects for a neighbour, or restores, takes 4 d k, as does the first stage's Z: the basis is not
    trained. To look up takes none.
    """
    a_layer = 6 * (matrix_values(model) + architecture_of(model).layer_costs(model).attention)
    head, projection, last = 6 * model.d * model.vocabulary, 4 * model.d * sizes.subspace, stages - 1
    return [
        StageCost(
            projection * ((stage > 0) + (stage < last) + (sizes.factored and stage == 0)) + head * (stage == last),
            a_layer,
        )
        for stage in range(stages)
    ]


def memory_costs(model: Model, stages: int, sizes: GroupSizes) -> list[StageCost]:
    """The bytes on the device of each stage of a group.

    Every stage trains its layers; the first also the embedding, [V, d] or its factor Z [V, k]; the others their n-gram
    tables; the last also the head [V, d]. In a compressed group every stage holds the anchor [V, d] as well. Layers
    keep activations for the backward passes of the microbatches in flight: S − s of them at stage s of S (1F1B), and no
    more than a step has. Logits are left out.
    """
    embedding, last = model.vocabulary * model.d, stages - 1
    first_embedding = model.vocabulary * sizes.subspace if sizes.subspace and sizes.factored else embedding
    anchor = FP32_BYTES * embedding if sizes.subspace else 0
    costs = architecture_of(model).layer_costs(model)
    activation_bytes = FP32_BYTES * sizes.microbatch * model.context * costs.cut_kept
    return [
        StageCost(
            fixed=anchor
            + CUT_TRAINED_BYTES * (sizes.looked_up if stage else first_embedding)
            + CUT_TRAINED_BYTES * embedding * (stage == last),
            a_layer=CUT_TRAINED_BYTES * matrix_values(model)
            + activation_bytes * min(stages - stage, sizes.microbatches),
        )
        for stage in range(stages)
    ]
