"""What stages learn at their boundaries, against one graph of the whole model; and averages of outer states."""

import pytest
import torch
from torch.nn import functional as F

from peer.lab.learned import ORDERS, TAPS, Anchor, LearnedProjection, LearnedReconstruction
from peer.lab.methods import Averaged
from peer.lab.replicas import Workshop
from peer.lab.switches import Switches, switches
from peer.model.embedding import split_embedding
from peer.optim.grid import to_float
from protocol.errors import ManifestError
from protocol.identity import EMBEDDING, stage_part
from protocol.layout import EMBEDDING_TENSOR
from tests.reference.boundary import orthonormal
from tests.reference.small_lab import play, small_lab
from tests.reference.small_manifest import small_manifest


def manifest(**replicas):
    """Two stages, one group of them alone if nothing else is said; a boundary of d/4 that rounds nothing."""
    return small_manifest(
        model={"layers": 4},
        replicas={"groups": 1, "datacenters": 0, "stages": 2, "compression": 4, "wire": "fp32"} | replicas,
        inner={"steps": 4, "learning_rate": 1e-2, "warmup": 2, "sequences": 2, "microbatch": 2},
        outer={"rounds": 3, "top_k": 1024},
    )


def test_the_convolution_looks_back_and_never_ahead():
    torch.manual_seed(1)
    anchor = Anchor("convolution", 32, orthonormal(16)[:, 4:])
    with torch.no_grad():
        for parameter in anchor.parameters():
            parameter.normal_()
    tokens_BL = torch.randint(32, (2, 9))
    assert anchor.taps is not None
    table, taps, basis = anchor.tables["1"], anchor.taps, anchor.basis_dr
    for b in range(2):
        for at in range(9):
            rows = [table[tokens_BL[b, at - back]] * taps[back] for back in range(TAPS) if at >= back]
            expected = (table[tokens_BL[b, at]] + sum(rows)) @ basis.T
            assert torch.allclose(anchor(tokens_BL)[b, at], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["tokens", "bigrams", "trigrams"])
def test_an_anchor_has_its_tables(kind: str):
    anchor = Anchor(kind, 32, orthonormal(16)[:, 4:10])
    shapes = {int(order): tuple(table.shape) for order, table in anchor.tables.items()}
    assert shapes == {order: (32 if order == 1 else 32 * 4, 6) for order in ORDERS[kind]}


@pytest.mark.parametrize("anchors", ["tokens", "convolution", "trigrams"])
@pytest.mark.parametrize("codec", ["fixed", "learned"])
def test_the_gradients_are_those_of_the_whole_model_in_one_graph(anchors: str, codec: str):
    """Where nothing that is learned is zero any more."""
    torch.manual_seed(2)
    run = manifest()
    lab = small_lab(run, Switches(anchors=anchors, codec=codec))  # type: ignore[arg-type]
    whole = lab.bench.workshop.wholes["group"]
    learned = ("anchor", "encoder", "decoder")
    for stage in whole.stages:
        part = stage_part(stage.index)
        for name, grid in lab.bench.grids[part].items():
            if name.startswith(learned):
                lab.bench.grids[part][name] = torch.randint_like(grid, -(2**22), 2**22)
    whole.load(lab.bench.grids)
    batch_SM = lab.bench.batch(1, 0, 0)
    whole.gradients(batch_SM)
    found = {
        f"{stage.index}.{name}": parameter.grad.clone()
        for stage in whole.stages
        for name, parameter in stage.stage.named_parameters()
        if parameter.grad is not None
    }
    assert {name.split(".")[1] for name in found} >= {"anchor", *(("encoder", "decoder") if codec == "learned" else ())}
    for stage in whole.stages:
        stage.abandon()
    first, second = (stage.stage for stage in whole.stages)
    te_VD = to_float(lab.bench.grids[EMBEDDING][EMBEDDING_TENSOR])
    basis_dk = orthonormal(16)[:, :4]
    anchor_VD = split_embedding(te_VD, basis_dk)[1]
    ids_BL, targets_BL = batch_SM[:, :-1], batch_SM[:, 1:]
    x_BLD = first(F.embedding(ids_BL, te_VD), ids_BL)
    fixed_BLD = F.embedding(ids_BL, anchor_VD)
    crossed_BLD = (x_BLD - fixed_BLD) @ basis_dk @ basis_dk.T + fixed_BLD
    second.lm_head(second(crossed_BLD, ids_BL), targets_BL).backward()
    for index, stage in enumerate((first, second)):
        for name, parameter in stage.named_parameters():
            expected = parameter.grad
            assert expected is not None
            assert expected.abs().max() > 0, name
            error = (found[f"{index}.{name}"] - expected).norm() / expected.norm()
            assert error < 1e-4, f"{index}.{name}: {error}"


def test_a_learned_codec_projects_and_rebuilds_by_what_it_has_learned():
    torch.manual_seed(3)
    basis_dk, x_nD, z_nk = orthonormal(16)[:, :4], torch.randn(5, 16), torch.randn(5, 4)
    encoder, decoder = LearnedProjection(basis_dk, 16, 4), LearnedReconstruction(basis_dk, 4, 16)
    with torch.no_grad():
        encoder.weight.normal_()
        decoder.weight.normal_()
    assert torch.allclose(encoder(x_nD) @ basis_dk, x_nD @ (basis_dk + encoder.weight), atol=1e-5)
    assert torch.allclose(decoder(z_nk @ basis_dk.T), z_nk @ (basis_dk.T + decoder.weight), atol=1e-5)


def test_a_learned_anchor_lies_where_the_boundary_lets_nothing_pass():
    lab = small_lab(manifest(), Switches(anchors="tokens"))
    stage = lab.bench.workshop.wholes["group"].stages[1].stage
    with torch.no_grad():
        stage.anchor.tables["1"].normal_()
    added_BLD = stage.anchor(torch.arange(20).view(2, 10))
    assert added_BLD.norm() > 1
    assert (added_BLD @ orthonormal(16)[:, :4]).abs().max() < 1e-5


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_a_run_begins_as_without_and_then_learns_them(groups: int):
    run = manifest(groups=groups, datacenters=3 - groups)
    plain, own = small_lab(run), small_lab(run, Switches(anchors="bigrams", codec="learned"))
    assert own.evaluator.evaluate(own.bench.grids) == plain.evaluator.evaluate(plain.bench.grids)
    play(own, 1)
    for part, grid in own.bench.grids.items():
        for name, each in grid.items():
            assert (each != 0).any(), f"{part}: {name}"


def test_the_average_is_that_of_the_states_that_the_run_has_without_it():
    """Where inner loops begin at the last state, the run itself is unchanged; the model is x ← μ x + (1 − μ) z."""
    run, mu = manifest(groups=2), 0.75
    plain, averaged = small_lab(run), small_lab(run, Switches(average=mu))
    mean = {name: each.double() for name, each in plain.bench.grids[stage_part(1)].items()}
    for round in (1, 2, 3):
        plain.round(round, lambda event: None, evaluate=False)
        averaged.round(round, lambda event: None, evaluate=False)
        assert isinstance(averaged.method, Averaged)
        for name, each in plain.bench.grids[stage_part(1)].items():
            assert torch.equal(averaged.method.last[stage_part(1)][name], each)
            mean[name] = (mu * mean[name] + (1 - mu) * each.double()).round()
            assert torch.equal(averaged.bench.grids[stage_part(1)][name].double(), mean[name])
    assert averaged.method.sent_bytes == plain.method.sent_bytes > 0


def test_inner_loops_begin_between_the_last_state_and_the_average():
    """With ν = 1 they begin at the average itself."""
    run = manifest(groups=2)
    lab = small_lab(run, Switches(average=0.5, begin_at_average=1.0))
    play(lab, 1)
    method = lab.method
    assert isinstance(method, Averaged)
    before = {name: each.clone() for name, each in method.last[stage_part(0)].items()}
    begun: list[dict[str, torch.Tensor]] = []
    load = Workshop.inner_loop

    def watched(workshop, kind, whole):
        begun.append({name: each.detach().clone() for name, each in whole.stages[0].stage.tensors().items()})
        return load(workshop, kind, whole)

    mean = {name: each.clone() for name, each in lab.bench.grids[stage_part(0)].items()}
    Workshop.inner_loop = watched  # type: ignore[method-assign]
    try:
        lab.round(2, lambda event: None, evaluate=False)
    finally:
        Workshop.inner_loop = load  # type: ignore[method-assign]
    name = next(iter(mean))
    assert torch.equal(begun[0][name], to_float(mean[name]))
    assert not torch.equal(begun[0][name], to_float(before[name]))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"anchors": "tokens", "anchor_width": 13}, "does not fit beside k"),
        ({"anchor_width": 3}, "anchor_width is of learned anchors"),
        ({"begin_at_average": 0.5}, "begin_at_average is of an average"),
        ({"method": "adamw", "anchors": "tokens"}, "learns nothing"),
        ({"codec": "learned", "paths": "loose", "clip": "stage"}, "learns nothing"),
    ],
)
def test_what_does_not_go_together_is_an_error(table: dict, said: str):
    with pytest.raises(ManifestError, match=said):
        switches(table, manifest(), "test")


def test_tables_that_stay_and_tables_that_leave_are_two_experiments():
    with pytest.raises(ManifestError, match=r"replicas\.ngrams has tables of its own"):
        switches({"anchors": "tokens"}, manifest(ngrams=1), "test")


def test_uncompressed_replicas_learn_them_too():
    found = switches(
        {"anchors": "tokens", "codec": "learned", "payload": "4bit"}, manifest(groups=0, datacenters=1), ""
    )
    assert (found.anchors, found.codec, found.payload) == ("tokens", "learned", "wire")
