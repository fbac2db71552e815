"""What attacks cost a run: the pace, memory and final loss of honest peers beside the same run undisturbed.

Runs `python -m tests.chaos` once undisturbed, and then once for each attack, `--chaos crowd:KIND*N`: two replica groups
of two stages and a datacenter, and from round `START` on N hostile names that attack for some seconds. **Steps lost**
are how much fewer inner steps all honest processes did a second while the attack lasted, and after it, than in the
same run before it. **Growth** is of a process's resident memory, from right before the attack to its most. **Avoided**
is after how many seconds half of those names were avoided that were at all. A loss is compared with the undisturbed
run's.

    python benchmarks/attacks.py --names 2 --seconds 20                 # every kind by itself
    python benchmarks/attacks.py --kinds all --names 2 10 100 --seconds 300 --rounds 70

Leave the machine alone meanwhile: all processes share its cores, and so does the crowd. What it took of them itself is
told: the honest would not lose that to a crowd elsewhere.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.group.processes import begin_aside
from benchmarks.options.small import sized_arguments
from tests.chaos.faults import CrowdKind

START = 3
"""The round in which attacks begin: the first has everything to set up, the second shows the usual pace."""

LAST_SECONDS = 60.0
"""For a testnet that is told to stop."""

KINDS = (*get_args(CrowdKind), "all")


@dataclass(frozen=True, slots=True)
class Row:
    """One attack. Shares of steps lost are of the pace before; memory is in MiB; None: there is nothing to tell by."""

    kind: str
    names: int
    admitted: int
    steps_lost: float | None
    steps_lost_after: float | None
    most_growth: float
    all_growth: float
    avoided: str
    """How many of how many names."""
    avoided_seconds: float | None
    digests_equal: bool
    loss_difference: float | None
    own_cpu: float
    """The share of the machine that the crowd itself took, which on one machine is lost to the honest, too."""
    outcome: str


@dataclass(frozen=True, slots=True)
class Swarm:
    """The honest peers' run."""

    preset: str
    groups: int
    rounds: int
    steps: int

    @property
    def arguments(self) -> list[str]:
        """The options of the testnet."""
        model = ["--preset", self.preset, "--groups", str(self.groups)]
        return [*model, "--rounds", str(self.rounds), "--inner-steps", str(self.steps)]


def testnet(folder: Path, swarm: Swarm, chaos: str | None, seconds: float) -> dict[str, Any]:
    """The report of a testnet that ran to its end, or for so long."""
    folder.mkdir(parents=True)
    where = ["--dir", str(folder / "net"), "--report", str(folder / "report.json"), "--no-compare"]
    shape = [*swarm.arguments, *(["--chaos", chaos] if chaos else [])]
    with (folder / "said.txt").open("w") as said:
        process = begin_aside([sys.executable, "-m", "tests.chaos", *where, *shape], said)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # it writes its report, with what there is
            try:
                process.wait(LAST_SECONDS)
            finally:
                process.kill()
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def row(kind: str, names: int, report: dict[str, Any], calm: float) -> Row:
    """What one attack cost, by the report of its run; `calm` is the undisturbed run's loss."""
    chaos = report["chaos"]
    crowd = next(iter(chaos.get("crowds", ())), None)
    if crowd is None:
        return Row(kind, names, 0, None, None, 0, 0, "–", None, False, None, 0.0, report["outcome"])
    growth = [held["most"] - held["before"] for held in crowd["memory"].values()]
    shunned = list(crowd["shunned"].values())
    seconds = [each["median_seconds"] for each in shunned if each["median_seconds"] is not None]
    loss = chaos["final_loss"]
    return Row(
        kind=kind,
        names=names,
        admitted=sum(each["names"] for each in shunned),
        steps_lost=lost(crowd["before"], crowd["during"]),
        steps_lost_after=lost(crowd["before"], crowd["after"]),
        most_growth=max(growth, default=0),
        all_growth=sum(max(0, each) for each in growth),
        avoided=f"{sum(each['avoided'] for each in shunned)} of {sum(each['names'] for each in shunned)}",
        avoided_seconds=max(seconds, default=None),
        digests_equal=chaos["digests_equal"],
        loss_difference=None if loss is None else loss - calm,
        own_cpu=crowd["told"].get("cpu_seconds", 0.0) / (crowd["ended"] - crowd["began"]) / (os.cpu_count() or 1),
        outcome=report["outcome"],
    )


def lost(before: float | None, now: float | None) -> float | None:
    """The share of the pace that is gone."""
    return None if not before or now is None else 1 - now / before


def table(rows: Sequence[Row]) -> str:
    """Lines of text."""
    lines = [
        f"{'attack':14} {'names':>5} {'lost':>6} {'after':>6} {'MiB most':>8} {'MiB all':>8} {'avoided':>10} "
        f"{'s':>5} {'digests':>8} {'loss':>7} {'own CPU':>7}  outcome"
    ]
    for each in rows:
        percent = ["–" if share is None else f"{share:.0%}" for share in (each.steps_lost, each.steps_lost_after)]
        seconds = "–" if each.avoided_seconds is None else f"{each.avoided_seconds:.1f}"
        loss = "–" if each.loss_difference is None else f"{each.loss_difference:+.3f}"
        lines.append(
            f"{each.kind:14} {each.names:5} {percent[0]:>6} {percent[1]:>6} {each.most_growth:8.0f} "
            f"{each.all_growth:8.0f} {each.avoided:>10} {seconds:>5} {'equal' if each.digests_equal else 'NOT':>8} "
            f"{loss:>7} {each.own_cpu:>7.0%}  {each.outcome[:60]}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--names", type=int, nargs="+", default=[2], help="in each crowd (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="that an attack lasts (default 20)")
    parser.add_argument("--preset", default="nano", help="the model (default nano)")
    parser.add_argument("--groups", type=int, default=2, help="beside the datacenter (default 2)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for a run beside its attack")
    parser.add_argument("--calm-loss", type=float, help="of the undisturbed run, if that is known: it is left out then")
    parser.add_argument("--dir", type=Path, help="keep logs here")
    parser.add_argument("--json", action="store_true")
    smallest: dict[str, Any] = {"preset": "pico", "groups": 1, "rounds": 4, "inner_steps": 4}
    options = sized_arguments(parser, kinds=["clock"], names=[1], seconds=3.0, calm_loss=7.0, **smallest)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.dir or Path(temporary)).absolute()
        swarm = Swarm(options.preset, options.groups, options.rounds, options.inner_steps)
        calm = options.calm_loss
        if calm is None:
            undisturbed = testnet(folder / "undisturbed", swarm, None, options.patience)
            calm = undisturbed["rounds"][-1]["loss"]
            print(f"undisturbed: loss {calm:.3f}, {undisturbed['outcome']}", file=sys.stderr, flush=True)
        rows = []
        for kind in options.kinds:
            for names in options.names:
                chaos = f"crowd:{kind}*{names}@round={START}+{options.seconds:g}s"
                where = folder / f"{kind}-{names}"
                report = testnet(where, swarm, chaos, options.patience + options.seconds)
                rows.append(row(kind, names, report, calm))
                print(table(rows[-1:]), file=sys.stderr, flush=True)
    print(json.dumps([asdict(each) for each in rows], indent=1) if options.json else table(rows))


if __name__ == "__main__":
    main()
