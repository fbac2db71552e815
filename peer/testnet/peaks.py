"""The memory of a testnet's processes, beside the estimate of the memory model."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from peer.compute.capacity import peak_bytes
from peer.planning.memory import ACCELERATOR_PROCESS_BYTES, Duty, MemoryName, memory_of
from peer.telemetry.run_report import Peak
from peer.testnet.swarm import Swarm
from protocol.errors import ResourceError
from protocol.manifest import Manifest
from protocol.wording import size

PEAKS_POLL_SECONDS = 1.0

ROOM = 0.9
"""The share of the memory that is free now with which a testnet plans: the rest is for what else runs here."""


def duties(swarm: Swarm, memory: MemoryName) -> dict[str, Duty]:
    """The duty of each process of a swarm that trains, by its name."""
    recompute = memory == "recompute"
    found = {name: Duty("volunteer", stage, recompute=recompute) for name, stage in swarm.stages.items()}
    return found | {name: Duty("datacenter", recompute=recompute) for name in swarm.datacenters}


def memory_for(
    manifest: Manifest, swarm: Swarm, memory: MemoryName, observed: bool, free: int, card: int | None = None
) -> MemoryName:
    """Whether all processes together can keep their activations in so many `free` bytes, or must compute them again. By
    itself each would take all of it for its own. `observed`: an observer is beside the bootstrap node. `card`: the free
    bytes of the accelerator that they share, if they do.

    Raises:
        ResourceError: they do not fit even so.
    """
    for way in ("keep", "recompute") if memory == "auto" else (memory,):
        needs = [memory_of(manifest, duty) for duty in duties(swarm, way).values()]
        beside = [memory_of(manifest, Duty("observer")).total] if observed else []
        if card is None:
            lacking = _lacking("", sum(need.total for need in needs) + sum(beside), free)
        else:
            on_card = sum(need.device + ACCELERATOR_PROCESS_BYTES for need in needs)
            on_host = sum(need.host for need in needs) + sum(beside)
            lacking = _lacking(" on the accelerator", on_card, card) or _lacking("", on_host, free)
        if not lacking:
            return way
    raise ResourceError(
        f"not enough memory for this testnet: its {len(needs) + len(beside)} processes take about {lacking}; take "
        "fewer processes, more stages or a smaller preset"
    )


def _lacking(place: str, needed: int, free: int) -> str:
    """Return what is missing at a place, in words; empty: it fits."""
    room = int(ROOM * free)
    if needed <= room:
        return ""
    return f"{size(needed)} together{place}, of {size(free)} that are free it plans with {size(room)}"


async def watch_peaks(
    manifest: Manifest,
    planned: Mapping[str, Duty],
    running: Callable[[], Iterable[tuple[str, int]]],
    tell: Callable[[str, Peak], None],
    host_alone: bool,
) -> None:
    """Look at the memory of those that are `running`, by name and process, and tell the most that each has had.
    `host_alone`: they compute elsewhere than in the host's memory."""
    needs = {name: memory_of(manifest, duty) for name, duty in planned.items()}
    estimates = {name: need.host if host_alone else need.total for name, need in needs.items()}
    while True:
        for name, process in running():
            if name in estimates:
                with suppress(OSError):
                    tell(name, Peak(peak_bytes(process), estimates[name]))
        await asyncio.sleep(PEAKS_POLL_SECONDS)
