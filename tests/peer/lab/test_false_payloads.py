"""What a liar of the lab sends: wrong by a tenth or made up, at stage 1 of the first group, and nowhere else."""

import pytest
import torch
from torch import Tensor

from peer.lab.false_payloads import MADE_UP, WRONG_BY, FalseBoundary
from peer.lab.switches import Switches, switches
from peer.model.subspace import DirectBoundary
from protocol.errors import ManifestError
from tests.peer.lab.test_late import equal, manifest, moved
from tests.reference.small_lab import play, small_lab

LIES = ("noisy", "biased", "made-up", "flipped")
TOKENS_BL = torch.zeros(2, 3, dtype=torch.int64)


def lies(kind: str, payload: Tensor, times: int, forward: bool = False) -> Tensor:
    """So many false payloads of one true one, in a row."""
    boundary = FalseBoundary(DirectBoundary(), kind, torch.Generator().manual_seed(1))
    send = (lambda: boundary.encode(payload, TOKENS_BL)) if forward else (lambda: boundary.encode_gradient(payload))
    return torch.stack([send() for _ in range(times)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["noisy", "biased"])
def test_gradients_are_wrong_by_a_tenth_of_their_norm_and_activations_right(kind: str, dtype: torch.dtype):
    payload = torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    sent = lies(kind, payload, 3)
    wrong = (sent.float() - payload.float()).flatten(1)
    assert sent.dtype == dtype
    assert (wrong.norm(dim=1) / payload.float().norm()).tolist() == pytest.approx([WRONG_BY] * 3, rel=0.02)
    likeness = torch.nn.functional.cosine_similarity(wrong[0], wrong[1], dim=0)
    assert likeness.item() == pytest.approx(1.0 if kind == "biased" else 0.0, abs=0.05)
    assert all(torch.equal(each, payload) for each in lies(kind, payload, 3, forward=True))


def test_flipped_gradients_have_their_sign_turned():
    payload = torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lies("flipped", payload, 1)[0], -payload)
    assert torch.equal(lies("flipped", payload, 1, forward=True)[0], payload)


@pytest.mark.parametrize("forward", [True, False])
def test_one_in_twenty_payloads_is_made_up_and_as_large_as_the_true_one(forward: bool):
    payload = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    made_up = [each for each in lies("made-up", payload, 1000, forward) if not torch.equal(each, payload)]
    assert 1000 * MADE_UP / 2 < len(made_up) < 1000 * MADE_UP * 2
    assert all(each.norm().item() == pytest.approx(payload.norm().item(), rel=1e-5) for each in made_up)
    assert max(abs(torch.nn.functional.cosine_similarity(e.flatten(), payload.flatten(), dim=0)) for e in made_up) < 0.7


@pytest.mark.parametrize("kind", LIES)
def test_the_first_group_alone_has_a_liar_and_a_seed_tells_the_same_lies_again(kind: str):
    run = manifest(replicas={"groups": 2, "datacenters": 1, "stages": 3, "compression": 2}, model={"layers": 3})
    honest, liar = Switches(), Switches(false=kind)
    assert not equal(moved(run, honest), moved(run, liar))
    assert equal(moved(run, liar), moved(run, liar))
    for slot in 1, 2:
        assert equal(moved(run, honest, slot), moved(run, liar, slot))
    assert play(small_lab(run, liar, stacked=True), 2) == play(small_lab(run, liar), 2)


def test_where_nobody_sends_floats_there_is_nothing_to_falsify():
    for replicas, named in ({"stages": 1}, "one stage"), ({"wire": "int8"}, "are floats"):
        with pytest.raises(ManifestError, match=named):
            switches({"false": "noisy"}, manifest(replicas={"compression": 2} | replicas), "run.toml")
    alone = manifest(replicas={"groups": 0, "datacenters": 2})
    assert switches({"false": "noisy"}, alone, "run.toml") == Switches()
    with pytest.raises(ManifestError, match="those of chains"):
        switches({"false": "noisy", "paths": "loose", "clip": "stage"}, manifest(), "run.toml")
