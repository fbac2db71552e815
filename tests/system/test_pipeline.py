"""A 4-stage pipeline over real gRPC streams against the same model in one process."""

import asyncio

import pytest
import torch

from peer.compute.replica import WholeReplica
from peer.network.duplex import BreachError
from peer.optim.grid import to_float
from protocol.errors import LostMemberError, PeerError
from protocol.identity import EMBEDDING, stage_part
from protocol.layout import EMBEDDING_TENSOR
from protocol.schemas import pipeline_pb2 as pb
from tests.peer.compute.test_replica import batches, genesis, manifest
from tests.reference.boundary import orthonormal
from tests.reference.loopback_group import inner_step, loopback_group
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


@pytest.mark.parametrize("wire", ["bf16", "fp32", "int8", "int4"])
def test_with_compression_every_bit_is_that_of_the_lab(wire: str):
    run = manifest(stages=4, compression=4, wire=wire)
    grids, basis = genesis(run), orthonormal(run.model.d)
    losses = asyncio.run(pipeline_losses(run, basis, lambda trainer: trainer.load(grids)))
    torch.set_num_threads(1)
    replica = WholeReplica(run, "group", basis, torch.device("cpu"))
    replica.load(grids)
    assert losses == [replica.inner_step(batch, step) for step, batch in enumerate(batches(run, STEPS))]


def test_a_frame_made_with_another_embedding_is_refused():
    run = manifest(stages=2, compression=4)

    async def scene() -> None:
        async with loopback_group(run, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(run))
            stages[1].stage.embedding_digest = "ab" * 32
            batch = batches(run, 1)[0].numpy()
            first = asyncio.ensure_future(stages[0].stage.run(1, 0, batch, stages[0].control))
            try:
                with pytest.raises(BreachError, match="was made with the token embedding 000000000000"):
                    await stages[1].stage.run(1, 0, None, stages[1].control)
            finally:
                first.cancel()

    asyncio.run(scene())


def test_a_neighbour_that_runs_ahead_is_cut_off_before_it_fills_the_memory():
    run = manifest(stages=2, compression=4)

    async def scene() -> None:
        async with loopback_group(run, orthonormal(32)) as stages:
            downstream, upstream = stages[0].stage.downstream, stages[1].stage.upstream
            for _ in range(10 * upstream.most_pending):
                downstream.send(pb.Frame())
            with pytest.raises(LostMemberError):
                await downstream.receive()
            for _ in range(upstream.most_pending):
                await upstream.receive()
            with pytest.raises(PeerError, match="ran ahead of the protocol"):
                await upstream.receive()

    asyncio.run(scene())
