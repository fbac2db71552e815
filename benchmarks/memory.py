"""What peers take of memory, beside what `hetpeer plan`, `doctor` and `join` say that they take.

Each row is a process of its own that imports what a daemon imports, takes up first weights from disk, and goes through
two rounds as a peer of that role does: passes of microbatches, with as many in flight as its stage must have, an inner
step, a contribution, a checkpoint, the others' contributions, the next state, a snapshot, and an evaluation where the
role has one. Only the network is not there. The peak is the kernel's count (Linux) of all of the process. What tensors
the trainer and the outer state hold between two steps is counted in them.

The presets that fit are `tiny`, `178m`, and single stages of four of `512m` and `1b`; --presets takes some of them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.group.processes import ROOT, begin_aside
from benchmarks.options.small import sized_arguments
from peer.planning.memory import NETWORK_BYTES, Duty, memory_of, process_bytes, trained_values
from protocol.manifest import Manifest, check_manifest

STAGES = 4

MB = 1e6


@dataclass(frozen=True, slots=True)
class Case:
    """One process. `stage`: a volunteer's, of four."""

    preset: str
    role: str
    stage: int = 0
    memory: str = "keep"
    microbatch: int = 1
    ngrams: int = 0

    @property
    def manifest(self) -> Manifest:
        """The run: two groups and a datacenter, where a round has three contributions."""
        return check_manifest(
            {
                "model": {"preset": self.preset},
                "replicas": {
                    "groups": 2,
                    "datacenters": 1,
                    "stages": STAGES,
                    "compression": 8,
                    "ngrams": self.ngrams,
                },
                "inner": {"microbatch": self.microbatch, "sequences": STAGES * self.microbatch},
            }
        )

    @property
    def duty(self) -> Duty:
        """What it does."""
        role: Any = "observer" if self.role == "holder" else self.role
        return Duty(role, self.stage, holds=self.role == "holder", recompute=self.memory == "recompute")


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes. `device_bytes` and `host_bytes`: of tensors that are held between two inner steps, where the model is
    computed and beside it; `base_bytes`: of the process after its imports; `measured_bytes`: the most that all of it
    took; `estimate_bytes`: the memory model's, by that base, less the network's. `above`: how much that is above what
    was measured, as a share."""

    role: str
    preset: str
    stage: int | None
    memory: str
    microbatch: int
    ngrams: int
    device_bytes: int
    host_bytes: int
    base_bytes: int
    measured_bytes: int
    estimate_bytes: int
    above: float
    device_bytes_a_parameter: float
    host_bytes_a_parameter: float


CASES = {
    "nano": [
        Case("nano", "volunteer", 1, "recompute", 4),
        Case("nano", "holder"),
    ],
    "tiny": [
        *(Case("tiny", "volunteer", stage, memory, 4) for stage in range(STAGES) for memory in ("keep", "recompute")),
        *(Case("tiny", "volunteer", stage, "keep", 4, ngrams=3) for stage in (1, 3)),
        Case("tiny", "datacenter", microbatch=4),
        Case("tiny", "datacenter", memory="recompute", microbatch=4),
        Case("tiny", "observer", microbatch=4),
        Case("tiny", "holder"),
    ],
    "178m": [
        *(Case("178m", "volunteer", stage) for stage in (0, 1, 3)),
        *(Case("178m", "volunteer", stage, "recompute") for stage in (0, 3)),
        Case("178m", "datacenter", memory="recompute"),
        Case("178m", "observer"),
        Case("178m", "holder"),
    ],
    "512m": [Case("512m", "volunteer", stage, "recompute") for stage in (0, 1, 3)],
    "1b": [Case("1b", "volunteer", stage, "recompute") for stage in (0, 1, 3)],
}


def measured(case: Case) -> Row:
    """One case, in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="hetpeer-memory-") as folder:
        program, own = [sys.executable, "-m", "benchmarks.group.lifetime"], [folder, json.dumps(asdict(case))]
        if code := begin_aside([*program, "prepare", *own], sys.stderr).wait():
            raise SystemExit(f"the first weights were not written: exit code {code}")
        live = [*program, "live", *own]  # no fork in any case: a fork has memory of its parent's
        counted = json.loads(subprocess.run(live, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout)
    manifest = case.manifest
    estimate = memory_of(manifest, case.duty, process_bytes(counted["base"])).total - NETWORK_BYTES
    values = trained_values(manifest, case.duty)
    return Row(
        role=case.role,
        preset=case.preset,
        stage=case.stage if case.role == "volunteer" else None,
        memory=case.memory,
        microbatch=case.microbatch,
        ngrams=case.ngrams,
        device_bytes=counted["device"],
        host_bytes=counted["host"],
        base_bytes=counted["base"],
        measured_bytes=counted["peak"],
        estimate_bytes=estimate,
        above=estimate / counted["peak"] - 1,
        device_bytes_a_parameter=counted["device"] / values if values else 0.0,
        host_bytes_a_parameter=counted["host"] / values if values else 0.0,
    )


def table(rows: list[Row]) -> str:
    """The rows for a person."""
    lines = ["role              preset  memory     device    host   peak  estimate          bytes a trained parameter"]
    for row in rows:
        role = row.role if row.stage is None else f"stage {row.stage}"
        role += f", ngrams {row.ngrams}" if row.ngrams else ""
        each = f"{row.device_bytes_a_parameter:5.1f} device, {row.host_bytes_a_parameter:.1f} host"
        lines.append(
            f"{role:17} {row.preset:7} {row.memory:9} {row.device_bytes / MB:7.0f} {row.host_bytes / MB:7.0f} "
            f"{row.measured_bytes / MB:6.0f} {row.estimate_bytes / MB:9.0f} {row.above:+7.1%}"
            + (f"   {each}" if row.device_bytes_a_parameter and row.role != "observer" else "")
        )
    return "\n".join([*lines, "device, host: held between two steps; in MB"])


def main() -> None:
    """Measure, and print a table, or `--json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=CASES, default=["tiny"], help="default: tiny, in two minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object with `rows` instead")
    options = sized_arguments(parser, presets=["nano"])
    rows = []
    for case in (case for preset in options.presets for case in CASES[preset]):
        rows.append(measured(case))
        print(table(rows[-1:]).splitlines()[1], file=sys.stderr, flush=True)
    print(json.dumps({"rows": [asdict(row) for row in rows]}) if options.json else table(rows))


if __name__ == "__main__":
    main()
