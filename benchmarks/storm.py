"""A storm of faults, beside the same swarm undisturbed: how many of its tokens it keeps, how soon the dead are noticed,
and whether anybody's memory grows.

Runs `python -m tests.chaos` twice: first a few rounds undisturbed, for its pace; then for as long as asked with
`--chaos random:…`. Tokens are those that were contributed, over the time from the first inner step to the last round's
end. A death is noticed when the rest of the group says that it is broken. Memory is the resident set of each process
that lived for `STEADY_SECONDS` and more, from then on; its growth is the slope of a straight line through it.

Needs root, iproute2 and nftables, for partitions and slow links. Leave the machine alone meanwhile: all processes share
its cores.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import psutil
from group.processes import begin_aside
from options.small import sized_arguments

CALM_ROUNDS, FEWEST_ROUNDS = 6, 4
SAMPLE_SECONDS = 5.0
STEADY_SECONDS = 180.0
"""Until then a process still allocates what it will need."""

Log = list[dict[str, Any]]
Memory = dict[str, list[tuple[float, float]]]
"""(seconds, MiB) by process: its folder and id."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a testnet did, and the memory of its processes."""

    report: dict[str, Any]
    log: Log
    memory: Memory

    def tokens_per_second(self) -> float:
        """Contributed tokens over the time that the rounds took."""
        done = [line for line in self.log if line["event"] == "RoundDone"]
        began = next(line["at"] for line in self.log if line["event"] == "StepDone")
        return float(sum(line["tokens"] for line in done) / (max(line["at"] for line in done) - began))

    def ends(self) -> list[float]:
        """When the first process had finished each round."""
        return [min(line["at"] for line in self.log if _ends(line, round)) for round in range(1, self.rounds + 1)]

    def round_seconds(self) -> float:
        """How long a round usually takes."""
        return median(later - earlier for earlier, later in pairwise(self.ends()))

    def undisturbed_tokens_per_second(self) -> float | None:
        """The same over the rounds in which nothing was done to anybody, nor in the one before; None without any."""
        faults, ends = [line["at"] for line in self.log if line["event"] == "Injected"], self.ends()
        quiet = [
            (round, later - one)
            for round, (before, one, later) in enumerate(zip(ends, ends[1:], ends[2:], strict=False), start=3)
            if not any(before <= at < later for at in faults)
        ]
        tokens = {round: sum(line["tokens"] for line in self.log if _ends(line, round)) for round, _ in quiet}
        return sum(tokens.values()) / sum(seconds for _, seconds in quiet) if quiet else None

    @property
    def rounds(self) -> int:
        """Rounds that were asked for."""
        return int(self.report["run"]["outer"]["rounds"])

    def noticed(self) -> list[float]:
        """Seconds from each kill in a group to the first of the others that says so."""
        found = []
        for index, line in enumerate(self.log):
            if line["event"] == "Injected" and line["action"] == "killed":
                later = (each for each in self.log[index:] if each["event"] in ("GroupBroken", "Injected"))
                told = next((each for each in later if each is not line), None)
                if told is not None and told["event"] == "GroupBroken":
                    found.append(round(told["at"] - line["at"], 3))
        return found

    def growth(self) -> tuple[float, str]:
        """MiB a minute of the process that grows most, and which that is."""
        slopes = []
        for process, samples in self.memory.items():
            steady = [(at, size) for at, size in samples if at - samples[0][0] >= STEADY_SECONDS]
            if len(steady) > STEADY_SECONDS / SAMPLE_SECONDS:
                slopes.append((60 * linear_regression(*zip(*steady, strict=True)).slope, process))
        return max(slopes, default=(0.0, ""))


def _ends(line: dict[str, Any], round: int) -> bool:
    return line["event"] == "RoundDone" and line["round"] == round


def testnet(folder: Path, rounds: int, steps: int, chaos: str | None) -> Run:
    """Run a testnet to its end."""
    where = ["--dir", str(folder / "net"), "--report", str(folder / "report.json"), "--no-compare"]
    shape = ["--rounds", str(rounds), "--inner-steps", str(steps), *(["--chaos", chaos] if chaos else [])]
    memory: Memory = defaultdict(list)
    with (folder / "said.txt").open("w") as said:
        process = begin_aside([sys.executable, "-m", "tests.chaos", *where, *shape], said)
        code, seconds = None, 0.0
        while code is None:
            try:
                code = process.wait(SAMPLE_SECONDS)
            except subprocess.TimeoutExpired:
                seconds += SAMPLE_SECONDS
                _sample(process.pid, seconds, memory)
    if code:
        raise SystemExit(f"the testnet ended with exit code {code}; what it said is in {folder}")
    (folder / "memory.json").write_text(json.dumps(memory))
    log = [json.loads(line) for line in (folder / "net" / "events.jsonl").read_text().splitlines()]
    return Run(json.loads((folder / "report.json").read_text()), log, memory)


def _sample(pid: int, seconds: float, memory: Memory) -> None:
    for child in psutil.Process(pid).children(recursive=True):
        try:
            words = child.cmdline()
            if "peer.cli" in words:
                memory[f"{Path(words[words.index('--dir') + 1]).name} ({child.pid})"].append(
                    (seconds, child.memory_info().rss / 2**20)
                )
        except psutil.Error:
            continue  # it has just ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """A storm's result. `kept` is of the calm run's tokens a second; `kept_beside_own_pace` of those of this run's own
    rounds without faults, where there are any: machines have slow minutes. `seconds_lost` and `steps_lost` are the
    report's, over all faults; memory in MiB a minute."""

    minutes: float
    faults: int
    kept: float
    kept_beside_own_pace: float | None
    tokens_per_second: float
    undisturbed_tokens_per_second: float
    noticed_median: float
    noticed_most: float
    seconds_lost: float
    steps_lost: int
    memory_growth: float
    memory_growth_of: str
    rounds: int
    digests_equal: bool
    loss: float


def storm(
    folder: Path, minutes: float, per_minute: float, kinds: str, seed: int, steps: int, calm_rounds: int
) -> Outcome:
    """Both runs."""
    for name in ("calm", "storm"):
        (folder / name).mkdir(parents=True)
    calm = testnet(folder / "calm", calm_rounds, steps, None)
    rounds = max(FEWEST_ROUNDS, math.ceil(60 * minutes / calm.round_seconds()))
    run = testnet(folder / "storm", rounds, steps, f"random:{seed}:{per_minute:g}:{kinds}")
    chaos, ends = run.report["chaos"], [line["at"] for line in run.log if line["event"] == "RoundDone"]
    own = run.undisturbed_tokens_per_second()
    noticed, (growth, who) = run.noticed(), run.growth()
    return Outcome(
        minutes=round((max(ends) - run.log[0]["at"]) / 60, 1),
        faults=sum(fault["seconds"] is not None for fault in chaos["faults"]),
        kept=run.tokens_per_second() / calm.tokens_per_second(),
        kept_beside_own_pace=run.tokens_per_second() / own if own else None,
        tokens_per_second=run.tokens_per_second(),
        undisturbed_tokens_per_second=calm.tokens_per_second(),
        noticed_median=median(noticed) if noticed else 0.0,
        noticed_most=max(noticed, default=0.0),
        seconds_lost=chaos["seconds_lost"],
        steps_lost=chaos["steps_lost"],
        memory_growth=growth,
        memory_growth_of=who,
        rounds=rounds,
        digests_equal=chaos["digests_equal"],
        loss=chaos["final_loss"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of storm (default 5)")
    parser.add_argument("--per-minute", type=float, default=6.0, help="faults a minute (default 6)")
    parser.add_argument("--kinds", default="kill+pause+partition+slow")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--inner-steps", type=int, default=60)
    parser.add_argument("--calm-rounds", type=int, default=CALM_ROUNDS, help="of the undisturbed run, at least 2")
    parser.add_argument("--dir", type=Path, help="keep logs here")
    parser.add_argument("--json", action="store_true")
    options = sized_arguments(parser, minutes=0.1, per_minute=20.0, inner_steps=4, calm_rounds=2)
    if options.dir and options.dir.exists() and any(options.dir.iterdir()):
        parser.error(f"{options.dir} is not empty: the logs of another storm may be there")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.dir or Path(temporary)).absolute()
        faults = options.per_minute, options.kinds, options.seed
        outcome = storm(folder, options.minutes, *faults, options.inner_steps, options.calm_rounds)
    if options.json:
        print(json.dumps(asdict(outcome)))
        return
    for name, value in asdict(outcome).items():
        print(
            f"{name.replace('_', ' '):32} {value:.3f}"
            if isinstance(value, float)
            else f"{name.replace('_', ' '):32} {value}"
        )


if __name__ == "__main__":
    main()
