"""How well one device is used: this trainer, and a pipeline of four processes, beside plain PyTorch on the same device.

For each preset, in turns with plain PyTorch (`benchmarks/compared/llama.py`: one file that knows nothing of hetpeer),
on the same first weights and the same tokens:

- a whole replica in one process, as a datacenter has it, with activations kept or recomputed;
- each of four stages of a group, a process without its neighbours: bytes in, bytes out, with as many microbatches in
  flight as 1F1B has there;
- the four stages as four processes on the one device, with frames and TLS over loopback. Without
  NVIDIA's MPS the processes of one card take turns on it;
- torchtitan's llama in the plain loop, where torchtitan 0.2 is installed, from its own first weights.

Each side is a process that waits while another has its turn, so that its peak memory is its own. Plain PyTorch has a
turn beside each of the others, and a ratio is the median over the turns; a side's first step does not count. The ratio
of a stage counts the share of the model's multiplications that it has. Equal losses say that sides do the same work:
those of groups differ, as their token embedding has k dimensions and their boundaries round.

Share of the peak (MFU) = tokens/s · (6 · N + 6 · L · d · layers) / the card's peak in 16 bits without sparsity. N
counts all weights but the token embedding; attention is causal, half of the square. What is recomputed does not count.

Memory is what torch gave out on CUDA, without the half gigabyte that CUDA itself takes in each process; and on a CPU
what the process took beyond what it had before the model (Linux). Beside it is what the memory model
(`peer/planning/memory.py`) says of the device. On a CPU there is also the ratio of tokens a CPU-second, which depends
less on what else the machine does.

By default a GPU gets 178m, 512m and 1b, compiled, in bf16 where it is good at that; a CPU gets micro and tiny in fp32.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc
os.environ["HIVEMIND_LOGLEVEL"] = "CRITICAL"

import torch
from compared.peak import peak_operations, peak_share
from compared.sides import PLAIN, SIDES, STAGES, Case, Side, serve
from group.processes import Processes, started
from options.small import sized_arguments

from peer.compute.arithmetic import FACTORS, Arithmetic, precision_on
from peer.compute.capacity import cores, find_device
from peer.planning.memory import Duty, memory_of
from peer.planning.model import shares_of
from protocol.manifest import Manifest
from protocol.trust.keys import load_or_create


@dataclass(frozen=True, slots=True)
class Taken:
    """A step of a side. `processor`: seconds that its processes computed; `peak`: bytes that each of them has had at
    most, summed."""

    seconds: float
    processor: float
    peak: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A side on one preset. `stage`: of one stage alone. `share`: of the model's multiplications that it computes.
    `of_plain`: tokens a second as a multiple of plain PyTorch's, times `share`; `cpu_of_plain`: the same of tokens a
    CPU-second; `of_replica`: `of_plain` as a multiple of that of the whole replica that keeps activations.
    `peak_share`: MFU. `loss`: of the last step that every side takes, in nats a token; None of a stage alone."""

    preset: str
    side: str
    memory: str
    stage: int | None
    share: float
    tokens_per_s: float
    of_plain: float
    cpu_of_plain: float | None
    of_replica: float | None
    peak_share: float | None
    peak_bytes: int
    estimate_bytes: int | None
    loss: float | None


@contextlib.contextmanager
def served(case: Case, side: Side) -> Iterator[Callable[[], Taken]]:
    """A side's processes for as long as the block lasts: a function that lets them take a step."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load_or_create(folder / "operator")
        own = [sys.executable, __file__, "--serve", json.dumps(asdict(case)), json.dumps(asdict(side)), str(folder)]
        count = STAGES if side.name == "pipeline" else 1
        made: Processes = stack.enter_context(started([[*own, str(index)] for index in range(count)]))
        if side.name == "pipeline":
            made.introduce()

        def take() -> Taken:
            answers = made.tell("step")
            processor, peak = (sum(each[what] for each in answers) for what in ("processor", "peak"))
            return Taken(max(each["seconds"] for each in answers), processor, peak, answers[0]["loss"])

        yield take


@dataclass(slots=True)
class Measuring:
    """The steps of one preset's sides, as they come, and who was left out, with the reason."""

    case: Case
    turns: int
    peak: float | None
    """Operations a second of the device, where that is known."""
    taken: dict[Side, list[Taken]] = field(default_factory=dict)
    beside: dict[Side, list[Taken]] = field(default_factory=dict)
    """Plain PyTorch's steps in the same turns."""
    left_out: list[str] = field(default_factory=list)

    def measure(self, names: list[str]) -> None:
        """All sides of these names, each beside plain PyTorch, which takes part all the time."""
        with served(self.case, PLAIN) as plain_step:
            for name in names:
                try:
                    self._in_turns(SIDES[name], plain_step)
                except (RuntimeError, BrokenPipeError) as error:
                    self.left_out.append(f"{self.case.preset}, {name}: {error}")

    def _in_turns(self, sides: list[Side], plain_step: Callable[[], Taken]) -> None:
        with contextlib.ExitStack() as stack:
            steps = {PLAIN: plain_step} | {side: stack.enter_context(served(self.case, side)) for side in sides}
            found: dict[Side, list[Taken]] = {side: [] for side in steps}
            for turn in range(1 + self.turns):
                for side in steps if turn % 2 else reversed(steps):
                    taken = steps[side]()
                    print(f"{side.words:>20}: {taken.seconds:7.2f} s", file=sys.stderr, flush=True)
                    found[side].append(taken)
        self.taken[PLAIN] = self.taken.get(PLAIN, []) + found[PLAIN]
        for side in sides:
            self.taken[side], self.beside[side] = found[side], found[PLAIN]

    def rows(self) -> list[Row]:
        """A row for each side, plain PyTorch first."""
        made = [self._row(side) for side in self.taken]
        whole = next((row.of_plain for row in made if (row.side, row.memory) == ("replica", "keep")), None)
        return [replace(row, of_replica=whole and row.of_plain / whole) for row in made]

    def _row(self, side: Side) -> Row:
        case, manifest = self.case, self.case.manifest
        taken, beside = self.taken[side][1:], self.beside.get(side, self.taken[side])[1:]
        share = 1.0 if side.stage is None else shares_of(manifest)[side.stage]
        pairs = list(zip(beside, taken, strict=True))
        speed = case.tokens / statistics.median(each.seconds for each in taken)
        return Row(
            preset=case.preset,
            side=side.name,
            memory="recompute" if side.recompute else "keep",
            stage=side.stage,
            share=share,
            tokens_per_s=speed,
            of_plain=share * statistics.median(plain.seconds / each.seconds for plain, each in pairs),
            cpu_of_plain=share * statistics.median(plain.processor / each.processor for plain, each in pairs)
            if case.device == "cpu"
            else None,
            of_replica=None,
            peak_share=None if self.peak is None else peak_share(manifest, speed, share, self.peak),
            peak_bytes=max(each.peak for each in taken),
            estimate_bytes=estimate(manifest, side),
            loss=self.taken[side][self.turns].loss,
        )


def estimate(manifest: Manifest, side: Side) -> int | None:
    """What the memory model says of a side's device, in bytes; of those who are no peers, nothing."""
    match side.name:
        case "replica":
            return memory_of(manifest, Duty("datacenter", recompute=side.recompute)).device
        case "stage":
            return memory_of(manifest, Duty("volunteer", side.stage or 0, recompute=side.recompute)).device
        case "pipeline":
            return sum(memory_of(manifest, Duty("volunteer", stage)).device for stage in range(STAGES))
    return None


def report(rows: list[Row]) -> None:
    """A table for people."""

    def words(of: float | None, digits: int = 3) -> str:
        return "–" if of is None else f"{of:.{digits}f}"

    names = ("tokens/s", "of plain", "per CPU-s", "of replica", "MFU", "peak MB", "estimate", "loss")
    print(f"{'preset':>7} {'':20}", *(f"{name:>10}" for name in names))
    for row in rows:
        side = Side(row.side, row.memory == "recompute", row.stage).words
        estimated = None if row.estimate_bytes is None else row.estimate_bytes / 1e6
        columns = (
            words(row.tokens_per_s, 0),
            *(words(each) for each in (row.of_plain, row.cpu_of_plain, row.of_replica, row.peak_share)),
            words(row.peak_bytes / 1e6, 0),
            words(estimated, 0),
            words(row.loss, 4),
        )
        print(f"{row.preset:>7} {side:20}", *(f"{column:>10}" for column in columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", help="models; default: what the device is good for")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16", "fp16"], default="auto")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on CUDA")
    parser.add_argument("--sequences", type=int, help="of a step; default: 32, on a CPU 8")
    parser.add_argument("--microbatch", type=int, help="sequences; default: 4, on a CPU 1")
    parser.add_argument("--threads", type=int, default=cores(), help="of an operation on a CPU; default: all cores")
    parser.add_argument("--turns", type=int, default=5, help="steps of each side that count")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    given = sized_arguments(
        parser, presets=["pico"], device="cpu", sequences=4, turns=1, sides=["replica", "stages", "pipeline"]
    )
    if given.serve:
        case, side, folder, index = given.serve
        serve(Case(**json.loads(case)), Side(**json.loads(side)), Path(folder), int(index))
        return
    kind = find_device("cpu" if given.device == "auto" and not torch.cuda.is_available() else given.device).type
    small = kind == "cpu"
    precision: Any = (
        "fp32" if small and given.precision == "auto" else precision_on(given.precision, torch.device(kind))
    )
    compiled = given.compile if given.compile is not None else not small
    Arithmetic(precision, compiled).require(torch.device(kind))
    card = (
        f"a CPU of {cores()} cores, of which an operation may use {given.threads}"
        if small
        else torch.cuda.get_device_name()
    )
    peak = peak_operations(card) if precision in FACTORS else None
    sides, left_out, rows = list(given.sides), list[str](), list[Row]()
    if "torchtitan" in sides and importlib.util.find_spec("torchtitan") is None:
        sides.remove("torchtitan")
        left_out.append("torchtitan: it is not installed")
    load = [os.getloadavg()[0]]
    for preset in given.presets or (["micro", "tiny"] if small else ["178m", "512m", "1b"]):
        case = Case(
            preset,
            given.sequences or (8 if small else 32),
            given.microbatch or (1 if small else 4),
            kind,
            precision,
            compiled,
            given.threads,
        )
        measuring = Measuring(case, given.turns, peak)
        try:
            measuring.measure(sides)
        except (RuntimeError, BrokenPipeError) as error:
            measuring.left_out.append(f"{preset}, plain: {error}")
        rows += measuring.rows()
        left_out += measuring.left_out
    load.append(os.getloadavg()[0])
    if given.json:
        about = {"device": card, "precision": precision, "compiled": compiled, "load": load, "left_out": left_out}
        print(json.dumps(about | {"rows": [asdict(row) for row in rows]}, indent=1))
        return
    print(
        f"{card}, {precision}{', compiled' if compiled else ''}; load of the machine: {load[0]:.1f}, then {load[1]:.1f}"
    )
    report(rows)
    for each in left_out:
        print(f"left out: {each}")


if __name__ == "__main__":
    main()
