"""LLaMA: RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied embeddings."""

from importlib import import_module
from pathlib import Path

from protocol.architectures.architecture import Architecture
from protocol.architectures.llama import config, sizes

LLAMA = Architecture(
    title="LLaMA",
    sizes=sizes.LlamaSizes,
    presets=sizes.PRESETS,
    layer_layout=sizes.llama_tensors,
    norm_layout=lambda model: {"weight": (model.d,)},
    residual_writers=("o_proj.weight", "down_proj.weight"),
    layer_costs=sizes.llama_costs,
    layer_parts=lambda: import_module(f"{__name__}.layer").LLAMA_PARTS,  # late: it needs torch
    describe=lambda model: f"{model.heads} heads ({model.kv_heads} of keys and values), FFN {model.ffn}",
    config_of=config.llama_config,
    read_sizes=config.read_llama_config,
    modeling=Path(__file__).with_name("modeling_hetpeer.py"),
    ignored=("rotary_emb.inv_freq",),  # the first LLaMAs kept it
)
