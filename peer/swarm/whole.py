"""Peers that hold the whole model: a datacenter replica, which trains, and an observer, which only follows."""

import time

import torch

from peer.compute.evaluation import Evaluator
from peer.compute.replica import WholeReplica
from peer.data.batches import batch, held_out_batch
from peer.data.tokens import Tokens
from peer.events import Evaluated, Progress, RoundDone, StepDone
from peer.swarm.auditing import Auditor
from peer.swarm.node import Node
from peer.swarm.outer_round import OuterLoop
from peer.swarm.recovery import agree
from protocol.layout import model_layout
from protocol.reading import chunk_at
from protocol.run_files import HELD_OUT, TRAIN


async def serve_datacenter(node: Node) -> None:
    """Train a whole, uncompressed replica through all rounds. The first datacenter also evaluates, and so does one that
    audits."""
    outer = await node.outer_loop(list(model_layout(node.manifest)))
    replica = await node.torch_thread.run(WholeReplica, node.manifest, "datacenter", None, node.device)
    first = node.slot == node.manifest.replicas.total - 1
    evaluator = await _evaluator(node) if first or node.audit else None
    auditor = Auditor(node, evaluator) if evaluator is not None and node.audit else None
    tokens = await node.open_tokens(TRAIN)
    await node.torch_thread.run(replica.load_optimizer, outer.optimizer)
    async with node.in_the_swarm(outer):
        await node.publish(replica=node.discovery.record.peer_id)
        while not (outer.begun or node.leaving):
            node.emit(Progress("waiting for the other replicas"))
            await node.discovery.news.wait(1.0)
        while not (outer.over or node.leaving):
            round = outer.clock
            await _train_round(node, outer, replica, tokens, round)
            if not node.leaving:
                await _evaluate(node, outer, evaluator, round)
            if auditor is not None:
                await auditor.audit(outer)
    node.emit_finished(outer)


async def observe(node: Node) -> None:
    """Follow all rounds and evaluate each; contribute nothing."""
    outer = await node.outer_loop([])
    evaluator = await _evaluator(node)
    auditor = Auditor(node, evaluator) if node.audit else None
    async with node.in_the_swarm(outer):
        while not outer.over:
            round, started = outer.clock, time.monotonic()
            if not await outer.wait_for_others(round, lambda: node.leaving):
                break
            counts = await outer.finish(round)
            node.emit(_round_done(node, outer, round, started, 0, counts))
            await agree(outer)
            await _evaluate(node, outer, evaluator, round)
            if auditor is not None:
                await auditor.audit(outer)
    node.emit_finished(outer)


async def _train_round(node: Node, outer: OuterLoop, replica: WholeReplica, tokens: Tokens, round: int) -> None:
    """H inner steps, or as many as the others leave time for, then the outer step."""
    manifest = node.manifest
    started, steps, share = time.monotonic(), 0, outer.share(round)
    await node.torch_thread.run(replica.load, outer.followed.grids, await outer.followed.ahead(round))
    while steps < manifest.inner.steps and not (outer.contributed or outer.late(round) or node.leaving):
        batch_SM = torch.from_numpy(await node.torch_thread.run(batch, tokens, manifest, chunk_at(share, steps)))
        overall = (round - 1) * manifest.inner.steps + steps
        loss = await node.torch_thread.run(replica.inner_step, batch_SM, overall)
        node.emit(StepDone(round, steps, loss, manifest.tokens_per_step))
        steps += 1
    if steps:
        optimizer = await node.torch_thread.run(replica.optimizer_tensors)
        await outer.contribute(round, steps, await node.torch_thread.run(replica.moved), optimizer, share)
    if node.leaving:
        return
    counts = await outer.finish(round)
    node.emit(_round_done(node, outer, round, started, manifest.tokens_per_step * steps, counts))
    await agree(outer)


async def _evaluator(node: Node) -> Evaluator:
    held_out = await node.open_tokens(HELD_OUT)
    held_out_SM = torch.from_numpy(held_out_batch(held_out, node.manifest))
    return await node.torch_thread.run(Evaluator, node.manifest, await node.basis(), held_out_SM, node.device)


async def _evaluate(node: Node, outer: OuterLoop, evaluator: Evaluator | None, round: int) -> None:
    if evaluator is not None:
        loss, loss_plain = await node.torch_thread.run(evaluator.evaluate, outer.followed.grids)
        node.emit(Evaluated(round, loss, loss_plain))


def _round_done(
    node: Node, outer: OuterLoop, round: int, started: float, tokens: int, counts: dict[str, int]
) -> RoundDone:
    return RoundDone(
        round=round,
        seconds=time.monotonic() - started,
        tokens=tokens,
        contributions=counts,
        digests=outer.followed.digests,
        pipeline_sent=0,
        outer_sent=node.blobs.bytes_sent,
    )
