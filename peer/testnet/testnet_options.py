"""The options of `hetpeer testnet`, and the manifest that follows from them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.planning.memory import MemoryName
from protocol import manifest as manifests
from protocol.architectures import ARCHITECTURES
from protocol.model_sizes import USUAL_ARCHITECTURE

LEAST_EVALUATED = 4
EVALUATED_TOKENS = 2**14
"""The tokens that are evaluated. Of a model with a long context fewer sequences are evaluated, 64 at most and 4 at
least: on a CPU a round would be evaluated for longer than it trains."""


@dataclass(frozen=True, slots=True)
class TestnetOptions:
    """The options of `hetpeer testnet`. Without `compression`, boundaries are those of a manifest that says nothing
    of them. `layers` has a number for each stage; without them, `balance` cuts. All processes compute on one
    `device`."""

    preset: str
    groups: int
    stages: int
    datacenters: int
    compression: int | str | None
    rounds: int
    inner_steps: int
    data: Path | None = None
    directory: Path | None = None
    report: Path | None = None
    compare: bool = True
    overlap: bool = False
    step_overlap: int = 0
    most_steps: int = 0
    audit: bool = False
    layers: tuple[int | str, ...] = ()
    balance: str | None = None
    memory: MemoryName = "auto"
    device: str = "cpu"
    optimizer: str = "adamw"
    ngrams: int = 0

    __test__ = False

    def manifest_tables(self) -> dict[str, dict[str, Any]]:
        """The run's manifest: small batches and a high learning rate, so that minutes show something."""
        replicas: dict[str, Any] = {"groups": self.groups, "datacenters": self.datacenters, "stages": self.stages}
        replicas |= {"compression": self.compression} if self.compression is not None else {}
        replicas |= {"layers": self.layers} if self.layers else {}
        replicas |= {"balance": self.balance} if self.balance else {}
        replicas |= {"ngrams": self.ngrams} if self.ngrams else {}
        total = self.rounds * self.inner_steps
        presets = ARCHITECTURES[USUAL_ARCHITECTURE].presets
        context = presets[self.preset]["context"] if self.preset in presets else 1  # checked with the rest
        return {
            "run": {"name": "testnet"},
            "model": {"preset": self.preset},
            "replicas": replicas,
            "inner": {
                "steps": self.inner_steps,
                "most_steps": self.most_steps,
                "sequences": 8,
                "microbatch": 2,
                "overlap": self.step_overlap,
                "optimizer": self.optimizer,
                "learning_rate": 4e-3,
                "warmup": min(40, total // 4),
            },
            "outer": {"rounds": self.rounds, "overlap": self.overlap},
            "evaluation": {"sequences": max(LEAST_EVALUATED, min(64, EVALUATED_TOKENS // context))},
        }


def check_testnet_manifest(options: TestnetOptions) -> manifests.Manifest:
    """The manifest these options make.

    Raises:
        ManifestError: they do not fit together.
    """
    return manifests.check_manifest(options.manifest_tables(), "these options")


def to_toml(tables: dict[str, dict[str, Any]]) -> str:
    """Tables of numbers, strings, booleans and lists of numbers as TOML: for these, JSON's notation is the same."""
    lines: list[str] = []
    for table, fields in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
        lines.append("")
    return "\n".join(lines)
