"""LLaMA and its training step in plain PyTorch, in one file, as one writes it for one device.

RMSNorm, rotary positions, grouped-query attention by `scaled_dot_product_attention`, SwiGLU, all logits at once,
autocast, AdamW's fused kernel, and `torch.compile` of model and loss. Nothing of hetpeer is imported; the parameters
have Hugging Face's names. Shapes: B sequences, L tokens of a sequence, D width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a LLaMA."""

    layers: int
    d: int
    heads: int
    kv_heads: int
    ffn: int
    context: int
    vocabulary: int
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5


class Attention(nn.Module):
    """Causal self-attention, whose key-value heads may be shared."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.d // sizes.heads
        self.shared = sizes.heads != sizes.kv_heads
        self.q_proj = nn.Linear(sizes.d, sizes.heads * self.width, bias=False)
        self.k_proj = nn.Linear(sizes.d, sizes.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(sizes.d, sizes.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(sizes.heads * self.width, sizes.d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, L, D] → [B, L, D]; `cos` and `sin` are [L, width of a head]."""
        projected = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (each.unflatten(-1, (-1, self.width)).transpose(1, 2) for each in projected)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.shared)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + half) of each head by the angles of their positions."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).type_as(x)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.d, sizes.ffn, bias=False)
        self.up_proj = nn.Linear(sizes.d, sizes.ffn, bias=False)
        self.down_proj = nn.Linear(sizes.ffn, sizes.d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] → [B, L, D]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.d, eps=sizes.norm_epsilon)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(sizes.d, eps=sizes.norm_epsilon)
        self.mlp = FeedForward(sizes)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, L, D] → [B, L, D]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Token ids [B, L] → residual stream behind the final norm [B, L, D]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.d)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.d, eps=sizes.norm_epsilon)
        width = sizes.d // sizes.heads
        frequencies = sizes.rope_theta ** (-torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(sizes.context).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, L] → [B, L, D]."""
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """Token ids [B, L] → logits [B, L, V]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.model = Decoder(sizes)
        self.lm_head = nn.Linear(sizes.d, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, L] → [B, L, V]."""
        return self.lm_head(self.model(tokens))


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is trained. `factors`: the number format of autocast; float32 is none."""

    microbatch: int
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    clip: float
    factors: torch.dtype = torch.float32
    compiled: bool = False


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next tokens [B, L + 1], a scalar in nats a token."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Training:
    """A model that makes logits, its optimizer, and the steps they take."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.settings = settings
        self.device = next(model.parameters()).device
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.factors is torch.float16)
        self.model = model
        self.loss = torch.compile(loss, dynamic=False) if settings.compiled else loss

    def step(self, batch: Tensor, rate: float) -> float:
        """One step on token ids [sequences, L + 1], a microbatch at a time; its mean loss in nats a token."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        microbatches = batch.split(self.settings.microbatch)
        losses = [self._pass(each.to(self.device), len(microbatches)) for each in microbatches]
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).mean().item()

    def _pass(self, tokens: Tensor, microbatches: int) -> Tensor:
        """Forward and backward of one microbatch; its loss."""
        factors = self.settings.factors
        with torch.autocast(self.device.type, factors, enabled=factors is not torch.float32):
            mean = self.loss(self.model, tokens)
        self.scaler.scale(mean / microbatches).backward()
        return mean.detach()
