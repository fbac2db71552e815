"""A run's plan, shown: what it asks of a volunteer's link and device, and how much of the device it could use."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from peer.planning.model import RoundEstimate, Volunteer, best_compression, compression_at, work_of
from protocol.layout import parameter_count
from protocol.manifest import Manifest
from protocol.wording import lasting, millions, size

SHOWN = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)

HIDDEN = 0.97
"""Of a step's time in compute: then links count as hidden."""

LIMITS = {
    "compute": "the device: links are hidden",
    "upload": "the upload",
    "download": "the download",
    "latency": "the latency: more microbatches would hide it",
}


def compression_of(manifest: Manifest, on: Volunteer) -> int:
    """The d / k of the run, or the one that its groups come to."""
    return compression_at(manifest, lambda compression: work_of(manifest, compression), on)


def rows(planned: dict[int, RoundEstimate]) -> Iterable[dict[str, Any]]:
    """The plan for a program: a row for each d / k."""
    for compression, each in planned.items():
        yield {"compression": compression, **asdict(each), "step_utilization": each.step.utilization}


def drawn(manifest: Manifest, on: Volunteer, planned: dict[int, RoundEstimate], overlap: bool) -> RenderableType:
    """The run and the volunteer in a line each, a row for each k, and what it comes to."""
    inner, replicas, own = manifest.inner, manifest.replicas, compression_of(manifest, on)
    lines = (
        f"{millions(parameter_count(manifest), 0)} parameters in {replicas.stages} stages, {replicas.total} replicas, "
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
            lasting(step.passes, exact=True),
            lasting(step.carry, exact=True),
            lasting(step.seconds, exact=True),
            lasting(each.exchange, exact=True),
            lasting(each.seconds, exact=True),
            f"{each.utilization:.1%}",
            each.limit,
        )
    return Group(*map(Text, lines), "", table, "", Text(verdict(manifest, on, planned[own], overlap)))


def verdict(manifest: Manifest, on: Volunteer, here: RoundEstimate, overlap: bool) -> str:
    """Advice for the run's operator, in a sentence or two."""
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
