"""`hetpeer import` writes a manifest that fits the checkpoint, after a look at every value."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from typer.testing import CliRunner

from bootstrap.genesis import create_run
from peer.cli.__main__ import app
from protocol import manifest as manifests
from protocol.errors import ManifestError, UserError
from protocol.layout import model_layout
from protocol.run.hugging_face import open_checkpoint
from protocol.run.model_config import config_of
from protocol.run.run_files import genesis_file
from tests.protocol.run.test_hugging_face import PLAIN, SIZES, tensors
from tests.reference.checkpoints import by_hand, by_transformers
from tests.reference.processes import TEXT


def hetpeer(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_the_manifest_fits_and_a_run_begins_from_every_weight(tmp_path: Path, text: Path) -> None:
    checkpoint, toml = by_transformers(tmp_path / "m", "5KB", end_of_text=0), tmp_path / "run.toml"
    said = json.loads(hetpeer("import", str(checkpoint), "--out", str(toml), "--json").splitlines()[-1])
    assert (said["basis"], said["tied"]) == (False, False)
    manifest = manifests.load_manifest(toml)
    assert manifest.model == SIZES
    create_run(manifest, tmp_path / "run", text, weights=checkpoint)
    opened = open_checkpoint(checkpoint)
    for part, layout in model_layout(manifest).items():
        first = load_file(tmp_path / "run" / genesis_file(part))
        assert first.keys() == layout.keys()
        for name in layout:
            np.testing.assert_array_equal(first[name], opened.units(name))
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()


def test_a_context_may_be_shortened_and_nothing_else(tmp_path: Path, text: Path) -> None:
    checkpoint, toml = by_transformers(tmp_path / "m"), tmp_path / "run.toml"
    hetpeer("import", str(checkpoint), "--out", str(toml))
    create_run(manifests.load_manifest(toml, {"model.context": 8}), tmp_path / "short", text, weights=checkpoint)
    with pytest.raises(UserError, match=r"model\.ffn is 32 in the manifest, and 24"):
        create_run(manifests.load_manifest(toml, {"model.ffn": 32}), tmp_path / "other", text, weights=checkpoint)
    assert not (tmp_path / "other" / "run.json").exists()


def test_a_value_that_is_no_number_is_found_before_a_run_is_made(tmp_path: Path) -> None:
    norm = torch.ones(16)
    norm[0] = float("nan")
    checkpoint = by_hand(tmp_path / "m", PLAIN, tensors(**{"model.norm.weight": norm}))
    said = hetpeer("import", str(checkpoint), "--out", str(tmp_path / "run.toml"), code=2)
    assert "model.norm.weight" in said.replace("\n", "")
    assert not (tmp_path / "run.toml").exists()


def test_a_manifest_is_written_over_only_by_force(tmp_path: Path) -> None:
    checkpoint, toml = by_transformers(tmp_path / "m"), tmp_path / "run.toml"
    toml.write_text("mine")
    assert "--force" in hetpeer("import", str(checkpoint), "--out", str(toml), code=2)
    assert toml.read_text() == "mine"
    hetpeer("import", str(checkpoint), "--out", str(toml), "--force")
    assert manifests.load_manifest(toml).model == SIZES


def test_a_tokenizer_with_tokens_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    checkpoint = by_transformers(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    assert "no tokenizer" in hetpeer("import", str(checkpoint), "--out", str(tmp_path / "a.toml"), code=4)
    (tmp_path / "m" / "tokenizer.json").unlink()
    assert "cannot read the tokenizer" in hetpeer("import", str(checkpoint), "--out", str(tmp_path / "a.toml"), code=4)


def test_texts_are_tokenized_without_what_the_tokenizer_adds_and_end_with_its_own_token(
    tmp_path: Path, text: Path
) -> None:
    checkpoint, toml = by_transformers(tmp_path / "m", eos_token_id=7), tmp_path / "run.toml"
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer.enable_truncation(4)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    hetpeer("import", str(checkpoint), "--out", str(toml))
    manifest = manifests.load_manifest(toml)
    assert manifest.model.end_of_text == 7
    create_run(manifest, tmp_path / "run", text, weights=checkpoint)
    train, held_out = (np.fromfile(tmp_path / "run" / f"{name}.bin", "<u2") for name in ("train", "heldout"))
    assert train[-1] == held_out[-1] == 7
    assert not np.isin(0, train)
    assert tokenizer.decode(train[:-1].tolist()) + tokenizer.decode(held_out[:-1].tolist()) == TEXT


def test_another_end_of_text_than_the_trained_tokenizers_needs_a_checkpoint(tmp_path: Path, text: Path) -> None:
    sizes = {"model": SIZES.model_dump() | {"end_of_text": 5}, "replicas": {"compression": 4}}
    with pytest.raises(ManifestError, match=r"end_of_text = 5 .* --weights"):
        create_run(manifests.check_manifest(sizes), tmp_path / "run", text)


def test_a_folder_name_of_any_kind_makes_a_name_for_the_run(tmp_path: Path) -> None:
    checkpoint = by_hand(tmp_path / 'Meine "Modelle" ]\u202e', config_of(SIZES), tensors())
    hetpeer("import", str(checkpoint), "--out", str(tmp_path / "run.toml"))
    assert manifests.load_manifest(tmp_path / "run.toml").run.name == "Meine-Modelle-"


def test_boundaries_stay_where_the_groups_had_them_that_trained_it(tmp_path: Path) -> None:
    toml, wrong = tmp_path / "run.toml", tmp_path / "wrong.toml"
    for cut in ((SIZES.layers - 1, 1), (1,) * SIZES.layers):
        checkpoint = by_hand(tmp_path / f"{len(cut)}-{cut[0]}", config_of(SIZES, cut), tensors())
        hetpeer("import", str(checkpoint), "--out", str(toml), "--force")
        assert manifests.load_manifest(toml).replicas.layers == cut
    elsewhere = by_hand(tmp_path / "elsewhere", config_of(SIZES), tensors())
    hetpeer("import", str(elsewhere), "--out", str(toml), "--force")
    assert manifests.load_manifest(toml).replicas.stages == 2
    for cut in ((SIZES.layers, 1), (0, SIZES.layers), ("[run]",), {"a": 1}, (1,) * 129):
        fields = config_of(SIZES) | {"hetpeer_layers_of_stages": cut}
        checkpoint = by_hand(tmp_path / f"wrong-{len(cut)}-{next(iter(cut))}", fields, tensors())
        assert "layers" in hetpeer("import", str(checkpoint), "--out", str(wrong), code=3)
        assert not wrong.exists()


def test_the_lab_trains_from_it(tmp_path: Path, text: Path) -> None:
    checkpoint, toml, report = by_transformers(tmp_path / "m"), tmp_path / "run.toml", tmp_path / "report.json"
    hetpeer("import", str(checkpoint), "--out", str(toml))
    short = toml.read_text().replace("warmup = 200", "warmup = 1\nsteps = 1\nsequences = 2\nmicrobatch = 1")
    toml.write_text(short.replace("rounds = 100", "rounds = 1"))
    files = "--weights", str(checkpoint), "--data", str(text), "--dir", str(tmp_path / "run")
    hetpeer("lab", "run", str(toml), *files, "--report", str(report), "--device", "cpu", "--json")
    (entry,) = json.loads(report.read_text())["rounds"]
    assert entry["contributions"] == {"embedding": 3, "stage-0": 3, "stage-1": 3}
    first = load_file(tmp_path / "run" / "genesis-stage-0.safetensors")["model.layers.0.input_layernorm.weight"]
    np.testing.assert_array_equal(first, open_checkpoint(checkpoint).units("model.layers.0.input_layernorm.weight"))


def test_a_second_node_takes_no_weights(tmp_path: Path) -> None:
    said = hetpeer("bootstrap", "--join", "hetpeer1-abc", "--weights", str(tmp_path), code=2)
    assert "--weights is for who creates a run" in said
