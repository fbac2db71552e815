"""Peers that hold the whole model: a datacenter replica, which trains, and an observer, which only follows."""

import asyncio
import time

import torch

from peer.compute.evaluation import Evaluator
from peer.compute.replica import WholeReplica
from peer.data.batches import batch, held_out_batch
from peer.data.tokens import Tokens
from peer.events import Evaluated, Finished, Progress, RoundDone, StepDone
from peer.swarm.node import Node
from peer.swarm.outer_round import OuterLoop
from protocol.identity import ReplicaId
from protocol.layout import model_layout
from protocol.run_files import HELD_OUT, TRAIN


async def serve_datacenter(node: Node) -> None:
    """Train a whole, uncompressed replica through all rounds. The first datacenter also evaluates."""
    parts = list(model_layout(node.manifest))
    outer = await node.outer_loop(parts, parts)
    replica = await node.torch_thread.run(WholeReplica, node.manifest, "datacenter", None, node.device)
    evaluator = await _evaluator(node) if node.slot == node.manifest.replicas.total - 1 else None
    tokens = await node.open_tokens(TRAIN)
    async with asyncio.TaskGroup() as tasks:
        heartbeat = tasks.create_task(node.discovery.keep_publishing())
        await node.publish(replica=node.discovery.record.peer_id)
        node.emit(Progress("waiting for the other replicas"))
        await outer.wait_for_replicas()
        for round in range(1, node.manifest.outer.rounds + 1):
            await _train_round(node, outer, replica, tokens, round)
            await _evaluate(node, outer, evaluator, round)
        await node.linger()
        heartbeat.cancel()
    node.emit(Finished(node.manifest.outer.rounds))


async def observe(node: Node) -> None:
    """Follow all rounds without contributing, and evaluate each."""
    outer = await node.outer_loop(list(model_layout(node.manifest)), [])
    evaluator = await _evaluator(node)
    async with asyncio.TaskGroup() as tasks:
        heartbeat = tasks.create_task(node.discovery.keep_publishing())
        await node.publish()
        node.emit(Progress("waiting for the replicas"))
        await outer.wait_for_replicas()
        for round in range(1, node.manifest.outer.rounds + 1):
            started = time.monotonic()
            counts, digests = await outer.finish(round)
            node.emit(_round_done(node, round, started, 0, counts, digests))
            await _evaluate(node, outer, evaluator, round)
        await node.linger()
        heartbeat.cancel()
    node.emit(Finished(node.manifest.outer.rounds))


async def _train_round(node: Node, outer: OuterLoop, replica: WholeReplica, tokens: Tokens, round: int) -> None:
    """H inner steps, then the outer step."""
    manifest = node.manifest
    started = time.monotonic()
    await node.torch_thread.run(replica.load, outer.grids)
    for step in range(manifest.inner.steps):
        batch_SM = torch.from_numpy(await node.torch_thread.run(batch, tokens, manifest, round, step, node.slot))
        overall = (round - 1) * manifest.inner.steps + step
        loss = await node.torch_thread.run(replica.inner_step, batch_SM, overall)
        node.emit(StepDone(round, step, loss, manifest.tokens_per_step))
    moved = await node.torch_thread.run(replica.moved)
    await outer.contribute(round, ReplicaId(node.discovery.record.peer_id), moved)
    counts, digests = await outer.finish(round)
    node.emit(_round_done(node, round, started, manifest.tokens_per_step * manifest.inner.steps, counts, digests))


async def _evaluator(node: Node) -> Evaluator:
    held_out = await node.open_tokens(HELD_OUT)
    held_out_SM = torch.from_numpy(held_out_batch(held_out, node.manifest))
    return await node.torch_thread.run(Evaluator, node.manifest, await node.basis(), held_out_SM, node.device)


async def _evaluate(node: Node, outer: OuterLoop, evaluator: Evaluator | None, round: int) -> None:
    if evaluator is not None:
        loss, loss_plain = await node.torch_thread.run(evaluator.evaluate, outer.grids)
        node.emit(Evaluated(round, loss, loss_plain))


def _round_done(
    node: Node, round: int, started: float, tokens: int, counts: dict[str, int], digests: dict[str, str]
) -> RoundDone:
    return RoundDone(
        round=round,
        seconds=time.monotonic() - started,
        tokens=tokens,
        contributions=counts,
        digests=digests,
        pipeline_sent=0,
        outer_sent=node.blobs.bytes_sent,
    )
