"""Presets: named sizes of models, and named settings of the outer exchange.

The paper's three are its Tables 6 and 9, with the two errata that make the stated parameter counts
come out (1B has d = 2048; 512M has an FFN of 5440). The small ones are for one machine.
"""

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, dict[str, int]] = {
    # name: layers, d, heads, kv_heads, ffn, context, vocabulary
    "nano": {
        "layers": 4,
        "d": 128,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 384,
        "context": 128,
        "vocabulary": 2048,
    },
    "mini": {
        "layers": 4,
        "d": 192,
        "heads": 6,
        "kv_heads": 6,
        "ffn": 512,
        "context": 128,
        "vocabulary": 2048,
    },
    "micro": {
        "layers": 6,
        "d": 256,
        "heads": 8,
        "kv_heads": 4,
        "ffn": 704,
        "context": 256,
        "vocabulary": 4096,
    },
    "tiny": {
        "layers": 8,
        "d": 512,
        "heads": 8,
        "kv_heads": 4,
        "ffn": 1408,
        "context": 512,
        "vocabulary": 8192,
    },
    "178m": {
        "layers": 9,
        "d": 1024,
        "heads": 8,
        "kv_heads": 8,
        "ffn": 2688,
        "context": 2048,
        "vocabulary": 32000,
    },
    "512m": {
        "layers": 12,
        "d": 1536,
        "heads": 12,
        "kv_heads": 12,
        "ffn": 5440,
        "context": 2048,
        "vocabulary": 32000,
    },
    "1b": {
        "layers": 16,
        "d": 2048,
        "heads": 8,
        "kv_heads": 8,
        "ffn": 8192,
        "context": 1024,
        "vocabulary": 32000,
    },
}

OUTER_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"top_k": 32, "chunk_side": 64, "beta": 0.95, "learning_rate": 1.0, "aggregate": "all", "values": "bf16"}
}


def filled(given: Any, presets: Mapping[str, Mapping[str, Any]]) -> Any:
    """Fill in, from the `preset` that a table names, the fields that the table does not give.

    Raises:
        ValueError: there is no such preset.
    """
    if not isinstance(given, dict) or "preset" not in given:
        return given
    fields = dict(given)
    name = fields.pop("preset")
    if not isinstance(name, str) or name not in presets:
        raise ValueError(f"unknown preset {str(name)[:60]!r}; there are {', '.join(presets)}")
    return {**presets[name], **fields}
