"""The memory of a peer, by its duty: on the device that computes, and on the host. Pure, and without torch.

What the mathematics keeps is counted:

    device   16 bytes a value that is trained (weight, gradient, two moments of AdamW; Muon has one: 12), 4 more where
             steps overlap (the weights before the last step), 4 a value that is looked up (T⊥) or evaluated with, and
             what each microbatch in flight keeps for its backward pass
    host     8 a value that is authored (grid, error feedback), 4 a value that is followed, and a volunteer's frames

What passes, copies of one tensor at a time and the products of one layer, is a bound that `benchmarks/memory.py` holds
against what processes take: from the preset `tiny` on, no estimate is below a peak that was measured, nor more than
15 % above it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.architectures import architecture_of
from protocol.codec.frames import FrameRules
from protocol.identity import Part, parts_authored, stage_part
from protocol.layout import (
    HEAD_TENSOR,
    elements,
    is_layer_matrix,
    layer_layout,
    model_layout,
    parameter_count,
    part_layout,
    parts_followed,
)
from protocol.manifest import Manifest
from protocol.trust.membership_card import Role

NETWORK_BYTES = 60 * 10**6
"""Channels, servers, records, and what waits to be sent and taken."""

LATER_BYTES = 80 * 10**6
"""Modules, kernels and heaps that a process loads after its start: hivemind, numba's code, SQLite."""

PROCESS_BYTES = 350 * 10**6 + LATER_BYTES + NETWORK_BYTES
"""A process without a model, as planned for a machine that is not here: Python, torch, gRPC and numba, measured once.
An estimate for the machine at hand takes `process_bytes` of a reading instead."""

TRAINING_BYTES = 90 * 10**6
"""The memory that torch loads and keeps of its own in a process that trains, in bytes."""

ACCELERATOR_PROCESS_BYTES = 500 * 10**6
"""The memory of a CUDA device that its driver keeps for each process, in bytes."""

TRAINED_DEVICE_BYTES = 16
"""A value that is trained, on the device: weight, gradient, and two moments, in fp32."""

MOMENT_BYTES = 4
"""A moment of a value: AdamW has two, Muon one."""

AUTHORED_BYTES = 8
"""A value of a part that a peer authors, on the host: the grid and the error feedback."""

FOLLOWED_BYTES = 4
"""A value of a part that a peer only follows, on the host: the grid."""

SLICE_TOKENS = 1024
"""Tokens whose logits exist together: so many at a time `peer.model.head` takes."""

LOGITS = 3
"""fp32 values for each logit of a slice: the product, its logarithm of likelihoods, and a passing one."""

EVALUATION_TABLES = 2
"""Token embeddings that an evaluation has: TE itself, and T⊥ of its boundaries."""

AUTHORED_PASSING_BYTES, FOLLOWED_PASSING_BYTES = 12, 8
"""A value of the largest tensor, on the host: the copies in which it changes, and Δ of what is authored."""

FRAME_COPIES = 4
"""The copies of a frame on the host, in each direction: the payload and the message, of one that comes and one that
goes."""

SLACK = 1.02
"""The factor for the memory that the allocator cannot use."""

MemoryName = Literal["auto", "recompute", "keep"]
"""The way to the activations of layers in the backward pass: kept, computed again, or kept where they fit."""


@dataclass(frozen=True, slots=True)
class Duty:
    """The duty of a peer that takes memory. `stage`: of a volunteer. `holds`: it follows the run, and evaluates
    nothing. `recompute`: of each layer it keeps only what came in, and computes the rest again on the way back."""

    role: Role
    stage: int = 0
    holds: bool = False
    recompute: bool = False
    audits: bool = False
    """Whether an observer computes microbatches again for spot checks."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes where the model is computed, and on the host beside it: those that are held all the time, and those that
    pass. A machine that computes on its CPU has both in one memory; while something passes in the one, nothing does in
    the other."""

    device_held: int
    device_passing: int
    host_held: int
    host_passing: int

    @property
    def device(self) -> int:
        """The most on the device."""
        return self.device_held + self.device_passing

    @property
    def host(self) -> int:
        """The most beside it."""
        return self.host_held + self.host_passing

    @property
    def total(self) -> int:
        """The most where both are one."""
        return self.device_held + self.host_held + max(self.device_passing, self.host_passing)


def process_bytes(resident: int) -> int:
    """The bytes that a process comes to take without a model, if they are so many at its start."""
    return resident + LATER_BYTES + NETWORK_BYTES


def memory_of(manifest: Manifest, duty: Duty, process: int = PROCESS_BYTES) -> MemoryNeeds:
    """An upper estimate of a peer's memory, in one process, which takes `process` bytes without a model."""
    authored, followed = parts_of(manifest, duty)
    outer = AUTHORED_BYTES * _values(manifest, authored) + FOLLOWED_BYTES * _values(manifest, followed)
    outer += process + (TRAINING_BYTES if authored else 0) + (frame_bytes(manifest) if duty.role == "volunteer" else 0)
    host_passing = max(
        AUTHORED_PASSING_BYTES * _largest_tensor(manifest, authored),
        FOLLOWED_PASSING_BYTES * _largest_tensor(manifest, followed),
    )
    held, passing = (0, 0) if duty.holds else _on_device(manifest, duty)
    return MemoryNeeds(int(held * SLACK), int(passing * SLACK), outer, host_passing)


def _on_device(manifest: Manifest, duty: Duty) -> tuple[int, int]:
    """Bytes that are held where a peer computes, and those of the passes of a step, or of an evaluation."""
    model, stages = manifest.model, range(manifest.replicas.stages)
    table = 4 * model.vocabulary * model.d
    evaluation = EVALUATION_TABLES * table + evaluation_bytes(manifest)
    if duty.role == "observer":
        again = EVALUATION_TABLES * table + spot_check_bytes(manifest) if duty.audits else 0
        return 4 * parameter_count(manifest), max(evaluation, again)
    trained = TRAINED_DEVICE_BYTES * trained_values(manifest, duty) - MOMENT_BYTES * muon_values(manifest, duty)
    if duty.role == "datacenter":
        activations = sum(microbatch_bytes(manifest, stage, duty.recompute) for stage in stages)
        passes = activations + max(pass_bytes(manifest, stage, duty.recompute) for stage in stages)
        return trained, max(passes, evaluation, muon_step_bytes(manifest))
    if manifest.late(duty.stage):
        trained += 4 * trained_values(manifest, duty)  # the weights before the last step, for microbatches in flight
    bases = 2 if manifest.inner.subspace_steps else 1  # the boundaries' U, and Muon's
    looked_up = table + 4 * model.d * (model.d + bases * manifest.k) if manifest.compressed else 0
    looked_up += table if trains_factor(manifest, duty) else 0  # the embedding's T⊥, and its boundary's
    activations = in_flight(manifest, duty.stage) * microbatch_bytes(manifest, duty.stage, duty.recompute)
    passes = activations + pass_bytes(manifest, duty.stage, duty.recompute)
    return trained + looked_up, max(passes, muon_step_bytes(manifest))


def in_flight(manifest: Manifest, stage: int) -> int:
    """Microbatches that a volunteer has between their forward and their backward pass, at least."""
    return max(min(manifest.replicas.stages - stage, manifest.inner.microbatches), manifest.late(stage) + 1)


def microbatch_bytes(manifest: Manifest, stage: int, recompute: bool) -> int:
    """The bytes that a stage keeps of each microbatch in flight: what its layers keep, or only what came into each of
    them; what leaves the stage; and, on the last, the gradient of what came into the head."""
    layers, d = len(manifest.cut[stage]), manifest.model.d
    kept = d if recompute else architecture_of(manifest.model).layer_costs(manifest.model).kept
    last = 3 * d if stage == manifest.replicas.stages - 1 else d
    return _tokens(manifest) * 4 * (layers * kept + last)


def pass_bytes(manifest: Manifest, stage: int, recompute: bool) -> int:
    """The temporary bytes of the passes of one microbatch: the layer that is computed again, gradients of what is
    between its products, and of its largest matrix or n-gram table; on the last stage, the head's slice of logits, the
    gradient of its matrix and what is added to it."""
    model = manifest.model
    costs = architecture_of(model).layer_costs(model)
    again = costs.kept if recompute else 0
    tensors = part_layout(manifest, stage_part(stage))
    largest = max(math.prod(shape) for name, shape in tensors.items() if name != HEAD_TENSOR)
    passes = _tokens(manifest) * 4 * (again + costs.backward) + 4 * largest
    if stage < manifest.replicas.stages - 1:
        return passes
    logits = 4 * LOGITS * min(SLICE_TOKENS, _tokens(manifest)) * model.vocabulary
    return max(passes, logits + 2 * 4 * model.vocabulary * model.d)


def muon_step_bytes(manifest: Manifest) -> int:
    """The temporary bytes of Muon's step of the largest matrix: four of its size, and three squares."""
    if manifest.inner.optimizer != "muon":
        return 0
    shapes = [shape for name, shape in layer_layout(manifest.model, 0).items() if is_layer_matrix(name, shape)]
    return max(4 * (4 * math.prod(shape) + 3 * min(shape) ** 2) for shape in shapes)


def evaluation_bytes(manifest: Manifest) -> int:
    """The temporary bytes of the forward pass of one microbatch, without a backward pass."""
    model = manifest.model
    layer = _tokens(manifest) * 4 * architecture_of(model).layer_costs(model).forward
    return max(layer, 4 * LOGITS * min(SLICE_TOKENS, _tokens(manifest)) * model.vocabulary)


def spot_check_bytes(manifest: Manifest) -> int:
    """The temporary bytes of computing a microbatch again: what comes into each stage, and one stage's passes."""
    stages = range(manifest.replicas.stages)
    entered = len(stages) * _tokens(manifest) * 4 * manifest.model.d
    return entered + max(
        microbatch_bytes(manifest, stage, True) + pass_bytes(manifest, stage, True) for stage in stages
    )


def frame_bytes(manifest: Manifest) -> int:
    """The bytes of the frames that a volunteer has on the host, pinned where a card computes: in each direction one
    that has come, one that goes, and a copy of each on the wire."""
    rules = FrameRules.of(manifest)
    return FRAME_COPIES * (rules.activations.size + rules.gradients.size)


def parts_of(manifest: Manifest, duty: Duty) -> tuple[list[Part], list[Part]]:
    """The parts that a peer authors, and those that it only follows."""
    followed = parts_followed(manifest, duty.stage) if duty.role == "volunteer" else list(model_layout(manifest))
    authored = {"volunteer": parts_authored(duty.stage), "datacenter": followed, "observer": []}[duty.role]
    return authored, [part for part in followed if part not in authored]


def trained_values(manifest: Manifest, duty: Duty) -> int:
    """The values that a peer trains: of a compressed token embedding its factor Z [V, k]."""
    authored, _ = parts_of(manifest, duty)
    values, model = _values(manifest, authored), manifest.model
    if trains_factor(manifest, duty):
        values -= model.vocabulary * (model.d - manifest.k)
    return values


def trains_factor(manifest: Manifest, duty: Duty) -> bool:
    """Whether a peer trains the token embedding by its factor Z [V, k]."""
    factored = manifest.compressed and manifest.replicas.factored
    return factored and duty.role == "volunteer" and duty.stage == 0


def muon_values(manifest: Manifest, duty: Duty) -> int:
    """The values that a peer trains by Muon, where the manifest says so: those of the layers' matrices."""
    if manifest.inner.optimizer != "muon":
        return 0
    authored, _ = parts_of(manifest, duty)
    layout = model_layout(manifest)
    tensors = [(name, shape) for part in authored for name, shape in layout[part].items()]
    return sum(math.prod(shape) for name, shape in tensors if is_layer_matrix(name, shape))


def _values(manifest: Manifest, parts: Sequence[Part]) -> int:
    layout = model_layout(manifest)
    return sum(elements(layout[part]) for part in parts)


def _largest_tensor(manifest: Manifest, parts: Sequence[Part]) -> int:
    layout = model_layout(manifest)
    return max((math.prod(shape) for part in parts for shape in layout[part].values()), default=0)


def _tokens(manifest: Manifest) -> int:
    return manifest.inner.microbatch * manifest.model.context
