"""The paper's Figures 2 and 3, by our model, and what `benchmarks/utilization.py` measured beside it."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peer.planning.model import StageWork, Volunteer, round_of, step_of
from protocol.errors import UserError
from protocol.files import read_given

MEGABITS = (80, 100, 200, 500, 1000)
RATIOS = (1, 8, 24, 96)
A100 = 125e12
"""Operations a second that an A100 really does of its 312e12: 40 %."""

LINE_COLOURS = ("#334155", "#c2410c", "#1d4ed8", "#15803d")


def seventy_billion(ratio: int) -> StageWork:
    """Figure 2: 70 billion weights in 4 stages, d = 8192, microbatches of 2048 tokens, 64 in a step; 8 replicas, 50
    inner steps, 32 of 4096 values in 28 bits."""
    return _work(70e9, 8192, ratio, tokens=2048, microbatches=64)


def half_a_billion(ratio: int) -> StageWork:
    """Figure 3: 512 million weights in 4 stages, d = 1536, microbatches of 8192 tokens, 8 in a step."""
    return _work(512e6, 1536, ratio, tokens=8192, microbatches=8)


def _work(weights: float, d: int, ratio: int, tokens: int, microbatches: int) -> StageWork:
    frame = 2.0 * tokens * d / ratio
    return StageWork(
        operations=6 * weights / 4 * tokens,
        forward_bytes=frame + 4 * tokens,
        backward_bytes=frame,
        microbatches=microbatches,
        stages=4,
        steps=50,
        replicas=8,
        contribution=weights / 4 * 32 / 4096 * 28 / 8,
    )


def volunteer_on(megabits: float, operations: float = A100, latency: float = 0.02) -> Volunteer:
    """A volunteer with as much up as down, in megabits a second; latency in seconds."""
    return Volunteer(operations, megabits * 1e6, megabits * 1e6, latency)


def read_measured(path: Path) -> list[dict[str, Any]]:
    """Read the output of `benchmarks/utilization.py --json`.

    Raises:
        UserError: it is nothing of the kind.
    """
    try:
        points = json.loads(read_given(path))["points"]
        return [{key: float(point[key]) for key in ("k_over_d", "mbps", "outer", "utilization")} for point in points]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not what benchmarks/utilization.py --json prints: {error}") from None


def _nearest(k_over_d: float) -> int:
    """Return the nearest d / k of the measured lines: 8192 has no 24th part, and d/32 is measured in its place."""
    return min(RATIOS, key=lambda ratio: abs(math.log(k_over_d * ratio)))


def draw_figures(path: Path, measured: Iterable[dict[str, Any]] = ()) -> None:
    """Both figures side by side: utilization by bandwidth at 70 billion weights, and by compression at 512 million on
    1 Gb/s. Lines are the model, with the outer exchange dashed; marks are measured, in the colour of the nearest k."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left_axes, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for colour, ratio in zip(LINE_COLOURS, RATIOS, strict=True):
        rates = [volunteer_on(rate) for rate in MEGABITS]
        name = "whole activations" if ratio == 1 else f"k = d/{ratio}"
        alone = [100 * step_of(seventy_billion(ratio), rate).utilization for rate in rates]
        counted = [100 * round_of(seventy_billion(ratio), rate).utilization for rate in rates]
        left_axes.plot(MEGABITS, alone, color=colour, label=name)
        left_axes.plot(MEGABITS, counted, color=colour, linestyle="--", linewidth=1)
        for point in measured:
            if _nearest(point["k_over_d"]) == ratio:
                mark = "x" if point["outer"] else "o"
                left_axes.plot(point["mbps"], 100 * point["utilization"], mark, color=colour, markersize=6)
    left_axes.set(xscale="log", xlabel="Mb/s each way", ylabel="share of compute used, %", ylim=(0, 102))
    left_axes.set_xticks(MEGABITS, [f"{rate}" for rate in MEGABITS])
    title = "70 B weights, 4 stages, A100s; dashed, and crosses: with the outer exchange"
    left_axes.set_title(title, fontsize=9)
    for offset, operations, name in ((-0.2, A100, "A100"), (0.2, 400e12, "H100")):
        heights = [100 * step_of(half_a_billion(rate), volunteer_on(1000, operations)).utilization for rate in RATIOS]
        right.bar([position + offset for position in range(len(RATIOS))], heights, 0.38, label=name)
    right.set_xticks(range(len(RATIOS)), ["whole" if rate == 1 else f"d/{rate}" for rate in RATIOS])
    right.set(ylim=(0, 102), xlabel="k")
    right.set_title("512 M weights, 4 stages, 1 Gb/s", fontsize=9)
    for axes in (left_axes, right):
        axes.legend(fontsize=8, frameon=False)
        axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
