"""Stages chained by hand against one model under autograd."""

import pytest
import torch
from torch import Tensor

from peer.compute.arithmetic import Arithmetic
from peer.compute.design import Kind
from peer.compute.evaluation import Evaluator
from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.optim.grid import to_float
from protocol.identity import EMBEDDING, Part, stage_part
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.manifest import Manifest, check_manifest
from tests.reference.boundary import orthonormal
from tests.reference.one_process import OneProcess

CPU = torch.device("cpu")
SIZES = {"layers": 4, "d": 32, "heads": 2, "kv_heads": 1, "ffn": 48, "context": 16, "vocabulary": 300}


def manifest(stages: int | list[int], compression: int | str, wire: str = "fp32", **replicas: str) -> Manifest:
    """In so many stages, by count, or in stages of so many layers."""
    cut = {"stages": stages} if isinstance(stages, int) else {"layers": stages}
    cut |= replicas
    return check_manifest(
        {
            "model": SIZES,
            "replicas": {**cut, "compression": compression, "wire": wire},
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


@pytest.mark.parametrize("stages", [1, 2, 4, [1, 3], [2, 1, 1]], ids=str)
@pytest.mark.parametrize(
    ("compression", "kind", "anchor"),
    [
        (1, "group", "complement"),
        (4, "group", "complement"),
        (4, "group", "embedding"),
        (4, "datacenter", "complement"),
    ],
)
def test_twenty_inner_steps_give_the_losses_of_one_model_under_autograd(
    stages: int | list[int], compression: int, kind: Kind, anchor: str
):
    run = manifest(stages, compression, anchor=anchor)
    grids = genesis(run)
    basis = orthonormal(run.model.d)
    replica = WholeReplica(run, kind, basis, CPU)
    replica.load(grids)
    u = basis[:, : run.k] if kind == "group" and compression > 1 else None
    weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(run.replicas.stages)]
    reference = OneProcess(run, weights, to_float(grids[EMBEDDING][EMBEDDING_TENSOR]), u)
    ours, theirs = [], []
    for step, batch in enumerate(batches(run, 20)):
        ours.append(replica.inner_step(batch, step))
        theirs.append(reference.inner_step(batch, step))
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] < ours[0] - 0.5


@pytest.mark.parametrize("sequences", [1, 4])
def test_a_replica_in_other_microbatches_has_the_same_losses_up_to_the_order_of_sums(sequences: int):
    run = manifest(2, 4)
    ours = run.with_microbatch(sequences)
    assert (run.inner.microbatch, ours.inner.microbatch, ours.inner.sequences) == (2, sequences, run.inner.sequences)
    replicas = [WholeReplica(each, "datacenter", None, CPU) for each in (run, ours)]
    for replica in replicas:
        replica.load(genesis(run))
    for step, batch in enumerate(batches(run, 6)):
        losses = [replica.inner_step(batch, step) for replica in replicas]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for part, tensors in replicas[0].moved().items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, replicas[1].moved()[part][name], rtol=1e-2, atol=1e-4)


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


KINDS: list[tuple[Kind, int]] = [("group", 4), ("group", 1), ("datacenter", 4)]


@pytest.mark.parametrize(("kind", "compression"), KINDS)
@pytest.mark.parametrize("ahead", [False, True])
def test_the_start_is_the_outer_states_own_tensors_and_delta_is_taken_from_them(
    kind: Kind, compression: int, ahead: bool
):
    """Also where θ has changed meanwhile: other tensors have taken the place of those that the loop began with."""
    run = manifest(2, compression)
    grids, basis = genesis(run), orthonormal(32)
    began = {part: {name: each + 2**14 for name, each in grid.items()} for part, grid in grids.items()}
    replica = WholeReplica(run, kind, basis, CPU)
    replica.load(grids, began if ahead else None)
    if not ahead:
        began = {part: dict(grid) for part, grid in grids.items()}
    held = {part: tensors for stage in replica.stages for part, tensors in stage.start.items()}
    assert held.keys() == grids.keys()
    assert all(held[part][name] is tensor for part, grid in began.items() for name, tensor in grid.items())
    te_start = replica.stages[0].embedding(torch.arange(300)).detach()
    replica.inner_step(batches(run, 1)[0], 0)
    for grid in grids.values():
        for name in grid:
            grid[name] = torch.zeros_like(grid[name])
    moved = replica.moved()
    for stage in replica.stages:
        for name, tensor in stage.stage.tensors().items():
            part = stage_part(stage.index)
            assert torch.equal(moved[part][name], to_float(began[part][name]) - tensor.detach())
    te_end = replica.stages[0].embedding(torch.arange(300)).detach()
    torch.testing.assert_close(moved[EMBEDDING][EMBEDDING_TENSOR], te_start - te_end, atol=1e-6, rtol=0)
    assert moved[EMBEDDING][EMBEDDING_TENSOR].any()


def test_a_loop_whose_start_is_forgotten_has_no_delta():
    run = manifest(2, 4)
    replica = WholeReplica(run, "group", orthonormal(32), CPU)
    for forget in (lambda: None, lambda: (replica.load(genesis(run)), replica.forget_start())):
        forget()
        with pytest.raises(RuntimeError, match="no Δ"):
            replica.moved()


@pytest.mark.parametrize("precision", [Arithmetic(), Arithmetic(compiled=True)])
def test_a_replica_evaluates_in_its_own_weights_and_trains_on_as_if_it_had_not(precision: Arithmetic):
    """What is compiled for training is not for evaluating: no compiler is needed, and the loss is all others'."""
    run, basis = manifest(2, 4), orthonormal(32)
    grids, held_out = genesis(run), batches(run, 1)[0]
    later = {part: {name: each + 2**16 for name, each in grid.items()} for part, grid in grids.items()}
    replica = WholeReplica(run, "datacenter", None, CPU, arithmetic=precision)
    plain = WholeReplica(run, "datacenter", None, CPU)
    own = Evaluator(run, basis, held_out, CPU, replica=replica)
    assert {id(each) for stage in own.stages for each in stage.parameters()} <= {
        id(each) for stage in replica.stages for each in stage.parameters
    }
    for round in range(2):
        assert own.evaluate(later) == Evaluator(run, basis, held_out, CPU).evaluate(later)
        with pytest.raises(RuntimeError, match="no Δ"):
            replica.moved()
        if not precision.compiled:
            losses = []
            for each in (replica, plain):
                each.load(grids)
                losses.append(each.inner_step(batches(run, 2)[round], round))
            assert losses[0] == losses[1]


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


def test_with_the_embedding_as_anchor_a_group_moves_all_of_the_embedding_and_takes_off_what_the_round_began_with():
    run, basis = manifest(2, 4, anchor="embedding"), orthonormal(32)
    grids, u, tokens = genesis(run), basis[:, :8], batches(run, 1)[0][:, :-1]
    replica = WholeReplica(run, "group", basis, CPU)
    replica.load(grids)
    te = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
    replica.inner_step(batches(run, 1)[0], 0)
    moved = replica.moved()[EMBEDDING][EMBEDDING_TENSOR]
    assert (moved - moved @ u @ u.T).abs().max() > 0.1 * moved.abs().max()
    for boundary in (replica.stages[0].behind, replica.stages[1].before):
        assert torch.equal(boundary.decode(boundary.encode(te[tokens], tokens), tokens), te[tokens])


@pytest.mark.parametrize("anchor", ["complement", "embedding"])
def test_evaluation_reports_the_loss_through_the_boundaries_and_plain(anchor: str):
    run = manifest(2, 4, anchor=anchor)
    grids = genesis(run)
    basis = orthonormal(32)
    held_out = batches(run, 1)[0]
    loss, plain = Evaluator(run, basis, held_out, CPU).evaluate(grids)
    weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(2)]
    te = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
    assert loss == pytest.approx(OneProcess(run, weights, te, basis[:, : run.k]).loss(held_out).item(), abs=1e-5)
    assert plain == pytest.approx(OneProcess(run, weights, te, None).loss(held_out).item(), abs=1e-5)
    assert loss != pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("anchor", ["complement", "embedding"])
@pytest.mark.parametrize(("before", "after"), [(8, 2), (2, 8)])
def test_a_group_that_changes_k_between_rounds_goes_on_with_the_moments_of_the_coordinates_it_keeps(
    before: int, after: int, anchor: str
):
    run = manifest(2, "auto", anchor=anchor)
    grids, basis = genesis(run), orthonormal(run.model.d)
    replica = WholeReplica(run, "group", basis, CPU)
    te = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
    references = []
    for round, compression in enumerate((before, after)):
        for stage in replica.stages:
            stage.compress(compression, grids)
        replica.load(grids)
        weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(2)]
        references.append(OneProcess(run, weights, te, basis[:, : run.model.d // compression]))
        if round:
            take_over(*references)
        for step, batch in enumerate(batches(run, 4), 4 * round):
            assert replica.inner_step(batch, step) == pytest.approx(references[-1].inner_step(batch, step), rel=2e-5)


def take_over(old: OneProcess, new: OneProcess) -> None:
    """Give one torch optimizer another's state. U's columns are nested: columns of Z mean the same in both."""
    state = old.optimizer.state_dict()
    k = new.embedding.shape[1]
    for moment in ("exp_avg", "exp_avg_sq"):
        had = state["state"][len(old.parameters) - 1][moment][:, :k]
        state["state"][len(old.parameters) - 1][moment] = torch.cat([had, had.new_zeros(len(had), k - had.shape[1])], 1)
    new.optimizer.load_state_dict(state)


@pytest.mark.parametrize("anchor", ["complement", "embedding"])
def test_adamws_state_is_kept_with_all_columns_that_k_may_have_and_taken_up_with_those_it_has(anchor: str):
    run = manifest(2, "auto", anchor=anchor)
    grids, basis = genesis(run), orthonormal(run.model.d)
    first, second = (WholeReplica(run, "group", basis, CPU) for _ in range(2))
    for replica, compression in ((first, 8), (second, 4)):
        for stage in replica.stages:
            stage.compress(compression, grids)
        replica.load(grids)
    first.inner_step(batches(run, 1)[0], 0)
    kept = first.optimizer_tensors()
    shapes = {name: shape for stage in first.stages for name, shape in stage.optimizer_shapes.items()}
    assert {name: tuple(tensor.shape) for name, tensor in kept.items()} == shapes
    second.load_optimizer(kept)
    again = second.optimizer_tensors()
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    for stage in second.stages:
        for name in ("exp_avg", "exp_avg_sq"):
            assert [each.shape for each in stage.optimizer.state[name]] == [each.shape for each in stage.parameters]


def test_a_stage_behind_may_meet_its_neighbours_at_another_k_within_a_round():
    run = manifest(2, "auto")
    grids, basis = genesis(run), orthonormal(run.model.d)
    stages = [WholeReplica(run, "group", basis, CPU).stages[1] for _ in range(2)]
    for stage, early in zip(stages, (8, 4), strict=True):
        stage.compress(early, {})
        stage.load(grids)
    stages[0].compress(4, grids)
    batch = batches(run, 1)[0][:2]
    payload = torch.randn(2, run.model.context, run.model.d // 4)
    losses = [stage.forward(0, batch, payload).item() for stage in stages]
    gradients = [stage.backward(0, None) for stage in stages]
    assert losses[0] == losses[1]
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


def test_a_step_that_is_given_up_leaves_no_gradients_behind():
    run = manifest(1, 4)
    replica = WholeReplica(run, "group", orthonormal(run.model.d), CPU)
    replica.load(genesis(run))
    (stage,) = replica.stages
    replica.gradients(batches(run, 1)[0])
    assert stage.squared_norm() > 0.0
    stage.abandon()
    assert stage.squared_norm() == 0.0


@pytest.mark.parametrize(
    ("arithmetic", "optimizer"),
    [
        (Arithmetic(), "adamw"),
        (Arithmetic(), "muon"),
        (Arithmetic("bf16"), "muon"),
        (Arithmetic("exact", recompute=True), "adamw"),
        (Arithmetic("exact", recompute=True), "muon"),
    ],
)
def test_a_microbatch_in_flight_goes_back_by_the_weights_that_it_went_forward_by(
    arithmetic: Arithmetic, optimizer: str
):
    """Its gradient is that of a stage that has taken no step since; the step is that of one with nothing in flight."""
    run = manifest(stages=2, compression=4)
    run = run.model_copy(update={"inner": run.inner.model_copy(update={"optimizer": optimizer})})
    first, second, third = batches(run, 3)[0][:3].split(1)

    def stage() -> StageTrainer:
        trainer = StageTrainer(run, 0, "group", orthonormal(32), torch.device("cpu"), None, arithmetic)
        trainer.load(genesis(run))
        return trainer

    def back(trainer: StageTrainer, number: int) -> None:
        trainer.backward(number, torch.ones(1, run.model.context, run.k, dtype=torch.bfloat16))

    def copies(trainer: StageTrainer, of: str) -> list[torch.Tensor]:
        return [getattr(each, of).detach().clone() for each in trainer.parameters]

    def alone(tokens: torch.Tensor, steps: bool) -> list[torch.Tensor]:
        """The gradients of one microbatch, or the weights behind its step."""
        trainer = stage()
        trainer.forward(0, tokens, None)
        back(trainer, 0)
        if steps:
            trainer.update(0.5, 3)
        return copies(trainer, "data" if steps else "grad")

    overlapping = stage()
    for number, tokens in enumerate((first, second, third)):
        overlapping.forward(number, tokens, None)
    back(overlapping, 0)
    overlapping.update(0.5, 3)
    moved = copies(overlapping, "data")
    assert all(map(torch.equal, moved, alone(first, steps=True)))
    for number, tokens in ((1, second), (2, third)):
        back(overlapping, number)
        assert all(map(torch.equal, copies(overlapping, "grad"), alone(tokens, steps=False)))
        assert all(map(torch.equal, copies(overlapping, "data"), moved))
        for parameter in overlapping.parameters:
            assert parameter.grad is not None
            parameter.grad.zero_()
    assert not overlapping.in_flight
