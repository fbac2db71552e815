"""Stages that compute: real weights, a batch that is always the same, and the daemon's pipeline between them."""

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bootstrap.genesis import basis, genesis_tensor
from group.processes import hear, say
from group.stage import SameBatch, place
from peer.compute import capacity
from peer.compute.arithmetic import Arithmetic
from peer.compute.calibration import tokens_per_second
from peer.compute.trainer import Kind, StageTrainer
from peer.torch_thread import TorchThread
from protocol.identity import Endpoint, Part
from protocol.layout import model_layout
from protocol.manifest import Manifest

CPU = torch.device("cpu")


def batch_of(manifest: Manifest) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token ids of a step, always the same."""
    shape = manifest.inner.sequences, manifest.model.context + 1
    return np.random.default_rng(0).integers(0, manifest.model.vocabulary, shape)


def grids(manifest: Manifest) -> dict[Part, dict[str, torch.Tensor]]:
    """The first weights of all parts."""
    return {
        part: {name: torch.from_numpy(genesis_tensor(manifest, name, shape)) for name, shape in layout.items()}
        for part, layout in model_layout(manifest).items()
    }


def trainer_of(
    manifest: Manifest,
    index: int,
    kind: Kind = "group",
    device: torch.device = CPU,
    arithmetic: Arithmetic | None = None,
) -> StageTrainer:
    """A stage with the first weights; what torch compiles at its first use is compiled."""
    trainer = StageTrainer(manifest, index, kind, torch.from_numpy(basis(manifest)), device, None, arithmetic)
    trainer.load(grids(manifest))
    trainer.forget_start()
    if trainer.arithmetic.compiled:
        tokens_per_second(trainer)
    return trainer


def finish(device: torch.device) -> None:
    """Wait until a device has computed all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process has had: of a GPU, what torch gave out; of a CPU, the whole process, by the
    kernel (Linux); 0 where neither is known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        return capacity.peak_bytes(os.getpid())
    return 0


async def train(
    index: int,
    folder: Path,
    manifest: Manifest,
    host: str = "127.0.0.1",
    plain: bool = False,
    room: int | None = None,
    device: torch.device = CPU,
    arithmetic: Arithmetic | None = None,
    threads: int = 1,
) -> None:
    """Be a stage, and take a step as often as told; `room`: microbatches in flight at most; `threads`: cores of the
    torch thread. `peak` in each answer is the most memory taken, of a CPU without what the process had before."""
    torch_thread = TorchThread(threads)
    base = peak_bytes(device)
    trainer = await torch_thread.run(trainer_of, manifest, index, "group", device, arithmetic)
    async with place(index, folder, manifest, host, plain=plain) as here, asyncio.TaskGroup() as tasks:
        say({"peer_id": here.peer_id, "address": here.address})
        seats = [Endpoint(each["peer_id"], each["address"]) for each in await hear()]
        upstream = here.expect(seats)
        say("expecting")
        await hear()
        steps = await here.meet(seats, upstream, trainer, torch_thread, tasks, sys.maxsize if room is None else room)
        say("met")
        source, number = None if index else SameBatch(batch_of(manifest)), 0
        while (await hear()) is not None:
            begun, busy = time.perf_counter(), time.process_time()
            taken = await steps.take(1, number, source)
            await torch_thread.run(finish, device)
            number += 1
            seconds, processor = time.perf_counter() - begun, time.process_time() - busy
            peak = peak_bytes(device) - base
            say(
                {
                    "seconds": seconds,
                    "processor": processor,
                    "loss": taken.sums.loss,
                    "depth": steps.carried.depth,
                    "peak": peak,
                }
            )
        raise asyncio.CancelledError
