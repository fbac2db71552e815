"""How much of its stages' compute a pipeline uses over slow links, beside the analytic model: the paper's Figure 2.

Four stages, each a process on a host of its own: a network namespace whose link has a rate, the same up and down, and
20 ms to everybody else (`shaped/`). Frames, schedule, control streams and TLS are the daemon's own. Compute is emulated
by timed waits, a third for the forward pass.

The case is the paper's: 70 billion weights, d = 8192, four stages, microbatches of 2048 tokens, 64 in a step, A100s
that do 125 TFLOP/s. It is scaled in two ways, and a link's rate is to what crosses it as in the paper: time by a tenth
(1.72 s of passes are 172 ms), and bytes by 20/2048 (a microbatch has 20 tokens). So "100 Mb/s" is a link of 9.77 Mb/s.
Latency and the headers of packets are *not* scaled: 20 ms are here what 200 ms would be there.

8192 has no 24th and no 96th part: k = d/32 and d/128 stand for them, and are told as what they are.

With `outer`, a round of three steps (of the paper's 50; bytes are scaled by that, too) has an exchange with seven other
replicas: each stage fetches their contributions while it goes on with the next round, and they fetch its own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc

import grpc
import numpy as np
import torch
import uvloop
from shaped.case import (
    COMPRESSIONS,
    CONTRIBUTION,
    LATENCY,
    MEGABITS,
    MICROBATCHES,
    PASSES,
    RATE,
    REPLICAS,
    STAGES,
    STEPS,
    TOKENS,
    manifest_of,
    modelled,
)
from shaped.hosts import Hosts, hosts, missing
from tls import shown

from peer.handoff import TorchThread
from peer.network.contacts import Contacts
from peer.network.group import GroupService, Membership, Orders, Seat, invite, lead, orders_to
from peer.network.pipeline import Attempt, Link, PipelineService, call, link
from peer.swarm.control import Control, LeaderControl, MemberControl
from peer.swarm.inner_step import PipelineStage
from protocol.any_bytes import AnyBytes
from protocol.bandwidth import Bandwidth
from protocol.blobs import BlobService, fetch
from protocol.channels import listen, options
from protocol.frames import FrameRules
from protocol.guard import Guard
from protocol.identity import ReplicaId
from protocol.keys import load_or_create
from protocol.manifest import Manifest
from protocol.schemas import blobs_pb2_grpc, group_pb2_grpc, pipeline_pb2_grpc


@dataclass(frozen=True, slots=True)
class Row:
    """One point of the figure. Shares are of the compute's own time, with the filling and draining of the pipeline."""

    k_over_d: float
    mbps: int
    outer: bool
    utilization: float
    model: float
    depth: list[int]
    """Microbatches in flight at each stage, as it chose."""


# A stage: a process of its own


class Waiting:
    """Stands in for a stage's trainer: it takes as long, and computes nothing."""

    def __init__(self, manifest: Manifest, index: int) -> None:
        self.manifest = manifest
        self.index = index
        self.device = torch.device("cpu")
        self.last = index == STAGES - 1
        self.payload = torch.ones(1, TOKENS, manifest.k, dtype=torch.bfloat16)

    def forward(self, microbatch: int, tokens: torch.Tensor, payload: torch.Tensor | None) -> torch.Tensor:
        time.sleep(PASSES / 3)
        return torch.zeros(()) if self.last else self.payload

    def backward(self, microbatch: int, payload: torch.Tensor | None) -> torch.Tensor | None:
        time.sleep(2 * PASSES / 3)
        return self.payload if self.index else None

    def squared_norm(self) -> float:
        return 1.0

    def update(self, clip_factor: float, step: int) -> None:
        """No weights."""


async def serve(index: int, folder: Path, compression: int, address: str) -> None:
    """One stage, or (index 4) all other replicas: orders come on standard input, answers go out on the other."""
    manifest = manifest_of(compression)
    me, authority = load_or_create(folder / str(index)), load_or_create(folder / "operator")
    credentials = shown(me, authority)
    contacts = Contacts(manifest, credentials)
    server = grpc.aio.server(options=options(manifest), interceptors=[Guard(), AnyBytes()])
    blob = np.random.default_rng(index).bytes(int(CONTRIBUTION))
    path = folder / f"blob-{index}"
    path.write_bytes(blob)
    group, pipeline = GroupService(manifest, index, me.peer_id), PipelineService(manifest)
    group.ready = True
    group_pb2_grpc.add_GroupServicer_to_server(group, server)
    pipeline_pb2_grpc.add_PipelineServicer_to_server(pipeline, server)
    blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(manifest, lambda _: path, contacts.bandwidth), server)
    port = listen(server, f"{address}:0", credentials.serving())
    await server.start()
    say({"peer_id": me.peer_id, "address": f"{address}:{port}", "sha256": sha256(blob).hexdigest()})
    everybody = await hear()
    seats = [Seat(each["peer_id"], each["address"]) for each in everybody]

    async def exchange() -> None:
        """Seven contributions of the others; they take ours from here at the same time."""

        async def take(number: int) -> None:
            async with contacts.to(seats[number]) as channel:
                await fetch(channel, manifest, everybody[number]["sha256"], int(CONTRIBUTION), contacts.bandwidth)

        sources = [STAGES] * (REPLICAS - 1) if index < STAGES else [*range(STAGES)] * (REPLICAS - 1)
        await asyncio.gather(*map(take, sources))

    try:
        async with asyncio.TaskGroup() as tasks:
            stage, control = None, None
            if index < STAGES:
                stage, control = await connect(index, manifest, seats, contacts, group, pipeline, tasks)
            say("ready")
            await obey(stage, control, exchange, manifest, contacts.bandwidth)
            raise asyncio.CancelledError
    finally:
        await contacts.close()
        await server.stop(None)


async def connect(
    index: int,
    manifest: Manifest,
    seats: list[Seat],
    contacts: Contacts,
    group: GroupService,
    pipeline: PipelineService,
    tasks: asyncio.TaskGroup,
) -> tuple[PipelineStage, Control]:
    """The group, as a leader and its members make it."""
    attempt, control = Attempt(ReplicaId(seats[0].peer_id), 1), None

    def to(number: int) -> Link:
        return link(manifest, seats[number].peer_id, f"stage {number}", contacts.bandwidth)

    upstream = to(index - 1) if index else None
    downstream = to(index + 1) if index < STAGES - 1 else None
    if upstream is not None:
        pipeline.expect(attempt, seats[index - 1].peer_id, upstream)
    if index == 0:
        membership, orders = Membership(attempt.replica, 0), dict[int, Orders]()
        for number in range(1, STAGES):
            if not await invite(number, seats[number], membership, contacts):
                raise RuntimeError(f"stage {number} does not take its seat")
            orders[number] = orders_to(number, seats[number])
            tasks.create_task(lead(seats[number], attempt.replica, contacts, orders[number]))
        control = LeaderControl(orders, manifest.inner.clip)
    else:
        _, reports = await group.wait_for_leader()
        control = MemberControl(reports)
    if downstream is not None:
        tasks.create_task(call(seats[index + 1], contacts, attempt, downstream))
    trainer: Any = Waiting(manifest, index)
    stage = PipelineStage(trainer, TorchThread(1), FrameRules.of(manifest), upstream, downstream)
    return stage, control


async def obey(
    stage: PipelineStage | None, control: Control | None, exchange: Any, manifest: Manifest, bandwidth: Bandwidth
) -> None:
    """Run steps as often as told, each time so many, and say how long they took."""
    number, exchanging = 0, None
    batch = np.zeros((MICROBATCHES, TOKENS + 1), np.int64)
    while (order := await hear()) is not None:
        if order["outer"]:
            exchanging = asyncio.create_task(exchange())
        begun = time.monotonic()
        for _ in range(order["steps"] if stage is not None else 0):
            assert stage is not None
            assert control is not None
            bandwidth.begin_steps()
            await stage.run(1, number, batch, control)
            number += 1
        bandwidth.end_steps()
        if exchanging is not None:
            await exchanging
        say({"seconds": time.monotonic() - begun, "depth": stage.depth if stage is not None else 0})


def say(words: Any) -> None:
    """A line of JSON."""
    print(json.dumps(words), flush=True)


async def hear() -> Any:
    """The next line; None at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line else None


# The one who measures


@dataclass(frozen=True, slots=True)
class Swarm:
    """The processes."""

    processes: list[subprocess.Popen[str]]

    def tell(self, words: Any) -> list[Any]:
        """The same to all; what each answers."""
        for each in self.processes:
            assert each.stdin is not None
            print(json.dumps(words), file=each.stdin, flush=True)
        return self.answers()

    def answers(self) -> list[Any]:
        """A line of each."""
        lines = []
        for each in self.processes:
            assert each.stdout is not None
            line = each.stdout.readline()
            if not line:
                raise RuntimeError(f"process {each.pid} ended with {each.wait()}")
            lines.append(json.loads(line))
        return lines


@contextlib.contextmanager
def swarm(on: Hosts, folder: Path, compression: int) -> Iterator[Swarm]:
    """Four stages that know each other, and the other replicas, for as long as the block lasts."""
    load_or_create(folder / "operator")
    own = [sys.executable, __file__, "--folder", str(folder), "--compression", str(compression)]
    processes = [
        subprocess.Popen(
            [*on.enter(index), *own, "--serve", str(index), "--address", on.address(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(STAGES + 1)
    ]
    try:
        made = Swarm(processes)
        made.tell(made.answers())
        yield made
    finally:
        for each in processes:
            assert each.stdin is not None
            each.stdin.close()
        for each in processes:
            try:
                each.wait(10)
            except subprocess.TimeoutExpired:
                each.kill()


def measure(on: Hosts, folder: Path, compressions: list[int], megabits: list[int]) -> list[Row]:
    """Every point; a line on standard error for each."""
    rows = []
    for compression in compressions:
        manifest = manifest_of(compression)
        with swarm(on, folder, compression) as made:
            for rate in megabits:
                on.limit(rate * RATE, STAGES)
                made.tell({"steps": 1, "outer": False})  # after it, stages know how many microbatches they need
                for outer in (False, True):
                    answers = made.tell({"steps": STEPS, "outer": outer})
                    seconds = max(each["seconds"] for each in answers[:STAGES])
                    ideal = STEPS * (MICROBATCHES + STAGES - 1) * PASSES
                    share, model = ideal / seconds, modelled(manifest, rate, outer)
                    depth = [each["depth"] for each in answers[:STAGES]]
                    rows.append(Row(1 / manifest.replicas.compression, rate, outer, share, model, depth))
                    print(f"{table(rows[-1:])}", file=sys.stderr, flush=True)
    return rows


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"k = d/{1 / each.k_over_d:<4.0f} {each.mbps:>5} Mb/s  outer {'yes' if each.outer else 'no ':3} "
        f"{each.utilization:7.1%}  model {each.model:7.1%}  in flight {each.depth}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--compressions", type=int, nargs="+", default=list(COMPRESSIONS), metavar="D/K")
    parser.add_argument("--mbps", type=int, nargs="+", default=list(MEGABITS), help="of the paper's links")
    for hidden in ("--serve", "--folder", "--compression", "--address"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        with contextlib.suppress(asyncio.CancelledError):
            uvloop.run(serve(int(given.serve), Path(given.folder), int(given.compression), given.address))
        return 0
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, hosts(STAGES + 1, LATENCY) as on:
        rows = measure(on, Path(folder), given.compressions, given.mbps)
    print(json.dumps({"points": [asdict(each) for each in rows]}, indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
