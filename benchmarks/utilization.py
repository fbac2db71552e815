"""How much of its stages' compute a pipeline uses over slow links, beside the analytic model: the paper's Figure 2.

Stages, each a process on a host of its own: a network namespace whose link has a rate, the same up and down, and 20 ms
to everybody else (`shaped/`). Frames, schedule and TLS are the daemon's own. Compute is emulated by timed waits, a
third for the forward pass.

Two shares are told: of the compute's own time with the filling and draining of the pipeline, as the paper has it, and
`of_hardware`, of a step in which every stage always computes. With `--overlap` (the manifest's `inner.overlap`) steps
follow each other without draining, and both are the same. A round drains once, at its end. That is measured with its
steps, and of three steps of 8 microbatches in four stages it is a ninth: `--steps 50` has rounds as the paper has them.

The case is the paper's: 70 billion weights, d = 8192, four stages, microbatches of 2048 tokens, 64 in a step, A100s
that do 125 TFLOP/s. It is scaled in two ways, and a link's rate is to what crosses it as in the paper: time by a tenth
(1.72 s of passes are 172 ms), and bytes by 20/2048 (a microbatch has 20 tokens). So "100 Mb/s" is a link of 9.77 Mb/s.
Latency, and what Python takes for each pass, are *not* scaled: 20 ms are here what 200 ms would be there, and a
millisecond of handing over what ten would be. `--time 0.4` is nearer to the paper, and takes four times as long.

8192 has no 24th and no 96th part: k = d/32 and d/128 stand for them, and are told as what they are.

With `outer`, a round of three steps (of the paper's 50; bytes are scaled by that, too) has an exchange with seven other
replicas, which train, too: each stage fetches their contributions while it goes on with the next round, and they fetch
its own, all at the pace at which peers exchange while they train.

`--remember` gives hosts a TCP that keeps its windows over pauses, `--down 5` links as homes have them, with five times
as much down as up.

With `--compute`, stages compute: `tiny` (32 M parameters) in four processes that share this machine's cores, over
links as slow as they are, and in turns with it the same on loopback. Its utilization is the time of a step there, of
its time over the links.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc

import grpc
import numpy as np
import torch
import uvloop
from group.processes import hear, say, started
from group.stage import SameBatch, Steps, place
from group.training import train
from options.small import sized_arguments
from shaped.case import (
    COMPRESSIONS,
    LATENCY,
    MEGABITS,
    MICROBATCHES,
    REPLICAS,
    STAGES,
    STEPS,
    TOKENS,
    Case,
    modelled,
)
from shaped.computed import computed_table, measure_compute, small
from shaped.hosts import Hosts, hosts, missing

import protocol.net.bandwidth
from peer.planning.model import HEADERS_SHARE
from peer.torch_thread import TorchThread
from protocol.identity import Endpoint
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.blobs import BlobService, fetch
from protocol.schemas import blobs_pb2_grpc
from protocol.trust.keys import load_or_create


@dataclass(frozen=True, slots=True)
class Row:
    """One point of the figure. Shares are of the compute's own time, with the filling and draining of the pipeline
    where it drains."""

    k_over_d: float
    mbps: int
    outer: bool
    utilization: float
    of_hardware: float
    """The share of the time in which all stages compute: without a bubble it would be 1."""
    model: float
    """The paper's, which counts frames alone."""
    with_headers: float
    """The same with what TCP, TLS and acknowledgements take of a link."""
    depth: list[int]
    """Microbatches in flight at each stage, as it chose."""


# A stage: a process of its own


class Waiting:
    """Stands in for a stage's trainer: it takes as long, and computes nothing."""

    def __init__(self, manifest: Manifest, index: int, seconds: float) -> None:
        self.seconds = seconds
        self.manifest = manifest
        self.index = index
        self.device = torch.device("cpu")
        self.last = index == manifest.replicas.stages - 1
        self.payload = torch.ones(1, TOKENS, manifest.k, dtype=torch.bfloat16)

    def forward(self, microbatch: int, tokens: torch.Tensor, payload: torch.Tensor | None) -> torch.Tensor:
        time.sleep(self.seconds / 3)
        return torch.zeros(()) if self.last else self.payload

    def backward(self, microbatch: int, payload: torch.Tensor | None) -> torch.Tensor | None:
        time.sleep(2 * self.seconds / 3)
        return self.payload if self.index else None

    def squared_norm(self) -> float:
        return 1.0

    def update(self, clip_factor: float, step: int) -> None:
        """No weights."""


async def serve(index: int, folder: Path, compression: int, host: str, case: Case) -> None:
    """One stage, or, behind the last, all other replicas: orders come on standard input, answers go out on the
    other."""
    manifest, stages, size = case.manifest(compression), case.stages, int(case.contribution)
    peers = (REPLICAS - 1) * stages if index == stages else 1  # that this process stands for
    protocol.net.bandwidth.SPREAD_MEGABITS *= case.rate * peers  # it is of a link; here links are slower
    blob = np.random.default_rng(index).bytes(size)
    path = folder / f"blob-{index}"
    path.write_bytes(blob)

    bandwidth = Bandwidth()

    def also(server: grpc.aio.Server) -> None:
        blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(manifest, lambda _: path, bandwidth), server)

    async with place(index, folder, manifest, host, also, bandwidth=bandwidth) as here, asyncio.TaskGroup() as tasks:
        say({"peer_id": here.peer_id, "address": here.address, "sha256": sha256(blob).hexdigest()})
        everybody = await hear()
        seats = [Endpoint(each["peer_id"], each["address"]) for each in everybody]

        async def exchange() -> None:
            """Seven contributions of the others; they take ours from here at the same time."""

            async def take(number: int) -> None:
                async with here.contacts.to(seats[number]) as channel:
                    await fetch(channel, manifest, everybody[number]["sha256"], size, bandwidth)

            sources = [stages] * (REPLICAS - 1) if index < stages else [*range(stages)] * (REPLICAS - 1)
            await asyncio.gather(*map(take, sources))

        member = index < stages
        upstream = here.expect(seats) if member else None
        say("expecting")
        await hear()
        steps = None
        if member:
            trainer = Waiting(manifest, index, case.passes)
            steps = await here.meet(seats[:stages], upstream, trainer, TorchThread(1), tasks)
        say("met")
        await obey(steps, exchange, bandwidth)
        raise asyncio.CancelledError


async def obey(steps: Steps | None, exchange: Any, bandwidth: Bandwidth) -> None:
    """Run steps as often as told, each time so many, and say how long they took."""
    number, exchanging, source = 0, None, None
    if steps is not None and steps.pipeline.upstream is None:
        microbatches = steps.pipeline.trainer.manifest.inner.microbatches
        source = SameBatch(np.zeros((microbatches, TOKENS + 1), np.int64))
    while (order := await hear()) is not None:
        if order["outer"]:
            bandwidth.begin_steps()  # the other replicas train, too, and give way to their own frames
            exchanging = asyncio.create_task(exchange())
        begun = time.monotonic()
        for _ in range(order["steps"] if steps is not None else 0):
            assert steps is not None
            bandwidth.begin_steps()
            await steps.take(1, number, source)
            number += 1
        if steps is not None:
            bandwidth.end_steps()
        if exchanging is not None:
            await exchanging
        say({"seconds": time.monotonic() - begun, "depth": steps.carried.depth if steps is not None else 0})


# The one who measures


def measure(
    on: Hosts, folder: Path, compressions: list[int], megabits: list[int], case: Case, down: float
) -> list[Row]:
    """Every point; a line on standard error for each."""
    rows = []
    for compression in compressions:
        manifest = case.manifest(compression)
        load_or_create(folder / "operator")
        own = [sys.executable, __file__, "--folder", str(folder), "--compression", str(compression)]
        own += ["--time", str(case.time), "--stages", str(case.stages), "--microbatches", str(case.microbatches)]
        own += ["--overlap", str(case.overlap), "--steps", str(case.steps)]
        everybody = range(case.stages + 1)
        commands = [[*on.enter(each), *own, "--serve", str(each), "--address", on.address(each)] for each in everybody]
        with started(commands) as made:
            made.introduce()
            for rate in megabits:
                on.limit(rate * case.rate, case.stages, down)
                made.tell({"steps": 1, "outer": False})  # after it, stages know how many microbatches they need
                for outer in (False, True):
                    if outer:  # a round that is not measured: peers pace an exchange by the one before
                        made.tell({"steps": case.steps, "outer": True})
                    answers = made.tell({"steps": case.steps, "outer": outer})
                    own_answers = answers[: case.stages]
                    seconds = max(each["seconds"] for each in own_answers) / case.steps
                    depth = [each["depth"] for each in own_answers]
                    models = [modelled(manifest, case, rate, outer, headers) for headers in (0.0, HEADERS_SHARE)]
                    shares = case.ideal_seconds / seconds, case.hardware_seconds / seconds
                    rows.append(Row(1 / manifest.compressions[0], rate, outer, *shares, *models, depth))
                    print(f"{table(rows[-1:])}", file=sys.stderr, flush=True)
    return rows


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"k = d/{1 / each.k_over_d:<4.0f} {each.mbps:>5} Mb/s  outer {'yes' if each.outer else 'no ':3} "
        f"{each.utilization:7.1%}  of hardware {each.of_hardware:6.1%}  model {each.model:7.1%}, "
        f"with headers {each.with_headers:7.1%}  "
        f"in flight {each.depth}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--compressions", type=int, nargs="+", metavar="D/K")
    parser.add_argument("--mbps", type=int, nargs="+", help="of the paper's links; with --compute, of these")
    parser.add_argument("--time", type=float, default=0.1, metavar="SHARE", help="of the paper's seconds; default: 0.1")
    parser.add_argument("--compute", action="store_true", help="a small model that computes, instead of timed waits")
    parser.add_argument("--stages", type=int, default=STAGES, help="of the pipeline; default: 4; not with --compute")
    parser.add_argument("--microbatches", type=int, default=MICROBATCHES, help="in a step; default: 64")
    parser.add_argument("--overlap", type=int, default=0, help="the manifest's inner.overlap; default: 0")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a round; default: 3, of the paper's 50")
    parser.add_argument("--remember", action="store_true", help="hosts with net.ipv4.tcp_slow_start_after_idle = 0")
    down = "links carry so many times more down; not with --compute"
    parser.add_argument("--down", type=float, default=1.0, metavar="TIMES", help=down)
    for hidden in ("--serve", "--folder", "--compression", "--address"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = sized_arguments(parser, compressions=[8], mbps=[100], microbatches=4, steps=1)
    case = Case(given.time, given.stages, given.microbatches, given.overlap, given.steps)
    if given.serve is not None:
        with contextlib.suppress(asyncio.CancelledError):
            index, folder, compression = int(given.serve), Path(given.folder), int(given.compression)
            if given.compute:
                uvloop.run(train(index, folder, small(compression), given.address))
            else:
                uvloop.run(serve(index, folder, compression, given.address, case))
        return 0
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, hosts(case.stages + 1, LATENCY, forget=not given.remember) as on:
        if given.compute:
            computed = measure_compute(on, Path(folder), __file__, given.compressions or [1, 8], given.mbps or [2, 10])
            found, shown = {"compute": [asdict(each) for each in computed]}, computed_table(computed)
        else:
            asked = given.compressions or [*COMPRESSIONS], given.mbps or [*MEGABITS]
            rows = measure(on, Path(folder), *asked, case, given.down)
            found, shown = {"points": [asdict(each) for each in rows]}, table(rows)
    print(json.dumps(found, indent=1) if given.json else shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
