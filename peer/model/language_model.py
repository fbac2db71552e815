"""The whole model in one piece, and the text that it writes. Training cuts it into stages (`stage.py`).

Shape suffixes: B sequences, L tokens of a sequence, D width of the residual stream, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peer.model.head import Head
from peer.model.stage import Decoder, position_rows
from protocol.architectures import architecture_of
from protocol.layout import EMBEDDING_TENSOR, whole_layout
from protocol.model_sizes import Model, NgramTables


@dataclass(slots=True)
class Past:
    """The state of a text for the tokens that follow: keys and values of each layer, the number of tokens seen, and the
    ids of the last ones [B, L], as far as n-gram tables look back."""

    layers: list[Any]
    length: int = 0
    tokens_BL: Tensor | None = None

    def followed_by(self, tokens_BL: Tensor, most: int) -> Tensor:
        """The last tokens of the text and those that follow; at the end they are its last, `most` − 1 of them."""
        self.length += tokens_BL.shape[1]
        if self.tokens_BL is not None:
            tokens_BL = torch.cat((self.tokens_BL, tokens_BL), 1)
        self.tokens_BL = tokens_BL[:, max(0, tokens_BL.shape[1] - most + 1) :]
        return tokens_BL


class LanguageModel(nn.Module):
    """Token ids to logits, on torch's default device. Parameters have the names of `protocol.layout`; they are empty
    until `load`."""

    def __init__(self, sizes: Model, ngrams: NgramTables) -> None:
        super().__init__()
        self.sizes, self.ngrams = sizes, ngrams
        self.model = Decoder(sizes, range(sizes.layers), True, ngrams)
        self.model.embed_tokens = nn.Embedding.from_pretrained(torch.empty(sizes.vocabulary, sizes.d))
        self.lm_head = Head(sizes.d, sizes.vocabulary)

    @torch.no_grad()
    def load(self, read: Callable[[str], Tensor]) -> None:
        """Copy the weights in, one at a time; `read` gives each by its name.

        Raises:
            ValueError: one has another shape.
        """
        ours = dict(self.named_parameters())
        for name, shape in whole_layout(self.sizes, self.ngrams).items():
            weight = read(name)
            if tuple(weight.shape) != shape:  # `copy_` would broadcast
                raise ValueError(f"{name}: {tuple(weight.shape)} instead of {shape}")
            ours[name].copy_(weight)

    @torch.no_grad()
    def forward(self, tokens_BL: Tensor, past: Past | None = None) -> Tensor:
        """Logits [B, L, V]. With `past`, which `begin` gives, the tokens are those that follow the ones seen before:
        any number of the first, and then one at a time."""
        sizes, length = self.sizes, tokens_BL.shape[1]
        tables = position_rows(sizes, 0 if past is None else past.length, length, tokens_BL.device)
        seen_BL = tokens_BL if past is None else past.followed_by(tokens_BL, self.ngrams.most)
        x_BLD, rows_BLD = F.embedding(tokens_BL, self.get_parameter(EMBEDDING_TENSOR)), None
        for i, (name, layer) in enumerate(self.model.layers.items()):
            if name in self.model.ngrams:
                x_BLD = x_BLD if rows_BLD is None else x_BLD - rows_BLD
                rows_BLD = self.model.ngrams[name](seen_BL, sizes.d)[:, -length:]
                x_BLD = x_BLD + rows_BLD
            x_BLD = layer(x_BLD, *tables, past=past.layers[i] if past is not None else None)
        return F.linear(self.model.norm(x_BLD), self.lm_head.weight)

    def begin(self) -> Past:
        """Return the state of a text that begins: nothing yet."""
        parts = architecture_of(self.sizes).layer_parts()
        return Past([parts.make_past() for _ in self.model.layers])


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 takes the likeliest token; `top_p` draws from the likeliest ones that have this much probability
    together (nucleus sampling, arXiv 1904.09751)."""

    temperature: float = 0.0
    top_p: float = 1.0


def generate(model: LanguageModel, prompt: Sequence[int], most: int, sampling: Sampling, seed: int) -> Iterator[int]:
    """Up to `most` tokens behind the prompt, which holds at least one and fewer than the model's context. The last may
    be the end of the text; nothing comes behind that, and nothing beyond the context."""
    device = next(model.parameters()).device
    random, past = torch.Generator().manual_seed(seed), model.begin()
    tokens_1L = torch.tensor([prompt], device=device)
    for _ in range(min(most, model.sizes.context - len(prompt))):
        token = pick(model(tokens_1L, past)[0, -1].float().cpu(), sampling, random)
        yield token
        if token == model.sizes.end_of_text:
            return
        tokens_1L = torch.tensor([[token]], device=device)


def pick(logits_V: Tensor, sampling: Sampling, random: torch.Generator) -> int:
    """One token, by its logits [V]."""
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    likely_V, tokens_V = (logits_V / sampling.temperature).softmax(-1).sort(descending=True)
    before_V = likely_V.cumsum(-1) - likely_V
    likely_V[1:][before_V[1:] >= sampling.top_p] = 0
    return int(tokens_V[torch.multinomial(likely_V, 1, generator=random)])
