"""The config of a model in the format everyone uses, `config.json`: a LLaMA's, or that of one with n-gram tables."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol.errors import UserError
from protocol.manifest_tables import Replicas
from protocol.model_sizes import Model, NgramTables
from protocol.toml_tables import MOST_QUOTED_CHARACTERS, validated

CUT_OF_THE_RUN = "hetpeer_layers_of_stages"
"""The field of a config with the number of layers of each stage, beside a basis: boundaries stay where they were."""

MOST_CONTEXT = 2**17
"""The longest context of `protocol.manifest.Model`; longer ones are shortened, as rotary positions may be."""

NGRAMS_OF_THE_RUN = "hetpeer_ngrams"
"""The field of a config with the n-gram tables: {"most": …, "width": …, "layers": […]}."""

MODEL_TYPES = ("llama", "hetpeer_llama")
"""A LLaMA, and one with n-gram tables."""

NO_NGRAMS = NgramTables()

MODELING = "modeling_hetpeer"
"""The module, beside a model with n-gram tables, by which transformers runs it."""

LIKE_LLAMA: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
}
"""The fields of a config in which a run's model has no choice: each has this value, where it is there."""


def config_of(model: Model, cut: Sequence[int] = (), ngrams: NgramTables = NO_NGRAMS) -> dict[str, Any]:
    """Make the `config.json` of a model of this run, with the layers of its stages where these shall be known."""
    kind: dict[str, Any] = {"model_type": MODEL_TYPES[0], "architectures": ["LlamaForCausalLM"]}
    if ngrams.most:
        kind = {
            "model_type": MODEL_TYPES[1],
            "architectures": ["HetpeerLlamaForCausalLM"],
            "auto_map": {
                "AutoConfig": f"{MODELING}.HetpeerLlamaConfig",
                "AutoModelForCausalLM": f"{MODELING}.HetpeerLlamaForCausalLM",
            },
            NGRAMS_OF_THE_RUN: ngrams.model_dump(mode="json"),
        }
    return {
        **({CUT_OF_THE_RUN: list(cut)} if cut else {}),
        **kind,
        **{field: value for field, value in LIKE_LLAMA.items() if value is not None},
        "vocab_size": model.vocabulary,
        "hidden_size": model.d,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.d // model.heads,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": False,
        "bos_token_id": model.end_of_text,
        "eos_token_id": model.end_of_text,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def read_sizes(config: dict[str, Any], path: Path) -> Model:
    """Read the sizes of a model from its config.

    Raises:
        UserError: no run's model can be what the config says.
    """
    if (value := config.get("model_type", MODEL_TYPES[0])) not in MODEL_TYPES:
        raise UserError(
            f"{path}: model_type is {_shown(value)}, and a run trains llama alone: it cannot train this model"
        )
    for field, expected in LIKE_LLAMA.items():
        value = config.get(field, expected)
        if value != expected and not (field == "rope_scaling" and _is_plain(value)):
            raise UserError(
                f"{path}: {field} is {_shown(value)}, and the model of a run has {json.dumps(expected)}: "
                "a run cannot train this model"
            )
    rope = config.get("rope_parameters") or {}
    if not _is_plain(rope):
        raise UserError(f"{path}: rope_parameters are {_shown(rope)}: a run's model has plain rotary positions")
    heads = config.get("num_attention_heads")
    end = config.get("eos_token_id", 2)
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
        "end_of_text": end[0] if isinstance(end, list) and end else end,
    }
    if type(sizes["context"]) is int:
        sizes["context"] = min(sizes["context"], MOST_CONTEXT)
    model = validated(Model, sizes, str(path))
    if config.get("head_dim") not in (None, model.d // model.heads):
        raise UserError(
            f"{path}: head_dim is {_shown(config['head_dim'])}, and in a run it is d / heads = {model.d // model.heads}"
        )
    return model


def read_ngrams(config: dict[str, Any], model: Model, path: Path) -> NgramTables:
    """Read what n-gram tables a model has.

    Raises:
        UserError: no run's model has such.
    """
    table: Any = config.get(NGRAMS_OF_THE_RUN)
    if table is None and config.get("model_type") != MODEL_TYPES[1]:
        return NO_NGRAMS
    tables = validated(NgramTables, table, str(path), NGRAMS_OF_THE_RUN)
    fits = tables.most >= 1 and 1 <= tables.width <= model.d and tables.layers and tables.layers[-1] < model.layers
    if not (fits and list(tables.layers) == sorted(set(tables.layers))):
        raise UserError(f"{path}: {NGRAMS_OF_THE_RUN} is {_shown(table)}: no run has such n-gram tables")
    return tables


def read_cut(config: dict[str, Any], model: Model, ngrams: NgramTables, path: Path) -> tuple[int, ...]:
    """Read the layers of each stage of the run that a model comes from; none, where it is not known.

    Raises:
        UserError: no run is cut so.
    """
    if ngrams.most:  # they lie where stages begin
        ends = (*ngrams.layers, model.layers)
        return tuple(end - start for start, end in zip((0, *ngrams.layers), ends, strict=True))
    return validated(Replicas, {"layers": config.get(CUT_OF_THE_RUN, [])}, str(path), CUT_OF_THE_RUN).layers


def _is_plain(rope: object) -> bool:
    """Whether rotary positions are as in the first LLaMA."""
    if not isinstance(rope, dict):
        return rope is None
    kinds = (rope.get("rope_type", "default"), rope.get("type", "default"))
    return kinds == ("default", "default") and rope.get("partial_rotary_factor", 1.0) == 1.0


def _shown(value: object) -> str:
    return json.dumps(value)[:MOST_QUOTED_CHARACTERS]
