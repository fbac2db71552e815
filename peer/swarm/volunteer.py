"""A volunteer: one stage of a replica group, from the first hello to the last round."""

import asyncio
import time

from peer.compute.trainer import StageTrainer
from peer.data.batches import Batch, batch
from peer.data.tokens import Tokens
from peer.events import Finished, GroupFormed, Progress, RoundDone, StepDone
from peer.network.group import Membership
from peer.network.pipeline import Link, call, link
from peer.swarm.control import Control, LeaderControl, MemberControl
from peer.swarm.formation import call_members, find_members
from peer.swarm.inner_step import PipelineStage
from peer.swarm.node import Node
from peer.swarm.outer_round import OuterLoop
from protocol.frames import FrameRules
from protocol.identity import EMBEDDING
from protocol.layout import parts_authored, parts_followed
from protocol.run_files import TRAIN


async def serve_stage(node: Node) -> None:
    """Find a group, train through all rounds, and say goodbye.

    Raises:
        LostMemberError: a member of the group is gone.
    """
    outer = await node.outer_loop(parts_followed(node.manifest, node.stage), parts_authored(node.stage))
    trainer = await node.torch_thread.run(
        StageTrainer, node.manifest, node.stage, "group", await node.basis(), node.device
    )
    async with asyncio.TaskGroup() as tasks:
        heartbeat = tasks.create_task(node.discovery.keep_publishing())
        membership, control = await _join_group(node, tasks)
        stage = _open_pipeline(node, membership, trainer)
        await control.ready()
        await node.publish(replica=membership.replica)
        if node.stage == 0:
            await outer.wait_for_replicas()
        await control.begin()
        calling = _call_downstream(node, membership, stage, tasks)
        await _train(node, outer, membership, control, stage)
        await node.linger()
        control.farewell()
        if stage.downstream is not None:
            stage.downstream.close()
        if calling is not None:
            await calling
        heartbeat.cancel()
    node.emit(Finished(node.manifest.outer.rounds))


async def _join_group(node: Node, tasks: asyncio.TaskGroup) -> tuple[Membership, Control]:
    """Lead a group, at stage 0, or wait to be called by a leader."""
    control: Control
    if node.stage == 0:
        membership = await find_members(node.discovery, node.manifest, node.emit)
        led = call_members(membership, node.manifest, tasks)
        control = LeaderControl(membership.replica, led.orders, node.manifest.inner.clip)
    else:
        node.emit(Progress("waiting for a group"))
        membership, reports = await node.group.wait_for_leader()
        control = MemberControl(reports)
    members: list[str] = [seat.peer_id for seat in membership.seats]
    node.emit(GroupFormed(membership.replica, membership.slot, members))
    return membership, control


def _open_pipeline(node: Node, membership: Membership, trainer: StageTrainer) -> PipelineStage:
    """The links to the neighbours; the one before calls us, as soon as the leader gives the word."""
    upstream = downstream = None
    if node.stage > 0:
        upstream = _link_to(node, membership, node.stage - 1)
        node.pipeline.expect(membership.replica, upstream)
    if node.stage < node.manifest.replicas.stages - 1:
        downstream = _link_to(node, membership, node.stage + 1)
    return PipelineStage(trainer, node.torch_thread, FrameRules.of(node.manifest), upstream, downstream)


def _link_to(node: Node, membership: Membership, stage: int) -> Link:
    seat = membership.seats[stage]
    return link(node.manifest, f"stage {stage} of this group ({seat.peer_id[-8:]} at {seat.address})")


def _call_downstream(
    node: Node, membership: Membership, stage: PipelineStage, tasks: asyncio.TaskGroup
) -> asyncio.Task[None] | None:
    if stage.downstream is None:
        return None
    address = membership.seats[node.stage + 1].address
    return tasks.create_task(call(address, node.manifest, membership.replica, stage.downstream))


async def _train(node: Node, outer: OuterLoop, membership: Membership, control: Control, stage: PipelineStage) -> None:
    """All rounds: H inner steps, then the outer step."""
    tokens = await node.open_tokens(TRAIN) if node.stage == 0 else None
    digests = await outer.digests()
    for round in range(1, node.manifest.outer.rounds + 1):
        started = time.monotonic()
        await node.torch_thread.run(stage.trainer.load, outer.grids)
        if node.manifest.compressed:
            stage.embedding_digest = digests[EMBEDDING]
        for step in range(node.manifest.inner.steps):
            data = await _read(node, tokens, round, step, membership.slot)
            agreed = await stage.run(round, step, data, control)
            node.emit(StepDone(round, step, agreed.loss, node.manifest.tokens_per_step))
        moved = await node.torch_thread.run(stage.trainer.moved)
        await outer.contribute(round, membership.replica, moved)
        counts, digests = await outer.finish(round)
        await control.end_round(round)
        node.emit(_round_done(node, stage, round, started, counts, digests))


async def _read(node: Node, tokens: Tokens | None, round: int, step: int, slot: int) -> Batch | None:
    """Stage 0 alone reads data; token ids travel with the microbatches."""
    if tokens is None:
        return None
    return await node.torch_thread.run(batch, tokens, node.manifest, round, step, slot)


def _round_done(
    node: Node,
    stage: PipelineStage,
    round: int,
    started: float,
    counts: dict[str, int],
    digests: dict[str, str],
) -> RoundDone:
    links = [link for link in (stage.upstream, stage.downstream) if link is not None]
    return RoundDone(
        round=round,
        seconds=time.monotonic() - started,
        tokens=node.manifest.tokens_per_step * node.manifest.inner.steps if node.stage == 0 else 0,
        contributions=counts,
        digests=digests,
        pipeline_sent=sum(link.bytes_sent for link in links),
        outer_sent=node.blobs.bytes_sent,
    )
