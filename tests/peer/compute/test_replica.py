"""Stages chained by hand against one model under autograd."""

import pytest
import torch
from torch import Tensor

from peer.compute.design import Kind
from peer.compute.evaluation import Evaluator
from peer.compute.replica import WholeReplica
from peer.optim.grid import to_float
from protocol.identity import EMBEDDING, Part, stage_part
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.manifest import Manifest, check
from tests.reference.boundary import orthonormal
from tests.reference.one_process import OneProcess

CPU = torch.device("cpu")
SIZES = {"layers": 4, "d": 32, "heads": 2, "kv_heads": 1, "ffn": 48, "context": 16, "vocabulary": 300}


def manifest(stages: int, compression: int, wire: str = "fp32") -> Manifest:
    return check(
        {
            "model": SIZES,
            "replicas": {"stages": stages, "compression": compression, "wire": wire},
            "inner": {"steps": 20, "sequences": 4, "microbatch": 2, "learning_rate": 1e-2, "warmup": 5, "clip": 0.5},
            "outer": {"rounds": 1},
        }
    )


def genesis(run: Manifest) -> dict[Part, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)

    def values(shape: tuple[int, ...]) -> Tensor:
        mean = 2**26 if len(shape) == 1 else 0
        return (torch.randn(shape, generator=generator) * 0.05 * 2**26 + mean).to(torch.int32)

    return {part: {name: values(shape) for name, shape in lay.items()} for part, lay in model_layout(run).items()}


def batches(run: Manifest, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    shape = (count, run.inner.sequences, run.model.context + 1)
    return torch.randint(0, 300, shape, generator=generator) // 7 * 7  # something to learn


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize(("compression", "kind"), [(1, "group"), (4, "group"), (4, "datacenter")])
def test_twenty_inner_steps_give_the_losses_of_one_model_under_autograd(stages: int, compression: int, kind: Kind):
    run = manifest(stages, compression)
    grids = genesis(run)
    basis = orthonormal(run.model.d)
    replica = WholeReplica(run, kind, basis, CPU)
    replica.load(grids)
    u = basis[:, : run.k] if kind == "group" and compression > 1 else None
    weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(stages)]
    reference = OneProcess(run, weights, to_float(grids[EMBEDDING][EMBEDDING_TENSOR]), u)
    ours, theirs = [], []
    for step, batch in enumerate(batches(run, 20)):
        ours.append(replica.inner_step(batch, step))
        theirs.append(reference.inner_step(batch, step))
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] < ours[0] - 0.5


def test_a_replica_that_did_not_train_has_not_moved():
    run = manifest(2, 4)
    replica = WholeReplica(run, "group", orthonormal(32), CPU)
    replica.load(genesis(run))
    assert all(not tensor.any() for part in replica.moved().values() for tensor in part.values())


def test_moved_is_the_way_from_the_start_and_loading_again_returns():
    run = manifest(2, 4)
    grids = genesis(run)
    replica = WholeReplica(run, "group", orthonormal(32), CPU)
    replica.load(grids)
    replica.inner_step(batches(run, 1)[0], 0)
    moved = replica.moved()
    assert moved.keys() == grids.keys()
    for stage in replica.stages:
        for name, tensor in stage.stage.tensors().items():
            start = to_float(grids[stage_part(stage.index)][name])
            torch.testing.assert_close(moved[stage_part(stage.index)][name], start - tensor.detach())
    replica.load(grids)
    assert all(not tensor.any() for part in replica.moved().values() for tensor in part.values())


def test_adamw_keeps_its_moments_across_rounds():
    run = manifest(2, 4)
    replica = WholeReplica(run, "group", orthonormal(32), CPU)
    replica.load(genesis(run))
    replica.inner_step(batches(run, 1)[0], 0)
    before = replica.stages[0].optimizer.state["exp_avg"][0].clone()
    replica.load(genesis(run))
    after = replica.stages[0].optimizer.state["exp_avg"][0]
    assert before.any()
    assert (after == before).all()


def test_a_compressed_group_moves_the_embedding_only_inside_the_subspace():
    run = manifest(2, 4)
    basis = orthonormal(32)
    replica = WholeReplica(run, "group", basis, CPU)
    replica.load(genesis(run))
    replica.inner_step(batches(run, 1)[0], 0)
    moved = replica.moved()[EMBEDDING][EMBEDDING_TENSOR]
    u = basis[:, : run.k]
    assert moved.any()
    torch.testing.assert_close(moved @ u @ u.T, moved, atol=1e-6, rtol=0)


def test_evaluation_reports_the_loss_through_the_boundaries_and_plain():
    run = manifest(2, 4)
    grids = genesis(run)
    basis = orthonormal(32)
    held_out = batches(run, 1)[0]
    loss, plain = Evaluator(run, basis, held_out, CPU).evaluate(grids)
    weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(2)]
    te = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
    assert loss == pytest.approx(OneProcess(run, weights, te, basis[:, : run.k]).loss(held_out).item(), abs=1e-5)
    assert plain == pytest.approx(OneProcess(run, weights, te, None).loss(held_out).item(), abs=1e-5)
    assert loss != pytest.approx(plain, abs=1e-5)
