"""The manifest's tables but `model`: `run`, `replicas`, `inner`, `outer` and `evaluation`, each checked by itself."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.cut import Balance, even_cut
from protocol.model_sizes import MOST_NGRAMS
from protocol.tensor_formats import Codec, NumberFormatName
from protocol.toml_tables import Section, filled

MOST_STAGES = 128

MOST_OVERLAP = 4
"""The largest `inner.overlap`: more than this many microbatches a stage are not let into flight
(`protocol.codec.frames`)."""

MOST_UNEVEN = 16
"""The largest `inner.most_steps`, in times of H. Where weights go by steps, a liar counts for as many."""

MOST_GATHER_SECONDS = 30 * 86400.0

Decay = Annotated[float, Field(ge=0, lt=1)]
"""A decay of AdamW's running means: with 1 they never leave 0, and steps have no bound."""

BOUNDARY_PRESETS: dict[str, dict[str, Any]] = {
    "int4": {"compression": 2, "wire": "int4", "gradient_wire": "same", "anchor": "embedding"},
    "paper": {"compression": 8, "wire": "bf16", "gradient_wire": "same", "anchor": "complement"},
}
"""Named settings of the boundaries between volunteers, of about as many bytes."""

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
    """The run's name, the seed of everything random in it, and how long it waits for all its replicas."""

    name: str = Field("hetpeer", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    seed: int = Field(1, ge=0, lt=2**32)
    gather: float = Field(
        60.0,
        ge=0,
        le=MOST_GATHER_SECONDS,
        description="seconds from the first replica to a beginning without all",
    )

    @model_serializer(mode="wrap")
    def leave_out_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_usual(self, dump, "gather")


class Replicas(Section):
    """The replicas of a run: groups of volunteers, one a stage, and datacenter replicas, uncompressed.

    `compression`, `wire`, `gradient_wire` and `anchor` are one setting, that of the boundaries: a preset fills in what
    is not given, and where none of them is, `preset = "int4"` does, which was best at equal bytes (docs/results.md,
    Beyond 6). The defaults are the paper's, for manifests that give some of them.

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
    ngrams: int = Field(
        0,
        ge=0,
        le=MOST_NGRAMS,
        description="each stage but the first looks up the last 1 to so many tokens in tables of its own, which costs "
        "no bytes at a boundary; 0: the model is a LLaMA",
    )
    ngram_width: int = Field(0, ge=0, le=65536, description="numbers of a row of these tables; 0: d / 8")
    layers: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        (), max_length=MOST_STAGES, description="layers of each stage, in order; none: as `balance` says"
    )
    balance: Balance = Field("count", description="what stages have about as much of, where `layers` does not say")

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        silent = isinstance(given, dict) and not given.keys() & {"preset", *BOUNDARY_PRESETS["paper"]}
        return filled({**given, "preset": "int4"} if silent else given, BOUNDARY_PRESETS)

    @model_validator(mode="before")
    @classmethod
    def count_stages(cls, given: Any) -> Any:
        layers = given.get("layers") if isinstance(given, dict) and "stages" not in given else None
        if isinstance(layers, list | tuple) and 0 < len(layers) <= MOST_STAGES:
            return {**given, "stages": len(layers)}
        return given

    @model_validator(mode="after")
    def ngrams_have_a_place(self) -> "Replicas":
        if self.ngrams and self.stages == 1:
            raise ValueError(f"ngrams = {self.ngrams} gives tables to the stages behind the first, and stages = 1")
        if self.ngram_width and not self.ngrams:
            raise ValueError(f"ngram_width = {self.ngram_width} is of tables that ngrams = 0 leaves out")
        return self

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
        fields = without_usual(self, dump, "anchor", "ngrams", "ngram_width")
        fields.pop("balance", None)
        if not self.layers or self.layers == even_cut(sum(self.layers), self.stages):
            fields.pop("layers", None)
        return fields

    @property
    def factored(self) -> bool:
        """Whether a compressed group trains the token embedding by its factor, T_S = Z Uᵀ, and not whole."""
        return self.anchor == "complement"

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
    most_steps: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="inner steps that a quick replica may take in a round while slower ones take H; 0: H, as all do",
    )
    sequences: int = Field(32, ge=1, lt=2**31, description="sequences of one replica in one inner step")
    microbatch: int = Field(4, ge=1, lt=2**31, description="sequences in one microbatch")
    overlap: int = Field(
        0,
        ge=0,
        le=MOST_OVERLAP,
        description="microbatches of the next step that a group's stage passes forward before it takes this one, for "
        "each stage behind it; 0: the pipeline drains after each step, as in the paper",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: for the matrices of the layers, and AdamW for the rest"
    )
    subspace_steps: bool = Field(
        False, description="Muon moves what a compressed group writes into the residual stream in Col(U) alone"
    )
    learning_rate: float = Field(1e-3, gt=0, le=1)
    final_learning_rate: float = Field(0.1, ge=0, le=1, description="share of the peak at the run's end")
    warmup: int = Field(500, ge=0, lt=2**31, description="inner steps of linear warm-up")
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0, description="global gradient norm over all stages of a replica")

    @model_validator(mode="after")
    def most_steps_are_not_too_many(self) -> "Inner":
        if self.most_steps and not self.steps <= self.most_steps <= MOST_UNEVEN * self.steps:
            raise ValueError(
                f"most_steps = {self.most_steps} with steps = {self.steps}; give {self.steps} to "
                f"{MOST_UNEVEN * self.steps}, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def weight_decay_shrinks(self) -> "Inner":
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"weight_decay = {self.weight_decay:g} times learning_rate = {self.learning_rate:g} turns weights "
                f"around in each step; give less than {1 / self.learning_rate:g} (0.1 is usual)"
            )
        return self

    @model_validator(mode="after")
    def subspace_steps_are_muons(self) -> "Inner":
        if self.subspace_steps and self.optimizer != "muon":
            raise ValueError('subspace_steps = true is for optimizer = "muon"')
        return self

    @model_serializer(mode="wrap")
    def leave_out_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_usual(self, dump, "most_steps", "overlap", "optimizer", "subspace_steps")

    @property
    def clips_by_others(self) -> bool:
        """Whether a stage whose steps overlap clips by the norms that the others had in the step before, and not by an
        equal share: in the lab Muon loses less so, and AdamW more (docs/results.md, "Steps that overlap")."""
        return self.overlap > 0 and self.optimizer == "muon"

    @property
    def steps_at_most(self) -> int:
        """The number of inner steps that a replica may take in a round."""
        return self.most_steps or self.steps

    @property
    def microbatches(self) -> int:
        """The number of microbatches in one inner step."""
        return self.sequences // self.microbatch


class Outer(Section):
    """The outer step: SparseLoCo (paper, equations 1 and 2). `preset = "paper"` fills in the paper's setting where a
    field is not given; the defaults are what was best at equal bytes (docs/paper-tables.md, Beyond 2).

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
    weights: Literal["equal", "steps"] = Field(
        "equal",
        description="how often a contribution counts in the mean; steps: as often as its author took inner steps",
    )
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
    def medians_are_of_equals(self) -> "Outer":
        if self.clip == "median" and self.weights != "equal":
            raise ValueError('clip = "median" knows no weights; give weights = "equal"')
        return self

    @model_validator(mode="after")
    def grace_fits_overlap(self) -> "Outer":
        """Require a grace that fits the overlap: with overlap the others may be a round ahead of a peer that still
        makes its contribution to this one. With less grace it would be too late for everybody, and where that meets
        most of them, all would wait for contributions that nobody publishes."""
        if self.overlap and self.grace < 3:
            raise ValueError(f"grace = {self.grace} is too little with overlap; give grace = 3 or more")
        return self

    @model_serializer(mode="wrap")
    def leave_out_the_usual(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_usual(self, dump, "final_learning_rate", "weights")

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
