"""The manifest: everything that must be the same for all peers of a run.

The operator writes it as `run.toml`; its digest is in every handshake, and a peer with another
digest is refused with the name of the field that differs.
"""

import hashlib
import json
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from protocol.cut import Balance, cut_by, even_cut
from protocol.errors import ManifestError
from protocol.limits import CHUNK_BYTES, DESCRIPTOR_BYTES, MESSAGE_SLACK_BYTES
from protocol.model_sizes import Model
from protocol.tensor_formats import Codec, NumberFormatName
from protocol.toml_tables import Section, filled, read_tables, validated

LARGEST_FRAME_BYTES = 2**30
"""The largest microbatch of activations, uncompressed in fp32: a stage holds several."""

MICROBATCH_TOKENS, BATCH_TOKENS = 2**20, 2**24
"""The most tokens of a microbatch, whose ids are in one message of 4 MiB, and of an inner step or an evaluation, whose
ids take 128 MiB where they are read: the largest batches that were published."""

MOST_STAGES = 128

AUTO_COMPRESSIONS = (2, 4, 8, 16, 32, 64, 128)
"""The compressions among which a group chooses where a run leaves that to its groups. Bases are nested, so groups of
all of them train one model."""

OUTER_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"top_k": 32, "chunk_side": 64, "beta": 0.95, "learning_rate": 1.0, "aggregate": "all", "values": "bf16"}
}
"""Named settings of the outer exchange."""


def without_usual(section: Section, dump: SerializerFunctionWrapHandler, *later: str) -> dict[str, Any]:
    """The fields of a table in canonical form, without those of `later` that have their defaults: runs that began
    before there were these fields keep their ids."""
    fields: dict[str, Any] = dump(section)
    usual = [name for name in later if getattr(section, name) == type(section).model_fields[name].default]
    return {name: value for name, value in fields.items() if name not in usual}


class Run(Section):
    """The run's name, and the seed of everything random in it."""

    name: str = Field("hetpeer", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    seed: int = Field(1, ge=0, lt=2**32)


class Replicas(Section):
    """Who trains: replica groups of volunteers, one a stage, and datacenter replicas, uncompressed.

    In a manifest `layers` has a number for each stage, whatever the file gave. The canonical form has `layers` only
    where they differ from the cut by count, and never `balance`: peers agree on the cut, not on what made it.
    """

    groups: int = Field(2, ge=0, le=1024)
    datacenters: int = Field(1, ge=0, le=1024)
    stages: int = Field(2, ge=1, le=MOST_STAGES)
    compression: Annotated[int, Field(ge=1, le=65536)] | Literal["auto"] = Field(
        8, description="d / k; 1 sends whole activations; auto: each group what its links carry, 2 to 128"
    )
    wire: NumberFormatName = Field("bf16", description="number format of activations between stages")
    gradient_wire: NumberFormatName | Literal["same"] = Field("same", description="that of gradients")
    anchor: Literal["complement", "embedding"] = Field(
        "complement",
        description="what boundaries take off before they project: T⊥[x], or all of TE[x], which is then trained whole",
    )
    layers: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        (), max_length=MOST_STAGES, description="layers of each stage, in order; none: as `balance` says"
    )
    balance: Balance = Field("count", description="what stages have about as much of, where `layers` does not say")

    @model_validator(mode="before")
    @classmethod
    def count_stages(cls, given: Any) -> Any:
        layers = given.get("layers") if isinstance(given, dict) and "stages" not in given else None
        if isinstance(layers, list | tuple) and 0 < len(layers) <= MOST_STAGES:
            return {**given, "stages": len(layers)}
        return given

    @model_validator(mode="after")
    def layers_fit_stages(self) -> "Replicas":
        if self.layers and "balance" in self.model_fields_set:
            raise ValueError("layers and balance both say how the model is cut; leave one of them out")
        if self.layers and len(self.layers) != self.stages:
            count = len(self.layers)
            raise ValueError(
                f"layers has {count} numbers, one a stage, and stages = {self.stages}; give stages = {count}"
            )
        return self

    @model_serializer(mode="wrap")
    def leave_out_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = without_usual(self, dump, "anchor")
        fields.pop("balance", None)
        if not self.layers or self.layers == even_cut(sum(self.layers), self.stages):
            fields.pop("layers", None)
        return fields

    @property
    def wires(self) -> tuple[str, str]:
        """The number formats of activations and of gradients."""
        return self.wire, self.wire if self.gradient_wire == "same" else self.gradient_wire

    @property
    def total(self) -> int:
        """The number of replicas: M of the paper."""
        return self.groups + self.datacenters


class Inner(Section):
    """The inner loop: AdamW with warm-up and cosine (paper, Table 9), or Muon for the matrices of the layers."""

    steps: int = Field(50, ge=1, lt=2**31, description="H: inner steps in a round")
    sequences: int = Field(32, ge=1, lt=2**31, description="sequences of one replica in one inner step")
    microbatch: int = Field(4, ge=1, lt=2**31, description="sequences in one microbatch")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: for the matrices of the layers, and AdamW for the rest"
    )
    subspace_steps: bool = Field(
        False, description="Muon moves what a compressed group writes into the residual stream in Col(U) alone"
    )
    learning_rate: float = Field(1e-3, gt=0, le=1)
    final_learning_rate: float = Field(0.1, ge=0, le=1, description="share of the peak at the run's end")
    warmup: int = Field(500, ge=0, lt=2**31, description="inner steps of linear warm-up")
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0, description="global gradient norm over all stages of a replica")

    @model_validator(mode="after")
    def subspace_steps_are_muons(self) -> "Inner":
        if self.subspace_steps and self.optimizer != "muon":
            raise ValueError('subspace_steps = true is for optimizer = "muon"')
        return self

    @model_serializer(mode="wrap")
    def leave_out_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_usual(self, dump, "optimizer", "subspace_steps")

    @property
    def microbatches(self) -> int:
        """The number of microbatches in one inner step."""
        return self.sequences // self.microbatch


class Outer(Section):
    """The outer step: SparseLoCo (paper, equations 1 and 2). `preset = "paper"` fills in the paper's setting where a
    field is not given; the defaults are what was best at equal bytes (docs/results.md, Beyond 2).

    θ after round t is θ_t = θ_genesis − Σ F(S_s) over s ≤ t − `delay`; after the last round, over all. Inner loop t
    starts from θ_{t−1}, and Δ_t is its start less its end. With `overlap` the delay is 1, so that no inner loop waits
    for the network, and a replica starts from θ_{t−1} − F({c}), where c is its own contribution to round t − 1: until
    the set S_{t−1} is there, its own stands for it, and is then replaced by it. These are the eager updates of
    arXiv 2502.12996, but for the weight of what stands in: all, where they take its M-th part. Error feedback knows
    no delay: Δ_t enters it at the end of inner loop t, and what is sent leaves it there.
    """

    rounds: int = Field(100, ge=1, lt=2**31)
    top_k: int = Field(86, ge=1, le=4096, description="values kept of each full chunk")
    chunk_side: int = Field(64, ge=1, le=64, description="a chunk is a block of side × side")
    beta: float = Field(0.95, ge=0, le=1, description="decay of the error feedback")
    learning_rate: float = Field(1.0, gt=0, le=16, description="η of the first round")
    final_learning_rate: float = Field(1.0, ge=0, le=1, description="η of the last round, as a share of the first's")
    aggregate: Literal["all", "senders"] = "all"
    clip: Literal["none", "median"] = Field("none", description="cut contributions to the medians of the round's set")
    values: Codec = "2bit"
    overlap: bool = Field(False, description="go on at once; contributions are applied one boundary later")
    grace: int = Field(3, ge=2, le=64, description="rounds in which a late contribution needs no receipts")
    liars: int = Field(1, ge=0, le=16, description="peers of a part that may lie without splitting the others")
    patience: float = Field(3.0, gt=0, le=100, description="how long a slow replica is waited for, in usual delays")

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        return filled(given, OUTER_PRESETS)

    @model_validator(mode="after")
    def top_k_fits(self) -> "Outer":
        if self.top_k > self.chunk_side**2:
            raise ValueError(f"top_k = {self.top_k} is more than a chunk of {self.chunk_side**2} holds")
        return self

    @model_validator(mode="after")
    def grace_fits_overlap(self) -> "Outer":
        """With overlap the others may be a round ahead of whoever still makes its contribution to this one: with less
        grace it would be too late for everybody, and where that meets most of them, all would wait for contributions
        that nobody publishes."""
        if self.overlap and self.grace < 3:
            raise ValueError(f"grace = {self.grace} is too little with overlap; give grace = 3 or more")
        return self

    @model_serializer(mode="wrap")
    def leave_out_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_usual(self, dump, "final_learning_rate")

    @property
    def delay(self) -> int:
        """Rounds between a contribution and its effect: 0, or 1 with `overlap`."""
        return int(self.overlap)

    def last_applied(self, round: int) -> int:
        """The last round whose contributions are in θ when `round` has ended; 0 if there is none."""
        return round if round >= self.rounds else max(0, round - self.delay)

    def applied(self, round: int) -> range:
        """The rounds whose contributions the end of `round` brings into θ."""
        return range(self.last_applied(round - 1) + 1, self.last_applied(round) + 1)


class Evaluation(Section):
    """Held-out evaluation after each round."""

    sequences: int = Field(32, ge=1, lt=2**31)
    held_out: float = Field(0.02, gt=0, lt=0.5, description="share of the documents never trained on")


class Manifest(Section):
    """`run.toml`, parsed and checked. Two peers with one `digest` agree on every number of the run."""

    run: Run = Run()
    model: Model
    inner: Inner = Inner()
    replicas: Replicas = Field(Replicas(), validate_default=True)
    outer: Outer = Outer()
    evaluation: Evaluation = Evaluation()

    @field_validator("replicas")
    @classmethod
    def cut_layers(cls, replicas: Replicas, earlier: ValidationInfo) -> Replicas:
        """Give each stage its number of layers. `model` and `inner` stand before `replicas` as the cut needs them."""
        if not {"model", "inner"} <= earlier.data.keys():
            return replicas  # they are wrong, and that is the error
        model, inner = earlier.data["model"], earlier.data["inner"]
        if replicas.stages > model.layers:
            raise ValueError(f"replicas.stages = {replicas.stages} is more than model.layers = {model.layers}")
        if replicas.layers and (total := sum(replicas.layers)) != model.layers:
            raise ValueError(f"layers are {total} in all, and must be as many as model.layers = {model.layers}")
        if replicas.layers:
            return replicas
        compression = AUTO_COMPRESSIONS[0] if replicas.compression == "auto" else replicas.compression
        subspace = model.d // compression if compression > 1 else 0
        factored = replicas.anchor == "complement"
        cut = cut_by(replicas.balance, model, replicas.stages, subspace, factored, inner.microbatch, inner.microbatches)
        return replicas.model_copy(update={"layers": cut, "balance": "count"})

    @model_validator(mode="after")
    def tables_fit_together(self) -> "Manifest":
        if self.replicas.total < 1:
            raise ValueError("replicas.groups + replicas.datacenters must be at least 1")
        if not self.compressions:
            raise ValueError(f"replicas.compression = {self.replicas.compression} must divide model.d = {self.model.d}")
        if self.inner.sequences % self.inner.microbatch:
            raise ValueError(
                f"inner.sequences = {self.inner.sequences} must be a multiple of inner.microbatch "
                f"= {self.inner.microbatch}"
            )
        return self

    @model_validator(mode="after")
    def batches_fit(self) -> "Manifest":
        micro, context = self.inner.microbatch, self.model.context
        for name, sequences, most in (
            ("inner.microbatch", micro, MICROBATCH_TOKENS),
            ("inner.sequences", self.inner.sequences, BATCH_TOKENS),
            ("evaluation.sequences", self.evaluation.sequences, BATCH_TOKENS),
        ):
            if sequences * context > most:
                raise ValueError(f"{name} = {sequences} times model.context = {context} are more than {most} tokens")
        if (size := micro * (context + 1) * 4 * (self.model.d + 1)) > LARGEST_FRAME_BYTES:
            raise ValueError(f"inner.microbatch = {micro} makes frames of {size} bytes; at most 1 GiB")
        return self

    @property
    def cut(self) -> tuple[range, ...]:
        """The layers of each stage, counted from 0 through all of them."""
        ends = accumulate(self.replicas.layers)
        return tuple(range(end - count, end) for end, count in zip(ends, self.replicas.layers, strict=True))

    @property
    def compressions(self) -> tuple[int, ...]:
        """The possible values of d / k, ascending: one, or those among which a group chooses. Empty where none divides
        d."""
        fixed = self.replicas.compression
        choices = AUTO_COMPRESSIONS if fixed == "auto" else (fixed,)
        return tuple(each for each in choices if self.model.d % each == 0)

    @property
    def k(self) -> int:
        """The number of dimensions of the subspace between stages of a compressed group; the largest, where groups
        choose."""
        return self.model.d // self.compressions[0]

    @property
    def compressed(self) -> bool:
        """Whether replica groups project what they send (k < d)."""
        return self.compressions[0] > 1

    def at(self, compression: int) -> "Manifest":
        """The manifest of this run with one of its `compressions` fixed. Peers never compare it."""
        if self.replicas.compression == compression:
            return self
        return self.model_copy(update={"replicas": self.replicas.model_copy(update={"compression": compression})})

    @property
    def tokens_per_step(self) -> int:
        """The tokens that one replica reads in one inner step."""
        return self.inner.sequences * self.model.context

    @property
    def digest(self) -> str:
        """The hex SHA-256 of the canonical form."""
        known = _DIGESTS.get(id(self))
        if known is None or known[0] is not self:
            if len(_DIGESTS) >= DIGESTS_KEPT:
                _DIGESTS.clear()
            known = _DIGESTS[id(self)] = self, hashlib.sha256(self.canonical()).hexdigest()
        return known[1]

    def canonical(self) -> bytes:
        """The one byte string of these values: JSON with sorted keys and no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()


DIGESTS_KEPT = 8

_DIGESTS: dict[int, tuple[Manifest, str]] = {}
"""The digests of manifests by `id`, each with its manifest: every call between peers asks for one. Not by equality, as
0.0 and -0.0 are equal, and have two canonical forms."""


def load_manifest(path: Path, overrides: dict[str, Any] | None = None) -> Manifest:
    """Read `run.toml`. `overrides` maps `table.key` to a value that replaces the file's.

    Raises:
        ManifestError: the file cannot be read, or a field is wrong; the message names it.
    """
    tables = read_tables(path, "manifest")
    for dotted, value in (overrides or {}).items():
        table, key = dotted.split(".")
        if not isinstance(tables.setdefault(table, {}), dict):
            raise ManifestError(f"{path}: {table} is no table")
        tables[table][key] = value
    return check_manifest(tables, source=str(path))


def check_manifest(tables: dict[str, Any], source: str = "manifest") -> Manifest:
    """Parse tables into a `Manifest`, with errors that name the field.

    Raises:
        ManifestError: a field is missing, unknown or wrong.
    """
    return validated(Manifest, tables, source)


def parse_manifest(canonical: bytes) -> Manifest:
    """Parse what `Manifest.canonical` made, from another peer.

    Raises:
        ManifestError: it is not a manifest.
    """
    try:
        tables = json.loads(canonical)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not a manifest: {error}") from None
    if not isinstance(tables, dict):
        raise ManifestError("not a manifest: no tables")
    return check_manifest(tables)


def difference(ours: Manifest, theirs: Manifest) -> str | None:
    """The first field in which two manifests differ, in words; None if they are equal."""
    for table in Manifest.model_fields:
        mine, other = dict(getattr(ours, table)), dict(getattr(theirs, table))
        for field, value in mine.items():
            if other[field] != value:
                values = [list(each) if isinstance(each, tuple) else each for each in (value, other[field])]
                return f"{table}.{field}: ours is {values[0]!r}, theirs is {values[1]!r}"
    return None


def message_bytes(manifest: Manifest | None) -> int:
    """The size in bytes of the largest message of any service of a run: a piece of a frame's tensor with a microbatch's
    token ids and slack, or a descriptor; the latter alone at the door, where there is no manifest yet."""
    tokens = manifest.inner.microbatch * (manifest.model.context + 1) if manifest else 0
    return max(CHUNK_BYTES + 4 * tokens + MESSAGE_SLACK_BYTES, DESCRIPTOR_BYTES)
