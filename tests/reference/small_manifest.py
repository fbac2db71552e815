"""A manifest so small that its whole run is made in milliseconds."""

from typing import Any

from protocol.manifest import Manifest, check_manifest

SMALL: dict[str, dict[str, Any]] = {
    "run": {"seed": 7},
    "model": {
        "layers": 3,
        "d": 16,
        "heads": 2,
        "kv_heads": 2,
        "ffn": 24,
        "context": 8,
        "vocabulary": 300,
    },
    "replicas": {"groups": 2, "datacenters": 1, "stages": 2, "compression": 4},
    "inner": {"steps": 3, "sequences": 4, "microbatch": 2},
    "evaluation": {"sequences": 5, "held_out": 0.2},
}


def small_manifest(**tables: dict[str, Any]) -> Manifest:
    """The small manifest with some fields of some tables replaced."""
    names = SMALL.keys() | tables.keys()
    return check_manifest({name: SMALL.get(name, {}) | tables.get(name, {}) for name in names})
