"""`hetpeer plan`: what a run would ask of a volunteer's link and device, and how much of the device it could use."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from peer.cli.tables import show
from peer.planning.model import HEADERS, RoundEstimate, Volunteer, best_compression, compression_at, round_of, work_of
from peer.process import Terminal, told
from peer.telemetry.events import Progress
from peer.telemetry.sentences import size
from protocol import manifest as manifests
from protocol.errors import UserError
from protocol.layout import parameter_count
from protocol.manifest import Manifest

SHOWN = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)

HIDDEN = 0.97
"""Of a step's time in compute: then links count as hidden."""

LIMITS = {
    "compute": "the device: links are hidden",
    "upload": "the upload",
    "download": "the download",
    "latency": "the latency: more microbatches would hide it",
}


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the command line said: `up` and `down` in Mb/s, `latency` in ms one way, `teraflops` that the device really
    does."""

    run_toml: Path | None
    model: str
    up: float
    down: float
    latency: float
    teraflops: float
    overlap: bool
    figure: Path | None
    measured: Path | None


def plan(options: PlanOptions, terminal: Terminal) -> int:
    """Show it; the exit code."""

    def work() -> int:
        if options.figure is not None:
            from peer.planning.figures import draw, read_measured

            draw(options.figure, read_measured(options.measured) if options.measured else ())
            terminal.emit(Progress(f"wrote {options.figure}"))
            return 0
        if min(options.up, options.down, options.teraflops) <= 0 or options.latency < 0:
            raise UserError("--up, --down and --teraflops must be more than 0, and --latency not less")
        manifest = _manifest(options)
        up, down = options.up * 1e6, options.down * 1e6
        on = Volunteer(options.teraflops * 1e12, up, down, options.latency / 1e3, HEADERS)
        overlap = options.overlap or manifest.outer.overlap
        planned = {
            compression: round_of(work_of(manifest, compression), on, overlap)
            for compression in sorted({*SHOWN, compression_of(manifest, on)})
            if manifest.model.d % compression == 0
        }
        show(terminal, _rows(planned), _drawn(manifest, on, planned, overlap))
        return 0

    return told(terminal.emit, work)


def _manifest(options: PlanOptions) -> Manifest:
    if options.run_toml is not None:
        return manifests.load(options.run_toml)
    return manifests.check({"model": {"preset": options.model}, "replicas": {"stages": 4}})


def compression_of(manifest: Manifest, on: Volunteer) -> int:
    """d / k of the run, or what its groups come to."""
    return compression_at(manifest, lambda compression: work_of(manifest, compression), on)


def _rows(planned: dict[int, RoundEstimate]) -> Iterable[dict[str, Any]]:
    for compression, each in planned.items():
        yield {"compression": compression, **asdict(each), "step_utilization": each.step.utilization}


def _drawn(manifest: Manifest, on: Volunteer, planned: dict[int, RoundEstimate], overlap: bool) -> RenderableType:
    """The run and the volunteer in a line each, a row for each k, and what it comes to."""
    inner, replicas, own = manifest.inner, manifest.replicas, compression_of(manifest, on)
    lines = (
        f"{parameter_count(manifest) / 1e6:,.0f} M parameters in {replicas.stages} stages, {replicas.total} replicas, "
        f"H = {inner.steps}, {inner.microbatches} microbatches of {inner.microbatch * manifest.model.context:,} tokens",
        f"a volunteer with {on.up / 1e6:g} Mb/s up, {on.down / 1e6:g} down, {1e3 * on.latency:g} ms to its neighbours, "
        f"{on.operations / 1e12:g} TFLOP/s",
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("d / k", "frame", "passes", "link", "step", "exchange", "round", "used", "limit"):
        table.add_column(name, justify="left" if name == "limit" else "right", no_wrap=True)
    for compression, each in planned.items():
        step = each.step
        frame = work_of(manifest, compression).backward_bytes
        table.add_row(
            f"{'→ ' if compression == own else ''}{compression}",
            size(frame),
            _seconds(step.passes),
            _seconds(step.carry),
            _seconds(step.seconds),
            _seconds(each.exchange),
            _seconds(each.seconds),
            f"{each.utilization:.1%}",
            each.limit,
        )
    return Group(*map(Text, lines), "", table, "", Text(verdict(manifest, on, planned[own], overlap)))


def verdict(manifest: Manifest, on: Volunteer, here: RoundEstimate, overlap: bool) -> str:
    """What to do about it, in words."""
    compression = compression_of(manifest, on)
    best = best_compression(manifest, on, [each for each in SHOWN if manifest.model.d % each == 0], HIDDEN)
    moved = f"A round moves {size(here.up_bytes)} up and {size(here.down_bytes)} down"
    said = f"{moved}, and uses {here.utilization:.1%} of the device; what it waits for is {LIMITS[here.limit]}."
    if best is None:
        return f"{said} No k hides the links here: fewer, larger steps or a quicker link would."
    if best > compression:
        return f"{said} k = d/{best} would hide the links within a step."
    if here.exchange > 0.02 * here.seconds and not overlap:
        return f"{said} `overlap = true` in [outer] would hide the exchange, too."
    return said


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:.1f} min"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"
