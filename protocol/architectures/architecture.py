"""An architecture: all that differs between the models that a run can train.

Every model is a token embedding [V, d], layers on a residual stream of d numbers, a norm, and a head [V, d]. An
architecture says what a layer and that norm are. Its functions take sizes of its own class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.model_sizes import Model


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """The cost of a layer for one token: `attention`, multiplications beside those of its matrices; and fp32 values,
    those `kept` for the backward pass, and those that pass `forward` and `backward`.

    `cut_kept` is `kept` as `balance = "memory"` counts it. It is frozen: another number would move the borders of
    stages.
    """

    attention: int
    kept: int
    cut_kept: int
    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The parts of a model in torch: makers of a layer, of a norm, and of a layer's past, for a text that begins; and
    tables [context, …] on a device. A layer is called with activations [B, L, d], the tables' rows for their tokens,
    and its `past`, where there is one."""

    make_layer: Callable[[Any], Any]
    make_norm: Callable[[Any], Any]
    make_past: Callable[[], Any]
    position_tables: Callable[[Any, Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture. `layer_layout` and `norm_layout` have the tensors of a layer and of the last norm, name → shape
    in canonical order; those of one dimension are gains and biases. Names with the endings `residual_writers` are
    matrices [d, inputs] whose product is added to the residual stream. `layer_parts` loads the module with torch.

    The rest is for people, and for transformers: `describe` gives the architecture's own sizes in words, `config_of` a
    `config.json`, which `read_sizes` reads (with its path for errors; raises UserError), and `tensor_name` the name
    there of a run's tensor. Tensors with the endings `ignored` may be in a checkpoint, and are left out. The file
    `modeling` runs a model with n-gram tables.
    """

    title: str
    sizes: type[Model]
    presets: Mapping[str, Mapping[str, Any]]
    layer_layout: Callable[[Any], dict[str, tuple[int, ...]]]
    norm_layout: Callable[[Any], dict[str, tuple[int, ...]]]
    residual_writers: tuple[str, ...]
    layer_costs: Callable[[Any], LayerCosts]
    layer_parts: Callable[[], LayerParts]
    describe: Callable[[Any], str]
    config_of: Callable[[Any], dict[str, Any]]
    read_sizes: Callable[[Mapping[str, Any], Path], Model]
    modeling: Path
    tensor_name: Callable[[str], str] = str
    ignored: tuple[str, ...] = ()
