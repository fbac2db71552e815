"""What many runs say together: mean and spread over seeds, and differences seed by seed."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peer.lab.experiment import Case, Experiment, Value, said
from peer.lab.record import Record, loss_of

RowKey = tuple[tuple[str, Value], ...]
"""The axes of a run, without its seed."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation (n − 1) over seeds; the deviation of one value is not known."""

    mean: float
    deviation: float | None
    count: int

    @staticmethod
    def over(values: Sequence[float]) -> "Spread":
        """Of at least one value."""
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
        _row(
            axes,
            _naming(axes, named),
            list(of_seed.values()),
            None if of_seed is first else _paired(of_seed, first, experiment.loss),
            experiment.loss,
        )
        for axes, of_seed in zip(named, found.values(), strict=True)
    ]


def _naming(axes: Mapping[str, Value], others: Sequence[Mapping[str, Value]]) -> frozenset[str]:
    if "label" not in axes:
        return frozenset(axes)
    namesakes = [each for each in others if each.get("label") == axes["label"]]
    return frozenset({"label"} | {key for key in axes if any(each.get(key) != axes[key] for each in namesakes)})


def _paired(these: Mapping[int, Record], first: Mapping[int, Record], which: str) -> Spread | None:
    differences = [record.loss(which) - first[seed].loss(which) for seed, record in these.items() if seed in first]
    return Spread.over(differences) if differences else None


def _row(
    axes: dict[str, Value], naming: frozenset[str], records: Sequence[Record], more: Spread | None, which: str
) -> Row:
    share = records[0].groups / records[0].replicas
    peaks = [record.peak for record in records if record.peak is not None]
    return Row(
        axes=axes,
        loss=Spread.over([record.loss(which) for record in records]),
        more=more,
        through=Spread.over([record.loss("through") for record in records]),
        plain=Spread.over([record.loss("plain") for record in records]),
        boundary_bytes=records[0].boundary_bytes,
        outer_bytes=math.fsum(record.outer_bytes for record in records) / len(records),
        tokens=records[0].curve[-1].tokens,
        tokens_per_second=math.fsum(record.tokens_per_second for record in records) / len(records),
        peak=math.fsum(peaks) / len(peaks) if peaks else None,
        curve=_curve(records, which, share),
        naming=naming,
    )


def _curve(records: Sequence[Record], which: str, share: float) -> list[tuple[int, Spread]]:
    """Where all were evaluated: seeds may have been run with different `evaluate_every`."""
    losses: dict[int, list[float]] = defaultdict(list)
    for record in records:
        for point in record.curve:
            losses[point.tokens].append(loss_of(point, which, share))
    return [(tokens, Spread.over(found)) for tokens, found in sorted(losses.items()) if len(found) == len(records)]
