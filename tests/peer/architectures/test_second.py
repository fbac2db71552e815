"""An architecture that the product does not know trains, is kept, leaves a run and begins one: its folder alone says
what its layers are."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from bootstrap.genesis import create_run, genesis_tensor
from peer.cli.import_ import run_toml
from peer.compute.replica import WholeReplica
from peer.export.collected import collect
from peer.export.written import write_export
from peer.lab.reference_run import Lab
from peer.model.language_model import LanguageModel, Sampling, generate
from peer.optim.grid import to_float
from peer.planning.memory import Duty, memory_of
from peer.store.checkpoint import Checkpoint, PartCheckpoint, PartState, candidates, write_checkpoint
from protocol.architectures import ARCHITECTURES
from protocol.errors import ManifestError, UserError
from protocol.identity import EMBEDDING, stage_part
from protocol.layout import EMBEDDING_TENSOR, model_layout, parameter_count, whole_layout
from protocol.manifest import Manifest, check_manifest, first_difference, parse_manifest
from protocol.run.hugging_face import WEIGHTS, open_checkpoint
from tests.peer.compute.test_replica import batches, genesis
from tests.reference.boundary import orthonormal
from tests.reference.one_process import OneProcess
from tests.reference.processes import TEXT
from tests.reference.second_architecture import MPT, MptSizes
from tests.reference.small_lab import play, small_lab
from tests.reference.small_manifest import small_manifest

CPU = torch.device("cpu")
PROMPT = [5, 17, 250, 3, 5]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "mpt", MPT)


def second(optimizer: str = "adamw", **replicas: object) -> Manifest:
    return check_manifest(
        {
            "model": {"architecture": "mpt", "preset": "small"},
            "replicas": {"stages": 2, "compression": 4, "wire": "fp32", **replicas},
            "inner": {
                "steps": 20,
                "sequences": 4,
                "microbatch": 2,
                "learning_rate": 1e-2,
                "warmup": 5,
                "optimizer": optimizer,
            },
            "outer": {"rounds": 2},
            "evaluation": {"sequences": 5, "held_out": 0.2},
        }
    )


def test_a_manifest_chooses_it_by_name_and_has_its_sizes():
    manifest = second()
    assert isinstance(manifest.model, MptSizes)
    assert parse_manifest(manifest.canonical()) == manifest
    assert b'"architecture":"mpt"' in manifest.canonical()
    llama = small_manifest(run={"seed": 1})
    assert first_difference(manifest, llama) == "model.architecture: ours is 'mpt', theirs is 'llama'"
    with pytest.raises(ManifestError, match=r"model\.ffn: "):
        check_manifest({"model": {"architecture": "mpt", "preset": "small", "ffn": 8}})


@pytest.mark.parametrize("compression", [1, 4])
@pytest.mark.parametrize("stages", [1, 3])
def test_its_stages_train_as_one_model_under_autograd(stages: int, compression: int):
    manifest, basis = second(stages=stages, compression=compression), orthonormal(32)
    grids = genesis(manifest)
    replica = WholeReplica(manifest, "group", basis, CPU)
    replica.load(grids)
    weights = [{n: to_float(t) for n, t in grids[stage_part(s)].items()} for s in range(stages)]
    u = basis[:, : manifest.k] if compression > 1 else None
    reference = OneProcess(manifest, weights, to_float(grids[EMBEDDING][EMBEDDING_TENSOR]), u)
    steps = list(enumerate(batches(manifest, 20)))
    ours = [replica.inner_step(batch, step) for step, batch in steps]
    assert ours == pytest.approx([reference.inner_step(batch, step) for step, batch in steps], abs=1e-4)
    assert ours[-1] < ours[0] - 0.5


@pytest.mark.parametrize(("optimizer", "ngrams"), [("adamw", 0), ("muon", 2)])
def test_a_swarm_trains_it_and_a_checkpoint_keeps_it(tmp_path: Path, optimizer: str, ngrams: int):
    manifest = second(optimizer, ngrams=ngrams, balance="memory")
    lab = small_lab(manifest)
    before = lab.evaluator.evaluate(lab.swarm.grids)
    digests = play(lab, 2)
    assert digests == play(small_lab(manifest), 2)
    assert max(lab.evaluator.evaluate(lab.swarm.grids)) < min(before)
    replica = lab.swarm.replicas[0]
    feedback = {part: dict(state.error_feedback) for part, state in replica.outer.items()}
    assert {part: {n: tuple(t.shape) for n, t in kept.items()} for part, kept in feedback.items()} == {
        part: layout for part, layout in model_layout(manifest).items() if part in feedback
    }
    nothing = PartState(sent={}, returned={})
    write_checkpoint(tmp_path, Checkpoint(2, 2, {p: PartCheckpoint(nothing, kept) for p, kept in feedback.items()}, {}))
    (read,) = candidates(tmp_path)
    for part, kept in feedback.items():
        assert all(torch.equal(read.parts[part].error_feedback[name], tensor) for name, tensor in kept.items())


def test_it_leaves_a_run_under_its_own_names_and_begins_another(tmp_path: Path):
    (tmp_path / "text.txt").write_text(TEXT)
    manifest = second()
    descriptor = create_run(manifest, tmp_path / "run", tmp_path / "text.txt")
    Lab.open(descriptor, tmp_path / "run", CPU).round(1, lambda event: None)
    collected, random = collect([tmp_path / "run"], None, lambda event: None), torch.Generator().manual_seed(1)
    for grid in collected.grids.values():
        for name, values in grid.items():
            if values.dim() > 1:
                grid[name] = torch.randint(-(2**24), 2**24, values.shape, generator=random, dtype=torch.int32)
    export, grids = tmp_path / "model", {name: t for grid in collected.grids.values() for name, t in grid.items()}
    write_export(collected, export, None, lambda event: None)
    assert "A MPT of" in (export / "README.md").read_text()

    checkpoint = open_checkpoint(export)
    assert (checkpoint.model, checkpoint.cut) == (manifest.model, (2, 2))
    assert "transformer.blocks.3.attn.Wqkv.weight" in load_file(export / WEIGHTS)
    for name in whole_layout(manifest.model, manifest.ngrams):
        np.testing.assert_array_equal(checkpoint.units(name), grids[name].numpy())
    again = check_manifest(tomllib.loads(run_toml(checkpoint)))
    assert again.model == manifest.model
    create_run(again, tmp_path / "again", tmp_path / "text.txt", weights=export)
    with pytest.raises(UserError, match=r"model\.architecture is llama in the manifest, and mpt in"):
        checkpoint.require(small_manifest())

    ours = LanguageModel(checkpoint.model, checkpoint.ngrams)
    ours.load(lambda name: torch.from_numpy(checkpoint.read(name)))
    theirs = AutoModelForCausalLM.from_pretrained(export).eval()
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)
        by_one = [*generate(ours, PROMPT, 6, Sampling(), 0)]
        text = list(PROMPT)
        for _ in by_one:
            text.append(int(theirs(torch.tensor([text])).logits[0, -1].argmax()))
    assert text == PROMPT + by_one


def test_its_memory_and_first_weights_follow_from_its_tensors():
    manifest = second()
    assert parameter_count(manifest) == 2 * 300 * 32 + 4 * (12 * 32**2 + 2 * 32) + 32
    kept, again = (memory_of(manifest, Duty("volunteer", 0, recompute=recompute)) for recompute in (False, True))
    assert kept.device_held == again.device_held
    assert kept.device > again.device
    layout = whole_layout(manifest.model, manifest.ngrams)
    first = {name: genesis_tensor(manifest, name, shape) for name, shape in layout.items()}
    assert (first["model.layers.0.norm_1.weight"] == 2**26).all()
    assert first["model.layers.0.attn.out_proj.weight"].std() < first["model.layers.0.attn.Wqkv.weight"].std() / 2
    assert not genesis_tensor(manifest, "model.layers.0.attn.out_proj.bias", (32,)).any()
