"""What a peer takes of memory, by what it does: on the device that computes, and on the host. Pure, and without torch.

What the mathematics keeps is counted:

    device   16 bytes a value that is trained (weight, gradient, two moments of AdamW), 4 a value that is looked up (T⊥) or
             evaluated with, and what a microbatch in flight keeps for its backward pass
    host     8 a value that is authored (grid, error feedback), 4 a value that is followed

What passes, copies of one tensor at a time and the products of one layer, is a bound that `benchmarks/memory.py` holds
against what processes take: the estimate is never below the peak, and at most 15 % above it.
"""

from dataclasses import dataclass

from protocol.identity import Part, parts_authored
from protocol.layout import elements, model_layout, parts_followed
from protocol.manifest import Manifest
from protocol.trust.membership_card import Role

PROCESS_BYTES = 500 * 2**20
"""Python, torch, hivemind and gRPC."""

TRAINED_BYTES = 16
"""A value that is trained, on the device: weight, gradient, and two moments, in fp32."""

AUTHORED_BYTES = 8
"""A value of a part that a peer authors, on the host: the grid and the error feedback."""

FOLLOWED_BYTES = 4
"""A value of a part that a peer only follows, on the host: the grid."""

SLICE_TOKENS = 1024
"""Tokens whose logits are there at a time (`peer.model.head`)."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What a peer does that takes memory. `stage`: of a volunteer. `holds`: it follows the run, and evaluates nothing.
    `recompute`: of each layer it keeps only what came in, and computes the rest again on the way back."""

    role: Role
    stage: int = 0
    holds: bool = False
    recompute: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes where the model is computed, and beside it. On a machine that computes on its CPU both are one memory."""

    device: int
    host: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.device + self.host


def memory_of(manifest: Manifest, duty: Duty) -> Memory:
    """What a peer takes at its peak: an upper estimate."""
    authored, followed = parts_of(manifest, duty)
    sizes = {part: elements(layout) for part, layout in model_layout(manifest).items()}
    outer = AUTHORED_BYTES * sum(sizes[part] for part in authored) + FOLLOWED_BYTES * sum(sizes[part] for part in followed)
    host = PROCESS_BYTES + outer + passing_bytes(manifest, [*authored, *followed]) + arriving_bytes(manifest, [*authored, *followed])
    if duty.holds:
        return Memory(0, host)
    return Memory(device_bytes(manifest, duty), host)


def parts_of(manifest: Manifest, duty: Duty) -> tuple[list[Part], list[Part]]:
    """The parts that a peer authors, and those that it only follows."""
    followed = parts_followed(manifest, duty.stage) if duty.role == "volunteer" else list(model_layout(manifest))
    authored = {"volunteer": parts_authored(duty.stage), "datacenter": followed, "observer": []}[duty.role]
    return authored, [part for part in followed if part not in authored]


def trained_values(manifest: Manifest, duty: Duty) -> int:
    """The values that a peer trains: of a compressed token embedding its factor Z [V, k]."""
    authored, _ = parts_of(manifest, duty)
    layout, model = model_layout(manifest), manifest.model
    values = sum(elements(layout[part]) for part in authored)
    if duty.role == "volunteer" and duty.stage == 0 and manifest.compressed:
        values -= model.vocabulary * (model.d - manifest.k)
    return values
