"""One pipeline stage: some layers; before them, if the run has such, n-gram tables; and, on the last stage, the final
norm and the head.

No stage holds the token embedding, which is a part of its own (`peer.model.embedding`).

Shape suffixes: B sequences, L tokens of a sequence, D width of the residual stream, V vocabulary.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peer.model.gradient_scale import GradientScale
from peer.model.head import Head
from peer.model.ngrams import Ngrams
from protocol.architectures import architecture_of
from protocol.manifest import Manifest
from protocol.model_sizes import Model, NgramTables

LayersPass = Callable[..., Tensor]
"""`Stage._run_layers`, or what torch has compiled of it."""


def position_rows(model: Model, start: int, length: int, device: torch.device) -> list[Tensor]:
    """The rows [L, …] of the architecture's tables for some tokens of a text, which its layers need."""
    tables = architecture_of(model).layer_parts().position_tables(model, device)
    return [table[start : start + length] for table in tables]


class Decoder(nn.Module):
    """The `model.` of the layout's names: numbered layers, n-gram tables by the number of the layer before which they
    lie, and, on the last stage, the norm."""

    def __init__(self, model: Model, layers: range, last: bool, ngrams: NgramTables) -> None:
        super().__init__()
        before = [layer for layer in ngrams.layers if layer in layers]
        self.ngrams = nn.ModuleDict({str(layer): Ngrams(model.vocabulary, ngrams) for layer in before})
        parts = architecture_of(model).layer_parts()
        self.layers = nn.ModuleDict({str(layer): parts.make_layer(model) for layer in layers})
        if last:
            self.norm = parts.make_norm(model)


class Stage(nn.Module):
    """The layers of one stage of `manifest`.

    `tensors()` has the names, shapes and order of `protocol.layout.part_layout(manifest, stage_part(stage))`.
    Parameters are empty until `load`; they are made on torch's default device.

    Raises:
        ValueError: the manifest has no such stage.
    """

    def __init__(self, manifest: Manifest, stage: int) -> None:
        super().__init__()
        model, stages = manifest.model, manifest.replicas.stages
        if not 0 <= stage < stages:
            raise ValueError(f"there is no stage {stage} of {stages}")
        self.sizes = model
        self.scale: GradientScale | None = None
        self.recompute = False
        """Whether a pass forward keeps only each layer's input, and the pass backward runs the layer forward again."""
        self.run_layers: LayersPass = self._run_layers
        """The pass through all layers, by the residual stream and the position tables, or what torch has compiled."""
        self.last = stage == stages - 1
        self.model = Decoder(model, manifest.cut[stage], self.last, manifest.ngrams)
        if self.last:
            self.lm_head = Head(model.d, model.vocabulary)

    def forward(self, x_BLD: Tensor, tokens_BL: Tensor) -> Tensor:
        """Residual stream [B, L, D] and the token ids → the same shape; behind the final norm on the last stage, whose
        `lm_head` makes a loss of it."""
        ngrams = next(iter(self.model.ngrams.values()), None)  # there are none but before its first layer
        if ngrams is None:
            x_BLD = self.through_layers(x_BLD)
        else:
            rows_BLD = ngrams(tokens_BL, x_BLD.shape[-1])
            x_BLD = self.through_layers(x_BLD + rows_BLD)
            x_BLD = x_BLD if self.last else x_BLD - rows_BLD
        return self.model.norm(x_BLD) if self.last else x_BLD

    def through_layers(self, x_BLD: Tensor) -> Tensor:
        """Residual stream [B, L, D] → the same shape."""
        tables = position_rows(self.sizes, 0, x_BLD.shape[1], x_BLD.device)  # out here: compiled, they were made anew
        if self.scale is not None:
            x_BLD = self.scale.before_layers(x_BLD)
        x_BLD = self.run_layers(x_BLD, *tables)
        if self.scale is not None:
            x_BLD = self.scale.behind_layers(x_BLD)
        return x_BLD

    def _run_layers(self, x_BLD: Tensor, *tables: Tensor) -> Tensor:
        for layer in self.model.layers.values():
            if self.recompute and torch.is_grad_enabled():
                x_BLD = checkpoint(layer, x_BLD, *tables, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BLD = layer(x_BLD, *tables)
        return x_BLD

    def scale_gradients(self) -> None:
        """Keep the gradients within the layers in fp16's range from now on."""
        self.scale = GradientScale()
        self.scale.watch(self.model.layers)

    def compile(self) -> None:
        """Let torch compile all layers as one piece, and the head, at their first use."""
        self.run_layers = torch.compile(self._run_layers, dynamic=False)
        if self.last:
            self.lm_head.compile_slices()

    def compile_layers(self) -> None:
        """Let torch compile each layer on its own, whose weights FSDP puts together for it, and the head."""
        for layer in self.model.layers.values():
            layer.compile(dynamic=False)
        if self.last:
            self.lm_head.compile_slices()

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by name, in the order of the layout."""
        return dict(self.named_parameters())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values in place, so that an optimizer keeps its moments.

        Raises:
            ValueError: a name is missing or unknown, or a shape differs; nothing has been copied then.
        """
        ours = self.tensors()
        if ours.keys() != tensors.keys():
            raise ValueError(f"not this stage's tensors: {sorted(ours.keys() ^ tensors.keys())}")
        for name, tensor in ours.items():
            if tensor.shape != tensors[name].shape:
                raise ValueError(f"{name}: {tuple(tensors[name].shape)} instead of {tuple(tensor.shape)}")
        for name, tensor in ours.items():
            tensor.copy_(tensors[name])
