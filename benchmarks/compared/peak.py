"""The share of a card's peak that a training uses (MFU, arXiv 2204.02311)."""

import re

from protocol.layout import operations_per_token
from protocol.manifest import Manifest

PEAK_TFLOPS = {
    "A100": 312,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "H200": 989,
    "RTX 4090": 165,
    "RTX 3090": 71,
    "T4": 65,
    "L4": 121,
}
"""bf16 or fp16, dense, summed in fp32, by NVIDIA's data sheets: of the first name that a card's own name has in it."""


def peak_operations(card: str) -> float | None:
    """Operations a second that a card of this name computes in 16 bits at most; None where that is not known."""
    for name, tflops in PEAK_TFLOPS.items():
        if re.search(rf"\b{name}\b(?! (Ti|D)\b)", card):
            return tflops * 1e12
    return None


def peak_share(manifest: Manifest, tokens_per_s: float, share: float, peak: float) -> float:
    """The part of `peak` operations a second that makes so many tokens a second, where each token takes `share` of what
    it takes of the whole model. What is computed again does not count."""
    return tokens_per_s * share * operations_per_token(manifest) / peak
