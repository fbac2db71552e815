"""A replica in bf16, and one whose layers are compiled, learn what the others do."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from peer.compute.arithmetic import Arithmetic, Precision, precision_on
from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.model.subspace import CompiledBoundary
from protocol.architectures.llama import layer as llama
from protocol.errors import DivergedError, ResourceError
from protocol.manifest import Manifest
from tests.peer.compute.test_replica import batches, genesis, manifest
from tests.peer.model.test_head import Largest
from tests.reference.boundary import orthonormal

CPU = torch.device("cpu")
run = manifest(2, 4)


def trained(arithmetic: Arithmetic) -> tuple[list[float], WholeReplica]:
    replica = WholeReplica(run, "datacenter", None, CPU, arithmetic=arithmetic)
    replica.load(genesis(run))
    replica.warm_up()
    return [replica.inner_step(batch, step) for step, batch in enumerate(batches(run, 5))], replica


def test_bf16_rounds_products_and_keeps_weights_gradients_moments_and_pseudo_gradients_in_fp32():
    expected, _ = trained(Arithmetic())
    losses, replica = trained(Arithmetic("bf16"))
    assert losses != expected
    assert losses == pytest.approx(expected, abs=0.02)
    kept = [
        *replica.optimizer_tensors().values(),
        *(each for part in replica.moved().values() for each in part.values()),
    ]
    kept += [parameter for stage in replica.stages for parameter in stage.parameters]
    assert {tensor.dtype for tensor in kept} == {torch.float32}


class Roundings(TorchDispatchMode):
    """Counts how often each matrix of some stages is rounded to bf16."""

    def __init__(self, *stages: StageTrainer) -> None:
        super().__init__()
        matrices = [(name, value) for one in stages for name, value in one.stage.named_parameters() if value.dim() > 1]
        self.names = {value.data_ptr(): name for name, value in matrices}
        self.counts = dict.fromkeys(self.names.values(), 0)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = self.names.get(args[0].data_ptr()) if function is torch.ops.aten._to_copy.default else None
        if name is not None and out.dtype == torch.bfloat16:
            self.counts[name] += 1
        return out


@pytest.mark.parametrize("recompute", [False, True])
def test_a_whole_replica_rounds_its_matrices_once_a_step_and_the_head_once_a_pass(recompute: bool):
    replica = WholeReplica(run, "datacenter", None, CPU, arithmetic=Arithmetic("bf16", recompute=recompute))
    replica.load(genesis(run))
    with Roundings(*replica.stages) as roundings:
        for step, batch_SM in enumerate(batches(run, 2)):
            replica.inner_step(batch_SM, step)
    passes = 2 * run.inner.microbatches
    assert passes > 2
    assert roundings.counts.pop("lm_head.weight") == passes
    assert set(roundings.counts.values()) == {2}


@pytest.mark.parametrize("recompute", [False, True])
def test_a_volunteer_rounds_its_matrices_once_a_pass_forward_and_again_where_it_computes_again(recompute: bool):
    stage = volunteer(0, Arithmetic("bf16", recompute=recompute))
    batch_SM = batches(run, 1)[0]
    with Roundings(stage) as roundings:
        for microbatch, tokens_BM in enumerate(batch_SM.split(run.inner.microbatch)):
            sent = stage.forward(microbatch, tokens_BM, None)
            stage.backward(microbatch, sent)
    assert set(roundings.counts.values()) == {run.inner.microbatches * (2 if recompute else 1)}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
@pytest.mark.filterwarnings("default")  # torch's compiler warns of itself
def test_compiled_layers_have_the_same_losses_within_rounding_and_the_warm_up_leaves_no_trace():
    expected, _ = trained(Arithmetic())
    losses, _ = trained(Arithmetic(compiled=True))
    assert losses == pytest.approx(expected, abs=1e-4)
    torch._dynamo.reset()


def test_where_torch_has_no_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ResourceError, match=r"apt-get install g\+\+"):
        Arithmetic(compiled=True).require(CPU)
    Arithmetic("bf16").require(CPU)


@pytest.mark.parametrize(
    ("device", "has", "precision"),
    [
        ("cuda:0", (8, 9), "bf16"),
        ("cuda:0", (8, 0), "bf16"),
        ("cuda:0", (7, 5), "fp16"),
        ("cuda:0", (6, 1), "fp32"),
        ("mps", None, "bf16"),
        ("cpu", {"amx_bf16": True}, "bf16"),
        ("cpu", {"avx512_bf16": True, "amx_bf16": False}, "bf16"),
        ("cpu", {"avx2": True, "amx_bf16": False}, "fp32"),
    ],
)
def test_auto_is_bf16_where_the_device_is_good_at_it(
    monkeypatch: pytest.MonkeyPatch, device: str, has: Any, precision: str
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: has)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    where = torch.device(device)
    assert precision_on("auto", where) == precision
    assert {precision_on(name, where) for name in ("fp32", "bf16", "fp16")} == {"fp32", "bf16", "fp16"}


def test_who_computes_is_told_in_which_numbers():
    assert Arithmetic("bf16", True).words(CPU) == "training passes are computed in bf16 on cpu, compiled"
    whole = "training passes are computed in fp16 on cpu, in microbatches of 8 sequences; the backward pass computes"
    assert Arithmetic("fp16", recompute=True).words(CPU, "8 sequences").startswith(whole)
    assert Arithmetic().words(CPU).endswith("in fp32 on cpu")
    assert Arithmetic(recompute=True).words(CPU).endswith("computes each layer's activations again, to save memory")
    assert "TF32 on cuda:1" in Arithmetic("fp32").words(torch.device("cuda:1"))
    assert "fp32 on cuda:1" in Arithmetic().words(torch.device("cuda:1"))


def test_tf32_is_for_training_passes_of_peers_alone():
    matmul, cuda = torch.backends.cuda.matmul, torch.device("cuda")
    before = matmul.fp32_precision
    peers, lab = Arithmetic("fp32"), Arithmetic()
    for block in (peers(cuda, 8), peers.backward(cuda, 8)):
        with block:
            assert matmul.fp32_precision == "tf32"
    for block in (lab(cuda, 8), lab.backward(cuda, 8), peers(CPU, 8), peers.backward(CPU, 8)):
        with block:
            assert matmul.fp32_precision == before
    with pytest.raises(ZeroDivisionError), peers(cuda, 8):
        _ = matmul.fp32_precision, 1 / 0
    assert matmul.fp32_precision == before


def volunteer(stage: int, arithmetic: Arithmetic, run: Manifest = run) -> StageTrainer:
    trainer = StageTrainer(run, stage, "group", orthonormal(run.model.d), CPU, arithmetic=arithmetic)
    trainer.load(genesis(run))
    return trainer


def chained(first: Arithmetic, last: Arithmetic, run: Manifest = run) -> tuple[list[float], list[StageTrainer]]:
    """A group of two volunteers that takes three inner steps: its losses, and its stages."""
    stages = [volunteer(0, first, run), volunteer(1, last, run)]
    losses = []
    for step, batch_SM in enumerate(batches(run, 3)):
        for microbatch, tokens_BM in enumerate(batch_SM.split(run.inner.microbatch)):
            sent = stages[0].forward(microbatch, tokens_BM, None)
            losses.append(stages[1].forward(microbatch, tokens_BM, sent).item())
            stages[0].backward(microbatch, stages[1].backward(microbatch, None))
        for stage in stages:
            stage.update(1.0, step)
    return losses, stages


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
@pytest.mark.filterwarnings("default")  # torch's compiler warns of itself
def test_a_stage_that_is_compiled_as_one_piece_is_made_once_and_has_the_same_losses(monkeypatch: pytest.MonkeyPatch):
    expected, _ = chained(Arithmetic(), Arithmetic())
    monkeypatch.setattr(StageTrainer, "_compiles_whole", True)  # as on a card
    torch._dynamo.reset()
    made = torch._dynamo.utils.counters
    made.clear()
    losses, stages = chained(Arithmetic(compiled=True), Arithmetic(compiled=True))
    assert losses == pytest.approx(expected, abs=2e-3)  # a number at the edge of a cell is rounded the other way
    assert isinstance(stages[0].behind, CompiledBoundary)
    pieces = made["stats"]["unique_graphs"]
    assert pieces == len(
        ("layers of stage 0", "layers of stage 1", "head", "encode", "decode", "and of gradients", "back")
    )
    assert not made["graph_break"]
    stages[0].load(genesis(run))  # another round, with other boundaries
    stages[0].forward(0, batches(run, 1)[0][: run.inner.microbatch], None)
    assert made["stats"]["unique_graphs"] == pieces
    torch._dynamo.reset()


def test_a_volunteer_in_bf16_trains_beside_one_in_fp32_and_sends_fp32():
    bf16, fp32 = Arithmetic("bf16"), Arithmetic()
    expected, _ = chained(fp32, fp32)
    for pair in ((bf16, fp32), (fp32, bf16), (bf16, bf16)):
        losses, stages = chained(*pair)
        assert losses != expected
        assert losses == pytest.approx(expected, abs=0.02)
        moved = [tensor for stage in stages for part in stage.moved().values() for tensor in part.values()]
        gradients = [each.grad for stage in stages for each in stage.parameters if each.grad is not None]
        assert {tensor.dtype for tensor in (*moved, *gradients)} == {torch.float32}


@pytest.mark.parametrize("context", [8, 512])  # in bf16, attention has another kernel from 512 on
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_that_are_computed_again_change_no_bit(precision: Precision, context: int):
    sizes = run.model.model_copy(update={"context": context})
    longer = run.model_copy(update={"model": sizes})
    (losses, stages), (again_losses, again) = (
        chained(*[Arithmetic(precision, recompute=recompute)] * 2, longer) for recompute in (False, True)
    )
    assert again_losses == losses
    for one, other in zip(stages, again, strict=True):
        assert all(map(torch.equal, one.parameters, other.parameters))


def kept_bytes(arithmetic: Arithmetic) -> tuple[int, StageTrainer]:
    """What a pass forward of stage 0 keeps for the pass backward, by storage, but for what is there anyway."""
    trainer = volunteer(0, arithmetic)
    there = {each.untyped_storage().data_ptr() for each in (*trainer.parameters, *trainer.embedding.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trainer.forward(0, batches(run, 1)[0][: run.inner.microbatch], None)
    return sum(each.untyped_storage().nbytes() for place, each in kept.items() if place not in there), trainer


def test_of_each_layer_only_its_input_is_kept():
    kept, trainer = kept_bytes(Arithmetic())
    least, _ = kept_bytes(Arithmetic(recompute=True))
    tokens_D = 4 * run.inner.microbatch * run.model.context * run.model.d
    layers = len(trainer.stage.model.layers)
    assert kept > 10 * layers * tokens_D
    assert least <= (layers + 1) * tokens_D


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
@pytest.mark.filterwarnings("default")  # torch's compiler warns of itself
def test_compiled_layers_are_computed_again_to_the_same_bits():
    expected, _ = trained(Arithmetic(compiled=True))
    losses, _ = trained(Arithmetic(compiled=True, recompute=True))
    assert losses == expected
    torch._dynamo.reset()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_never_makes_the_square_of_a_long_sequence(
    monkeypatch: pytest.MonkeyPatch, precision: Precision, fused: bool
):
    monkeypatch.setattr(llama, "has_fused_attention", lambda x: fused)
    sizes = run.model.model_copy(update={"context": 1024, "layers": 2, "d": 16, "ffn": 16})
    longer = run.model_copy(update={"model": sizes})
    trainer = volunteer(0, Arithmetic(precision), run=longer)
    with Largest() as largest:
        trainer.forward(0, torch.zeros(1, 1025, dtype=torch.int64), None)
        trainer.backward(0, torch.ones(1, 1024, longer.k))
    assert largest.elements <= 1024 * 1024 / 2


def gradients(precision: Precision, above: float, recompute: bool = False) -> list[Tensor]:
    """What stage 0 has for its weights after two microbatches, and stage 1 for what came in."""
    arithmetic, tokens = Arithmetic(precision, recompute=recompute), batches(run, 1)[0]
    first, last = volunteer(0, arithmetic), volunteer(1, arithmetic)
    random, handed = torch.Generator().manual_seed(1), []
    for microbatch, tokens_BM in enumerate(tokens.split(run.inner.microbatch)):
        sent = first.forward(microbatch, tokens_BM, None)
        last.forward(microbatch, tokens_BM, sent)
        back = last.backward(microbatch, None)
        assert back is not None
        handed.append(back)
        # the second microbatch's gradients are larger by far: a scale is of one microbatch
        first.backward(microbatch, torch.randn(sent.shape, generator=random) * above * (1 + 1000 * microbatch))
    return [each.grad for stage in (first, last) for each in stage.parameters if each.grad is not None] + handed


@pytest.mark.parametrize("above", [1e-12, 1e-6, 1.0, 1e6])
def test_gradients_in_fp16_are_those_in_fp32_however_small_or_large_they_are(above: float):
    for ours, exact in zip(gradients("fp16", above), gradients("exact", above), strict=True):
        assert ours.dtype == torch.float32
        assert ((ours - exact).norm() / exact.norm()).item() < 0.01
    assert not all(map(torch.equal, gradients("fp16", above), gradients("exact", above)))


def test_gradients_in_fp16_are_the_same_bits_when_activations_are_computed_again():
    assert all(map(torch.equal, gradients("fp16", 1e-6), gradients("fp16", 1e-6, recompute=True)))


def test_a_replica_learns_in_fp16_and_what_overflows_has_diverged():
    expected, _ = trained(Arithmetic())
    losses, replica = trained(Arithmetic("fp16"))
    assert losses != expected
    assert losses == pytest.approx(expected, abs=0.02)
    replica.stages[0].parameters[1].data.fill_(1e30)
    with pytest.raises(DivergedError):
        replica.inner_step(batches(run, 1)[0], 5)
