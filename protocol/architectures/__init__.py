"""The architectures that a run can train, each in a folder of its own. Of such a folder the module `layer` alone needs
torch, and only `peer` loads it: the node, which computes nothing, needs the rest."""

from typing import Any

from protocol.architectures.architecture import Architecture
from protocol.architectures.llama import LLAMA
from protocol.model_sizes import USUAL_ARCHITECTURE, Model
from protocol.toml_tables import filled

ARCHITECTURES: dict[str, Architecture] = {"llama": LLAMA}
"""Architectures by the name that transformers has for them, `model_type`."""


def architecture_of(model: Model) -> Architecture:
    """The architecture of a model."""
    return ARCHITECTURES[model.architecture]


def parse_model(table: Any) -> Any:
    """The manifest's table `model`, as sizes of the architecture that it names, with what its preset gives. What is
    no table stays.

    Raises:
        ValueError: there is no such architecture, or a field is wrong.
    """
    if not isinstance(table, dict):
        return table
    name = table.get("architecture", USUAL_ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {str(name)[:60]!r}; there are {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[name]
    return architecture.sizes.model_validate(filled(table, architecture.presets))
