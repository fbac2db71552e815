"""What the lab can do otherwise than the swarm: the paper's ablations, its baselines, and what goes beyond it.

A run of the lab is a manifest and these switches. Every default is what the swarm does; a switch the swarm knows too
(`outer.aggregate`, `outer.values`, `outer.overlap`, `replicas.wire` …) is in the manifest and not here.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from protocol.errors import ManifestError
from protocol.manifest import Manifest
from protocol.tensor_formats import FORMATS
from protocol.toml_tables import Section, validated

NOT_OF_GROUPS = {
    "method",
    "momentum",
    "late",
    "lookahead",
    "clip",
    "speeds",
    "paths",
    "link",
    "churn",
    "values",
    "indices",
    "precision",
    "anchors",
    "anchor_width",
    "codec",
    "average",
    "begin_at_average",
    "false",
}
"""Switches that change nothing in how a compressed group is built."""

SCALE_BITS = 16
"""A token's own scale, in bf16, where coordinates are quantized."""

BITS = {"wire": 16, "8bit": 8, "4bit": 4, "3bit": 3, "2bit": 2, "allocated": 4}
"""Of a coordinate; where bits are allocated, before there are variances to go by."""


class Switches(Section):
    """The table `lab` of an experiment."""

    method: Literal["sparseloco", "diloco", "adamw"] = Field(
        "sparseloco", description="diloco: dense pseudo-gradients, Nesterov; adamw: gradients averaged in every step"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="of DiLoCo's Nesterov")
    late: int = Field(
        0, ge=0, le=64, description="inner steps by which gradients are late, as in a pipeline without a bubble"
    )
    lookahead: bool = Field(
        False, description="late gradients are computed where the weights will be about when they are applied"
    )
    clip: Literal["replica", "stage"] = Field("replica", description="by whose norm gradients are clipped")
    speeds: str = Field(
        "",
        pattern=r"^([1-9][0-9]{0,3}(:[1-9][0-9]{0,3})*)?$",
        description="of replicas, or of each stage's members, as in 1:1:2:4: they share a round's M H steps",
    )
    paths: Literal["chains", "loose"] = Field(
        "chains", description="loose: each microbatch of the groups takes a member of each stage, whoever is soonest"
    )
    link: float = Field(
        0.0,
        ge=0,
        le=100,
        description="of loose paths: how long a frame takes, in forward passes of a member of speed 1",
    )
    churn: float = Field(
        0.0,
        ge=0,
        le=10,
        description="of loose paths: how often a member goes away in a round, each time for a tenth of it",
    )
    values: Literal["manifest", "exact", "sign", "statistical"] = Field(
        "manifest", description="quantizer of contributions; manifest: outer.values"
    )
    indices: Literal["rice", "plain", "bound"] = Field("rice", description="how the bytes of offsets are counted")
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
    basis: Literal["random", "fitted"] = Field(
        "random", description="fitted: principal directions of what crossed each boundary in the round before"
    )
    gradient_basis: Literal["same", "own"] = Field(
        "same", description="own: gradients are told in their own fitted basis"
    )
    payload: Literal["wire", "8bit", "4bit", "3bit", "2bit", "allocated"] = Field(
        "wire", description="number format of coordinates; allocated: bits go where the variance is"
    )
    gradient_payload: Literal["same", "wire", "8bit", "4bit"] = Field(
        "same", description="another number format, and so another number of coordinates, for gradients"
    )
    residuals: int = Field(0, ge=0, le=4096, description="entries of X − X̂ sent with each token")
    anchors: Literal["none", "tokens", "convolution", "bigrams", "trigrams"] = Field(
        "none",
        description="learned anchors: what each later stage adds to what it receives by the token ids, outside Col(U); "
        "it stays there, where what `replicas.ngrams` adds leaves again",
    )
    anchor_width: int = Field(0, ge=0, description="numbers of a learned anchor's row; 0: as many as leave room, d − k")
    codec: Literal["fixed", "learned"] = Field(
        "fixed",
        description="learned: what is projected and rebuilt at a boundary is U plus what its stages have learned",
    )
    average: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="the share of the past in the mean of outer states that is the model (GPA, arXiv 2512.17131)",
    )
    begin_at_average: float = Field(
        0.0, ge=0, le=1, description="where inner loops begin, between the last outer state (0) and that mean (1)"
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16: autocast")
    false: Literal["none", "noisy", "biased", "made-up", "flipped"] = Field(
        "none",
        description="what stage 1 of the first group sends: gradients that are wrong by a tenth (noisy: each time "
        "otherwise; biased: always alike), or flipped; or one in twenty payloads made up",
    )

    @model_validator(mode="after")
    def fit_together(self) -> "Switches":
        rules = {
            "payload = allocated needs basis = fitted: it goes by the variances": self.payload == "allocated"
            and self.basis != "fitted",
            "gradient_basis = own needs basis = fitted": self.gradient_basis == "own" and self.basis != "fitted",
            "gradient_payload is for a random basis that stays": self.gradient_payload != "same"
            and (self.basis != "random" or self.grassmann > 0),
            "grassmann moves the random basis": bool(self.grassmann) and self.basis != "random",
            "method = adamw has no inner loop for these": self.method == "adamw"
            and (
                self.embedding != "factor"
                or not self.adaptation
                or self.weight_projection
                or self.grassmann > 0
                or self.second_moment != "elements"
                or self.late > 0
                or self.clip != "replica"
                or bool(self.speeds)
                or self.false != "none"
            ),
            "lookahead is for late gradients": self.lookahead and not self.late,
            "paths = loose clips by stage: say clip = stage": self.paths == "loose" and self.clip != "stage",
            "paths = loose makes gradients late by itself": self.paths == "loose" and self.late > 0,
            "link and churn are of paths = loose": self.paths == "chains" and (self.link > 0 or self.churn > 0),
            "paths = loose puts nothing back into the subspace after a step": self.paths == "loose"
            and (self.embedding == "project" or self.weight_projection),
            "paths are SparseLoCo's": self.method != "sparseloco" and self.paths != "chains",
            "begin_at_average is of an average": self.begin_at_average > 0 and not self.average,
            "anchor_width is of learned anchors": self.anchor_width > 0 and self.anchors == "none",
            "paths = loose learns nothing at boundaries, and averages nothing": self.paths == "loose"
            and (self.learns or self.average > 0),
            "method = adamw learns nothing at boundaries, and averages nothing": self.method == "adamw"
            and (self.learns or self.average > 0),
            "false payloads are those of chains": self.false != "none" and self.paths == "loose",
            "values are SparseLoCo's": self.values != "manifest" and self.method != "sparseloco",
        }
        for rule, broken in rules.items():
            if broken:
                raise ValueError(rule)
        return self

    @property
    def payloads(self) -> tuple[str, str]:
        """The number formats of activations and of gradients."""
        return self.payload, self.payload if self.gradient_payload == "same" else self.gradient_payload

    @property
    def learns(self) -> bool:
        """Whether stages learn something at their boundaries that the manifest's do not."""
        return self.anchors != "none" or self.codec == "learned"

    @property
    def shares(self) -> list[int]:
        """The speed of each replica; none where all are equal."""
        return [int(speed) for speed in self.speeds.split(":")] if self.speeds else []

    @property
    def without_groups(self) -> "Switches":
        """What is left of them in a run that has no compressed group."""
        return Switches.model_validate(self.model_dump(include=NOT_OF_GROUPS))


def switches(table: dict[str, Any], manifest: Manifest, source: str) -> Switches:
    """The table `lab`, checked by itself and against the manifest; without what nobody in this run would hear.

    Raises:
        ManifestError: a switch is unknown or wrong, or does not go with the manifest.
    """
    found = validated(Switches, table, source, "lab")
    if manifest.inner.optimizer != "adamw" and found.method == "adamw":
        raise ManifestError(f"{source}: lab.method: adamw has no inner steps for inner.optimizer")
    if manifest.inner.optimizer != "adamw" and found.second_moment != "elements":
        raise ManifestError(f"{source}: lab.second_moment: {found.second_moment} is AdamW's; inner.optimizer is not")
    if manifest.inner.overlap and (found.late or found.paths == "loose" or found.method == "adamw"):
        raise ManifestError(f"{source}: lab.late, lab.paths and lab.method: inner.overlap goes with none of theirs")
    if manifest.outer.overlap and found.method != "sparseloco":
        raise ManifestError(f"{source}: lab.method: {found.method} knows no outer.overlap")
    if manifest.outer.clip != "none" and found.method != "sparseloco":
        raise ManifestError(f"{source}: lab.method: {found.method} knows no outer.clip")
    if manifest.outer.weights != "equal" and found.method != "sparseloco":
        raise ManifestError(f"{source}: lab.method: {found.method} knows no outer.weights")
    if manifest.inner.most_steps and (found.method != "sparseloco" or found.paths == "loose"):
        raise ManifestError(f"{source}: lab.method and lab.paths: inner.most_steps goes with none of theirs")
    if found.anchor_width > manifest.model.d - manifest.k:
        raise ManifestError(f"{source}: lab.anchor_width: {found.anchor_width} does not fit beside k = {manifest.k}")
    if found.anchors != "none" and manifest.replicas.ngrams:
        raise ManifestError(f"{source}: lab.anchors: replicas.ngrams has tables of its own; take one of them")
    if found.anchors != "none" and manifest.k == manifest.model.d:
        raise ManifestError(f"{source}: lab.anchors: k = d leaves no room for them")
    if len(found.shares) not in (0, manifest.replicas.total):
        raise ManifestError(f"{source}: lab.speeds: {len(found.shares)} speeds for {manifest.replicas.total} replicas")
    if not manifest.replicas.groups:
        return found.without_groups.model_copy(update={"paths": "chains", "link": 0.0, "churn": 0.0, "false": "none"})
    if found.false != "none" and manifest.replicas.stages < 2:
        raise ManifestError(f"{source}: lab.false: a replica of one stage sends nobody anything")
    if found.false != "none" and any(FORMATS[wire].step for wire in manifest.replicas.wires):
        raise ManifestError(f"{source}: lab.false: false payloads are floats, as replicas.wire is not")
    if not manifest.compressed:
        return found.without_groups
    if found != found.without_groups and any(FORMATS[wire].step for wire in manifest.replicas.wires):
        raise ManifestError(f"{source}: replicas.wire: the lab's own boundaries send floats; say lab.payload")
    for rule, broken in _anchor_rules(found, manifest).items():
        if broken:
            raise ManifestError(f"{source}: lab: {rule}")
    try:
        for payload in found.payloads:
            coordinates(16 * manifest.k, BITS[payload], found.residuals, manifest.model.d)
    except ValueError as error:
        raise ManifestError(f"{source}: lab.payload and lab.residuals: {error}") from None
    return found


def _anchor_rules(table: Switches, manifest: Manifest) -> dict[str, bool]:
    """What does not go with `replicas.anchor`, and whether it is so."""
    whole = not manifest.replicas.factored
    return {
        "basis = fitted needs replicas.anchor = embedding: T_S lies in Col(U) alone": table.basis == "fitted"
        and not whole,
        "replicas.anchor = embedding has no T_S: leave embedding, adaptation and grassmann alone": whole
        and (table.embedding != "factor" or not table.adaptation or table.grassmann > 0),
        "weight_projection is onto Col(U), which replicas.anchor = embedding does not use": whole
        and table.weight_projection,
        "method = adamw has no inner loop for replicas.anchor = embedding": whole and table.method == "adamw",
    }


def coordinates(budget: int, bits: int, residuals: int, d: int) -> int:
    """How many coordinates of `bits` each fit into `budget` bits a token, beside its scale and `residuals` entries.

    Raises:
        ValueError: none do.
    """
    scale = SCALE_BITS if bits < 16 else 0
    fit = min(d, (budget - scale - residuals * residual_bits(d)) // bits)
    if fit < 1:
        raise ValueError(
            f"{budget} bits a token are too few for {residuals} residuals and one coordinate of {bits} bits"
        )
    return fit


def residual_bits(d: int) -> int:
    """One entry of the residual: its place, and its value in bf16."""
    return (d - 1).bit_length() + 16
