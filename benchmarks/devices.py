"""What one process of a datacenter replica holds, by the number of processes: on this machine's CPU, over gloo.

Each replica takes two inner steps of two sequences a process; then its processes are asked what they hold. Peak memory
is the kernel's count for the worker that has most (Linux), with Python and torch, which are given apart: the peak of a
worker that has not loaded anything.
"""

import argparse
import json
from contextlib import suppress
from dataclasses import asdict, dataclass

import torch
from options.small import sized_arguments

from peer.compute.capacity import cores, peak_bytes
from peer.devices.parallel_replica import ShardedReplica
from peer.devices.workers import Split
from protocol.layout import model_layout, parameter_count
from protocol.manifest import Manifest, check_manifest

STEPS = 2
MB = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """Of the worker that has most, in bytes. `share`: all that it holds for good, of what one process would hold."""

    processes: int
    weights: int
    gradients: int
    moments: int
    share: float
    base: int
    peak: int


def run_of(preset: str, context: int, processes: int) -> Manifest:
    inner = {"sequences": 2 * processes, "microbatch": 1}
    return check_manifest({"model": {"preset": preset, "context": context}, "inner": inner, "replicas": {"stages": 2}})


def measure(preset: str, context: int, processes: int) -> Row:
    run = run_of(preset, context, processes)
    layout = model_layout(run)
    grids = {
        part: {name: torch.full(shape, 2**20, dtype=torch.int32) for name, shape in tensors.items()}
        for part, tensors in layout.items()
    }
    replica = ShardedReplica(run, torch.device("cpu"), Split(processes, cores()), lambda doing: None)
    try:
        replica.start()
        assert replica.worker_pool is not None
        base = most_of(replica)
        replica.load(grids)
        for step in range(STEPS):
            batch_SM = torch.randint(0, run.model.vocabulary, (run.inner.sequences, context + 1))
            replica.inner_step(batch_SM, step)
        held = [answer.sizes for answer in replica.worker_pool.run("held_bytes")]
        most = {kind: max(sizes[kind] for sizes in held) for kind in held[0]}
        peak = most_of(replica)
    finally:
        replica.stop()
    whole = 16 * parameter_count(run)  # weight, gradient, two moments, in fp32
    return Row(processes, **most, share=sum(most.values()) / whole, base=base, peak=peak)


def most_of(replica: ShardedReplica) -> int:
    """The most memory that any of its workers has had; 0 where the system does not say."""
    assert replica.worker_pool is not None
    with suppress(OSError):
        return max(peak_bytes(worker.process.pid) for worker in replica.worker_pool.workers)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="178m")
    parser.add_argument("--context", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", action="store_true")
    options = sized_arguments(parser, preset="nano", context=16, processes=[1, 2])
    rows = [measure(options.preset, options.context, processes) for processes in options.processes]
    if options.json:
        print(json.dumps({"preset": options.preset, "rows": [asdict(row) for row in rows]}))
        return
    print("processes  weights  gradients  moments    share     base     peak   (MB)")
    for row in rows:
        sizes = f"{row.weights / MB:8.0f} {row.gradients / MB:10.0f} {row.moments / MB:8.0f}"
        print(f"{row.processes:9} {sizes} {row.share:8.3f} {row.base / MB:8.0f} {row.peak / MB:8.0f}")


if __name__ == "__main__":
    main()
