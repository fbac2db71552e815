"""A second architecture, which no run can name: MPT, with norms and matrices of its own, positions by ALiBi (arXiv
2108.12409), and a layer in the same module. transformers has it as `MptForCausalLM`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from protocol.architectures.architecture import Architecture, LayerCosts, LayerParts
from protocol.model_sizes import Model
from protocol.toml_tables import validated

HIGHEST_BIAS = 8


class MptSizes(Model):
    architecture: Literal["mpt"] = "mpt"
    heads: int = Field(ge=1)

    @property
    def wide(self) -> int:
        return 4 * self.d


def layer_layout(model: MptSizes) -> dict[str, tuple[int, ...]]:
    return {
        "norm_1.weight": (model.d,),
        "attn.Wqkv.weight": (3 * model.d, model.d),
        "attn.out_proj.weight": (model.d, model.d),
        "norm_2.weight": (model.d,),
        "ffn.up_proj.weight": (model.wide, model.d),
        "ffn.down_proj.weight": (model.d, model.wide),
    }


def layer_costs(model: MptSizes) -> LayerCosts:
    squares = model.heads * model.context
    kept = 8 * model.d + 2 * model.wide + 2 * squares
    return LayerCosts(model.context * model.d, kept, kept, model.wide + 4 * model.d, 2 * model.wide + 6 * model.d)


def config_of(model: MptSizes) -> dict[str, Any]:
    return {
        "model_type": "mpt",
        "architectures": ["MptForCausalLM"],
        "d_model": model.d,
        "n_heads": model.heads,
        "n_layers": model.layers,
        "max_seq_len": model.context,
        "vocab_size": model.vocabulary,
        "eos_token_id": model.end_of_text,
        "tie_word_embeddings": False,
    }


def read_sizes(config: Mapping[str, Any], path: Path) -> MptSizes:
    fields = {"d": "d_model", "heads": "n_heads", "layers": "n_layers", "context": "max_seq_len"}
    fields |= {"vocabulary": "vocab_size", "end_of_text": "eos_token_id"}
    return validated(MptSizes, {ours: config.get(theirs) for ours, theirs in fields.items()}, str(path))


def tensor_name(name: str) -> str:
    name = name.replace("model.embed_tokens.", "transformer.wte.").replace("model.norm.", "transformer.norm_f.")
    return name.replace("model.layers.", "transformer.blocks.")


MPT = Architecture(
    title="MPT",
    sizes=MptSizes,
    presets={"small": {"layers": 4, "d": 32, "heads": 4, "context": 16, "vocabulary": 300}},
    layer_layout=layer_layout,
    norm_layout=lambda model: {"weight": (model.d,)},
    residual_writers=("out_proj.weight", "down_proj.weight"),
    layer_costs=layer_costs,
    layer_parts=lambda: LayerParts(Layer, make_norm, KeyValues, position_tables),
    describe=lambda model: f"{model.heads} heads",
    config_of=config_of,
    read_sizes=read_sizes,
    modeling=Path("none"),
    tensor_name=tensor_name,
)


# The layer


def make_norm(model: MptSizes) -> nn.LayerNorm:
    return nn.LayerNorm(model.d, bias=False)


def position_tables(model: MptSizes, device: torch.device) -> tuple[Tensor]:
    """The number of each token."""
    return (torch.arange(model.context, device=device),)


class KeyValues:
    """Keys and values of the tokens so far."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []


class Attention(nn.Module):
    def __init__(self, model: MptSizes) -> None:
        super().__init__()
        self.Wqkv = nn.Linear(model.d, 3 * model.d, bias=False)
        self.out_proj = nn.Linear(model.d, model.d, bias=False)
        self.slopes = [2 ** (-HIGHEST_BIAS * (head + 1) / model.heads) for head in range(model.heads)]

    def forward(self, x: Tensor, numbers: Tensor, past: KeyValues | None) -> Tensor:
        heads = self.Wqkv(x).unflatten(-1, (3, len(self.slopes), -1)).permute(2, 0, 3, 1, 4)
        q, kv = heads[0], heads[1:]
        if past is not None:
            past.seen.append(kv)
            kv = torch.cat(past.seen, dim=3)
        distance = torch.arange(kv.shape[3], device=x.device) - numbers[:, None]
        bias = torch.stack([slope * distance for slope in self.slopes]).masked_fill(distance > 0, float("-inf"))
        y = F.scaled_dot_product_attention(q, kv[0], kv[1], bias.to(x.dtype))
        return self.out_proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, model: MptSizes) -> None:
        super().__init__()
        self.up_proj = nn.Linear(model.d, model.wide, bias=False)
        self.down_proj = nn.Linear(model.wide, model.d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, model: MptSizes) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = make_norm(model), make_norm(model)
        self.attn, self.ffn = Attention(model), FeedForward(model)

    def forward(self, x: Tensor, numbers: Tensor, past: KeyValues | None = None) -> Tensor:
        x = x + self.attn(self.norm_1(x), numbers, past)
        return x + self.ffn(self.norm_2(x))
