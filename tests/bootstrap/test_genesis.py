"""The operator makes a run once; everybody else takes it by its id."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from bootstrap.genesis import basis, create_run, genesis_tensor, load_run
from protocol.errors import ManifestError, ResourceError
from protocol.identity import Part, stage_part
from protocol.layout import model_layout
from protocol.run import run_files
from protocol.run.hugging_face import open_checkpoint
from protocol.run.run_files import file_names, genesis_file, parse_descriptor
from protocol.tensor_formats import UNITS_PER_ONE
from tests.reference.checkpoints import CONFIG, by_hand, llama
from tests.reference.small_manifest import small_manifest


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for number in range(10):
        lines = [f"In chapter {number} there are {word} of them.\n" for word in range(30)]
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    create_run(small_manifest(), directory, text)
    return directory


def test_all_files_are_written_and_pinned(run: Path) -> None:
    descriptor = load_run(run)
    assert sorted(path.name for path in run.iterdir()) == sorted(
        [*file_names(small_manifest()), "identity.key", "run.json"]
    )
    assert parse_descriptor((run / "run.json").read_bytes(), descriptor.run_id) == descriptor


def test_the_operator_is_told_what_is_done(text: Path, tmp_path: Path) -> None:
    sentences: list[str] = []
    create_run(small_manifest(), tmp_path / "new" / "run", text, sentences.append)
    assert "10 documents" in sentences[0]
    assert any(sentence.startswith("Text to train on: ") and "sequences" in sentence for sentence in sentences)


def test_a_run_can_be_made_again_bit_by_bit_on_this_machine(text: Path, run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "identity.key", tmp_path)  # the run id pins its operator as well
    assert create_run(small_manifest(), tmp_path, text).run_id == load_run(run).run_id


def test_a_restart_finds_its_run_and_rewrites_nothing(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.iterdir()}
    assert create_run(small_manifest(), run, Path("no such text")) == load_run(run)
    assert {path: path.stat().st_mtime_ns for path in run.iterdir()} == before


def test_a_folder_with_another_run_is_left_alone(run: Path) -> None:
    with pytest.raises(ManifestError, match=r"outer\.top_k: ours is 16, theirs is 86"):
        create_run(small_manifest(outer={"top_k": 16}), run)


def test_a_run_cut_short_is_made_anew(text: Path, tmp_path: Path) -> None:
    descriptor = create_run(small_manifest(), tmp_path, text)
    (tmp_path / "run.json").unlink()
    (tmp_path / "train.bin").write_bytes(b"half")
    assert create_run(small_manifest(), tmp_path, text) == descriptor


def test_damage_is_found_at_the_start(text: Path, tmp_path: Path) -> None:
    create_run(small_manifest(), tmp_path, text)
    (tmp_path / "train.bin").write_bytes(b"half")
    with pytest.raises(ResourceError, match=r"train\.bin"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_bytes(b"{}")
    with pytest.raises(ResourceError, match="damaged"):
        load_run(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ResourceError, match="no run"):
        load_run(tmp_path)


def test_too_little_text_is_refused_and_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Hello.")
    with pytest.raises(ResourceError, match="too little text"):
        create_run(small_manifest(), tmp_path / "run", tmp_path / "short.txt")
    with pytest.raises(ResourceError, match="no run"):
        load_run(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_named(text: Path) -> None:
    with pytest.raises(ResourceError, match=r"0\.txt"):
        create_run(small_manifest(), text / "0.txt" / "run", text)


@pytest.mark.parametrize("part", model_layout(small_manifest()))
def test_genesis_files_hold_the_tensors_of_the_layout_as_int32(run: Path, part: Part) -> None:
    tensors = load_file(run / genesis_file(part))
    layout = model_layout(small_manifest())[part]
    assert {name: tensor.shape for name, tensor in tensors.items()} == layout
    for name, tensor in tensors.items():
        assert tensor.dtype == np.int32
        np.testing.assert_array_equal(tensor, genesis_tensor(small_manifest(), name, layout[name]))


def test_first_weights_are_normal_and_narrower_into_the_residual_stream() -> None:
    manifest, shape = small_manifest(), (200, 200)
    inner = genesis_tensor(manifest, "model.layers.0.self_attn.q_proj.weight", shape) / UNITS_PER_ONE
    assert inner.mean() == pytest.approx(0, abs=0.0005)
    assert inner.std() == pytest.approx(0.02, rel=0.02)
    for projection in ("self_attn.o_proj", "mlp.down_proj"):
        outer = genesis_tensor(manifest, f"model.layers.0.{projection}.weight", shape) / UNITS_PER_ONE
        assert outer.std() == pytest.approx(0.02 / (2 * 3) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
    ],
)
def test_norms_start_at_one(name: str) -> None:
    assert (genesis_tensor(small_manifest(), name, (16,)) == UNITS_PER_ONE).all()


def test_no_weight_depends_on_how_the_model_is_cut(run: Path, text: Path, tmp_path: Path) -> None:
    create_run(small_manifest(replicas={"stages": 1}), tmp_path, text)
    whole = load_file(tmp_path / "genesis-stage-0.safetensors")
    cut = load_file(run / "genesis-stage-0.safetensors") | load_file(run / "genesis-stage-1.safetensors")
    assert whole.keys() == cut.keys()
    assert all((whole[name] == cut[name]).all() for name in whole)


def test_tensors_of_one_shape_and_other_seeds_differ() -> None:
    name, shape = "model.layers.0.self_attn.q_proj.weight", (16, 16)
    first = genesis_tensor(small_manifest(), name, shape)
    assert (first != genesis_tensor(small_manifest(), name.replace("q_", "k_"), shape)).any()
    assert (first != genesis_tensor(small_manifest(run={"seed": 8}), name, shape)).any()


def test_the_basis_is_orthonormal_and_float32(run: Path) -> None:
    u = load_file(run / "basis.safetensors")["basis"]
    assert u.dtype == np.float32
    np.testing.assert_allclose(u.T @ u, np.eye(16), atol=1e-6)
    np.testing.assert_array_equal(u, basis(small_manifest()))


def test_tokens_say_the_text_again(run: Path, text: Path) -> None:
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    tokens = np.concatenate([np.fromfile(run / name, "<u2") for name in ("train.bin", "heldout.bin")])
    documents = tokenizer.decode(tokens.tolist(), skip_special_tokens=False).split("<|endoftext|>")
    assert sorted(documents) == ["", *(file.read_text() for file in sorted(text.iterdir()))]


def test_the_basis_for_a_checkpoint_begins_with_what_its_layers_write(text: Path, tmp_path: Path) -> None:
    written = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 4)))[0]  # into 4 of 16 dimensions alone
    weights = {name: tensor.clone() for name, tensor in llama().state_dict().items()}
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = torch.from_numpy(written @ written.T).float() @ weight
    folder = by_hand(tmp_path / "m", {"model_type": "llama", **CONFIG}, weights)
    model = open_checkpoint(folder).model.model_dump() | {"context": 8}
    create_run(small_manifest(model=model), tmp_path / "run", text, weights=folder)
    u = load_file(tmp_path / "run" / "basis.safetensors")["basis"]
    np.testing.assert_allclose(u.T @ u, np.eye(16), atol=1e-6)
    np.testing.assert_allclose(u[:, :4] @ u[:, :4].T @ written, written, atol=1e-5)


def test_a_run_that_nobody_would_join_is_not_made(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "TEXT_BYTES", 100)
    with pytest.raises(ResourceError, match=r"by its manifest it takes 100 at most: prepare a larger text"):
        create_run(small_manifest(), tmp_path, text)
    assert not (tmp_path / "run.json").exists()


def test_tables_begin_at_zero_in_coordinates_that_no_boundary_lets_pass(text: Path, tmp_path: Path) -> None:
    """And all else as without them."""
    runs = [small_manifest(replicas=more) for more in ({}, {"ngrams": 2, "ngram_width": 5})]
    for number, run in enumerate(runs):
        create_run(run, tmp_path / str(number), text)
    plain, found = (load_file(tmp_path / str(n) / genesis_file(stage_part(1))) for n in (0, 1))
    added = sorted(found.keys() - plain.keys())
    assert [found[name].shape for name in added] == [(300, 5), (1200, 5)]
    assert not any(found[name].any() for name in added)
    assert all(np.array_equal(found[name], plain[name]) for name in plain)
    u = load_file(tmp_path / "1" / "basis.safetensors")["basis"]
    np.testing.assert_allclose(u.T @ u, np.eye(16), atol=1e-6)
    assert not u[:5, :11].any()
    assert np.array_equal(u[:5, 11:], np.eye(5))
    assert np.linalg.matrix_rank(u[5:, :4]) == 4


def test_a_run_with_tables_begins_from_a_llama_and_they_at_zero(text: Path, tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "m", {"model_type": "llama", **CONFIG}, llama().state_dict())
    model = open_checkpoint(folder).model.model_dump() | {"context": 8}
    run = small_manifest(model=model, replicas={"stages": 3, "ngrams": 1})
    create_run(run, tmp_path / "run", text, weights=folder)
    found = load_file(tmp_path / "run" / genesis_file(stage_part(2)))
    assert not found["model.ngrams.2.1"].any()
    assert found["model.layers.2.mlp.up_proj.weight"].any()
