"""The whole model in one piece, for who reads and writes text with it. Training cuts it into stages (`stage.py`).

Shape suffixes: B sequences, L tokens of a sequence, D width of the residual stream, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.model.linear import Linear
from peer.model.llama import KeyValues, rotary_tables
from peer.model.stage import Decoder
from protocol.layout import EMBEDDING_TENSOR, Shape, whole_layout
from protocol.manifest import Model


class LanguageModel(nn.Module):
    """Token ids to logits, on torch's default device. Parameters have the names of `protocol.layout`; they are empty
    until `load`."""

    def __init__(self, sizes: Model) -> None:
        super().__init__()
        self.sizes = sizes
        self.model = Decoder(sizes, range(sizes.layers), last=True)
        self.model.embed_tokens = nn.Embedding.from_pretrained(torch.empty(sizes.vocabulary, sizes.d))
        self.lm_head = Linear(sizes.d, sizes.vocabulary)

    @torch.no_grad()
    def load(self, read: Callable[[str], Tensor]) -> None:
        """Copy the weights in, one at a time; `read` gives each by its name.

        Raises:
            ValueError: one has another shape.
        """
        ours = dict(self.named_parameters())
        for name, shape in whole_layout(self.sizes).items():
            weight = read(name)
            _require_shape(name, weight, shape)
            ours[name].copy_(weight)

    @torch.no_grad()
    def forward(self, tokens_BL: Tensor, past: list[KeyValues] | None = None) -> Tensor:
        """Logits [B, L, V]. With `past`, which `begin` gives, the tokens are those that follow the ones seen before:
        any number of the first, and then one at a time."""
        sizes = self.sizes
        start = past[0].length if past is not None else 0
        tables = rotary_tables(sizes.context, sizes.d // sizes.heads, sizes.rope_theta, tokens_BL.device)
        cos_LH, sin_LH = (table[start : start + tokens_BL.shape[1]] for table in tables)
        x_BLD = F.embedding(tokens_BL, self.get_parameter(EMBEDDING_TENSOR))
        for i, layer in enumerate(self.model.layers.values()):
            x_BLD = layer(x_BLD, cos_LH, sin_LH, past[i] if past is not None else None)
        logits_BLV: Tensor = self.lm_head(self.model.norm(x_BLD))
        return logits_BLV

    def begin(self) -> list[KeyValues]:
        """What `forward` keeps of the tokens of one text: nothing yet."""
        return [KeyValues() for _ in self.model.layers]


def _require_shape(name: str, weight: Tensor, shape: Shape) -> None:
    """Raises ValueError where `copy_` would broadcast."""
    if tuple(weight.shape) != shape:
        raise ValueError(f"{name}: {tuple(weight.shape)} instead of {shape}")
