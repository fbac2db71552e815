"""A pipeline of processes against the same model in one process, on the same cores: tokens a second.

Four stages, each a process on loopback, train with real gradients: the daemon's schedule, frames and
mutual TLS, a torch thread of one core each. Beside them, in turns, with the medians counting:

- one process that has all cores for each operation: the same stages one after the other, the same projections and
  rounding between them, the same optimizer (what `ratio_to_one_process` is of);
- one process without any boundary, as a datacenter has it;
- the pipeline without TLS (`tls_share` is what TLS costs);
- stages that are served by plain unary calls, forward and backward, to a driver that has as many microbatches in
  flight as the pipeline;
- `hivemind.moe`: the same stages as experts, whole activations in float32 (it knows no other boundary). Its backward
  pass computes the forward pass again, and no optimizer runs: it gets that for nothing.

All take the same batches. The first step of each side does not count. Stages share cores here, so the pipeline has no
more microbatches in flight than 1F1B has: more of them hide no link on loopback, and are more memory to go through for
the same work. `--in-flight 64` lets it choose.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc

import grpc
import numpy as np
import torch
import uvloop
from compared.experts import STAGES, drive_experts, serve_expert
from group.processes import Processes, say, started
from group.training import CPU, batch_of, grids, train, trainer_of
from options.small import sized_arguments

from bootstrap.genesis import basis
from peer.compute.replica import WholeReplica
from peer.compute.trainer import Kind
from peer.model.number_format import from_bytes, to_bytes
from peer.optim.inner import clip_factor
from protocol.codec.frames import FrameRules
from protocol.manifest import Manifest, check_manifest
from protocol.trust.keys import load_or_create

PIPELINES = ("pipeline", "without TLS")
SIDES = ("one process", "no boundary", *PIPELINES, "unary", "moe")
UNARY = "/benchmark.Stage/"
UNARY_OPTIONS = [("grpc.max_receive_message_length", 1 << 28), ("grpc.max_send_message_length", 1 << 28)]


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained; a process is told it on its command line."""

    preset: str
    compression: int
    sequences: int
    microbatch: int
    in_flight: int = 0
    """Microbatches at a stage of the pipeline, at most; at least as many as 1F1B has."""

    def manifest(self) -> Manifest:
        """The run's."""
        replicas = {"stages": STAGES, "compression": self.compression}
        inner = {"sequences": self.sequences, "microbatch": self.microbatch}
        return check_manifest({"model": {"preset": self.preset}, "replicas": replicas, "inner": inner})

    def tokens(self) -> int:
        """Of a step."""
        return self.sequences * self.manifest().model.context


# One process


def alone(manifest: Manifest, kind: Kind) -> WholeReplica:
    """All stages here."""
    replica = WholeReplica(manifest, kind, torch.from_numpy(basis(manifest)), CPU)
    replica.load(grids(manifest))
    return replica


# A stage that answers plain unary calls


def serve_unary(index: int, manifest: Manifest) -> None:
    """Forward and backward passes of whoever calls, until standard input ends."""
    torch.set_num_threads(1)
    trainer, rules = trainer_of(manifest, index), FrameRules.of(manifest)
    pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))  # one model, one thread
    ids = manifest.inner.microbatch * (manifest.model.context + 1) * 8

    def forward(request: bytes, context: Any) -> bytes:
        number, tokens, rest = request[0], request[1 : 1 + ids], request[1 + ids :]
        batch = torch.frombuffer(bytearray(tokens), dtype=torch.int64).view(manifest.inner.microbatch, -1)
        out = trainer.forward(number, batch, from_bytes(rest, rules.activations, CPU) if rest else None)
        return np.float32(out.item()).tobytes() if trainer.last else to_bytes(out)

    def backward(request: bytes, context: Any) -> bytes:
        payload = from_bytes(request[1:], rules.gradients, CPU) if len(request) > 1 else None
        out = trainer.backward(request[0], payload)
        return b"" if out is None else to_bytes(out)

    def norm(request: bytes, context: Any) -> bytes:
        return np.float64(trainer.squared_norm()).tobytes()

    def update(request: bytes, context: Any) -> bytes:
        trainer.update(*json.loads(request))
        return b""

    methods = {"forward": forward, "backward": backward, "norm": norm, "update": update}
    server = grpc.server(pool, options=UNARY_OPTIONS)
    handlers = {name: grpc.unary_unary_rpc_method_handler(each) for name, each in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Stage", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(f"127.0.0.1:{port}")
    sys.stdin.read()
    server.stop(None)


class UnaryDriver:
    """Drives the four stages, as many microbatches at once as there are stages."""

    def __init__(self, manifest: Manifest, addresses: list[str]) -> None:
        self.manifest = manifest
        channels = [grpc.insecure_channel(each, options=UNARY_OPTIONS) for each in addresses]
        self.calls = [
            {name: each.unary_unary(UNARY + name) for name in ("forward", "backward", "norm", "update")}
            for each in channels
        ]
        self.pool = ThreadPoolExecutor(STAGES)
        self.batches = batch_of(manifest).reshape(-1, manifest.inner.microbatch, manifest.model.context + 1)
        self.step_number = 0

    def step(self) -> float:
        """One step; its loss."""
        losses = list(self.pool.map(self._microbatch, range(len(self.batches))))
        norms = [float(np.frombuffer(each["norm"](b""), np.float64)[0]) for each in self.calls]
        words = json.dumps([clip_factor(norms, self.manifest.inner.clip), self.step_number]).encode()
        list(self.pool.map(lambda each: each["update"](words), self.calls))
        self.step_number += 1
        return sum(losses) / len(losses)

    def _microbatch(self, number: int) -> float:
        tokens, payload = self.batches[number].tobytes(), b""
        for each in self.calls:
            payload = each["forward"](bytes([number]) + tokens + payload)
        gradients = b""
        for each in reversed(self.calls):
            gradients = each["backward"](bytes([number]) + gradients)
        return float(np.frombuffer(payload, np.float32)[0])


# The one who measures


@dataclass(slots=True)
class Found:
    """Of one side: seconds of each step that counts, and the last loss. `processor` is what its processes computed."""

    seconds: list[float]
    processor: list[float]
    loss: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@contextlib.contextmanager
def sides(case: Case, chosen: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """For each side a function that takes a step: seconds, seconds of processors (0 where not measured), loss."""
    manifest, steps = case.manifest(), dict[str, Any]()
    words = [case.preset, case.compression, case.sequences, case.microbatch, case.in_flight]
    own = [sys.executable, __file__, "--case", *map(str, words)]
    with contextlib.ExitStack() as stack:

        def stages(side: str) -> Processes:
            load_or_create(folder / side / "operator")
            here = [*own, "--folder", str(folder / side), "--serve", side]
            return stack.enter_context(started([[*here, str(index)] for index in range(STAGES)]))

        for side in (each for each in PIPELINES if each in chosen):
            made = stages(side)
            made.introduce()
            steps[side] = lambda made=made: _told(made)
        if "unary" in chosen:
            steps["unary"] = _timed(UnaryDriver(manifest, stages("unary").answers()).step)
        if "moe" in chosen:
            experts = json.dumps(stages("moe").answers())
            drives = stack.enter_context(started([[*own, "--serve", "moe driver", experts]]))
            drives.answers()
            steps["moe"] = lambda: _told(drives)
        torch.set_num_threads(os.cpu_count() or 1)
        batch = torch.from_numpy(batch_of(manifest))
        kinds: dict[str, Kind] = {"one process": "group", "no boundary": "datacenter"}
        for side in (each for each in kinds if each in chosen):
            steps[side] = _timed(Alone(alone(manifest, kinds[side]), batch).step)
        yield {side: steps[side] for side in chosen}


@dataclass(slots=True)
class Alone:
    """One process and the number of its steps."""

    replica: WholeReplica
    batch: torch.Tensor
    number: int = 0

    def step(self) -> float:
        """One step; its loss."""
        self.number += 1
        return self.replica.inner_step(self.batch, self.number - 1)


def _told(made: Processes) -> tuple[float, float, float]:
    answers = made.tell("step")
    return max(each["seconds"] for each in answers), sum(each["processor"] for each in answers), answers[0]["loss"]


def _timed(step: Any) -> Any:
    def take() -> tuple[float, float, float]:
        begun, busy = time.perf_counter(), time.process_time()
        loss = step()
        return time.perf_counter() - begun, time.process_time() - busy, loss

    return take


def measure(case: Case, chosen: list[str], turns: int) -> dict[str, Found]:
    """All sides in turn."""
    with tempfile.TemporaryDirectory() as folder, sides(case, chosen, Path(folder)) as steps:
        found = {side: Found([], []) for side in chosen}
        for turn in range(1 + turns):
            for side in chosen if turn % 2 else reversed(chosen):
                seconds, processor, loss = steps[side]()
                print(f"{side:>12}: {seconds:6.2f} s, loss {loss:.4f}", file=sys.stderr, flush=True)
                if turn:
                    found[side].seconds.append(seconds)
                    found[side].processor.append(processor)
                found[side].loss = loss
    return found


def report(case: Case, found: dict[str, Found], as_json: bool) -> None:
    """Ratios are of tokens a second."""
    reference = found.get("one process", next(iter(found.values()))).median
    ratios = {side: reference / each.median for side, each in found.items()}
    if as_json:
        numbers: dict[str, Any] = {"tokens_per_s": {side: case.tokens() / each.median for side, each in found.items()}}
        if "pipeline" in found:
            numbers["ratio_to_one_process"] = ratios["pipeline"]
        if all(each in found for each in PIPELINES):
            numbers["tls_share"] = 1 - found["without TLS"].median / found["pipeline"].median
        for side in ("no boundary", "unary", "moe"):
            if side in found and "pipeline" in found:
                numbers[f"ratio_to_{side.replace(' ', '_')}"] = ratios["pipeline"] / ratios[side]
        print(json.dumps(numbers | {"losses": {side: each.loss for side, each in found.items()}}, indent=1))
        return
    print(f"{'':>12} {'tokens/s':>9} {'of one process':>15} {'processors, s':>14} {'loss':>8}")
    for side, each in found.items():
        processor = f"{statistics.median(each.processor):14.2f}" if side not in ("unary", "moe") else f"{'–':>14}"
        print(f"{side:>12} {case.tokens() / each.median:9.0f} {ratios[side]:15.3f} {processor} {each.loss:8.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny", help="the model")
    parser.add_argument("--compression", type=int, default=8, metavar="D/K")
    parser.add_argument("--sequences", type=int, default=16, help="of a step")
    parser.add_argument("--microbatch", type=int, default=1, help="sequences")
    parser.add_argument("--in-flight", type=int, default=0, metavar="N", help="at a stage at most; default: as 1F1B")
    parser.add_argument("--turns", type=int, default=5, help="steps of each side that count")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", nargs=5, help=argparse.SUPPRESS)
    given = sized_arguments(parser, preset="pico", sequences=4, turns=1)
    if given.case:
        preset, *numbers = given.case
        own = Case(preset, *map(int, numbers))
        serve(*given.serve, given.folder, own.manifest(), own.in_flight)
        return
    case = Case(given.preset, given.compression, given.sequences, given.microbatch, given.in_flight)
    report(case, measure(case, given.sides, given.turns), given.json)


def serve(side: str, which: str, folder: Path, manifest: Manifest, in_flight: int) -> None:
    """Be one process of a side."""
    os.environ["HIVEMIND_LOGLEVEL"] = "CRITICAL"
    match side:
        case "unary":
            serve_unary(int(which), manifest)
        case "moe":
            serve_expert(int(which), manifest)
        case "moe driver":
            drive_experts(manifest, json.loads(which))
        case _:
            with contextlib.suppress(asyncio.CancelledError):
                uvloop.run(train(int(which), folder, manifest, plain=side == "without TLS", room=in_flight))


if __name__ == "__main__":
    main()
