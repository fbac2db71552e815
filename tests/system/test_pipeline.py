"""A 4-stage pipeline over real gRPC streams against the same model in one process."""

import asyncio
from dataclasses import replace

import pytest
import torch

from peer.compute.replica import WholeReplica
from peer.lab.inner_steps import EarlierClip, OverlappingSteps, clip_of_overlap
from peer.network.duplex import BreachError
from peer.optim.grid import to_float
from peer.optim.inner import learning_rate
from protocol.errors import LostMemberError, PeerError
from protocol.identity import EMBEDDING, stage_part
from protocol.layout import EMBEDDING_TENSOR
from protocol.schemas import pipeline_pb2 as pb
from tests.peer.compute.test_replica import batches, genesis, manifest
from tests.reference.boundary import orthonormal
from tests.reference.loopback_group import Batches, inner_step, loopback_group, take_step
from tests.reference.one_process import OneProcess

STEPS = 20


async def pipeline_losses(run, basis, load) -> list[float]:
    async with loopback_group(run, basis) as stages:
        for each in stages:
            load(each.trainer)
        return [await inner_step(stages, 1, step, batch.numpy()) for step, batch in enumerate(batches(run, STEPS))]


def test_without_compression_the_losses_are_those_of_one_model_in_one_process():
    run = manifest(stages=4, compression=1, wire="fp32")
    grids = genesis(run)
    losses = asyncio.run(pipeline_losses(run, None, lambda trainer: trainer.load(grids)))
    weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(4)]
    reference = OneProcess(run, weights, to_float(grids[EMBEDDING][EMBEDDING_TENSOR]), None)
    expected = [reference.inner_step(batch, step) for step, batch in enumerate(batches(run, STEPS))]
    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < losses[0] - 0.5


def test_with_overlapping_steps_a_microbatch_meets_the_weights_before_the_step_at_as_many_stages_as_is_agreed():
    """Against one model under autograd whose stages get old weights for it, each clipped by its norm and the
    others' in the step before."""
    run = manifest(stages=3, compression=1, wire="fp32")
    inner = run.inner.model_copy(update={"overlap": 1, "sequences": 4, "microbatch": 1, "steps": 5, "clip": 0.05})
    run = run.model_copy(update={"inner": inner})
    grids = genesis(run)
    replica = WholeReplica(run, "group", None, torch.device("cpu"))
    replica.load(grids)
    lab, clip = OverlappingSteps(replica), EarlierClip(run.inner.clip)
    weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(3)]
    one = OneProcess(run, weights, to_float(grids[EMBEDDING][EMBEDDING_TENSOR]), None)
    stages = [[*stage.parameters(), *([] if index else [one.embedding])] for index, stage in enumerate(one.stages)]

    def put(values: list[list[torch.Tensor]]) -> None:
        for stage, of in zip(stages, values, strict=True):
            for parameter, value in zip(stage, of, strict=True):
                parameter.data = value.clone()

    before, earlier = None, []
    for step, batch in enumerate(batches(run, 5)):
        one.optimizer.zero_grad()
        now, losses = [[each.detach().clone() for each in stage] for stage in stages], []
        for number, tokens in enumerate(batch.split(1)):
            late = 0 if before is None else max(0, 2 - number)  # at stages 0 and 1, at stage 0, at none
            put([*(before or now)[:late], *now[late:]])
            loss = one.loss(tokens)
            (loss / 4).backward()
            losses.append(loss.item())
        put(now)
        assert lab.step(batch, step, clip) == pytest.approx(sum(losses) / 4, abs=1e-4)
        squares = [sum(each.grad.double().square().sum().item() for each in stage) for stage in stages]
        for index, stage in enumerate(stages):
            others = [2 * squares[index]] if step == 0 else earlier[:index] + earlier[index + 1 :]
            scale = inner.clip / (squares[index] + sum(others)) ** 0.5
            assert scale < 1
            for parameter in stage:
                parameter.grad *= scale
        earlier = squares
        for group in one.optimizer.param_groups:
            group["lr"] = learning_rate(run, step)
        one.optimizer.step()
        before = now
    for ours, theirs in zip(replica.stages, stages, strict=True):
        for parameter, reference in zip(ours.parameters, theirs, strict=True):
            torch.testing.assert_close(parameter.detach(), reference.detach(), atol=2e-4, rtol=0.0)


@pytest.mark.parametrize("wire", ["bf16", "fp32", "int8", "int4"])
def test_with_compression_every_bit_is_that_of_the_lab(wire: str):
    run = manifest(stages=4, compression=4, wire=wire)
    grids, basis = genesis(run), orthonormal(run.model.d)
    losses = asyncio.run(pipeline_losses(run, basis, lambda trainer: trainer.load(grids)))
    torch.set_num_threads(1)
    replica = WholeReplica(run, "group", basis, torch.device("cpu"))
    replica.load(grids)
    assert losses == [replica.inner_step(batch, step) for step, batch in enumerate(batches(run, STEPS))]


@pytest.mark.parametrize(("overlap", "optimizer"), [(1, "muon"), (2, "adamw")])
def test_with_overlapping_steps_every_bit_is_that_of_the_lab(overlap: int, optimizer: str):
    """A round of three steps, and one of which the third is said to be the last when it is under way."""
    run = manifest(stages=4, compression=4)
    sizes = {"overlap": overlap, "optimizer": optimizer, "sequences": 8, "microbatch": 1, "steps": 4}
    run = run.model_copy(update={"inner": run.inner.model_copy(update=sizes)})
    grids, basis, of = genesis(run), orthonormal(run.model.d), batches(run, 7)

    async def scene() -> tuple[list[float], list[torch.Tensor]]:
        losses = []
        async with loopback_group(run, basis) as stages:
            for round, source in (
                (1, Batches([each.numpy() for each in of[:4]], most=4)),
                (2, Batches([each.numpy() for each in of[4:]], most=3)),
            ):
                for each in stages:
                    each.trainer.load(grids)
                for step in range(source.most):
                    losses.append(await take_step(stages, round, step, source))
                assert [each.steps.carried.begun for each in stages] == [0, 0, 0, 0]
            return losses, [tensor.clone() for each in stages for tensor in each.trainer.parameters]

    losses, weights = asyncio.run(scene())
    torch.set_num_threads(1)
    replica = WholeReplica(run, "group", basis, torch.device("cpu"))
    expected = []
    for round, own in ((1, of[:4]), (2, of[4:])):
        replica.load(grids)
        lab, clip = OverlappingSteps(replica), clip_of_overlap(run.inner)
        expected += [lab.step(batch, (round - 1) * 4 + step, clip) for step, batch in enumerate(own)]
    assert losses == expected
    assert all(map(torch.equal, weights, (tensor for stage in replica.stages for tensor in stage.parameters)))
    replica.load(grids)
    assert replica.inner_step(of[0], 0) == expected[0]
    assert replica.inner_step(of[1], 1) != expected[1]


def test_a_frame_made_with_another_embedding_is_refused():
    run = manifest(stages=2, compression=4)

    async def scene() -> None:
        async with loopback_group(run, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(run))
            second = stages[1].steps
            second.pipeline = replace(second.pipeline, embedding_digest="ab" * 32)
            batch = batches(run, 1)[0].numpy()
            first = asyncio.ensure_future(stages[0].steps.take(1, 0, Batches([batch])))
            try:
                with pytest.raises(BreachError, match="was made with the token embedding 000000000000"):
                    await second.take(1, 0, None)
            finally:
                first.cancel()

    asyncio.run(scene())


def test_a_neighbour_that_runs_ahead_is_cut_off_before_it_fills_the_memory():
    run = manifest(stages=2, compression=4)

    async def scene() -> None:
        async with loopback_group(run, orthonormal(32)) as stages:
            downstream, upstream = stages[0].steps.pipeline.downstream, stages[1].steps.pipeline.upstream
            for _ in range(10 * upstream.most_pending):
                downstream.send(pb.Frame(rest=b"1"))
            with pytest.raises(LostMemberError):
                await downstream.receive()
            for _ in range(upstream.most_pending):
                await upstream.receive()
            with pytest.raises(PeerError, match="ran ahead of the protocol"):
                await upstream.receive()

    asyncio.run(scene())
