"""The plain model of the benchmark of one device, and the peak of a card."""

import pytest
import torch

from benchmarks.compared.llama import Llama, Sizes
from benchmarks.compared.peak import peak_operations, peak_share
from protocol.manifest import check_manifest

SIZES = {"layers": 2, "d": 8, "heads": 2, "kv_heads": 1, "ffn": 12, "context": 6, "vocabulary": 300}


def test_mfu_counts_what_forward_and_backward_multiply():
    """Two layers: q, o of 8 x 8, k, v of 8 x 4, three of 8 x 12; six norms' weights; the head; attention of 6 x 8."""
    layer = 2 * 64 + 2 * 32 + 3 * 96
    weights = 2 * (layer + 2 * 8) + 8 + 300 * 8
    manifest = check_manifest({"model": SIZES, "replicas": {"stages": 2}})
    assert peak_share(manifest, 1e9, 0.5, 2e12) == pytest.approx((6 * weights + 2 * 6 * 6 * 8) * 1e9 / 2 / 2e12)


def test_the_plain_model_is_causal():
    torch.manual_seed(0)
    model, tokens = Llama(Sizes(**SIZES)), torch.randint(300, (2, 6))
    changed = tokens.clone()
    changed[:, 4] += 1 - 2 * (changed[:, 4] // 299)
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.isclose(before[:, 4:], after[:, 4:]).all(-1).any()


@pytest.mark.parametrize(
    ("card", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA L40S", None),
        ("NVIDIA L4", 121),
        ("Tesla T4", 65),
        ("a CPU of 2 cores", None),
    ],
)
def test_the_peak_of_a_card_is_known_by_its_name(card: str, tflops: int | None):
    assert peak_operations(card) == (None if tflops is None else tflops * 1e12)
