"""LLaMA's `config.json`, as transformers has it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.architectures.llama.sizes import LlamaSizes
from protocol.errors import UserError
from protocol.model_sizes import MOST_CONTEXT
from protocol.toml_tables import shown, validated

LIKE_LLAMA: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
    "sliding_window": None,
}
"""The fields of a config in which a run's model has no choice: each has this value, where it is there."""


def llama_config(model: LlamaSizes) -> dict[str, Any]:
    """Make a model's `config.json`."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **{field: value for field, value in LIKE_LLAMA.items() if value is not None},
        "vocab_size": model.vocabulary,
        "hidden_size": model.d,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": False,
        "bos_token_id": model.end_of_text,
        "eos_token_id": model.end_of_text,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def read_llama_config(config: Mapping[str, Any], path: Path) -> LlamaSizes:
    """Read the sizes of a model from its config.

    Raises:
        UserError: no run's model can be what the config says.
    """
    for field, expected in LIKE_LLAMA.items():
        value = config.get(field, expected)
        if value != expected and not (field == "rope_scaling" and _is_plain(value)):
            raise UserError(
                f"{path}: {field} is {shown(value)}, and the model of a run has {json.dumps(expected)}: "
                "a run cannot train this model"
            )
    rope = config.get("rope_parameters") or {}
    if not _is_plain(rope):
        raise UserError(f"{path}: rope_parameters are {shown(rope)}: a run's model has plain rotary positions")
    if config.get("partial_rotary_factor") not in (None, 1):
        factor = shown(config["partial_rotary_factor"])
        raise UserError(f"{path}: partial_rotary_factor is {factor}: a run's model has plain rotary positions")
    heads = config.get("num_attention_heads")
    end = config.get("eos_token_id", 2)
    end = end[0] if isinstance(end, list) and end else end
    if end is None or end == []:
        raise UserError(
            f"{path}: eos_token_id is {shown(end)}, and a run needs a token behind each text (end_of_text): set it to "
            "the id of one"
        )
    sizes = {
        "layers": config.get("num_hidden_layers"),
        "d": config.get("hidden_size"),
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "ffn": config.get("intermediate_size"),
        "context": config.get("max_position_embeddings", 2048),
        "vocabulary": config.get("vocab_size"),
        "rope_theta": rope.get("rope_theta") or config.get("rope_theta", 10000.0),
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "end_of_text": end,
    }
    if type(sizes["context"]) is int:
        sizes["context"] = min(sizes["context"], MOST_CONTEXT)  # rotary positions may be fewer
    model = validated(LlamaSizes, sizes, str(path))
    if config.get("head_dim") not in (None, model.head):
        raise UserError(f"{path}: head_dim is {shown(config['head_dim'])}, and in a run it is d / heads = {model.head}")
    return model


def _is_plain(rope: object) -> bool:
    """Whether rotary positions are as in the first LLaMA."""
    if not isinstance(rope, dict):
        return rope is None
    if any(isinstance(value, dict) for value in rope.values()):  # of each kind of layer its own
        return False
    kinds = (rope.get("rope_type", "default"), rope.get("type", "default"))
    return kinds == ("default", "default") and rope.get("partial_rotary_factor", 1.0) == 1.0
