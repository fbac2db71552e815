"""A LLaMA with n-gram tables, for transformers: `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

`hetpeer export` lays this file beside the weights of such a model. It needs torch and transformers, and no hetpeer.
Before some layers, tables of rows by the last token, the last two and the last three add to the residual stream what
the next layers may use; before the next such layer it is taken out again.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

MULTIPLIER = 1_000_003
ROWS_OF_SEVERAL = 4
"""The rows of a table for two tokens or more, for each word of the vocabulary."""

NO_TOKEN = -1
"""Stands in a text where it has not begun: to the left of a shorter one in a batch."""


class HetpeerLlamaConfig(LlamaConfig):
    """A LLaMA's; `hetpeer_ngrams` has the n-gram tables: {"most": …, "width": …, "layers": […]}."""

    model_type = "hetpeer_llama"


class TablesOfLayer(nn.Module):
    """The tables before one layer: the parameter `str(n)` is that for the last n tokens."""

    def __init__(self, vocabulary: int, most: int, width: int) -> None:
        super().__init__()
        for n in range(1, most + 1):
            rows = vocabulary * (1 if n == 1 else ROWS_OF_SEVERAL)
            self.register_parameter(str(n), nn.Parameter(torch.zeros(rows, width)))

    def forward(self, text_ids: Tensor, hidden_size: int) -> Tensor:
        """The sum of the rows that the last tokens choose [batch, length, hidden_size], in its first coordinates."""
        tables = self.named_parameters(recurse=False)
        found = [F.embedding(rows_of(text_ids, int(n), len(table)), table) for n, table in tables]
        total = sum(found[1:], found[0])
        return F.pad(total, (0, hidden_size - total.shape[-1]))


def rows_of(text_ids: Tensor, n: int, count: int) -> Tensor:
    """The row, of `count`, that each token and the n − 1 before it choose."""
    chosen = text_ids.long()
    for back in range(1, n):
        chosen = chosen * MULTIPLIER + F.pad(text_ids.long() + 1, (back, 0))[:, : text_ids.shape[1]]
    return chosen % count


class HetpeerLlamaForCausalLM(LlamaForCausalLM):
    """LLaMA, with rows of n-gram tables in the residual stream between some of its layers."""

    config_class = HetpeerLlamaConfig

    def __init__(self, config: HetpeerLlamaConfig) -> None:
        super().__init__(config)
        given = config.hetpeer_ngrams
        self.most: int = given["most"]
        self.seen = torch.empty(0, 0, dtype=torch.long)  # the ids of the forward pass under way
        self.model.ngrams = nn.ModuleDict(
            {str(layer): TablesOfLayer(config.vocab_size, self.most, given["width"]) for layer in given["layers"]}
        )
        for before, layer in zip([None, *given["layers"][:-1]], given["layers"], strict=True):
            self.model.layers[layer].register_forward_pre_hook(self._exchange(before, layer))
        self.post_init()

    def _exchange(self, before: int | None, layer: int) -> Any:
        """A hook of a layer, which takes the rows before an earlier layer out of what comes in, and adds its own. Rows
        are looked up each time: where activations are computed again, the hook may run again, after the pass."""

        def rows(at: int, hidden: Tensor) -> Tensor:
            ngram_rows: Tensor = self.model.ngrams[str(at)](self.seen, hidden.shape[-1])
            return ngram_rows[:, -hidden.shape[1] :]

        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden, *others = given
            hidden = hidden if before is None else hidden - rows(before, hidden)
            return (hidden + rows(layer, hidden), *others)

        return hook

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        text_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> Any:
        """Compute logits as a LLaMA does. `text_ids`: the whole text whose last tokens the inputs are, `NO_TOKEN` where
        there is none; `generate` gives it, and callers that give a cache must."""
        if input_ids is None:
            raise ValueError("n-gram tables look token ids up: give input_ids, not inputs_embeds")
        if text_ids is None:
            cache = others.get("cache", others.get("past_key_values"))  # transformers 5.24 has another name for it
            if cache is not None and cache.get_seq_length():
                raise ValueError("n-gram tables look back further than the cache: give text_ids, too, the whole text")
            text_ids = unpadded(input_ids, attention_mask)
        self.seen = text_ids[:, -(input_ids.shape[1] + self.most - 1) :]
        arguments = {"attention_mask": attention_mask, "position_ids": position_ids, "logits_to_keep": logits_to_keep}
        return super().forward(input_ids=input_ids, **arguments, **others)

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the inputs as a LLaMA does, and the text so far. (`generate` would refuse arguments by other
        names.)"""
        prepared: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        return prepared | {"text_ids": unpadded(input_ids, kwargs.get("attention_mask"))}


def unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The ids of a text, `NO_TOKEN` where the mask [batch, length] says that there is none."""
    if attention_mask is None or attention_mask.dim() != 2:
        return input_ids
    return torch.where(attention_mask[:, -input_ids.shape[1] :].bool(), input_ids, NO_TOKEN)
