"""Whether what `hetpeer doctor` and `hetpeer plan` say of a round is what a round then takes: real processes, measured.

A bootstrap node and one group of volunteers, a stage each, all on this machine, with one core for each stage's
tensors. First as many doctors as there will be stages, at the same time, since stages share this machine's memory and
caches as well: each says of its own stage what a step and a round would take. Then the volunteers join and train, and
the doctors come again: machines whose host is shared change their speed by half within a minute, so what was said is
the mean of both. Then the plan's model is given the doctors' speed and link as its options, as a user would type them.

With `--mbps` every volunteer has a host of its own (a network namespace) whose link has that rate, the same up and
down, and 20 ms to the others; that needs root and `/dev/net/tun`.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from shaped.hosts import hosts, missing

from peer.telemetry.events import Event, Failed, Finished, RoundDone, Serving, StepDone, from_line
from peer.testnet.testnet_options import to_toml

ROOT = Path(__file__).parents[1]
RUN_TOML = "run.toml"
LATENCY = 0.02
WAIT_SECONDS = 600.0
PLAN_UNITS = {"up": 1e-6, "down": 1e-6, "latency": 1e3, "teraflops": 1.0}
"""What the plan's options are in, of what the doctor says."""


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of an inner step and of a round: as the doctors said, as the plan says with their numbers, as measured.
    Ratios are of what was said to what was measured."""

    mbps: float | None
    load: float
    up: float
    down: float
    doctor_step: float
    doctor_round: float
    plan_step: float
    plan_round: float
    step: float
    round: float
    doctor_step_ratio: float = field(init=False)
    doctor_round_ratio: float = field(init=False)
    plan_step_ratio: float = field(init=False)
    plan_round_ratio: float = field(init=False)

    def __post_init__(self) -> None:
        for name in ("doctor_step", "doctor_round", "plan_step", "plan_round"):
            measured = self.step if name.endswith("step") else self.round
            object.__setattr__(self, f"{name}_ratio", getattr(self, name) / measured)


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured."""

    preset: str
    stages: int
    steps: int
    rounds: int
    microbatch: int
    microbatches: int
    compression: int
    seconds: float

    def tables(self) -> dict[str, dict[str, Any]]:
        """Its manifest."""
        inner = {"steps": self.steps, "microbatch": self.microbatch, "sequences": self.microbatch * self.microbatches}
        replicas = {"groups": 1, "datacenters": 0, "stages": self.stages, "compression": self.compression}
        return {
            "model": {"preset": self.preset},
            "replicas": replicas,
            "inner": inner | {"warmup": 1},
            "outer": {"rounds": self.rounds},
        }


@dataclass(slots=True)
class Process:
    """A `hetpeer`, and what it says, with the time at which it said so."""

    popen: subprocess.Popen[str]
    said: list[tuple[float, Event]] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with contextlib.suppress(ValueError), self.news:
                self.said.append((time.monotonic(), from_line(line)))
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def wait_for(self, kind: type[Event]) -> Event:
        """The first event of this kind."""

        def found() -> list[Event]:
            return [event for _, event in self.said if isinstance(event, kind)]

        with self.news:
            if not self.news.wait_for(lambda: found() or self.ended, WAIT_SECONDS) or not found():
                raise RuntimeError(f"no {kind.__name__}: {[e for _, e in self.said if isinstance(e, Failed)]}")
            return found()[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Where processes run: what goes before the command of each, and where the node listens."""

    before: list[list[str]]
    address: str


@contextlib.contextmanager
def places(stages: int, mbps: float | None) -> Iterator[Place]:
    """Loopback; or hosts, of which the last is the node's and has no limit."""
    if mbps is None:
        yield Place([[]] * (stages + 1), "127.0.0.1")
        return
    with hosts(stages + 1, LATENCY) as on:
        on.limit(mbps, stages)
        yield Place([on.enter(number) for number in range(stages + 1)], on.address(stages))


@contextlib.contextmanager
def started(before: list[str], *arguments: str, home: Path) -> Iterator[Process]:
    """A `hetpeer` for as long as the block lasts."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HETPEER_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, "-m", "peer.cli", *arguments, "--json", "--until-stdin-closes"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = Process(subprocess.Popen(command, text=True, env=environment, cwd=ROOT, **pipes))  # type: ignore[call-overload]
    listening = threading.Thread(target=process.listen)
    listening.start()
    try:
        yield process
    finally:
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        try:
            process.popen.wait(30)
        except subprocess.TimeoutExpired:
            process.popen.kill()
        listening.join()
        assert process.popen.stdout is not None
        process.popen.stdout.close()


def asked(before: list[str], *arguments: str) -> subprocess.Popen[str]:
    """A `hetpeer` that answers and ends."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, "-m", "peer.cli", *arguments, "--json"]
    return subprocess.Popen(command, text=True, env=environment, cwd=ROOT, stdout=subprocess.PIPE)


def rows_of(process: subprocess.Popen[str], key: str) -> dict[Any, dict[str, Any]]:
    """What it answered, by one of the names in it."""
    out, _ = process.communicate(timeout=WAIT_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}: {out}")
    rows = [json.loads(line) for line in out.splitlines()]
    return {row[key]: row for row in rows if key in row}


def measure(case: Case, mbps: float | None) -> Row:
    """Once."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hetpeer-doctor-")))
        place = stack.enter_context(places(case.stages, mbps))
        ticket = stack.enter_context(served(case, place, folder))
        before, load = doctors(case, place, ticket), os.getloadavg()[0]
        step, round = trained(case, place, ticket, folder)
        found = before + doctors(case, place, ticket)
        return beside(case, folder / RUN_TOML, found, mbps, load, step, round)


@contextlib.contextmanager
def served(case: Case, place: Place, folder: Path) -> Iterator[str]:
    """A bootstrap node with the run; its ticket."""
    (folder / RUN_TOML).write_text(to_toml(case.tables()))
    serve = ["bootstrap", str(folder / RUN_TOML), "--listen", f"{place.address}:0", "--dir", str(folder / "node")]
    with started(place.before[-1], *serve, home=folder) as node:
        serving = node.wait_for(Serving)
        assert isinstance(serving, Serving)
        yield serving.ticket


def doctors(case: Case, place: Place, ticket: str) -> list[dict[str, dict[str, Any]]]:
    """What each stage's own machine is told, at the same time."""
    options = ["--device", "cpu", "--threads", "1", "--seconds", str(case.seconds)]
    processes = [asked(place.before[stage], "doctor", ticket, *options) for stage in range(case.stages)]
    return [{name: row["numbers"] for name, row in rows_of(each, "name").items()} for each in processes]


def trained(case: Case, place: Place, ticket: str, folder: Path) -> tuple[float, float]:
    """Seconds of an inner step, and of a round, without the first, in which much is done for the first time."""
    with contextlib.ExitStack() as stack:
        joined = []
        for stage in range(case.stages):
            options = [
                "--stage",
                str(stage),
                "--device",
                "cpu",
                "--threads",
                "1",
                "--dir",
                str(folder / f"peer-{stage}"),
            ]
            joined.append(stack.enter_context(started(place.before[stage], "join", ticket, *options, home=folder)))
        for each in joined:
            each.wait_for(Finished)
        said = joined[0].said
    ends = {(event.round, event.step): at for at, event in said if isinstance(event, StepDone)}
    steps = [at - ends[round, step - 1] for (round, step), at in ends.items() if round > 1 and step > 0]
    rounds = [event.seconds for _, event in said if isinstance(event, RoundDone) and event.round > 1]
    return mean(steps), mean(rounds)


def rated(case: Case, mbps: float) -> dict[str, float]:
    """What a doctor says of a link that has this rate, as a share of it, and of its 40 ms there and back."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hetpeer-doctor-")))
        place = stack.enter_context(places(1, mbps))
        ticket = stack.enter_context(served(case, place, folder))
        rows = rows_of(asked(place.before[0], "doctor", ticket, "--threads", "1", "--seconds", "0.1"), "name")
        way = next(row["numbers"] for name, row in rows.items() if name.startswith("node "))
        said = {name: way[name] / mbps / 1e6 for name in ("up", "down")}
        return {"mbps": mbps, **said, "round_trip": way["round_trip"] / (2 * LATENCY)}


def beside(
    case: Case,
    run_toml: Path,
    found: list[dict[str, dict[str, Any]]],
    mbps: float | None,
    load: float,
    step: float,
    round: float,
) -> Row:
    """What was said and what was measured. Each doctor speaks of a group of machines like its own: their mean."""
    group = [each["group"] for each in found]
    link = {name: mean(each[name] for each in group) for name in ("up", "down", "latency", "teraflops")}
    options = [f"--{name}={value * PLAN_UNITS[name]}" for name, value in link.items()]
    planned = rows_of(asked([], "plan", str(run_toml), *options), "compression")[case.compression]
    return Row(
        mbps=mbps,
        load=load,
        up=link["up"],
        down=link["down"],
        doctor_step=mean(each["step"] for each in group),
        doctor_round=mean(each["round"] for each in group),
        plan_step=planned["step"]["seconds"],
        plan_round=planned["seconds"],
        step=step,
        round=round,
    )


def table(rows: list[Row]) -> str:
    """Lines of text."""
    names = ("step", "doctor", "plan", "round", "doctor", "plan")
    widths = (8, 15, 15, 8, 15, 15)
    head = f"{'links':>10} {'load':>5} {'up':>9} " + " ".join(map(str.rjust, names, widths))
    return "\n".join([head, *map(line, rows)])


def line(row: Row) -> str:
    """One measurement."""
    link = "loopback" if row.mbps is None else f"{row.mbps:g} Mb/s"
    said = (
        f"{seconds:7.2f} s {ratio:5.2f}"
        for seconds, ratio in (
            (row.doctor_step, row.doctor_step_ratio),
            (row.plan_step, row.plan_step_ratio),
            (row.doctor_round, row.doctor_round_ratio),
            (row.plan_round, row.plan_round_ratio),
        )
    )
    steps, plans, rounds, rounds_planned = said
    up = f"{row.up / 1e6:.0f} Mb/s"
    return (
        f"{link:>10} {row.load:5.1f} {up:>9} {row.step:6.2f} s {steps:>15} {plans:>15} {row.round:6.1f} s {rounds:>15} "
        f"{rounds_planned:>15}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--mbps", type=float, nargs="*", default=[], help="of links, besides loopback")
    parser.add_argument("--no-loopback", action="store_true")
    parser.add_argument(
        "--rates", type=float, nargs="+", metavar="MBPS", help="only what is said of links of these rates"
    )
    parser.add_argument("--preset", default="micro")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--microbatch", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--compression", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0, help="that a doctor computes on each kind of stage")
    given = parser.parse_args()
    if (given.mbps or given.rates) and (lacking := missing()):
        print(lacking, file=sys.stderr)
        return 1
    if given.rates:
        found = [rated(Case("nano", 2, 2, 2, 2, 2, 8, 0.1), each) for each in given.rates]
        shown = (" ".join(f"{name} {value:.2f}" for name, value in each.items()) for each in found)
        print(json.dumps({"rates": found}) if given.json else "\n".join(shown))
        return 0
    case = Case(**{name: getattr(given, name) for name in Case.__slots__})
    links: list[float | None] = [*([] if given.no_loopback else [None]), *given.mbps]
    rows = []
    for link in links:
        for _ in range(given.repeat):
            rows.append(measure(case, link))
            print(line(rows[-1]), file=sys.stderr, flush=True)
    ratios = {name: median(getattr(row, name) for row in rows) for name in Row.__slots__ if name.endswith("_ratio")}
    print(json.dumps({**ratios, "rows": [asdict(row) for row in rows]}, indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
