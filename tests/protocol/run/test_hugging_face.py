"""A checkpoint is taken for what it is, or refused with the reason."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from protocol.architectures.llama.sizes import LlamaSizes
from protocol.errors import UserError
from protocol.layout import EMBEDDING_TENSOR, HEAD_TENSOR, whole_layout
from protocol.manifest import Manifest, check_manifest
from protocol.model_sizes import NgramTables
from protocol.run.hugging_face import open_checkpoint
from protocol.run.model_config import config_of
from protocol.tensor_formats import UNITS_PER_ONE
from tests.reference.checkpoints import CONFIG, by_hand, by_transformers, llama

SIZES = LlamaSizes(
    layers=3, d=16, heads=2, kv_heads=1, ffn=24, context=64, vocabulary=300, rope_theta=5000.0, norm_epsilon=1e-6
)
PLAIN = {"model_type": "llama", **CONFIG}
TABLES = {"most": 2, "width": 5, "layers": [1, 2]}


def tensors(**changes: Tensor) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in llama().state_dict().items()} | changes


@pytest.mark.parametrize("shards", ["1GB", "5KB"])
def test_what_transformers_saved_is_read_to_the_bit(tmp_path: Path, shards: str) -> None:
    checkpoint = open_checkpoint(by_transformers(tmp_path, shards))
    assert (checkpoint.model, checkpoint.tied) == (SIZES, False)
    assert len(list(tmp_path.glob("*.safetensors"))) == (1 if shards == "1GB" else 7)
    expected = llama().state_dict()
    assert expected.keys() == whole_layout(SIZES, NgramTables()).keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(checkpoint.read(name), tensor.numpy())
        np.testing.assert_array_equal(checkpoint.units(name), np.rint(tensor.double().numpy() * UNITS_PER_ONE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_the_same_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint = open_checkpoint(by_transformers(tmp_path, dtype=dtype))
    for name, tensor in llama().state_dict().items():
        np.testing.assert_array_equal(checkpoint.read(name), tensor.to(dtype).float().numpy())


def test_the_head_of_tied_embeddings_is_a_copy(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(by_transformers(tmp_path, tie_word_embeddings=True))
    assert checkpoint.tied
    np.testing.assert_array_equal(checkpoint.read(HEAD_TENSOR), checkpoint.read(EMBEDDING_TENSOR))


def test_a_head_of_its_own_is_taken_though_the_config_says_that_it_is_tied(tmp_path: Path) -> None:
    """As transformers does: it may have been trained apart."""
    checkpoint = open_checkpoint(by_hand(tmp_path, config_of(SIZES) | {"tie_word_embeddings": True}, tensors()))
    assert not checkpoint.tied
    assert not np.array_equal(checkpoint.read(HEAD_TENSOR), checkpoint.read(EMBEDDING_TENSOR))


def test_a_mistral_without_a_sliding_window_is_a_llama(tmp_path: Path) -> None:
    mistral = config_of(SIZES) | {"model_type": "mistral", "sliding_window": None}
    assert open_checkpoint(by_hand(tmp_path, mistral, tensors())).model == SIZES
    with pytest.raises(UserError, match="sliding_window is 4096"):
        open_checkpoint(by_hand(tmp_path, mistral | {"sliding_window": 4096}, tensors()))


def test_our_config_says_what_transformers_and_we_read(tmp_path: Path) -> None:
    theirs = LlamaConfig(**config_of(SIZES))
    assert (theirs.hidden_size, theirs.num_key_value_heads, theirs.max_position_embeddings) == (16, 1, 64)
    assert theirs.rope_parameters["rope_theta"] == 5000.0
    assert open_checkpoint(by_hand(tmp_path, config_of(SIZES), tensors())).model == SIZES


def test_n_gram_tables_come_back_with_the_cut_that_they_stand_for(tmp_path: Path) -> None:
    ngrams = NgramTables(most=2, width=5, layers=(1, 2))
    rows = {f"model.ngrams.{layer}.{n}": torch.rand(300 * (1, 4)[n - 1], 5) for layer in (1, 2) for n in (1, 2)}
    checkpoint = open_checkpoint(by_hand(tmp_path, config_of(SIZES, ngrams=ngrams), tensors(**rows)))
    assert (checkpoint.model, checkpoint.ngrams, checkpoint.cut) == (SIZES, ngrams, (1, 1, 1))
    np.testing.assert_array_equal(checkpoint.read("model.ngrams.2.2"), rows["model.ngrams.2.2"].numpy())
    del rows["model.ngrams.2.2"]
    with pytest.raises(UserError, match=r"lacks 1 of the tensors .*, model\.ngrams\.2\.2 first"):
        open_checkpoint(by_hand(tmp_path, config_of(SIZES, ngrams=ngrams), tensors(**rows)))
    with pytest.raises(UserError, match=r"has 'model\.ngrams\.1\.1', which"):
        open_checkpoint(by_hand(tmp_path, config_of(SIZES), tensors(**rows)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen2"}, 'model_type is "qwen2"'),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling is"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters are"),
        ({"rope_parameters": {"rope_type": [[]]}}, "rope_parameters are"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters are"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"eos_token_id": []}, "eos_token_id is []"),
        ({"model_type": "hetpeer_llama"}, "hetpeer_ngrams"),
        ({"hetpeer_ngrams": 3}, "hetpeer_ngrams"),
        ({"hetpeer_ngrams": TABLES | {"most": 4}}, "hetpeer_ngrams.most"),
        ({"hetpeer_ngrams": TABLES | {"most": 0}}, "hetpeer_ngrams is"),
        ({"hetpeer_ngrams": TABLES | {"width": 17}}, "hetpeer_ngrams is"),
        ({"hetpeer_ngrams": TABLES | {"layers": []}}, "hetpeer_ngrams is"),
        ({"hetpeer_ngrams": TABLES | {"layers": [2, 1]}}, "hetpeer_ngrams is"),
        ({"hetpeer_ngrams": TABLES | {"layers": [1, 3]}}, "hetpeer_ngrams is"),
        ({"hetpeer_ngrams": TABLES | {"layers": [0, 1]}}, "hetpeer_ngrams.layers: value 1 is 0"),
        ({"head_dim": 32}, "head_dim is 32"),
        ({"num_hidden_layers": 0}, "layers"),
        ({"num_hidden_layers": "many"}, "layers"),
        ({"hidden_size": None}, "d: "),
        ({"num_attention_heads": 5}, "multiple of heads"),
        ({"vocab_size": 2**40}, "vocabulary"),
        ({"eos_token_id": None}, "end_of_text"),
        ({"eos_token_id": 300}, "end_of_text"),
        ({"rms_norm_eps": float("nan")}, "norm_epsilon"),
    ],
)
def test_what_a_run_cannot_train_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=r"config\.json") as refused:
        open_checkpoint(by_hand(tmp_path, PLAIN | changes, tensors()))
    assert words in str(refused.value)


@pytest.mark.parametrize("given", [{}, {"rope_scaling": {"type": "default"}}, {"eos_token_id": [0, 7]}])
def test_what_says_the_same_in_other_words_is_taken(tmp_path: Path, given: dict[str, Any]) -> None:
    assert open_checkpoint(by_hand(tmp_path, PLAIN | given, tensors())).model == SIZES


def test_a_longer_context_than_any_run_has_is_shortened(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(by_hand(tmp_path, PLAIN | {"max_position_embeddings": 2**20}, tensors()))
    assert checkpoint.model.context == 2**17


NORM, Q = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({Q: torch.zeros(16, 15)}, f"{Q} is (16, 15)"),
        ({NORM: torch.zeros(16, dtype=torch.float64)}, f"{NORM} is in F64"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(16)}, "q_proj.bias"),
        ({NORM: None}, f"lacks 1 of the tensors that config.json promises, {NORM}"),
    ],
)
def test_other_tensors_than_the_config_promises_are_refused(
    tmp_path: Path, changes: dict[str, Tensor | None], words: str
) -> None:
    given = {name: tensor for name, tensor in (tensors() | changes).items() if tensor is not None}
    with pytest.raises(UserError) as refused:
        open_checkpoint(by_hand(tmp_path, PLAIN, given))
    assert words in str(refused.value)


def test_the_frequencies_that_the_first_llamas_kept_are_passed_over(tmp_path: Path) -> None:
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    assert open_checkpoint(by_hand(tmp_path, PLAIN, tensors() | more)).model == SIZES


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 32.0, -1e30])
def test_a_value_that_a_run_cannot_hold_is_refused_by_the_name_of_its_tensor(tmp_path: Path, value: float) -> None:
    norm = torch.ones(16)
    norm[3] = value
    checkpoint = open_checkpoint(by_hand(tmp_path, PLAIN, tensors(**{NORM: norm})))
    with pytest.raises(UserError, match=f"{NORM} has a value outside"):
        checkpoint.units(NORM)
    checkpoint.units(Q)


def replaced(name: str, contents: bytes | str) -> Callable[[Path], object]:
    """A change of a checkpoint: a file of it has these contents, or comes under this name."""
    return lambda folder: (
        (folder / name).rename(folder / contents)
        if isinstance(contents, str)
        else (folder / name).write_bytes(contents)
    )


WEIGHTS, LFS = "model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((replaced(WEIGHTS, LFS),), "git lfs pull"),
        ((replaced(WEIGHTS, b"<!DOCTYPE html>not here"),), "it is a web page: download the file itself"),
        ((replaced(WEIGHTS, b"\x08\0\0\0\0\0\0\0"),), "download it again"),
        ((replaced("config.json", LFS),), "git lfs pull"),
        (
            (replaced(WEIGHTS, "consolidated.safetensors"),),
            "it has 'consolidated.safetensors': give that the usual name",
        ),
        ((replaced(WEIGHTS, "model-00001-of-00002.safetensors"),), "the index of its files is missing"),
        ((replaced(WEIGHTS, "a.safetensors"), replaced("adapter_config.json", b"{}")), "merge_and_unload"),
        ((replaced("config.json", "adapter_config.json"),), "merge_and_unload"),
        ((replaced("config.json", "model.gguf"),), "take the safetensors that this was made from"),
        ((replaced("config.json", "params.json"),), "take the model as transformers has it"),
        ((replaced("config.json", "c.json"),), "give the folder that save_pretrained"),
        (
            (
                replaced(WEIGHTS, "a.safetensors"),
                replaced("model.safetensors.index.json", b'{"weight_map": {"x": "b.safetensors"}}'),
            ),
            "lacks 1 of the files that model.safetensors.index.json names, 'b.safetensors' first: download it",
        ),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_refused_with_the_cure(
    tmp_path: Path, changes: tuple[Callable[[Path], object], ...], words: str
) -> None:
    by_hand(tmp_path, PLAIN, tensors())
    for change in changes:
        change(tmp_path)
    with pytest.raises(UserError) as refused:
        open_checkpoint(tmp_path)
    assert words in str(refused.value)


def test_an_index_with_a_name_that_no_file_has_is_refused(tmp_path: Path) -> None:
    (by_hand(tmp_path, PLAIN, tensors()) / WEIGHTS).unlink()
    for name in ("x" * 300 + ".safetensors", "\0.safetensors"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NORM: name}}))
        with pytest.raises(UserError, match="lacks 1 of the files"):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("config", "renamed", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, {Q: Q.replace("weight", "qweight")}, "quantized by gptq"),
        ({}, {name: f"module.{name}" for name in tensors()}, "give its tensors the names that LlamaForCausalLM"),
        ({}, {"lm_head.weight": None}, 'set "tie_word_embeddings": true'),
    ],
)
def test_tensors_under_other_names_are_refused_with_the_cure(
    tmp_path: Path, config: dict[str, Any], renamed: dict[str, str | None], words: str
) -> None:
    names = {name: renamed.get(name, name) for name in tensors()}
    given = {names[name]: tensor for name, tensor in tensors().items() if names[name] is not None}
    with pytest.raises(UserError) as refused:
        open_checkpoint(by_hand(tmp_path, PLAIN | config, given))
    assert words in str(refused.value)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    by_hand(tmp_path, PLAIN, tensors())
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickled"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "model.bin", 3, None])
def test_an_index_names_files_beside_it_alone(tmp_path: Path, name: object) -> None:
    by_hand(tmp_path / "in", PLAIN, tensors())
    (tmp_path / "in" / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NORM: name}}))
    with pytest.raises(UserError, match="names no safetensors files beside it"):
        open_checkpoint(tmp_path / "in")


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]"])
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, data: bytes) -> None:
    (by_hand(tmp_path, PLAIN, tensors()) / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is no safetensors file"):
        open_checkpoint(tmp_path)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = by_hand(tmp_path, PLAIN, tensors()) / "model.safetensors"
    checkpoint = open_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="no safetensors file"):
        open_checkpoint(tmp_path)
    last = max(checkpoint.stored.values(), key=lambda each: each.start)
    with pytest.raises(UserError, match="ends within a tensor"):
        last.read()


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        open_checkpoint(tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        open_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "basis", [torch.eye(16) * 2, torch.full((16, 16), float("nan")), torch.eye(8), torch.eye(16).double()]
)
def test_a_basis_is_orthonormal_and_of_the_models_width(tmp_path: Path, basis: Tensor) -> None:
    checkpoint = open_checkpoint(by_hand(tmp_path, PLAIN, tensors()))
    assert checkpoint.basis() is None
    (tmp_path / "hetpeer").mkdir()
    save_file({"basis": torch.eye(16)}, tmp_path / "hetpeer" / "basis.safetensors")
    np.testing.assert_array_equal(checkpoint.basis(), np.eye(16, dtype=np.float32))
    save_file({"basis": basis}, tmp_path / "hetpeer" / "basis.safetensors")
    with pytest.raises(UserError, match="is no basis"):
        checkpoint.basis()


@pytest.mark.parametrize(("field", "value"), [("d", 32), ("context", 65), ("rope_theta", 1e4), ("end_of_text", 1)])
def test_a_run_of_other_sizes_is_refused_but_its_context_may_be_shorter(
    tmp_path: Path, field: str, value: object
) -> None:
    checkpoint = open_checkpoint(by_hand(tmp_path, PLAIN, tensors()))
    checkpoint.require(run_of(context=8))
    with pytest.raises(UserError, match=rf"model\.{field} is"):
        checkpoint.require(run_of(**{field: value}))


def run_of(ngrams: int = 0, width: int = 0, layers: Sequence[int] = (1, 2), **sizes: object) -> Manifest:
    replicas = {"layers": layers, "ngrams": ngrams, "ngram_width": width}
    return check_manifest({"model": SIZES.model_dump() | sizes, "replicas": replicas})


def test_a_run_may_give_tables_to_a_llama_and_has_those_of_a_checkpoint_or_does_not_begin(tmp_path: Path) -> None:
    open_checkpoint(by_hand(tmp_path / "plain", PLAIN, tensors())).require(run_of(ngrams=3))
    rows = {"model.ngrams.1.1": torch.rand(300, 5), "model.ngrams.1.2": torch.rand(1200, 5)}
    tables = NgramTables(most=2, width=5, layers=(1,))
    checkpoint = open_checkpoint(by_hand(tmp_path / "tables", config_of(SIZES, ngrams=tables), tensors(**rows)))
    checkpoint.require(run_of(2, 5))
    for other in (run_of(), run_of(3, 5), run_of(2, 4), run_of(2, 5, (2, 1)), run_of(2, 5, (1, 1, 1))):
        with pytest.raises(UserError, match="has n-gram tables for the last 2 tokens, 5 wide, before the layers 1"):
            checkpoint.require(other)
