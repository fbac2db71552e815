"""Cures, in words for a user, for folders that are no checkpoint a run can begin from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.files import GIT_LFS

RESAVE = "let transformers load it as LlamaForCausalLM, and save_pretrained"

HEAD_BYTES = 64


def damaged_file_cure(path: Path) -> str:
    """Say what to do about a file of a checkpoint that cannot be read as what its name says."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES).lstrip()
    except OSError:
        head = b""
    if head.startswith(GIT_LFS):
        return "it is a pointer of Git LFS: fetch the file itself with `git lfs pull`"
    if head.startswith(b"<"):
        return "it is a web page: download the file itself"
    return "download it again"


def missing_config_cure(folder: Path) -> str:
    """Say what to do about a folder without a config."""
    if (folder / "adapter_config.json").exists():
        return _adapter_cure()
    if any(folder.glob("*.gguf")):
        return "it has GGUF, which is not read: take the safetensors that this was made from"
    if (folder / "params.json").exists() or any(folder.glob("*.pth")):
        return "it is in Meta's own format: take the model as transformers has it"
    return "give the folder that save_pretrained of transformers wrote"


def missing_weights_cure(folder: Path) -> str:
    """Say what to do about a folder that has a config and no weights by the names that are read."""
    if (folder / "adapter_config.json").exists():
        return _adapter_cure()
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if any("-of-" in name for name in others):
        return "the index of its files is missing: download it"
    if others:
        return f"it has {others[0]!r}: give that the usual name, if it holds the whole model"
    if any(folder.glob("*.gguf")):
        return "it has GGUF, which is not read: take the safetensors that this was made from"
    return "download the weights"


def missing_tensors_cure(missing: list[str], head: str, has_others: bool) -> str:
    """Say what to do about a checkpoint that lacks these tensors, where the head's is called `head`. Transformers would
    draw at random what it does not find, so it is no cure."""
    if missing == [head]:
        return 'if its head is its embedding, set "tie_word_embeddings": true'
    if not has_others:
        return "give its tensors the names that LlamaForCausalLM of transformers has"
    return "take config.json and the weights of one model, whole"


def quantized_words(config: Mapping[str, Any]) -> str:
    """Say that a model is quantized, with the cure, where its config says so; empty if it does not."""
    quantization = config.get("quantization_config")
    if not quantization:
        return ""
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    by = f" by {method}" if isinstance(method, str) and method.isidentifier() else ""
    return f"is quantized{by}, which no run trains: take the model that it was made from, or dequantize it"


def _adapter_cure() -> str:
    return "it is an adapter of another model: merge it into that (merge_and_unload of peft), and save_pretrained"
