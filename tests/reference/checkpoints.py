"""Checkpoints as transformers writes them, of a small model with random weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from bootstrap.data.encoding import train_tokenizer

CONFIG: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
}


def tokenizer() -> Tokenizer:
    """Of 260 tokens or so; 0 is the end of a text."""
    return train_tokenizer(["A small text, small enough for a small tokenizer."], 300)


def llama(**changes: Any) -> LlamaForCausalLM:
    """A model with random weights, the same each time."""
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**CONFIG | changes)).eval()


def by_transformers(folder: Path, shards: str = "1GB", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """What `save_pretrained` writes, and a tokenizer."""
    llama(**changes).to(dtype).save_pretrained(folder, max_shard_size=shards)
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def by_hand(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """A checkpoint of this config and these tensors, whatever they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    save_file(dict(tensors), folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder
