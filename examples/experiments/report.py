"""`results.md` and its figures, loss along an axis, over tokens and over bytes: what a sweep has found so far."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.experiments.experiment import Case, Experiment, field_of
from examples.experiments.results import Row, Spread, of, read_records, rows
from protocol.files import write_atomically
from protocol.wording import millions

REPORT = "results.md"

COLOURS = ("#334155", "#c2410c", "#1d4ed8", "#15803d", "#a21caf", "#b45309", "#0e7490", "#be123c")
MARKS = "osD^vPX*"
STYLES = ("-", "--", ":", "-.")

TICKS_APART = 1.1
"""Sizes that are closer than this share a tick: on a logarithmic axis their labels would lie on each other."""

COLUMN_LINES, LINE_INCHES = 4, 0.16
"""A legend of more lines has two columns; each line of it makes a figure so much higher."""

LOSSES = {
    "replicas": "mean over the replicas, each as it runs",
    "through": "through the boundaries",
    "plain": "without boundaries",
}


def write_report(experiment: Experiment, cases: Sequence[Case], results: Path, folder: Path) -> list[Path]:
    """Write what the results say of an experiment into a folder, made if it is missing; the files written."""
    found = rows(experiment, cases, of(cases, read_records(results)))
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw(experiment, found, folder)
    path = folder / REPORT
    write_atomically(path, markdown(experiment, len(cases), found, figures).encode())
    return [path, *figures]


def markdown(experiment: Experiment, asked: int, found: Sequence[Row], figures: Sequence[Path]) -> str:
    """The report as text."""
    done = sum(row.loss.count for row in found)
    lines = [f"# {experiment.title}", ""]
    if experiment.claim:
        lines += [f"The claim: {experiment.claim}", ""]
    lines += [
        f"{done} of {asked} runs, seeds {', '.join(map(str, experiment.seeds))}. Held-out loss in nats per token, "
        f"{LOSSES[experiment.loss]}: mean ± standard deviation over seeds. Differences are to the first row, seed by "
        "seed.",
        "",
    ]
    if experiment.x:
        lines += [*pivot(found, experiment.x), ""]
    lines += [*table(found), ""]
    lines += [f"![{figure.stem}]({figure.name})" for figure in figures]
    return "\n".join(lines).rstrip() + "\n"


def pivot(found: Sequence[Row], x: str) -> list[str]:
    """Loss, and the difference below it, by the values of one axis."""
    values = list(dict.fromkeys(row.axes[x] for row in found if x in row.axes))
    names = list(dict.fromkeys(row.name(x) for row in found))
    lines = [f"| {field_of(x)} | {' | '.join(map(str, values))} |", "|---" * (len(values) + 1) + "|"]
    for name in names:
        by_value = {row.axes.get(x): row for row in found if row.name(x) == name}
        anywhere = by_value.get(None)
        cells = []
        for row in (by_value.get(value, anywhere) for value in values):
            more = "" if row is None or row.more is None else f" ({_signed(row.more)})"
            cells.append("" if row is None else f"{row.loss}{more}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def table(found: Sequence[Row]) -> list[str]:
    """A table with every figure of every row."""
    head = (
        "",
        "loss",
        "more",
        "through",
        "plain",
        "boundary B/token",
        "outer kB/round",
        "tokens",
        "tokens/s",
        "of peak",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in found:
        cells = (
            row.name(),
            str(row.loss),
            "" if row.more is None else _signed(row.more),
            str(row.through),
            str(row.plain),
            f"{row.boundary_bytes:g}",
            f"{row.outer_bytes / 1000:.1f}",
            millions(row.tokens, 2),
            f"{row.tokens_per_second:,.0f}",
            "" if row.peak is None else f"{100 * row.peak:.1f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _signed(spread: Spread) -> str:
    return ("+" if spread.mean >= 0 else "") + str(spread)


def draw(experiment: Experiment, found: Sequence[Row], folder: Path) -> list[Path]:
    """All figures that the rows have something for; the files."""
    if not found:
        return []
    import matplotlib

    matplotlib.use("Agg")
    drawn = [_curves(found, folder / "curves.png")]
    if experiment.x and any(experiment.x in row.axes for row in found):
        drawn.append(_along(experiment.x, found, folder / f"by-{field_of(experiment.x)}.png"))
    if len({row.boundary_bytes for row in found} - {0.0}) > 1:
        to = folder / "boundary-bytes.png"
        drawn.append(_frontier(experiment.x, found, "boundary_bytes", "bytes a token at a boundary", to))
    if max(row.outer_bytes for row in found) > 1.05 * min(row.outer_bytes for row in found):
        to = folder / "outer-bytes.png"
        drawn.append(_frontier(experiment.x, found, "outer_bytes", "bytes a replica publishes in a round", to))
    return drawn


def _curves(found: Sequence[Row], path: Path) -> Path:
    figure, axes = _axes("tokens of all replicas, millions", "held-out loss, nats per token")
    for i, row in enumerate(found):
        tokens = [point[0] / 1e6 for point in row.curve]
        means = [point[1].mean for point in row.curve]
        spread = [point[1].deviation or 0.0 for point in row.curve]
        axes.plot(tokens, means, color=_colour(i), linestyle=STYLES[i // len(COLOURS) % len(STYLES)], label=row.name())
        low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(tokens, low, high, color=_colour(i), alpha=0.12, linewidth=0)
    return _save(figure, axes, path)


def _along(x: str, found: Sequence[Row], path: Path) -> Path:
    figure, axes = _axes(x, "held-out loss, nats per token")
    lines = list(dict.fromkeys(row.name(x) for row in found))
    for i, line in enumerate(lines):
        rows = [row for row in found if row.name(x) == line]
        placed = [row for row in rows if x in row.axes]
        if not placed:
            axes.axhline(rows[0].loss.mean, color=_colour(i), linestyle="--", label=line)
            continue
        axes.errorbar(
            [float(row.axes[x]) if not isinstance(row.axes[x], str) else row.axes[x] for row in placed],
            [row.loss.mean for row in placed],
            yerr=[row.loss.deviation or 0.0 for row in placed],
            color=_colour(i),
            marker=MARKS[i % len(MARKS)],
            capsize=3,
            label=line,
        )
    values = [row.axes[x] for row in found if x in row.axes]
    if all(isinstance(value, int | float) and value > 0 for value in values):
        _logarithmic(axes, [float(value) for value in values], "{:g}")
    return _save(figure, axes, path)


def _frontier(x: str | None, found: Sequence[Row], what: str, label: str, path: Path) -> Path:
    """What the bytes cost: each setting's rows along the experiment's axis are one line."""
    figure, axes = _axes(label, "loss above the first row's, nats per token")
    placed = [(row, row.more, getattr(row, what)) for row in found if row.more is not None and getattr(row, what)]
    for i, line in enumerate(dict.fromkeys(row.name(x) for row, _, _ in placed)):
        points = sorted((size, more.mean, more.deviation or 0.0) for row, more, size in placed if row.name(x) == line)
        sizes, means, deviations = zip(*points, strict=True)
        axes.errorbar(
            sizes, means, yerr=deviations, color=_colour(i), marker=MARKS[i % len(MARKS)], capsize=3, label=line
        )
    ticks: list[float] = []
    for size in sorted(size for _, _, size in placed):
        if not ticks or size > TICKS_APART * ticks[-1]:
            ticks.append(size)
    _logarithmic(axes, ticks, "{:,.0f}")
    axes.axhline(0.0, color="#94a3b8", linewidth=0.8)
    return _save(figure, axes, path)


def _logarithmic(axes: Any, values: Sequence[float], say: str) -> None:
    ticks = sorted(set(values))
    axes.set_xscale("log")
    axes.set_xticks(ticks, [say.format(value) for value in ticks])
    axes.minorticks_off()


def _axes(x: str, y: str) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> Path:
    from matplotlib import pyplot

    lines = len(axes.get_legend_handles_labels()[1])
    columns = 2 if lines > COLUMN_LINES else 1
    figure.set_figheight(figure.get_figheight() + LINE_INCHES * -(-lines // columns))
    figure.legend(frameon=False, fontsize=7, loc="outside lower center", ncols=columns)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]
