"""One replica group in one process, over real gRPC streams on loopback: no DHT, no operator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import torch
from torch import Tensor

from peer.compute.trainer import StageTrainer
from peer.data.batches import Batch
from peer.network.group import (
    Attempt,
    GroupService,
    Link,
    Membership,
    Orders,
    PipelineService,
    Seat,
    call,
    invite,
    lead,
    link,
    orders_to,
)
from peer.swarm.group.control import Control, LeaderControl, MemberControl
from peer.swarm.group.inner_step import PipelineStage
from peer.torch_thread import TorchThread
from protocol.codec.frames import FrameRules
from protocol.identity import ReplicaId
from protocol.manifest import Manifest
from protocol.net.channels import listen, options
from protocol.net.lenient import AnyBytes
from protocol.schemas import group_pb2_grpc, pipeline_pb2_grpc
from tests.reference.admitted import contacts, credentials, identity


@dataclass(slots=True)
class LoopbackStage:
    """One volunteer without its daemon."""

    seat: Seat
    pipeline: PipelineService
    group: GroupService
    trainer: StageTrainer
    torch_thread: TorchThread
    control: Control | None = None
    stage: PipelineStage | None = None


@asynccontextmanager
async def loopback_group(manifest: Manifest, basis: Tensor | None) -> AsyncIterator[list[LoopbackStage]]:
    """All stages of a group, connected and waiting for their first inner step."""
    async with AsyncExitStack() as stack:
        stages = [await _serve(stack, manifest, index, basis) for index in range(manifest.replicas.stages)]
        membership = Membership(ReplicaId(stages[0].seat.peer_id), 0)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        orders: dict[int, Orders] = {}
        leading = contacts("stage 0", manifest)
        stack.push_async_callback(leading.close)
        for index, each in enumerate(stages[1:], start=1):
            assert await invite(index, each.seat, membership, leading)
            orders[index] = orders_to(index, each.seat)
            tasks.create_task(lead(each.seat, membership.replica, leading, orders[index]))
            _, reports = await each.group.wait_for_leader()
            each.control = MemberControl(reports)
        stages[0].control = LeaderControl(orders, manifest.inner.clip)
        _connect(stages, Attempt(membership.replica, 1), manifest, tasks)
        yield stages
        for each in stages:
            assert each.stage is not None
            if each.stage.downstream is not None:
                each.stage.downstream.close()
            if isinstance(each.control, MemberControl):
                each.control.reports.close()
        for stream in orders.values():
            stream.close()


async def _serve(stack: AsyncExitStack, manifest: Manifest, index: int, basis: Tensor | None) -> LoopbackStage:
    server = grpc.aio.server(options=options(manifest), interceptors=[AnyBytes()])
    port = listen(server, "127.0.0.1:0", credentials(f"stage {index}").serving())
    peer = identity(f"stage {index}").peer_id
    group = GroupService(manifest, index, peer)
    group.ready = True
    stage = LoopbackStage(
        Seat(peer, f"127.0.0.1:{port}"),
        PipelineService(manifest),
        group,
        StageTrainer(manifest, index, "group", basis, torch.device("cpu")),
        TorchThread(1),
    )
    pipeline_pb2_grpc.add_PipelineServicer_to_server(stage.pipeline, server)
    group_pb2_grpc.add_GroupServicer_to_server(stage.group, server)
    await server.start()
    stack.push_async_callback(server.stop, None)
    stack.callback(stage.torch_thread.stop)
    return stage


def _connect(stages: list[LoopbackStage], attempt: Attempt, manifest: Manifest, tasks: asyncio.TaskGroup) -> None:
    def to(index: int) -> Link:
        return link(manifest, stages[index].seat.peer_id, f"stage {index}")

    links = [(to(i + 1), to(i)) for i in range(len(stages) - 1)]
    for index, each in enumerate(stages):
        upstream = links[index - 1][1] if index else None
        downstream = links[index][0] if index < len(links) else None
        each.stage = PipelineStage(each.trainer, each.torch_thread, FrameRules.of(manifest), upstream, downstream)
        if upstream is not None:
            each.pipeline.expect(attempt, stages[index - 1].seat.peer_id, upstream)
    for index, (downstream, _) in enumerate(links):
        calling = contacts(f"stage {index}", manifest)
        tasks.create_task(call(stages[index + 1].seat, calling, attempt, downstream))


async def inner_step(stages: list[LoopbackStage], round: int, step: int, batch: Batch) -> float:
    """One inner step of the whole group; its mean loss."""

    async def run(index: int, each: LoopbackStage) -> float | None:
        assert each.control is not None
        assert each.stage is not None
        agreed = await each.stage.run(round, step, batch if index == 0 else None, each.control)
        return agreed.loss

    losses = await asyncio.gather(*(run(index, each) for index, each in enumerate(stages)))
    assert losses[0] is not None
    assert losses[0] == losses[-1]
    return losses[0]
