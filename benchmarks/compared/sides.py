"""The sides that `benchmarks/device.py` compares, each one or more processes that take steps when they are told to."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvloop
from group.processes import say
from group.training import batch_of, finish, grids, peak_bytes, train, trainer_of

from compared.llama import Llama, Settings, Sizes, Training
from compared.titan import titan
from peer.compute.arithmetic import FACTORS, Arithmetic, Precision
from peer.compute.capacity import give_large_blocks_back
from peer.compute.replica import WholeReplica
from peer.compute.schedule import Backward, Forward, Schedule, least_depth
from peer.compute.transfers import OnHost, OnItsWay, PassOutcome, transfers_of
from peer.model.number_format import number_format, to_bytes
from peer.optim.grid import to_float
from peer.optim.inner import clip_factor, learning_rate
from protocol.codec.frames import FrameRules
from protocol.manifest import Manifest, check_manifest

STAGES = 4
COMPRESSION = 8


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained, and how the device computes; a process is told it on its command line."""

    preset: str
    sequences: int
    microbatch: int
    device: str
    precision: Precision
    compiled: bool
    threads: int
    """Cores that an operation may use on a CPU; those of a pipeline share them."""

    @property
    def manifest(self) -> Manifest:
        """The run's. Without warm-up, so that after one step losses tell whether two sides do the same."""
        return check_manifest(
            {
                "model": {"preset": self.preset},
                "replicas": {"stages": STAGES, "compression": COMPRESSION},
                "inner": {"sequences": self.sequences, "microbatch": self.microbatch, "warmup": 1},
            }
        )

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.sequences * self.manifest.model.context


@dataclass(frozen=True, slots=True)
class Side:
    """One of those that are compared. `stage`: where it is one stage alone."""

    name: str
    recompute: bool = False
    stage: int | None = None

    @property
    def words(self) -> str:
        """For the table."""
        stage = "" if self.stage is None else f" {self.stage}"
        return self.name + stage + (", recompute" if self.recompute else "")


PLAIN = Side("plain")

SIDES = {
    "replica": [Side("replica")],
    "replica-recompute": [Side("replica", recompute=True)],
    "stages": [Side("stage", stage=stage) for stage in range(STAGES)],
    "stages-recompute": [Side("stage", recompute=True, stage=stage) for stage in range(STAGES)],
    "pipeline": [Side("pipeline")],
    "torchtitan": [Side("torchtitan")],
}
"""Those of one name are in memory together, and plain PyTorch with them."""


Step = Callable[[int], float | None]
"""Takes the step of a number, from 0; its loss, where that can be compared."""


def plain_training(case: Case, model: torch.nn.Module) -> Step:
    """The plain loop on a model that makes logits."""
    manifest, inner, factors = case.manifest, case.manifest.inner, FACTORS.get(case.precision, torch.float32)
    if case.device == "cuda" and factors is torch.float32:
        torch.set_float32_matmul_precision("high")  # TF32, as the trainer has it
    settings = Settings(
        inner.microbatch, inner.betas, inner.epsilon, inner.weight_decay, inner.clip, factors, case.compiled
    )
    training, batch = Training(model, settings), torch.from_numpy(batch_of(manifest))
    return lambda number: training.step(batch, learning_rate(manifest, number))


def sizes_of(manifest: Manifest) -> Sizes:
    """The model's sizes, for those who know no manifest."""
    return Sizes(**{name: getattr(manifest.model, name) for name in Sizes.__dataclass_fields__})


def plain(case: Case, device: torch.device) -> Step:
    """Plain PyTorch, from the run's first weights."""
    with device:
        model = Llama(sizes_of(case.manifest))
    with torch.no_grad():
        for tensors in grids(case.manifest).values():
            for name, tensor in tensors.items():
                model.get_parameter(name).copy_(to_float(tensor))
    return plain_training(case, model)


def torchtitan(case: Case, device: torch.device) -> Step:
    """torchtitan's llama, from weights of its own."""
    with device:
        model = titan(sizes_of(case.manifest))
    return plain_training(case, model)


def replica(case: Case, device: torch.device, arithmetic: Arithmetic) -> Step:
    """All stages in one process, as a datacenter has them."""
    manifest = case.manifest
    whole = WholeReplica(manifest, "datacenter", None, device, arithmetic=arithmetic)
    whole.load(grids(manifest))
    for stage in whole.stages:
        stage.forget_start()
    whole.warm_up()
    batch = torch.from_numpy(batch_of(manifest))
    return lambda number: whole.inner_step(batch, number)


def one_stage(case: Case, device: torch.device, arithmetic: Arithmetic, index: int) -> Step:
    """A volunteer's stage. What its neighbours would send is there, always the same: activations and gradients of
    chance, whose loss says nothing."""
    manifest, trainer = case.manifest, trainer_of(case.manifest, index, "group", device, arithmetic)
    rules, microbatches = FrameRules.of(manifest), manifest.inner.microbatches
    batches = torch.from_numpy(batch_of(manifest)).split(manifest.inner.microbatch)
    torch.manual_seed(index)
    sent = torch.randn(rules.sequences, rules.context, manifest.k)
    activations, gradients = (
        to_bytes(number_format(wire, manifest.k).pack(scale * sent))
        for wire, scale in zip(manifest.replicas.wires, (1.0, 1e-3), strict=True)
    )

    transfers = transfers_of(device)

    def forward(microbatch: int) -> PassOutcome:
        begun = transfers.begin_pass()
        came = None if trainer.first else transfers.arrive(activations, rules.activations)
        return transfers.leave(trainer.forward(microbatch, batches[microbatch], came), begun)

    def backward(microbatch: int) -> PassOutcome:
        begun = transfers.begin_pass()
        came = None if trainer.last else transfers.arrive(gradients, rules.gradients)
        return transfers.leave(trainer.backward(microbatch, came), begun)

    def step(number: int) -> None:
        todo, on_their_way = Schedule(index, STAGES, microbatches, least_depth(index, STAGES)), list[OnItsWay]()
        while not todo.done:
            full = todo.in_flight == todo.depth or todo.forwards == microbatches
            match todo.next(activations=True, gradients=full):
                case Forward(microbatch):
                    out = forward(microbatch)
                case Backward(microbatch):
                    out = backward(microbatch)
            on_their_way += [] if isinstance(out, OnHost) else [out]
        for outcome in on_their_way:
            outcome.wait()
        trainer.update(clip_factor([trainer.squared_norm()], manifest.inner.clip), number)

    return step


def serve(case: Case, side: Side, folder: Path, index: int) -> None:
    """Be one process of a side, and take a step for each line that comes."""
    device, manifest = torch.device(case.device), case.manifest
    arithmetic = Arithmetic(case.precision, case.compiled, side.recompute)
    if side.name == "pipeline":
        of_each: dict[str, Any] = {
            "device": device,
            "arithmetic": arithmetic,
            "threads": max(1, case.threads // STAGES),
        }
        with contextlib.suppress(asyncio.CancelledError):
            uvloop.run(train(index, folder, manifest, **of_each))
        return
    torch.set_num_threads(case.threads)
    if side.name in ("replica", "stage"):
        give_large_blocks_back()  # as the torch thread of a peer does
    base = peak_bytes(device)
    match side.name:
        case "plain":
            step = plain(case, device)
        case "torchtitan":
            step = torchtitan(case, device)
        case "replica":
            step = replica(case, device, arithmetic)
        case _:
            step = one_stage(case, device, arithmetic, side.stage or 0)
    for number, _ in enumerate(sys.stdin):
        begun, busy = time.perf_counter(), time.process_time()
        loss = step(number)
        finish(device)
        seconds, processor = time.perf_counter() - begun, time.process_time() - busy
        say({"seconds": seconds, "processor": processor, "loss": loss, "peak": peak_bytes(device) - base})
