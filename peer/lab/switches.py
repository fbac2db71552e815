"""The switches of the lab: the paper's ablations and its baselines, which the swarm does not know.

A run of the lab is a manifest and these switches. Every default is what the swarm does; what the swarm can do, too
(`outer.aggregate`, `outer.values`, `outer.overlap`, `replicas.wire` …), is in the manifest.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from protocol.errors import ManifestError
from protocol.manifest import Manifest
from protocol.toml_tables import Section, validated

NOT_OF_GROUPS = {"method", "momentum", "speeds", "values", "precision"}
"""The switches that change nothing in how a compressed group is built."""


class Switches(Section):
    """The table `lab` of an experiment."""

    method: Literal["sparseloco", "diloco", "adamw"] = Field(
        "sparseloco", description="diloco: dense pseudo-gradients, Nesterov; adamw: gradients averaged in every step"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="of DiLoCo's Nesterov")
    speeds: str = Field(
        "",
        pattern=r"^([1-9][0-9]{0,3}(:[1-9][0-9]{0,3})*)?$",
        description="of replicas, as in 1:1:2:4: they share a round's M H steps; the slowest takes H with most_steps",
    )
    values: Literal["manifest", "exact"] = Field(
        "manifest", description="values of contributions; manifest: outer.values; exact: 32 bits each, as in the paper"
    )
    adaptation: bool = Field(True, description="split TE again after each round (HET, equations 3 and 4)")
    embedding: Literal["factor", "project", "drift"] = Field(
        "factor",
        description="T_S as Z Uᵀ; or dense, projected after each inner step; or dense and free until the round's end",
    )
    weight_projection: bool = Field(False, description="W ← U UᵀW of what writes into the residual stream")
    second_moment: Literal["elements", "columns"] = Field(
        "elements", description="columns: AdamW's v is one number for a column of such a W (Subspace Networks)"
    )
    grassmann: int = Field(0, ge=0, description="inner steps between two updates of U towards the gradients; 0: never")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: autocast")

    @model_validator(mode="after")
    def fit_together(self) -> "Switches":
        rules = {
            "method = adamw has no inner loop for these": self.method == "adamw"
            and (self != self.without_groups or bool(self.speeds)),
            "values are SparseLoCo's": self.values != "manifest" and self.method != "sparseloco",
        }
        for rule, broken in rules.items():
            if broken:
                raise ValueError(rule)
        return self

    @property
    def shares(self) -> list[int]:
        """The speed of each replica; none where all are equal."""
        return [int(speed) for speed in self.speeds.split(":")] if self.speeds else []

    @property
    def without_groups(self) -> "Switches":
        """The same switches as they are in a run that has no compressed group."""
        return Switches.model_construct(**{name: getattr(self, name) for name in NOT_OF_GROUPS})


def switches(table: dict[str, Any], manifest: Manifest, source: str) -> Switches:
    """The table `lab`, checked by itself and against the manifest; without what changes nothing in this run.

    Raises:
        ManifestError: a switch is unknown or wrong, or does not go with the manifest.
    """
    chosen = validated(Switches, table, source, "lab")
    if manifest.inner.optimizer != "adamw" and chosen.method == "adamw":
        raise ManifestError(f"{source}: lab.method: adamw has no inner steps for inner.optimizer")
    if manifest.inner.optimizer != "adamw" and chosen.second_moment != "elements":
        raise ManifestError(f"{source}: lab.second_moment: {chosen.second_moment} is AdamW's; inner.optimizer is not")
    if manifest.inner.overlap and chosen.method == "adamw":
        raise ManifestError(f"{source}: lab.method: adamw knows no inner.overlap")
    for is_off, field in (
        (not manifest.outer.overlap, "outer.overlap"),
        (manifest.outer.clip == "none", "outer.clip"),
        (manifest.outer.weights == "equal", "outer.weights"),
        (not manifest.inner.most_steps, "inner.most_steps"),
    ):
        if not is_off and chosen.method != "sparseloco":
            raise ManifestError(f"{source}: lab.method: {chosen.method} knows no {field}")
    if len(chosen.shares) not in (0, manifest.replicas.total):
        raise ManifestError(f"{source}: lab.speeds: {len(chosen.shares)} speeds for {manifest.replicas.total} replicas")
    if not manifest.replicas.groups or not manifest.compressed:
        return chosen.without_groups
    for rule, broken in _anchor_rules(chosen, manifest).items():
        if broken:
            raise ManifestError(f"{source}: lab: {rule}")
    return chosen


def _anchor_rules(table: Switches, manifest: Manifest) -> dict[str, bool]:
    """Rules of `replicas.anchor`, and whether the switches break them."""
    whole = not manifest.replicas.factored
    return {
        "replicas.anchor = embedding has no T_S: leave embedding, adaptation and grassmann alone": whole
        and (table.embedding != "factor" or not table.adaptation or table.grassmann > 0),
        "weight_projection is onto Col(U), which replicas.anchor = embedding does not use": whole
        and table.weight_projection,
        "method = adamw has no inner loop for replicas.anchor = embedding": whole and table.method == "adamw",
    }
