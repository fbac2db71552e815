"""The memory of a testnet's processes, beside the estimate of the memory model."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from peer.compute.capacity import peak_bytes
from peer.planning.memory import Duty, MemoryName, memory_of
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


def memory_for(manifest: Manifest, swarm: Swarm, memory: MemoryName, observed: bool, free: int) -> MemoryName:
    """Whether all processes together can keep their activations in so many `free` bytes, or must compute them again. By
    itself each would take all of it for its own. `observed`: an observer is beside the bootstrap node.

    Raises:
        ResourceError: they do not fit even so.
    """
    room = int(ROOM * free)
    for way in ("keep", "recompute") if memory == "auto" else (memory,):
        who = [*duties(swarm, way).values(), *([Duty("observer")] if observed else [])]
        needed = sum(memory_of(manifest, duty).total for duty in who)
        if needed <= room:
            return way
    raise ResourceError(
        f"not enough memory for this testnet: its {len(who)} processes take about {size(needed)} together, of "
        f"{size(free)} that are free it plans with {size(room)}; take fewer processes, more stages or a smaller preset"
    )


async def watch_peaks(
    manifest: Manifest,
    planned: Mapping[str, Duty],
    running: Callable[[], Iterable[tuple[str, int]]],
    tell: Callable[[str, Peak], None],
) -> None:
    """Look at the memory of those that are `running`, by name and process, and tell the most that each has had."""
    estimates = {name: memory_of(manifest, duty).total for name, duty in planned.items()}
    while True:
        for name, process in running():
            if name in estimates:
                with suppress(OSError):
                    tell(name, Peak(peak_bytes(process), estimates[name]))
        await asyncio.sleep(PEAKS_POLL_SECONDS)
