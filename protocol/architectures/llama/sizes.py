"""LLaMA's sizes, its tensors, and what a layer of it costs."""

from typing import Any

from pydantic import Field, model_validator

from protocol.architectures.architecture import LayerCosts
from protocol.model_sizes import Model

PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(("layers", "d", "heads", "kv_heads", "ffn", "context", "vocabulary"), sizes, strict=True))
    for name, sizes in {
        "pico": (4, 64, 4, 4, 192, 128, 1024),
        "nano": (4, 128, 4, 4, 384, 128, 2048),
        "mini": (4, 192, 6, 6, 512, 128, 2048),
        "micro": (6, 256, 8, 4, 704, 256, 4096),
        "tiny": (8, 512, 8, 4, 1408, 512, 8192),
        "178m": (9, 1024, 8, 8, 2688, 2048, 32000),
        "512m": (12, 1536, 12, 12, 5440, 2048, 32000),
        "1b": (16, 2048, 8, 8, 8192, 1024, 32000),
    }.items()
}
"""Named sizes of models. 178m, 512m and 1b are the paper's, its Tables 6 and 9, with the two errata that make the
stated parameter counts come out (1B has d = 2048; 512M has an FFN of 5440). The small ones are for one machine."""


class LlamaSizes(Model):
    """A LLaMA decoder: RoPE, RMSNorm, SwiGLU, untied embeddings."""

    heads: int = Field(ge=1, le=65536)
    kv_heads: int = Field(ge=1, le=65536)
    ffn: int = Field(ge=1, le=2**20)
    rope_theta: float = Field(10000.0, gt=1)
    norm_epsilon: float = Field(1e-5, gt=0)

    @model_validator(mode="after")
    def heads_divide(self) -> "LlamaSizes":
        if self.d % (2 * self.heads):
            raise ValueError(f"d = {self.d} must be an even multiple of heads = {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}")
        return self

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.d // self.heads


def llama_tensors(model: LlamaSizes) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer. Names are those of Hugging Face, so that an export is a renaming of nothing."""
    return {
        "input_layernorm.weight": (model.d,),
        "self_attn.q_proj.weight": (model.heads * model.head, model.d),
        "self_attn.k_proj.weight": (model.kv_heads * model.head, model.d),
        "self_attn.v_proj.weight": (model.kv_heads * model.head, model.d),
        "self_attn.o_proj.weight": (model.d, model.heads * model.head),
        "post_attention_layernorm.weight": (model.d,),
        "mlp.gate_proj.weight": (model.ffn, model.d),
        "mlp.up_proj.weight": (model.ffn, model.d),
        "mlp.down_proj.weight": (model.d, model.ffn),
    }


def llama_costs(model: LlamaSizes) -> LayerCosts:
    """The cost of a layer for one token. Attention is causal, so half of the square.

    A layer keeps of each norm what came in, the same normalized, and what went out; queries, keys, values, and
    attention's sum; a number for each head and norm; SwiGLU's four. The cut counts 20 d for what is no SwiGLU's.
    """
    return LayerCosts(
        attention=model.context * model.d,
        kept=8 * model.d + 2 * model.kv_heads * model.head + model.heads + 2 + 4 * model.ffn,
        cut_kept=20 * model.d + 4 * model.ffn,
        forward=3 * model.ffn + 4 * model.d,
        backward=3 * model.ffn + 6 * model.d,
    )
