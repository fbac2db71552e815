"""The benchmark of one device runs whole on the smallest model, and its sides train the same model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.compared.llama import Llama, Sizes
from benchmarks.compared.peak import peak_operations, peak_share
from protocol.manifest import check_manifest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """Three steps of each side that count. A torchtitan that is installed is not run: it may want a GPU."""
    sides = ["replica", "stages", "pipeline"]
    small = ["--presets", "pico", "--sequences", "4", "--turns", "3", "--device", "cpu", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "benchmarks/device.py", *small, "--json", "--sides", *sides],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=480,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_side_has_a_row(measured: dict[str, Any]):
    assert not measured["left_out"]
    assert [(row["side"], row["memory"], row["stage"]) for row in measured["rows"]] == [
        ("plain", "keep", None),
        ("replica", "keep", None),
        *(("stage", "keep", stage) for stage in range(4)),
        ("pipeline", "keep", None),
    ]


def test_a_replica_trains_as_plain_pytorch_does(measured: dict[str, Any]):
    """Losses are those after three steps: of the same weights, tokens, gradients, moments, rate and decay."""
    plain, keep, *_, pipeline = measured["rows"]
    assert keep["loss"] == pytest.approx(plain["loss"], abs=1e-5)
    assert pipeline["loss"] == pytest.approx(plain["loss"], abs=0.2)  # less is trained of its token embedding


def test_ratios_are_of_plain_pytorch_and_of_the_whole_replica(measured: dict[str, Any]):
    plain, keep, *others = measured["rows"]
    assert plain["of_plain"] == plain["cpu_of_plain"] == keep["of_replica"] == 1.0
    for row in others:
        assert row["of_replica"] == pytest.approx(row["of_plain"] / keep["of_plain"])
        assert row["tokens_per_s"] > 0
    stages = [row["share"] for row in others if row["side"] == "stage"]
    assert sum(stages) == pytest.approx(1)
    assert stages[3] > 2 * stages[1]  # a head of 1024 x 64 is more than a layer


def test_what_is_not_known_of_a_cpu_is_not_said(measured: dict[str, Any]):
    assert (measured["precision"], measured["compiled"]) == ("fp32", False)
    assert all(row["peak_share"] is None for row in measured["rows"])
    for row in measured["rows"]:
        assert (row["estimate_bytes"] is None) == (row["side"] == "plain")
        assert row["peak_bytes"] > 0 or sys.platform != "linux"


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
