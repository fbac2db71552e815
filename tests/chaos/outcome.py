"""The outcome of a run in the harness: beside the faults, their costs, and what crowds cost the honest processes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from peer.telemetry.run_report import Chaos
from tests.chaos.damage import Damage, seconds_lost
from tests.chaos.toll import AttackCost


@dataclass
class MeasuredChaos(Chaos):
    """The faults of a run with what each cost, and the tolls of its crowds."""

    faults: Sequence[Damage]
    tolls: Sequence[AttackCost] = ()

    def result(self) -> dict[str, Any]:
        """The faults and crowds in `report.json`."""
        return super().result() | {
            "seconds_lost": seconds_lost(self.faults),
            "steps_lost": sum(damage.steps_lost for damage in self.faults),
            "steps_missed": sum(damage.steps_missed for damage in self.faults),
            "crowds": [asdict(toll) for toll in self.tolls],
        }


def cost_tables(chaos: MeasuredChaos) -> Group:
    """The tables of what faults and crowds cost."""
    columns = ("fault", "seconds lost", "steps lost", "missed")
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, header_style="bold")
    for damage in chaos.faults:
        steps = str(damage.steps_lost), str(damage.steps_missed)
        cost = ("–", "–", "–") if damage.seconds is None else (f"{damage.seconds_lost:.1f}", *steps)
        table.add_row(damage.fault, *cost)
    sums = chaos.result()
    table.add_row(
        "all", f"{sums['seconds_lost']:.1f}", str(sums["steps_lost"]), str(sums["steps_missed"]), style="bold"
    )
    return Group(Text(), table, *(crowd_table(crowd) for crowd in sums["crowds"]))


def crowd_table(crowd: dict[str, Any]) -> Group:
    """What one crowd cost: the pace of the honest, their memory, and how soon its names were avoided."""
    pace = ", ".join(f"{when} {_number(crowd[when])}" for when in ("before", "during", "after"))
    memory = Table("MiB of", "before", "at most", "at the end", box=None, header_style="bold")
    for process, held in crowd["memory"].items():
        memory.add_row(process, *(f"{held[when]:,.0f}" for when in ("before", "most", "after")))
    names = Table("kind", "names", "avoided", "median s", "most s", "calls", box=None, header_style="bold")
    outcomes = crowd["told"].get("outcomes", {})
    for kind in dict.fromkeys((*crowd["shunned"], *outcomes)):
        met = crowd["shunned"].get(kind)
        numbers = [_number(met[key]) for key in met] if met else ["–"] * 4
        calls = ", ".join(f"{count:,} {how}" for how, count in outcomes.get(kind, {}).items())
        names.add_row(kind, *numbers, calls)
    cpu = crowd["told"].get("cpu_seconds")
    lines = f"\n{crowd['attack']}: steps a second {pace}; its own CPU time {_number(cpu)} s\n"
    return Group(Text(lines), memory, Text(), names)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
