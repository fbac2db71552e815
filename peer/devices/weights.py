"""The parameters that a replica trains, by the keys under which all of its processes, and its checkpoints, know
them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from peer.compute.trainer import GridView
from peer.devices.messages import TensorLayout
from peer.optim.grid import to_float
from peer.optim.muon import state_shapes
from protocol.identity import EMBEDDING, Part, stage_part
from protocol.layout import EMBEDDING_TENSOR, Shape, model_layout
from protocol.manifest import Manifest

EMBEDDING_STAGE = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the model."""

    part: Part
    name: str
    shape: Shape


def trained(manifest: Manifest) -> dict[str, Weight]:
    """Key → weight. A key is the stage and the number of the parameter in it, as in `WholeReplica.optimizer_tensors`:
    a replica may go on with another number of processes."""
    parts = model_layout(manifest)
    weights: dict[str, Weight] = {}
    for stage in range(manifest.replicas.stages):
        part = stage_part(stage)
        stage_weights = [Weight(part, name, shape) for name, shape in parts[part].items()]
        if stage == EMBEDDING_STAGE:
            stage_weights.append(Weight(EMBEDDING, EMBEDDING_TENSOR, parts[EMBEDDING][EMBEDDING_TENSOR]))
        weights |= {f"{stage}.{number}": weight for number, weight in enumerate(stage_weights)}
    return weights


def embedding_key(manifest: Manifest) -> str:
    """The key of the token embedding."""
    return next(key for key, weight in trained(manifest).items() if weight.part == EMBEDDING)


def weights_layout(manifest: Manifest) -> TensorLayout:
    """The layout of all weights, in fp32."""
    return {key: ("float32", weight.shape) for key, weight in trained(manifest).items()}


def moments_layout(manifest: Manifest) -> TensorLayout:
    """The layout of the optimizer's state of all weights."""
    return {
        f"{key}.{name}": ("float32", shape)
        for key, weight in trained(manifest).items()
        for name, shape in state_shapes(manifest.inner, weight.name, weight.shape).items()
    }


def rows_at_ranks(tensor: Tensor, ranks: int, first: int, count: int = 1) -> Tensor:
    """The rows of a whole tensor that lie at `count` of so many processes, from `first` on, in the tensor's own memory.
    A scalar lies at all of them."""
    if not tensor.ndim:
        return tensor
    rows = -(-len(tensor) // ranks)
    return tensor[first * rows : (first + count) * rows]


def fill(weights: Mapping[str, Tensor], manifest: Manifest, grids: Mapping[Part, GridView]) -> None:
    """Write these outer states into tensors that are as `weights_layout` says."""
    for key, weight in trained(manifest).items():
        weights[key].copy_(to_float(grids[weight.part][weight.name]))


def by_part(weights: Mapping[str, Tensor], manifest: Manifest) -> dict[Part, dict[str, Tensor]]:
    """The same tensors by part and name, in the order of `model_layout`."""
    found: dict[Part, dict[str, Tensor]] = {part: {} for part in model_layout(manifest)}
    for key, weight in trained(manifest).items():
        found[weight.part][weight.name] = weights[key]
    return found
