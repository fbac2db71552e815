"""What is kept of a run that has ended, one line of `results.jsonl`; and what many runs say together: mean and spread
over seeds, and differences seed by seed."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from examples.experiments.experiment import Case, Experiment, Value, identity, said
from peer.lab.switches import Switches
from protocol.errors import FormatError, ManifestError, ResourceError
from protocol.manifest import check_manifest
from protocol.toml_tables import validated

RESULTS = "results.jsonl"

RowKey = tuple[tuple[str, Value], ...]
"""The axes of a run, without its seed."""

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Point:
    """After a round: tokens of all replicas so far, and both losses in nats per token."""

    tokens: int
    through: float
    plain: float


@with_config(STRICT)
@dataclass(frozen=True, slots=True)
class Record:
    """One run. `groups` of `replicas` are compressed; bytes are those of one boundary, direction and token, and of what
    one replica publishes in a round. `peak` is the share of what this machine multiplies at best."""

    id: str
    axes: dict[str, Value]
    seed: int
    replicas: int
    groups: int
    curve: list[Point]
    boundary_bytes: float
    outer_bytes: float
    seconds: float
    tokens_per_second: float
    peak: float | None
    manifest: dict[str, Any]
    switches: dict[str, Any]

    def loss(self, which: str) -> float:
        """At the end: `through` the boundaries, `plain`, or of `replicas`: the mean over all, each as it runs."""
        return loss_of(self.curve[-1], which, self.groups / self.replicas)

    def line(self) -> str:
        """The record as a line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)


RECORDS = TypeAdapter(Record)

GONE: dict[str, Any] = {
    "late": 0,
    "lookahead": False,
    "clip": "replica",
    "paths": "chains",
    "link": 0.0,
    "churn": 0.0,
    "indices": "rice",
    "basis": "random",
    "gradient_basis": "same",
    "payload": "wire",
    "gradient_payload": "same",
    "residuals": 0,
    "anchors": "none",
    "anchor_width": 0,
    "codec": "fixed",
    "average": 0.0,
    "begin_at_average": 0.0,
    "false": "none",
}
"""The switches that the lab had once, and the value at which each changed nothing."""


def loss_of(point: Point, which: str, share: float) -> float:
    """One of the losses at a point; `share` of the replicas are compressed."""
    match which:
        case "through":
            return point.through
        case "plain":
            return point.plain
        case _:
            return share * point.through + (1 - share) * point.plain


def append(folder: Path, record: Record) -> None:
    """Add the record of a run that has ended to a folder.

    Raises:
        ResourceError: it cannot be written.
    """
    try:
        with (folder / RESULTS).open("a", encoding="utf-8") as file:
            file.write(record.line() + "\n")
    except OSError as error:
        raise ResourceError(f"cannot write {folder / RESULTS}: {error.strerror}") from None


def read_records(folder: Path) -> list[Record]:
    """All runs that have ended, from the file in a folder of results; none if there is no file.

    Raises:
        FormatError: a line is none that `append` wrote.
    """
    path = folder / RESULTS
    return records_in(path) if path.exists() else []


def records_in(path: Path) -> list[Record]:
    """The runs of a file. A last line that was cut short does not count.

    Raises:
        FormatError: another line is none that `append` wrote.
    """
    records = []
    whole = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    for number, line in enumerate(whole, 1):
        try:
            found = RECORDS.validate_json(line, strict=True)
        except ValueError:
            raise FormatError(f"{path}, line {number}: not a run's record") from None
        records.append(replace(found, id=_today(found)))
    return records


def of(cases: Iterable[Case], records: Iterable[Record]) -> dict[str, Record]:
    """The records of these cases by case id, with their axes: another experiment may have run them."""
    by_id = {record.id: record for record in records}
    return {case.id: by_id[case.id] for case in cases if case.id in by_id}


def _today(record: Record) -> str:
    """The id of its run now: an option that came after it has its default. A run in which a switch that is gone changed
    something cannot be made again, and keeps its id."""
    try:
        kept = {name: value for name, value in record.switches.items() if GONE.get(name, ...) != value}
        return identity(check_manifest(record.manifest), validated(Switches, kept, "results", "lab"))
    except ManifestError:
        return record.id


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation (n − 1) over seeds; the deviation of one value is not known."""

    mean: float
    deviation: float | None
    count: int

    @staticmethod
    def over(values: Sequence[float]) -> "Spread":
        """The spread of one value or more."""
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return Spread(mean, None, 1)
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return Spread(mean, math.sqrt(variance), len(values))

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.deviation is None else f"{self.mean:.3f} ± {self.deviation:.3f}"


@dataclass(frozen=True, slots=True)
class Row:
    """One combination of axes over its seeds. `more` is how much higher its loss is than the first row's, of the same
    seed; None for the first row."""

    axes: dict[str, Value]
    loss: Spread
    more: Spread | None
    through: Spread
    plain: Spread
    boundary_bytes: float
    outer_bytes: float
    tokens: int
    tokens_per_second: float
    peak: float | None
    curve: list[tuple[int, Spread]]
    naming: frozenset[str]
    """The axes that its name tells: all, or its label and what tells it from others of that label."""

    def name(self, without: str | None = None) -> str:
        """Of a row, or of a line of a figure along the axis `without`."""
        return said({key: value for key, value in self.axes.items() if key in self.naming}, without)


def rows(experiment: Experiment, cases: Sequence[Case], records: Mapping[str, Record]) -> list[Row]:
    """One row for each combination that has a record, in the experiment's order. `records` are by case id."""
    found: dict[RowKey, dict[int, Record]] = defaultdict(dict)
    for case in cases:
        if case.id in records:
            found[tuple(case.axes.items())][case.seed] = records[case.id]
    first = next(iter(found.values()), {})
    named = [dict(key) for key in found]
    return [
        _row(axes, _naming(axes, named), of_seed, first, experiment.loss)
        for axes, of_seed in zip(named, found.values(), strict=True)
    ]


def _naming(axes: Mapping[str, Value], others: Sequence[Mapping[str, Value]]) -> frozenset[str]:
    if "label" not in axes:
        return frozenset(axes)
    namesakes = [each for each in others if each.get("label") == axes["label"]]
    return frozenset({"label"} | {key for key in axes if any(each.get(key) != axes[key] for each in namesakes)})


def _row(
    axes: dict[str, Value],
    naming: frozenset[str],
    of_seed: Mapping[int, Record],
    first: Mapping[int, Record],
    which: str,
) -> Row:
    records = list(of_seed.values())
    share = records[0].groups / records[0].replicas
    peaks = [record.peak for record in records if record.peak is not None]
    differences = [record.loss(which) - first[seed].loss(which) for seed, record in of_seed.items() if seed in first]
    losses: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for point in record.curve:
            losses[point.tokens].append(loss_of(point, which, share))
    whole = [each for each in sorted(losses.items()) if len(each[1]) == len(records)]  # `evaluate_every` may differ
    return Row(
        axes=axes,
        loss=Spread.over([record.loss(which) for record in records]),
        more=Spread.over(differences) if differences and of_seed is not first else None,
        through=Spread.over([record.loss("through") for record in records]),
        plain=Spread.over([record.loss("plain") for record in records]),
        boundary_bytes=records[0].boundary_bytes,
        outer_bytes=math.fsum(record.outer_bytes for record in records) / len(records),
        tokens=records[0].curve[-1].tokens,
        tokens_per_second=math.fsum(record.tokens_per_second for record in records) / len(records),
        peak=math.fsum(peaks) / len(peaks) if peaks else None,
        curve=[(tokens, Spread.over(found)) for tokens, found in whole],
        naming=naming,
    )
