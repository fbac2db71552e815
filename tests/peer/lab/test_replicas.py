"""What Subspace Networks put back into the subspace, and AdamW with one second moment for a column."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from peer.lab.designs import SubspaceTable
from peer.lab.reference_run import Lab
from peer.lab.replicas import ColumnAdamW, optimizer
from peer.lab.switches import Switches
from peer.model.embedding import DenseEmbedding
from peer.model.subspace import nested
from peer.optim.inner import AdamW
from protocol.manifest_tables import Inner
from tests.reference.boundary import orthonormal
from tests.reference.small_lab import small_lab
from tests.reference.small_manifest import small_manifest

widths = st.integers(2, 16).flatmap(lambda d: st.tuples(st.just(d), st.integers(1, d)))
GROUP, DATACENTER = 0, 2
"""Slots of the small manifest."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor, atol: float = 1e-5) -> bool:
    return torch.allclose(a, b, rtol=0, atol=atol)


def tables(sizes: tuple[int, int], seed: int) -> tuple[SubspaceTable, Tensor, Tensor]:
    """A loaded table, its TE and U."""
    d, k = sizes
    u, te = orthonormal(d, seed)[:, :k].contiguous(), normal(20, d, seed=seed)
    table = SubspaceTable(20, u)
    table.load(te)
    return table, te, u


@given(widths, st.integers(0, 99))
def test_a_subspace_table_begins_as_the_dense_one_split_in_two(sizes, seed: int):
    table, te, u = tables(sizes, seed)
    dense, tokens = DenseEmbedding(20, sizes[0]), torch.arange(20).view(4, 5)
    dense.load(te)
    assert close(table(tokens), dense(tokens))
    assert close(table.ts_Vd, te @ u @ u.T)
    assert close(table.anchor_Vd @ u, torch.zeros(20, sizes[1]))
    assert not table.moved(te).any()


@given(widths, st.integers(0, 99))
def test_projecting_keeps_of_a_step_what_lies_in_the_subspace(sizes, seed: int):
    table, te, u = tables(sizes, seed)
    step = normal(20, sizes[0], seed=seed + 1)
    with torch.no_grad():
        table.ts_Vd -= step
    assert close(table.moved(te), step)
    table.project()
    assert close(table.ts_Vd, (te - step) @ u @ u.T)
    assert close(table.moved(te), step @ u @ u.T)


def test_a_table_of_another_shape_is_refused():
    table, te, _ = tables((6, 2), 0)
    with pytest.raises(ValueError, match="instead of"):
        table.load(te[:1])


def after_steps(switches: Switches, slot: int = GROUP, steps: int = 3, **replicas: int) -> tuple[Lab, Tensor]:
    """A lab of which one replica has gone some inner steps, and U."""
    manifest = small_manifest(
        inner={"steps": steps, "learning_rate": 1e-2, "warmup": 0}, model={"layers": 4}, replicas=replicas
    )
    lab = small_lab(manifest, switches)
    lab.swarm.inner_loop(lab.swarm.replicas[slot], 1, {}, lambda event: None)
    return lab, nested(orthonormal(16), manifest.k)


def test_a_token_embedding_stays_in_the_subspace_by_projection_or_drifts():
    left = {}
    for choice in ("project", "drift"):
        lab, u = after_steps(Switches(embedding=choice))  # type: ignore[arg-type]
        table = lab.swarm.weights.wholes["group"].stages[0].embedding
        assert isinstance(table, SubspaceTable)
        assert table.moved(table.start_Vd).abs().max() > 1e-3
        ts = table.ts_Vd.detach()
        left[choice] = float((ts - ts @ u @ u.T).abs().max())
    assert left["project"] < 1e-5
    assert left["drift"] > 1e-3


@pytest.mark.parametrize("projected", [True, False])
def test_weights_that_write_into_the_residual_stream_are_projected_in_stages_before_a_boundary(projected: bool):
    lab, u = after_steps(Switches(weight_projection=projected, embedding="project"), stages=3)
    for stage in lab.swarm.weights.wholes["group"].stages:
        inside = {name.split(".", 3)[-1] for name, w in stage.stage.tensors().items() if inside_subspace(w, u)}
        writers = {"self_attn.o_proj.weight", "mlp.down_proj.weight"}
        assert inside == (writers if projected and not stage.last else set())


def inside_subspace(weight: Tensor, u: Tensor) -> bool:
    """W = U UᵀW, if its columns are of the residual stream's width."""
    return weight.dim() == 2 and len(weight) == len(u) and close(u @ (u.T @ weight), weight)


def test_a_datacenter_is_not_constrained():
    lab, u = after_steps(Switches(weight_projection=True, second_moment="columns"), DATACENTER)
    whole = lab.swarm.weights.wholes["datacenter"]
    assert not any(inside_subspace(w, u) for stage in whole.stages for w in stage.stage.tensors().values())
    assert all(type(own) is AdamW for own in lab.swarm.replicas[DATACENTER].optimizers)


def test_columns_have_one_second_moment_where_weights_write_into_the_stream_before_a_boundary():
    lab, _ = after_steps(Switches(second_moment="columns"), stages=2)
    for stage, own in zip(lab.swarm.weights.wholes["group"].stages, lab.swarm.replicas[GROUP].optimizers, strict=True):
        names = [*stage.stage.tensors(), "embedding"][: len(stage.parameters)]
        alike = {
            name.split(".", 3)[-1]
            for name, square in zip(names, own.state["exp_avg_sq"], strict=True)
            if square.dim() == 2 and torch.equal(square, square[:1].expand_as(square))
        }
        assert alike == (set() if stage.last else {"self_attn.o_proj.weight", "mlp.down_proj.weight"})


def test_elements_have_their_own_by_default():
    lab = small_lab(small_manifest())
    stage = lab.swarm.weights.wholes["group"].stages[0]
    assert type(optimizer(stage, Switches())) is AdamW


def by_hand(parameter: Tensor, gradients: list[Tensor], inner: Inner, rate: float, columns: bool) -> Tensor:
    """AdamW, one number after another (Loshchilov and Hutter, algorithm 2); v of a column is the mean of its g²."""
    rows, across = parameter.shape
    result = parameter.double().clone()
    (b1, b2), m, v = inner.betas, torch.zeros(rows, across).double(), torch.zeros(rows, across).double()
    for t, gradient in enumerate(gradients, 1):
        for i in range(rows):
            for j in range(across):
                g = float(gradient[i, j])
                squared = sum(float(gradient[r, j]) ** 2 for r in range(rows)) / rows if columns else g**2
                m[i, j] = b1 * m[i, j] + (1 - b1) * g
                v[i, j] = b2 * v[i, j] + (1 - b2) * squared
                mean, square = m[i, j] / (1 - b1**t), v[i, j] / (1 - b2**t)
                result[i, j] -= rate * inner.weight_decay * result[i, j]
                result[i, j] -= rate * mean / (square**0.5 + inner.epsilon)
    return result


def steps(optimizer: AdamW, gradients: list[list[Tensor]], factor: float, rate: float) -> None:
    for now in gradients:
        for parameter, gradient in zip(optimizer.parameters, now, strict=True):
            parameter.grad = gradient.clone()
        optimizer.update(factor, rate)


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(shapes, st.integers(1, 4), st.sampled_from([1.0, 0.3]), st.integers(0, 99))
@settings(max_examples=30)
def test_column_adamw_is_adamw_with_the_mean_square_of_each_column(shape, count: int, factor: float, seed: int):
    inner, start = Inner(betas=(0.9, 0.95), weight_decay=0.1), normal(*shape, seed=seed)
    gradients = [normal(*shape, seed=seed + 1 + i) for i in range(count)]
    free, bound = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    steps(ColumnAdamW([free, bound], inner, constrained={1}), [[g, g] for g in gradients], factor, 1e-2)
    scaled = [factor * g for g in gradients]
    assert close(free.double(), by_hand(start, scaled, inner, 1e-2, columns=False), 1e-6)
    assert close(bound.double(), by_hand(start, scaled, inner, 1e-2, columns=True), 1e-6)
    assert free.grad is not None
    assert not free.grad.any()


@given(st.integers(1, 6), st.sampled_from([1.0, 0.3]), st.integers(0, 99))
@settings(max_examples=30)
def test_with_nothing_constrained_it_is_the_protocols_adamw_and_takes_up_its_state(
    count: int, factor: float, seed: int
):
    inner, starts = Inner(weight_decay=0.1), [normal(3, 5, seed=seed), normal(7, seed=seed)]
    gradients = [[normal(3, 5, seed=seed + i), normal(7, seed=seed + i)] for i in range(2 * count)]
    protocols = AdamW([nn.Parameter(start.clone()) for start in starts], inner)
    ours = ColumnAdamW([nn.Parameter(start.clone()) for start in starts], inner)
    steps(protocols, gradients[:count], factor, 1e-2)
    steps(ours, gradients[:count], factor, 1e-2)
    later = ColumnAdamW(ours.parameters, inner)
    later.load(ours.tensors())
    steps(protocols, gradients[count:], factor, 1e-2)
    steps(later, gradients[count:], factor, 1e-2)
    assert later.steps == protocols.steps == 2 * count
    assert later.shapes == protocols.shapes
    for mine, theirs in zip(later.parameters, protocols.parameters, strict=True):
        assert close(mine, theirs, 1e-6)


@given(widths, st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=30)
def test_columns_in_a_subspace_stay_in_it_and_leave_it_under_plain_adamw(sizes, count: int, seed: int):
    d, k = sizes
    u = orthonormal(d, seed)[:, :k]
    start = u @ normal(k, 5, seed=seed)
    gradients = [[u @ normal(k, 5, seed=seed + 1 + i)] for i in range(10)]
    bound, free = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    steps(ColumnAdamW([bound], Inner(), constrained={0}), gradients, 1.0, 1e-2)
    steps(AdamW([free], Inner()), gradients, 1.0, 1e-2)
    assert close(u @ (u.T @ bound), bound)
    assert k == d or not close(u @ (u.T @ free), free)
