"""torchtitan's llama, of the releases in which it is built from `TransformerModelArgs` (0.2)."""

import torch
from torch import nn

from compared.llama import Sizes


def titan(sizes: Sizes) -> nn.Module:
    """torchtitan's model of these sizes, token ids [B, L] → logits [B, L, V], on torch's default device.

    Raises:
        ImportError: there is no torchtitan here, one of another form, or one that lacks what it imports.
    """
    from torchtitan.models.llama3.model.args import RoPEScalingArgs, TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer

    model = Transformer(
        TransformerModelArgs(
            dim=sizes.d,
            n_layers=sizes.layers,
            n_heads=sizes.heads,
            n_kv_heads=sizes.kv_heads,
            vocab_size=sizes.vocabulary,
            # It rounds ffn_dim_multiplier · 8 d / 3 up to a multiple of this: from below one, to one.
            multiple_of=sizes.ffn,
            ffn_dim_multiplier=sizes.ffn / (8 * sizes.d / 3) / 2,
            norm_eps=sizes.norm_epsilon,
            rope_theta=sizes.rope_theta,
            rope_scaling_args=RoPEScalingArgs(scaling_factor=1.0),
            max_seq_len=sizes.context,
        )
    )
    with torch.no_grad():
        model.init_weights()
    return model
