"""Steps of a small model that computes, over links and on loopback: see `../utilization.py`."""

import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from group.processes import started

from peer.planning.model import HEADERS_SHARE, Volunteer, step_of, work_of
from protocol.manifest import Manifest, check_manifest
from protocol.trust.keys import load_or_create
from shaped.case import LATENCY, STAGES
from shaped.hosts import Hosts


@dataclass(frozen=True, slots=True)
class ComputedRow:
    """A step of a small model over links, and on loopback, in seconds."""

    k_over_d: float
    mbps: int
    loopback: float
    seconds: float
    utilization: float
    model: float
    """With headers, and the passes that the step on loopback took."""


def small(compression: int) -> Manifest:
    """What is trained with `--compute`."""
    replicas = {"stages": STAGES, "compression": compression}
    return check_manifest(
        {"model": {"preset": "tiny"}, "replicas": replicas, "inner": {"sequences": 16, "microbatch": 1}}
    )


def measure_compute(
    on: Hosts, folder: Path, script: str, compressions: list[int], megabits: list[int]
) -> list[ComputedRow]:
    """Steps over the links and on loopback, in turns; the first of each does not count. `script` serves a stage."""
    rows = []
    load_or_create(folder / "operator")
    for compression in compressions:
        own = [sys.executable, script, "--folder", str(folder), "--compression", str(compression), "--compute"]
        commands = [[*own, "--serve", str(each), "--address", "127.0.0.1"] for each in range(STAGES)]
        there = [[*on.enter(each), *own, "--serve", str(each), "--address", on.address(each)] for each in range(STAGES)]
        with started(commands) as near, started(there) as far:
            near.introduce()
            far.introduce()
            for rate in megabits:
                on.limit(rate, STAGES)
                taken = [[max(each["seconds"] for each in side.tell("step")) for side in (near, far)] for _ in range(4)]
                loopback, seconds = (statistics.median(each) for each in zip(*taken[1:], strict=True))
                work = work_of(small(compression))
                passes = loopback / (work.microbatches + STAGES - 1)
                on_link = Volunteer(1.0, rate * 1e6, rate * 1e6, LATENCY, HEADERS_SHARE)
                model = step_of(replace(work, operations=passes), on_link).utilization
                rows.append(ComputedRow(1 / compression, rate, loopback, seconds, loopback / seconds, model))
                print(computed_table(rows[-1:]), file=sys.stderr, flush=True)
    return rows


def computed_table(rows: list[ComputedRow]) -> str:
    """Lines of text."""
    return "\n".join(
        f"tiny, k = d/{1 / each.k_over_d:<4.0f} {each.mbps:>3} Mb/s  step {each.seconds:6.2f} s, on loopback "
        f"{each.loopback:6.2f} s  {each.utilization:7.1%}  model {each.model:7.1%}"
        for each in rows
    )
