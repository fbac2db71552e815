"""One decoder layer of LLaMA: RMSNorm, rotary positions, grouped-query attention, SwiGLU; no biases.

Attribute names are Hugging Face's, so that parameter names are those of the layout.

Shape suffixes: B sequences, L tokens of a sequence, D width of the residual stream (the paper's d),
N heads, M key-value heads, H width of a head, V vocabulary.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from protocol.architectures.architecture import LayerParts
from protocol.architectures.llama.sizes import LlamaSizes


class Linear(nn.Linear):
    """y = x Wᵀ. The weight is left empty: a run's weights are always loaded, never drawn here."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass


@functools.lru_cache(maxsize=8)
def rotary_tables(context: int, head: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos(p ω_i) and sin(p ω_i) with ω_i = theta^(−2i / H), [L, H] each in fp32 (RoPE, arXiv 2104.09864).

    Column i and column i + H/2 belong to one rotated pair. Not a buffer, because `module.to(bfloat16)`
    and `to_empty()` would spoil it; made on the CPU, so that every device has the same table.
    """
    # The cache outlives the caller, whose inference mode would make these unusable for training.
    with torch.inference_mode(False):
        frequency = 1.0 / theta ** (torch.arange(0, head, 2, dtype=torch.float32, device="cpu") / head)
        angle = torch.outer(torch.arange(context, dtype=torch.float32, device="cpu"), frequency)
        angle_LH = torch.cat((angle, angle), dim=-1)
        return angle_LH.cos().to(device), angle_LH.sin().to(device)


def position_tables(model: LlamaSizes, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tables of a model's rotary positions, [L, H] each."""
    return rotary_tables(model.context, model.head, model.rope_theta, device)


def rotate(x_BNLH: Tensor, cos_LH: Tensor, sin_LH: Tensor) -> Tensor:
    """Turn each pair (i, i + H/2) of a head by its angle: `rotate_half`, as Hugging Face's weights expect."""
    first, second = x_BNLH.chunk(2, dim=-1)
    turned_BNLH = torch.cat((-second, first), dim=-1)
    return (x_BNLH * cos_LH + turned_BNLH * sin_LH).type_as(x_BNLH)


@dataclass(slots=True)
class KeyValues:
    """The keys and values of one layer for the tokens of a text, for those that follow [B, M, L, H]."""

    kept: tuple[Tensor, Tensor] | None = None

    def extend(self, k_BMLH: Tensor, v_BMLH: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of new tokens; what these attend to: all until now."""
        if self.kept is not None:
            assert k_BMLH.shape[2] == 1, "a causal mask is aligned with the first token, not with the last"
            k_BMLH, v_BMLH = (torch.cat(pair, 2) for pair in zip(self.kept, (k_BMLH, v_BMLH), strict=True))
        self.kept = k_BMLH, v_BMLH
        return self.kept


ATTENTION_BLOCK_TOKENS = 256
"""Tokens whose attention is computed together where torch has no fused kernel."""


def has_fused_attention(x_BLD: Tensor) -> bool:
    """Whether torch trains on a device with attention that never makes matrices of L × L: on all but Apple's."""
    return x_BLD.device.type != "mps"


def attention_in_blocks(q_BNLH: Tensor, k_BMLH: Tensor, v_BMLH: Tensor) -> Tensor:
    """Causal attention [B, N, L, H], as `F.scaled_dot_product_attention`, for some tokens at a time: what they see of
    all earlier ones is computed again in the backward pass."""
    blocks = list[Tensor]()
    for start in range(0, q_BNLH.shape[2], ATTENTION_BLOCK_TOKENS):
        q_BNSH = q_BNLH[:, :, start : start + ATTENTION_BLOCK_TOKENS]
        end = start + q_BNSH.shape[2]
        sees_SL = torch.ones(end - start, end, dtype=torch.bool, device=q_BNLH.device).tril(start)

        def attend(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, sees, enable_gqa=q.shape[1] != k.shape[1])

        block = q_BNSH, k_BMLH[:, :, :end], v_BMLH[:, :, :end], sees_SL
        if torch.is_grad_enabled():
            blocks.append(checkpoint(attend, *block, use_reentrant=False, preserve_rng_state=False))
        else:
            blocks.append(attend(*block))
    return torch.cat(blocks, 2)


def has_shared_heads(q_BNLH: Tensor) -> bool:
    """Whether torch's fused attention lets heads share a key-value head. On CUDA only FlashAttention does, in 16 bits
    and from compute capability 8.0 on; elsewhere torch would fall back to matrices of L × L."""
    if not q_BNLH.is_cuda:
        return True
    return q_BNLH.dtype != torch.float32 and torch.cuda.get_device_capability(q_BNLH.device) >= (8, 0)


def make_norm(model: LlamaSizes) -> nn.RMSNorm:
    """A norm of the residual stream."""
    return nn.RMSNorm(model.d, eps=model.norm_epsilon)


class Attention(nn.Module):
    """Causal self-attention; N / M heads share one key-value head (GQA, arXiv 2305.13245)."""

    def __init__(self, model: LlamaSizes) -> None:
        super().__init__()
        self.head = model.head
        self.grouped = model.kv_heads != model.heads
        self.q_proj = Linear(model.d, model.heads * self.head)
        self.k_proj = Linear(model.d, model.kv_heads * self.head)
        self.v_proj = Linear(model.d, model.kv_heads * self.head)
        self.o_proj = Linear(model.heads * self.head, model.d)

    def forward(self, x_BLD: Tensor, cos_LH: Tensor, sin_LH: Tensor, past: KeyValues | None = None) -> Tensor:
        """[B, L, D] → [B, L, D]; one token alone sees all of `past`."""
        q_BNLH = rotate(self._heads(self.q_proj(x_BLD)), cos_LH, sin_LH)
        k_BMLH = rotate(self._heads(self.k_proj(x_BLD)), cos_LH, sin_LH)
        v_BMLH = self._heads(self.v_proj(x_BLD))
        causal = True
        if past is not None:
            k_BMLH, v_BMLH = past.extend(k_BMLH, v_BMLH)
            causal = x_BLD.shape[1] > 1
        shared = self.grouped and has_shared_heads(q_BNLH)
        if self.grouped and not shared:
            times = q_BNLH.shape[1] // k_BMLH.shape[1]
            k_BMLH, v_BMLH = (heads.repeat_interleave(times, 1) for heads in (k_BMLH, v_BMLH))
        if causal and x_BLD.shape[1] > ATTENTION_BLOCK_TOKENS and not has_fused_attention(x_BLD):
            o_BNLH = attention_in_blocks(q_BNLH, k_BMLH, v_BMLH)
        else:
            o_BNLH = F.scaled_dot_product_attention(q_BNLH, k_BMLH, v_BMLH, is_causal=causal, enable_gqa=shared)
        y_BLD: Tensor = self.o_proj(o_BNLH.transpose(1, 2).flatten(2))
        return y_BLD

    def _heads(self, x: Tensor) -> Tensor:
        """[B, L, N·H] → [B, N, L, H]."""
        return x.view(*x.shape[:2], -1, self.head).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) · up(x))."""

    def __init__(self, model: LlamaSizes) -> None:
        super().__init__()
        self.gate_proj = Linear(model.d, model.ffn)
        self.up_proj = Linear(model.d, model.ffn)
        self.down_proj = Linear(model.ffn, model.d)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """[B, L, D] → [B, L, D]."""
        y_BLD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BLD)) * self.up_proj(x_BLD))
        return y_BLD


class Layer(nn.Module):
    """One decoder layer; both halves add to the residual stream."""

    def __init__(self, model: LlamaSizes) -> None:
        super().__init__()
        self.input_layernorm = make_norm(model)
        self.self_attn = Attention(model)
        self.post_attention_layernorm = make_norm(model)
        self.mlp = FeedForward(model)

    def forward(self, x_BLD: Tensor, cos_LH: Tensor, sin_LH: Tensor, past: KeyValues | None = None) -> Tensor:
        """[B, L, D] → [B, L, D]."""
        x_BLD = x_BLD + self.self_attn(self.input_layernorm(x_BLD), cos_LH, sin_LH, past)
        y_BLD: Tensor = x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))
        return y_BLD


LLAMA_PARTS = LayerParts(Layer, make_norm, KeyValues, position_tables)
