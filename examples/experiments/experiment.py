"""An experiment: a grid of runs, as a file that one can read and hand on.

title = "…"                     # what is asked
claim = "…"                     # what the paper says comes out
seeds = [1, 2, 3]
replicas = 8                    # M of every run; `mode` says which of them are groups of volunteers
x = "replicas.compression"      # along which figures are drawn

[base.model]                    # a manifest; and the switches of `peer/lab/switches.py` in [base.lab]
preset = "512m"

[[grid]]                        # every combination of the lists, for every seed
mode = ["uniform", "heterogeneous"]
"replicas.compression" = [8, 24]

[scale.small]                   # `--scale small`: what is otherwise there
replicas = 4
base.model.preset = "nano"
axes."replicas.compression" = [8]
"""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from peer.lab.switches import Switches, switches
from protocol.errors import ManifestError
from protocol.manifest import Manifest, check_manifest
from protocol.toml_tables import Section, read_tables, validated

Tables = dict[str, Any]
Value = str | int | float | bool

PAPER = "paper"
"""The scale of an experiment's file itself."""

TABLES = (*Manifest.model_fields, "lab")
"""Of a manifest, and the lab's own."""

MOST_CASES = 10_000

MODES = ("baseline", "uniform", "heterogeneous")
"""Compressed replicas: none, all, or `share` of them."""


class Scale(Section):
    """What another scale changes: `axes` replaces the values of a grid's axis wherever the grid has it."""

    seeds: list[int] | None = None
    replicas: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=1)
    evaluate_every: int | None = Field(None, ge=1)
    base: Tables = Field(default_factory=dict)
    axes: dict[str, list[Value]] = Field(default_factory=dict)


class Experiment(Section):
    """An experiment's file."""

    title: str
    claim: str = ""
    seeds: list[int] = Field([1, 2, 3], min_length=1)
    replicas: int = Field(8, ge=1, le=1024)
    share: float = Field(0.5, gt=0, lt=1, description="of compressed replicas in a heterogeneous run")
    steps: int | None = Field(
        None, ge=1, description="inner steps of every run: outer.rounds is so many / inner.steps, and need not be given"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds; the last one always")
    x: str | None = None
    loss: Literal["replicas", "through", "plain"] = Field(
        "replicas", description="which loss tables show: the mean over replicas, as the paper, or one of the two"
    )
    base: Tables
    grid: list[dict[str, Value | list[Value]]] = Field(min_length=1)
    scale: dict[str, Scale] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `axes` tell it from the others of its experiment, but for the seed."""

    axes: dict[str, Value]
    seed: int
    manifest: Manifest
    switches: Switches
    evaluate_every: int = 1

    @property
    def id(self) -> str:
        """Of what is computed alone: equal runs of two experiments are one."""
        return identity(self.manifest, self.switches)

    @property
    def name(self) -> str:
        """The run's axes and seed, in words for people."""
        return f"{said(self.axes)}, seed {self.seed}"


def identity(manifest: Manifest, switches: Switches) -> str:
    """The id of a run, which is equal for equal options: 16 hexadecimal digits."""
    said = manifest.digest + switches.model_dump_json()
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def load_experiment(path: Path, scale: str) -> Experiment:
    """Read an experiment at a scale.

    Raises:
        ManifestError: the file cannot be read, a field of it is wrong, or it has no such scale; the message says which.
    """
    experiment = validated(Experiment, read_tables(path, "experiment"), str(path))
    return experiment if scale == PAPER else _scaled(experiment, scale, path)


def _scaled(experiment: Experiment, scale: str, path: Path) -> Experiment:
    if scale not in experiment.scale:
        raise ManifestError(f"{path} has no scale {scale!r}; it has {', '.join([PAPER, *experiment.scale])}")
    change = experiment.scale[scale]
    return experiment.model_copy(
        update={
            "seeds": change.seeds or experiment.seeds,
            "replicas": change.replicas or experiment.replicas,
            "steps": change.steps or experiment.steps,
            "evaluate_every": change.evaluate_every or experiment.evaluate_every,
            "base": _merged(experiment.base, change.base),
            "grid": [
                {key: change.axes.get(key, value) if isinstance(value, list) else value for key, value in block.items()}
                for block in experiment.grid
            ],
        }
    )


def cases(experiment: Experiment) -> list[Case]:
    """All combinations, each once, all of the first seed first. Two that are called otherwise and are one run have
    one id.

    Raises:
        ManifestError: a combination is none that can be run; the message names it.
    """
    number = len(experiment.seeds) * sum(
        math.prod(len(each) for each in block.values() if isinstance(each, list)) for block in experiment.grid
    )
    if number > MOST_CASES:
        raise ManifestError(f"the grid makes {number} runs, more than {MOST_CASES}")
    combinations: dict[tuple[tuple[str, Value], ...], dict[str, Value]] = {}
    for block in experiment.grid:
        lists = [values if isinstance(values, list) else [values] for values in block.values()]
        for values in itertools.product(*lists):
            axes = dict(zip(block, values, strict=True))
            combinations[tuple(axes.items())] = axes
    return [_case(experiment, axes, seed) for seed in experiment.seeds for axes in combinations.values()]


def _case(experiment: Experiment, axes: Mapping[str, Value], seed: int) -> Case:
    source = ", ".join(f"{key} = {value}" for key, value in axes.items())
    try:
        tables: Tables = json.loads(json.dumps(experiment.base))
    except (TypeError, ValueError) as error:
        raise ManifestError(f"{source}: base: {error}") from None
    if not all(isinstance(tables.setdefault(table, {}), dict) for table in TABLES):
        raise ManifestError(f"{source}: base has a field where a table belongs")
    for key, value in axes.items():
        if key == "label":
            continue
        if key == "mode":
            if value not in MODES:
                raise ManifestError(f"{source}: mode is one of {', '.join(MODES)}")
            some = round(experiment.share * experiment.replicas)
            groups = {"baseline": 0, "uniform": experiment.replicas}.get(str(value), some)
            tables.setdefault("replicas", {}).update(groups=groups, datacenters=experiment.replicas - groups)
            continue
        table, _, name = key.partition(".")
        if not name:
            raise ManifestError(f"{source}: {key} is neither mode, nor label, nor table.field")
        if table not in TABLES:
            raise ManifestError(f"{source}: there is no table {table!r}")
        tables[table][name] = value
    tables.setdefault("run", {})["seed"] = seed
    lab = tables.pop("lab", {})
    manifest = check_manifest(tables, source)
    if experiment.steps is not None:
        tables.setdefault("outer", {})["rounds"] = max(1, experiment.steps // manifest.inner.steps)
        manifest = check_manifest(tables, source)
    return Case(dict(axes), seed, manifest, switches(lab, manifest, source), experiment.evaluate_every)


def _merged(base: Tables, change: Tables) -> Tables:
    merged = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def said(axes: Mapping[str, Value], without: str | None = None) -> str:
    """Axes in words, perhaps without one along which a figure is drawn."""
    return ", ".join(
        str(value) if key in ("mode", "label") else f"{field_of(key)} {value}"
        for key, value in axes.items()
        if key != without
    )


def field_of(axis: str) -> str:
    """The field of `table.field`."""
    return axis.rpartition(".")[2]
