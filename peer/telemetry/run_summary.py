"""What a person sees at the end of a run: its rounds, what chaos cost it, and its outcome."""

from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from peer.telemetry.run_report import Report
from protocol.wording import clock, size


def summary(report: Report) -> Group:
    """The final table of a run."""
    result = report.result()
    table = Table("round", "loss", "plain", "tokens", "seconds", "contributions", box=None, header_style="bold")
    for row in result["rounds"]:
        losses = [f"{row[key]:.3f}" if row[key] is not None else "–" for key in ("loss", "loss_plain")]
        sets = " ".join(f"{part}:{count}" for part, count in row["contributions"].items())
        table.add_row(str(row["round"]), *losses, f"{row['tokens']:,}", f"{row['seconds']:.1f}", sets)
    sent = result["bytes"]
    digests = ", ".join(f"{part} {next(iter(peers.values()))[:10]}" for part, peers in result["digests"].items())
    lines = [
        f"{report.tokens:,} tokens at {result['tokens_per_second']:,.0f} tokens/s",
        f"sent: {size(sent['pipeline_sent'])} between stages, {size(sent['outer_sent'])} of contributions",
        f"state after the last round: {digests}",
        f"outcome: {result['outcome']}",
    ]
    chaos = chaos_table(result["chaos"]) if "chaos" in result else Text()
    return Group(table, chaos, Text("\n".join(("", *lines))))


def chaos_table(chaos: dict[str, Any]) -> Group:
    """Every fault and what it cost, and what became of the run."""
    columns = ("fault", "what", "at", "time", "seconds lost", "steps lost", "missed")
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, header_style="bold")
    for fault in chaos["faults"]:
        done = fault["seconds"] is not None
        when = (f"{fault['place'][0]}.{fault['place'][1]}", clock(fault["seconds"])) if done else ("–", "–")
        steps = str(fault["steps_lost"]), str(fault["steps_missed"])
        lost = (f"{fault['seconds_lost']:.1f}", *steps) if done else ("–", "–", "–")
        table.add_row(fault["fault"], Text("\n".join(fault["actions"])), *when, *lost)
    every = f"{chaos['seconds_lost']:.1f}", str(chaos["steps_lost"]), str(chaos["steps_missed"])
    table.add_row("all", "", "", "", *every, style="bold")
    attacked = [crowd_table(crowd) for crowd in chaos.get("crowds", ())]
    loss, difference = chaos["final_loss"], chaos["difference"]
    compared = "not compared with the lab"
    if difference is not None:
        compared = f"undisturbed lab {chaos['lab_loss']:.3f}: difference {difference:+.3f}, of at most {chaos['limit']}"
    lines = [
        f"rounds completed: {chaos['rounds_completed']} of {chaos['rounds_asked']}",
        f"digests after the last round: {_agreement(chaos)}",
        f"final loss {loss:.3f}; {compared}" if loss is not None else "final loss unknown",
    ]
    return Group(Text(), table, *attacked, Text("\n".join(("", *lines))))


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


def _agreement(chaos: dict[str, Any]) -> str:
    if not chaos["alive"]:
        return "none, nobody was there at the end"
    return f"{'equal' if chaos['digests_equal'] else 'NOT equal'} in {len(chaos['alive'])} processes"
