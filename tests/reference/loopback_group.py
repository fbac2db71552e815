"""One replica group in one process, over real gRPC streams on loopback: no DHT, no operator."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc
import torch
from torch import Tensor

from peer.compute.trainer import StageTrainer
from peer.data.batches import Batch
from peer.network.group import Link, PipelineService, call, make_link
from peer.swarm.group.inner_step import Carried, InnerStep, PipelineStage, Source, StepTaken
from peer.torch_thread import TorchThread
from protocol.codec.frames import FrameRules
from protocol.errors import RefusedError
from protocol.identity import Endpoint, PeerId, ReplicaId
from protocol.manifest import Manifest
from protocol.net.channels import listen, options
from protocol.net.lenient import AnyBytes
from protocol.schemas import pipeline_pb2_grpc
from tests.reference.admitted import contacts, credentials, identity


@dataclass(slots=True)
class Steps:
    """The inner steps of a stage, one after the other: what each leaves goes to the next."""

    pipeline: PipelineStage
    carried: Carried = field(default_factory=Carried)
    inner_step: InnerStep | None = None
    """The one that was begun last."""

    async def take(self, round: int, step: int, source: Source | None) -> StepTaken:
        self.inner_step = InnerStep(self.pipeline, self.carried, round, step, source)
        outcome = await self.inner_step.take()
        self.carried = outcome.carried
        return outcome


@dataclass(slots=True)
class LoopbackStage:
    """One volunteer without its daemon."""

    seat: Endpoint
    service: PipelineService
    trainer: StageTrainer
    torch_thread: TorchThread
    connected: Steps | None = None

    @property
    def steps(self) -> Steps:
        assert self.connected is not None
        return self.connected


@dataclass(slots=True)
class Batches:
    """What the first stage reads: these batches, one after the other, from the one in hand on."""

    of: Sequence[Batch]
    at: int = 0
    most: int = 1_000_000
    """So many steps a round has at most."""

    async def batch(self, later: int) -> Batch:
        return self.of[self.at + later]

    def ends(self) -> bool:
        return self.at + 1 >= self.most


@asynccontextmanager
async def loopback_group(manifest: Manifest, basis: Tensor | None) -> AsyncIterator[list[LoopbackStage]]:
    """All stages of a group, connected and waiting for their first inner step."""
    async with AsyncExitStack() as stack:
        stages = [await _serve(stack, manifest, index, basis) for index in range(manifest.replicas.stages)]
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        _connect(stages, ReplicaId(stages[0].seat.peer_id), manifest, tasks)
        yield stages
        for each in stages:
            if each.steps.pipeline.downstream is not None:
                each.steps.pipeline.downstream.close()


async def _serve(stack: AsyncExitStack, manifest: Manifest, index: int, basis: Tensor | None) -> LoopbackStage:
    server = grpc.aio.server(options=options(manifest), interceptors=[AnyBytes()])
    port = listen(server, "127.0.0.1:0", credentials(f"stage {index}").serving())
    peer = identity(f"stage {index}").peer_id
    stage = LoopbackStage(
        Endpoint(peer, f"127.0.0.1:{port}"),
        PipelineService(manifest),
        StageTrainer(manifest, index, "group", basis, torch.device("cpu")),
        TorchThread(1),
    )
    pipeline_pb2_grpc.add_PipelineServicer_to_server(stage.service, server)
    await server.start()
    stack.push_async_callback(server.stop, None)
    stack.callback(stage.torch_thread.stop)
    return stage


def _connect(stages: list[LoopbackStage], replica: ReplicaId, manifest: Manifest, tasks: asyncio.TaskGroup) -> None:
    def to(index: int) -> Link:
        return make_link(manifest, stages[index].seat.peer_id, f"stage {index}")

    links = [(to(i + 1), to(i)) for i in range(len(stages) - 1)]
    for index, each in enumerate(stages):
        upstream = links[index - 1][1] if index else None
        downstream = links[index][0] if index < len(links) else None
        each.connected = Steps(
            PipelineStage(each.trainer, each.torch_thread, FrameRules.of(manifest), upstream, downstream)
        )
        if upstream is not None:
            each.service.answer_calls(welcome(stages[index - 1].seat.peer_id, replica, upstream))
    for index, (downstream, _) in enumerate(links):
        calling = contacts(f"stage {index}", manifest)
        tasks.create_task(call(stages[index + 1].seat, calling, replica, downstream))


def welcome(neighbour: PeerId, replica: ReplicaId, upstream: Link) -> Callable[[PeerId, ReplicaId], Link]:
    """Welcome the call of one neighbour, for one group, and refuse any other."""

    def answer(caller: PeerId, its: ReplicaId) -> Link:
        if (caller, its) != (neighbour, replica):
            raise RefusedError("this stage expects no such neighbour")
        return upstream

    return answer


async def inner_step(stages: list[LoopbackStage], round: int, step: int, batch: Batch) -> float:
    """One inner step of the whole group; its mean loss."""
    return await take_step(stages, round, step, Batches([batch]))


async def take_step(stages: list[LoopbackStage], round: int, step: int, source: Batches) -> float:
    """The next inner step of the whole group, which all of its stages end alike; its mean loss."""

    async def run(each: LoopbackStage) -> StepTaken:
        return await each.steps.take(round, step, None if each.trainer.index else source)

    taken = await asyncio.gather(*map(run, stages))
    source.at += 1
    assert len({(each.last, each.sums.loss) for each in taken}) == 1
    return taken[0].sums.loss
