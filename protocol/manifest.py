"""The manifest: everything that must be the same for all peers of a run.

The operator writes it as `run.toml`; its digest is in every handshake, and a peer with another
digest is refused with the name of the field that differs.
"""

import hashlib
import json
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from protocol.architectures import parse_model
from protocol.cut import GroupSizes, cut_by
from protocol.errors import ManifestError
from protocol.limits import CHUNK_BYTES, DESCRIPTOR_BYTES, MESSAGE_SLACK_BYTES
from protocol.manifest_tables import Evaluation, Inner, Outer, Replicas, Run
from protocol.model_sizes import Model, NgramTables
from protocol.toml_tables import Section, read_tables, validated

LARGEST_FRAME_BYTES = 2**30
"""The largest microbatch of activations, uncompressed in fp32: a stage holds several."""

MICROBATCH_TOKENS, BATCH_TOKENS = 2**20, 2**24
"""The most tokens of a microbatch, whose ids are in one message of 4 MiB, and of an inner step or an evaluation, whose
ids take 128 MiB where they are read: the largest batches that were published."""

AUTO_COMPRESSIONS = (2, 4, 8, 16, 32, 64, 128)
"""The compressions among which a group chooses where a run leaves that to its groups. Bases are nested, so groups of
all of them train one model."""


class Manifest(Section):
    """`run.toml`, parsed and checked. Two peers with one `digest` agree on every number of the run."""

    run: Run = Run()
    model: Annotated[SerializeAsAny[Model], BeforeValidator(parse_model)]
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
        looked_up = NgramTables(most=replicas.ngrams, width=ngram_width(replicas, model)).values(model.vocabulary)
        sizes = GroupSizes(subspace, replicas.factored, inner.microbatch, inner.microbatches, looked_up)
        cut = cut_by(replicas.balance, model, replicas.stages, sizes)
        return replicas.model_copy(update={"layers": cut, "balance": "count"})

    @model_validator(mode="after")
    def tables_fit_together(self) -> "Manifest":
        if self.replicas.total < 1:
            raise ValueError("replicas.groups + replicas.datacenters must be at least 1")
        if not self.compressions:
            raise ValueError(f"replicas.compression = {self.replicas.compression} must divide model.d = {self.model.d}")
        if self.replicas.ngram_width > self.model.d:
            raise ValueError(
                f"replicas.ngram_width = {self.replicas.ngram_width} is more than model.d = {self.model.d}"
            )
        if self.inner.sequences % self.inner.microbatch:
            raise ValueError(
                f"inner.sequences = {self.inner.sequences} must be a multiple of inner.microbatch "
                f"= {self.inner.microbatch}"
            )
        if (late := self.late(0)) > self.inner.microbatches:
            raise ValueError(
                f"inner.overlap = {self.inner.overlap} lets stage 0 pass {late} microbatches of the next step, "
                f"and a step has {self.inner.microbatches}"
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
    def ngrams(self) -> NgramTables:
        """The n-gram tables, which lie before the first layer of each stage but the first."""
        if not self.replicas.ngrams:
            return NgramTables()
        firsts = tuple(layers.start for layers in self.cut[1:])
        width = ngram_width(self.replicas, self.model)
        return NgramTables(most=self.replicas.ngrams, width=width, layers=firsts)

    @property
    def compressions(self) -> tuple[int, ...]:
        """The possible values of d / k, ascending: one, or those among which a group chooses. Empty where none divides
        d."""
        fixed = self.replicas.compression
        choices = AUTO_COMPRESSIONS if fixed == "auto" else (fixed,)
        return tuple(choice for choice in choices if self.model.d % choice == 0)

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

    def with_microbatch(self, sequences: int) -> "Manifest":
        """The manifest of this run with microbatches of so many `sequences`, as one replica computes alone. Peers never
        compare it.

        Raises:
            ValidationError: an inner step is no whole number of such microbatches, or they are too large.
        """
        inner = self.inner.model_copy(update={"microbatch": sequences})
        return Manifest.model_validate_json(self.model_copy(update={"inner": inner}).model_dump_json())

    def late(self, stage: int) -> int:
        """The number of microbatches of the next inner step that a stage of a group passes forward before it takes this
        one: `inner.overlap` for each stage behind it, so that no stage waits for frames that a later step would
        bring."""
        return self.inner.overlap * (self.replicas.stages - 1 - stage)

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


def ngram_width(replicas: Replicas, model: Model) -> int:
    """The numbers of a row of the n-gram tables."""
    return replicas.ngram_width or model.d // 8


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


def first_difference(ours: Manifest, theirs: Manifest) -> str | None:
    """The first field in which two manifests differ, in words; None if they are equal."""
    for table in Manifest.model_fields:
        mine, other = dict(getattr(ours, table)), dict(getattr(theirs, table))
        for field, value in mine.items():
            if other[field] != value:
                values = [list(setting) if isinstance(setting, tuple) else setting for setting in (value, other[field])]
                return f"{table}.{field}: ours is {values[0]!r}, theirs is {values[1]!r}"
    return None


def message_bytes(manifest: Manifest | None) -> int:
    """The size in bytes of the largest message of any service of a run: a piece of a frame's tensor with a microbatch's
    token ids and slack, or a descriptor; the latter alone at the registration port, where there is no manifest yet."""
    tokens = manifest.inner.microbatch * (manifest.model.context + 1) if manifest else 0
    return max(CHUNK_BYTES + 4 * tokens + MESSAGE_SLACK_BYTES, DESCRIPTOR_BYTES)
