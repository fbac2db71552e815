"""A loss in slices is the cross-entropy of all logits at once, and so are its gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from peer.compute.arithmetic import Arithmetic
from peer.model import head as module
from peer.model.head import Head

CPU = torch.device("cpu")


def at_random(sequences: int, length: int, width: int, vocabulary: int, seed: int) -> tuple[Tensor, Head, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x_BLD = torch.randn(sequences, length, width, generator=random).requires_grad_()
    head = Head(width, vocabulary)
    head.weight.data = torch.randn(vocabulary, width, generator=random)
    return x_BLD, head, torch.randint(vocabulary, (sequences, length), generator=random)


def plain(x_BLD: Tensor, head: Head, targets_BL: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x_BLD, head.weight).flatten(0, 1).float(), targets_BL.flatten())


def taken(loss: Tensor, x_BLD: Tensor, head: Head, above: float) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and the gradients of x and of the weight where the gradient of the loss is `above`."""
    dx_BLD, dweight_VD = torch.autograd.grad(loss, (x_BLD, head.weight), torch.tensor(above))
    return loss.detach(), dx_BLD, dweight_VD


@pytest.fixture(params=[1024, 3], ids=["slices as they are", "slices of 3 tokens"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_TOKENS", request.param)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("sizes", [(1, 1, 4, 5), (2, 3, 4, 300), (3, 5, 8, 7), (4, 6, 8, 50)])
@pytest.mark.parametrize("above", [1.0, 0.25, 1 / 3])
def test_loss_and_gradients_are_those_of_all_logits_at_once(sizes: tuple[int, int, int, int], above: float) -> None:
    x_BLD, head, targets_BL = at_random(*sizes, seed=1)
    ours = taken(head(x_BLD, targets_BL), x_BLD, head, above)
    expected = taken(plain(x_BLD, head, targets_BL), x_BLD, head, above)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 3), st.integers(1, 1500), st.integers(0, 9))
@settings(max_examples=10, deadline=None)
def test_no_length_is_special(sequences: int, length: int, seed: int) -> None:
    x_BLD, head, targets_BL = at_random(sequences, length, 8, 30, seed)
    ours = taken(head(x_BLD, targets_BL), x_BLD, head, 1.0)
    expected = taken(plain(x_BLD, head, targets_BL), x_BLD, head, 1.0)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("slices")
def test_bf16_rounds_factors_as_autograd_does_and_the_rest_is_fp32() -> None:
    x_BLD, head, targets_BL = at_random(2, 7, 16, 40, seed=2)
    exact = taken(plain(x_BLD, head, targets_BL), x_BLD, head, 0.5)
    with Arithmetic("bf16")(CPU, 7):
        ours, theirs = head(x_BLD, targets_BL), plain(x_BLD, head, targets_BL)
    found, expected = taken(ours, x_BLD, head, 0.5), taken(theirs, x_BLD, head, 0.5)
    assert {each.dtype for each in found} == {torch.float32}
    assert found[0] != exact[0]
    assert found[0].item() == pytest.approx(expected[0].item(), rel=1e-6)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-3)


def test_without_gradients_the_loss_is_the_same_bits() -> None:
    x_BLD, head, targets_BL = at_random(2, 1100, 8, 40, seed=3)
    with torch.no_grad():
        measured = head(x_BLD, targets_BL)
    assert torch.equal(measured, head(x_BLD, targets_BL))
    assert not measured.requires_grad


def test_loss_is_nats_per_token_and_in_fp32() -> None:
    head = Head(4, 300)
    head.weight.data.zero_()
    loss = head(torch.randn(2, 5, 4).double(), torch.zeros(2, 5).long())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(300))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operator makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return made


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_never_are_there_more_logits_than_those_of_a_slice(precision: str) -> None:
    x_BLD, head, targets_BL = at_random(2, 2000, 2, 64, seed=4)
    with Largest() as largest, Arithmetic(precision)(CPU, 2000):  # type: ignore[arg-type]
        loss = head(x_BLD, targets_BL)
        loss.backward()
    assert largest.elements == module.SLICE_TOKENS * 64
    with Largest() as largest:
        plain(x_BLD, head, targets_BL)
    assert largest.elements == 4000 * 64  # which shows that it would have been seen
