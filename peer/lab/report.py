"""`results.md` and its figures: what a sweep has found so far."""

from collections.abc import Sequence
from pathlib import Path

from peer.lab.experiment import Case, Experiment, field_of
from peer.lab.figures import draw
from peer.lab.record import of, read_records
from peer.lab.summary import Row, Spread, rows
from protocol.files import write_atomically
from protocol.wording import millions

REPORT = "results.md"

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
        cells = [_cell(by_value.get(value, anywhere)) for value in values]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return str(row.loss) if row.more is None else f"{row.loss} ({_signed(row.more)})"


def table(found: Sequence[Row]) -> list[str]:
    """Everything of every row."""
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
