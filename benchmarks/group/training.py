"""Stages that compute: real weights, a batch that is always the same, and the daemon's pipeline between them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bootstrap.genesis import basis, genesis_tensor
from group.processes import hear, say
from group.stage import place
from peer.compute.trainer import Kind, StageTrainer
from peer.network.group import Seat
from peer.torch_thread import TorchThread
from protocol.identity import Part
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


def trainer_of(manifest: Manifest, index: int, kind: Kind = "group") -> StageTrainer:
    """A stage with the first weights."""
    trainer = StageTrainer(manifest, index, kind, torch.from_numpy(basis(manifest)), CPU)
    trainer.load(grids(manifest))
    return trainer


async def train(
    index: int, folder: Path, manifest: Manifest, host: str = "127.0.0.1", plain: bool = False, room: int | None = None
) -> None:
    """Be a stage, and take a step as often as told; `room`: microbatches in flight at most."""
    torch_thread = TorchThread(1)
    trainer = await torch_thread.run(trainer_of, manifest, index)
    async with place(index, folder, manifest, host, plain=plain) as here, asyncio.TaskGroup() as tasks:
        say({"peer_id": here.peer_id, "address": here.address})
        seats = [Seat(each["peer_id"], each["address"]) for each in await hear()]
        upstream = here.expect(seats)
        say("expecting")
        await hear()
        stage, control = await here.meet(seats, upstream, trainer, torch_thread, tasks)
        say("met")
        stage.room = stage.room if room is None else room
        batch, number = batch_of(manifest) if index == 0 else None, 0
        while (await hear()) is not None:
            begun, busy = time.perf_counter(), time.process_time()
            agreed = await stage.run(1, number, batch, control)
            number += 1
            seconds, processor = time.perf_counter() - begun, time.process_time() - busy
            say({"seconds": seconds, "processor": processor, "loss": agreed.loss, "depth": stage.depth})
        raise asyncio.CancelledError
