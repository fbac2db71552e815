"""Text by a model: one token after the other, each drawn from what the model expects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.model.language_model import LanguageModel


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
