"""Peers that hold the whole model: a datacenter replica, which trains, and an observer, which only follows."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import torch

from peer.compute.evaluation import Evaluates, Evaluator
from peer.compute.replica import Replica, WholeReplica
from peer.devices.parallel_replica import ShardedEvaluator, ShardedReplica
from peer.swarm.audit.auditing import Auditor
from peer.swarm.node import Node
from peer.swarm.rounds.catch_up import agree
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.text_reader import Reader
from peer.telemetry.decisions import EndedEarly
from peer.telemetry.events import Evaluated, Progress, RoundDone, StepDone
from protocol.errors import LostMemberError
from protocol.layout import model_layout
from protocol.net.tasks import Children
from protocol.outer.data_plan import Spans

MEND_SECONDS = 2.0
"""So often processes that a replica computes in, and that nobody waits for, are looked at."""


async def serve_datacenter(node: Node) -> None:
    """Train a whole, uncompressed replica through all rounds. The first datacenter also evaluates, and so does one that
    audits."""
    async with _replica(node) as replica:
        await _serve(node, replica)


@asynccontextmanager
async def _replica(node: Node) -> AsyncIterator[Replica]:
    """The replica to train, in this process or in several, which end with the block."""
    if node.split.processes == 1:
        arithmetic = node.split.arithmetic
        yield await node.torch_thread.run(
            lambda: WholeReplica(node.manifest, "datacenter", None, node.device, arithmetic=arithmetic)
        )
        return
    loop = asyncio.get_running_loop()

    def say(doing: str) -> None:
        loop.call_soon_threadsafe(node.emit, Progress(doing))

    async def keep_mending() -> None:
        while True:
            await asyncio.sleep(MEND_SECONDS)
            await node.torch_thread.run(replica.mend)

    replica = ShardedReplica(node.manifest, node.device, node.split, say)
    try:
        async with Children() as children:
            children.spawn(keep_mending())
            await node.torch_thread.run(replica.start)
            yield replica
    finally:
        await asyncio.to_thread(replica.stop)


async def _serve(node: Node, replica: Replica) -> None:
    """All rounds of a datacenter."""
    outer = await node.outer_loop(list(model_layout(node.manifest)))
    first = node.slot == node.manifest.replicas.total - 1
    async with node.reading() as reader:
        evaluator = await _evaluator(node, reader, replica) if first or node.audit else None
        auditor = Auditor(node, evaluator) if evaluator is not None and node.audit else None
        await reader.begin(outer.upcoming(outer.clock, outer.share(outer.clock)))
        await _warm_up(node, outer, replica)
        await node.torch_thread.run(replica.load_optimizer, outer.optimizer)
        async with node.in_the_swarm(outer):
            await node.publish(replica=node.discovery.record.peer_id)
            while not (outer.begun or outer.over or node.leaving):
                node.emit(Progress("waiting for the other replicas"))
                await node.discovery.news.wait(1.0)
            while not (outer.over or node.leaving):
                round = outer.clock
                await _train_round(node, outer, replica, reader, round)
                if not (node.leaving or outer.told_over):
                    await _evaluate(node, outer, evaluator, round)
                if auditor is not None:
                    await auditor.audit(outer)
    node.emit_finished(outer)


async def _warm_up(node: Node, outer: OuterLoop, replica: Replica) -> None:
    """Before others wait for this peer."""
    if node.split.arithmetic.compiled:
        node.emit(Progress("torch compiles the layers, which takes a minute or more"))
        with suppress(LostMemberError):  # the first round begins with it, then
            await node.torch_thread.run(replica.load, outer.followed.grids)
            await node.torch_thread.run(replica.warm_up)


async def observe(node: Node) -> None:
    """Follow all rounds and evaluate each; contribute nothing."""
    outer = await node.outer_loop([])
    async with node.reading() as reader:
        evaluator = await _evaluator(node, reader, None)
    auditor = Auditor(node, evaluator) if node.audit else None
    async with node.in_the_swarm(outer):
        node.emit(Progress("following the run" if node.discovery.others() else "waiting for somebody who trains"))
        while not outer.over:
            round, started = outer.clock, time.monotonic()
            if not await outer.wait_for_others(round, lambda: node.leaving):
                break
            counts = await outer.finish(round)
            if not counts:
                break
            node.emit(_round_done(node, outer, round, started, 0, counts))
            await agree(outer)
            await _evaluate(node, outer, evaluator, round)
            if auditor is not None:
                await auditor.audit(outer)
    node.emit_finished(outer)


async def _train_round(node: Node, outer: OuterLoop, replica: Replica, reader: Reader, round: int) -> None:
    """The inner loop, then the outer step."""
    started = time.monotonic()
    steps = await _contribute(node, outer, replica, reader, round)
    if node.leaving:
        return
    counts = await outer.finish(round)
    if not counts:
        return
    node.emit(_round_done(node, outer, round, started, node.manifest.tokens_per_step * steps, counts))
    node.earned.ask_soon()
    await agree(outer)


async def _contribute(node: Node, outer: OuterLoop, replica: Replica, reader: Reader, round: int) -> int:
    """Train and contribute; how many inner steps. A replica that loses one of its processes begins the round again."""
    share = outer.share(round)
    while True:
        try:
            steps = await _inner_loop(node, outer, replica, reader, share, round)
            if not steps:
                return 0
            moved = await node.torch_thread.run(replica.moved)
            optimizer = await node.torch_thread.run(replica.optimizer_tensors)
        except LostMemberError as error:
            if node.leaving:
                return 0
            node.emit(Progress(f"{error}; going on from the start of round {round}"))
        else:
            if steps < node.manifest.inner.steps:
                why = "this peer leaves" if node.leaving else outer.late(round)
                node.emit(EndedEarly(round, steps, why or "it had contributed to it before"))
            await outer.contribute(round, steps, moved, optimizer, share)
            return steps


async def _inner_loop(node: Node, outer: OuterLoop, replica: Replica, reader: Reader, share: Spans, round: int) -> int:
    """H inner steps, or as many as the others leave time for; how many."""
    manifest, steps = node.manifest, 0
    await node.torch_thread.run(replica.load, outer.followed.grids, await outer.followed.ahead(round))
    while steps < manifest.inner.steps and not (outer.contributed or outer.late(round) or node.leaving):
        batch_SM = torch.from_numpy(await reader.batch(outer.upcoming(round, share, steps)))
        overall = (round - 1) * manifest.inner.steps + steps
        loss = await node.torch_thread.run(replica.inner_step, batch_SM, overall)
        node.emit(StepDone(round, steps, loss, manifest.tokens_per_step))
        steps += 1
    return steps


async def _evaluator(node: Node, reader: Reader, replica: Replica | None) -> Evaluates:
    held_out_SM, basis_DD = torch.from_numpy(await reader.held_out()), await node.basis()
    if isinstance(replica, ShardedReplica):
        return ShardedEvaluator(replica, basis_DD, held_out_SM)
    return await node.torch_thread.run(Evaluator, node.manifest, basis_DD, held_out_SM, node.device)


async def _evaluate(node: Node, outer: OuterLoop, evaluator: Evaluates | None, round: int) -> None:
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
