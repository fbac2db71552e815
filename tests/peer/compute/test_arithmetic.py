"""A replica in bf16, and one whose layers are compiled, learn what the others do."""

import shutil

import pytest
import torch

from peer.compute.arithmetic import Arithmetic
from peer.compute.replica import WholeReplica
from protocol.errors import ResourceError
from tests.peer.compute.test_replica import batches, genesis, manifest

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
