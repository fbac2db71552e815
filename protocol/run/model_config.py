"""The config of a model in the format everyone uses, `config.json`: its architecture's, and what a run adds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol.architectures import ARCHITECTURES, architecture_of
from protocol.errors import UserError
from protocol.manifest_tables import Replicas
from protocol.model_sizes import USUAL_ARCHITECTURE, Model, NgramTables
from protocol.toml_tables import shown, validated

CUT_OF_THE_RUN = "hetpeer_layers_of_stages"
"""The field of a config with the number of layers of each stage, beside a basis: boundaries stay where they were."""

NGRAMS_OF_THE_RUN = "hetpeer_ngrams"
"""The field of a config with the n-gram tables: {"most": …, "width": …, "layers": […]}."""

NO_NGRAMS = NgramTables()

WITH_TABLES = "hetpeer_"
"""The beginning of the `model_type` of a model with n-gram tables; an architecture's name follows."""

SAME_MODELS = {"mistral": "llama"}
"""Architectures that are another one under their own name, where nothing that the other lacks is used: Mistral without
a sliding window is a LLaMA."""

MODELING = "modeling_hetpeer"
"""The module, beside a model with n-gram tables, by which transformers runs it."""


def config_of(model: Model, cut: Sequence[int] = (), ngrams: NgramTables = NO_NGRAMS) -> dict[str, Any]:
    """Make the `config.json` of a model of this run, with the layers of its stages where these shall be known."""
    config = architecture_of(model).config_of(model)
    if ngrams.most:
        causal = f"Hetpeer{config['architectures'][0]}"
        modules = {"AutoConfig": causal.replace("ForCausalLM", "Config"), "AutoModelForCausalLM": causal}
        config |= {
            "model_type": WITH_TABLES + model.architecture,
            "architectures": [causal],
            "auto_map": {auto: f"{MODELING}.{name}" for auto, name in modules.items()},
            NGRAMS_OF_THE_RUN: ngrams.model_dump(mode="json"),
        }
    return ({CUT_OF_THE_RUN: list(cut)} if cut else {}) | config


def read_sizes(config: dict[str, Any], path: Path) -> Model:
    """Read the sizes of a model from its config.

    Raises:
        UserError: no run's model can be what the config says.
    """
    name = config.get("model_type", USUAL_ARCHITECTURE)
    own_name = SAME_MODELS.get(name, name.removeprefix(WITH_TABLES)) if isinstance(name, str) else ""
    architecture = ARCHITECTURES.get(own_name)
    if architecture is None:
        trained = " or ".join((*ARCHITECTURES, *SAME_MODELS))
        raise UserError(
            f"{path}: model_type is {shown(name)}, and a run trains {trained} alone: it cannot train this model"
        )
    return architecture.read_sizes(config, path)


def read_ngrams(config: dict[str, Any], model: Model, path: Path) -> NgramTables:
    """Read what n-gram tables a model has.

    Raises:
        UserError: no run's model has such.
    """
    table: Any = config.get(NGRAMS_OF_THE_RUN)
    if table is None and config.get("model_type") != WITH_TABLES + model.architecture:
        return NO_NGRAMS
    tables = validated(NgramTables, table, str(path), NGRAMS_OF_THE_RUN)
    fits = tables.most >= 1 and 1 <= tables.width <= model.d and tables.layers and tables.layers[-1] < model.layers
    if not (fits and list(tables.layers) == sorted(set(tables.layers))):
        raise UserError(f"{path}: {NGRAMS_OF_THE_RUN} is {shown(table)}: no run has such n-gram tables")
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
