"""The output for a person: one daemon's lines and live panel, the testnet's live table, and at the end of a run its
rounds, its faults and its outcome. Lines and rows are pure; rich draws them."""

import atexit
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from peer.telemetry.plain_lines import PlainLines
from peer.telemetry.run_report import Report
from peer.telemetry.status import Status, gave
from protocol.clock import monotonic
from protocol.events.activity import Failed, Finished, Injected, Joined, Progress, Serving
from protocol.events.event import Event, Sink
from protocol.events.waiting import Waiting
from protocol.wording import lasting, minutes_and_seconds, since, size, so_many, tail, wrapped

SPARKS = "▁▂▃▄▅▆▇█"

LEAST_WIDTH_OF_BAR = 8
MOST_WIDTH_OF_BAR = 30


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of blocks."""
    low, high = min(values), max(values)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in values)


def bar(done: int, total: int, width: int) -> str:
    """Draw how much of a round is done, without colour."""
    full = round(width * min(done, total) / total) if total else 0
    return "█" * full + "░" * (width - full)


def print_text(console: Console, text: str) -> None:
    """Print text for people as it is: on a terminal its lines break between words, elsewhere they stay whole."""
    shown = wrapped(text, console.width) if console.is_terminal else text
    console.print(shown, markup=False, highlight=False, soft_wrap=True)


def afterwards(role: str) -> str:
    """A sentence on what shows a peer's work, and gives the model, after the run. Nobody signs for a datacenter."""
    shows = "shows what others signed of them" if role == "volunteer" else "says which of its rounds are counted"
    return f"`hetpeer credit` {shows}, `hetpeer export --out model` gives the model."


MOST_LINES_OF_WAIT = 5
"""The lines that a wait has in the panel."""


def panel(status: Status, now: float, width: int) -> list[str]:
    """A daemon's live panel: where it is, what it does, and, on a line of its own, what it waits for, and since when.
    Lines, none longer than `width`."""
    position = f"stage {status.stage}" if status.role == "volunteer" else status.role
    position += f" · {status.state}"
    if status.role == "volunteer":
        names = (f"[{tail(member)}]" if member == status.peer_id else tail(member) for member in status.members)
        without = " · no group" if status.waiting is None else ""  # a wait says what is missing
        position += f" · group: {' '.join(names)}" if status.members else without
    rates = f"{status.tokens_per_second:,.0f} tokens/s · up {size(status.up)}/s · down {size(status.down)}/s"
    joined = f"joined {since(now - status.joined)} ago" if status.joined is not None else "not joined yet"
    silent = f", {status.lost} silent" if status.lost else ""
    doing = f" · {status.doing}" if status.doing else ""
    credit = f" · credit {status.credit:,} tokens" if status.role == "volunteer" else ""  # nobody signs for others
    lines = [
        position,
        _round(status, width),
        f"{rates}{credit}",
        f"{joined} · {so_many(status.peers, 'peer')}{silent}{doing}",
    ]
    if status.traffic:
        lines.append(f"traffic {status.traffic}")
    if status.only_holder_of:
        lines.append(f"only holder of {status.only_holder_of}")
    if status.waiting is not None:
        lines += _wait(status.waiting, now - status.waits_since, width)
    return [line if len(line) <= width else line[: max(0, width - 1)] + "…" for line in lines]


def _wait(waiting: Waiting, seconds: float, width: int) -> list[str]:
    """The lines of a wait that has lasted so many seconds, which come first. What does not fit into
    `MOST_LINES_OF_WAIT` is left out at the end."""
    most = f", at most {lasting(waiting.most_seconds)}," if waiting.most_seconds is not None else ""
    words = f"waiting {lasting(max(1, int(seconds)))}{most} for {waiting.waits_for}"
    return textwrap.wrap(words, max(1, width), max_lines=MOST_LINES_OF_WAIT, placeholder=" …")


def _round(status: Status, width: int) -> str:
    """The line of the round: its number, a bar where there is room for one in `width` columns, the step and losses."""
    round = f"round {status.round or '–'} of {status.rounds or '–'}"
    if not status.inner_steps:
        return round if status.round else "no round yet"
    step = f"step {status.step}" + (f" of {status.inner_steps}" if status.inner_steps >= status.step else "")
    if status.loss is not None:
        step += f" · loss {status.loss:.3f}"
    if status.held_out is not None:
        step += f" · held-out {status.held_out[0]:.3f}"
    room = min(MOST_WIDTH_OF_BAR, width - len(round) - len(step) - 2)
    if room < LEAST_WIDTH_OF_BAR:
        return f"{round} {step}"
    return f"{round} {bar(status.step, status.inner_steps, room)} {step}"


class PeerScreen:
    """One daemon: lasting events are lines. On a terminal a status line moves below them, and, once the peer is in its
    run, a live panel."""

    def __init__(
        self, status: Status, console: Console | None = None, plain_errors: bool = True, verbose: bool = True
    ) -> None:
        """`status` hears each event before. `plain_errors`: errors go to standard error; else that is for what a
        program reads there. Without `verbose` there are the lines of `PlainLines` alone."""
        self.status = status
        self.plain_lines = None if verbose else PlainLines(status)
        self.out = console or Console(highlight=False)
        apart = console is None and plain_errors
        self.errors = Console(stderr=True, highlight=False) if apart else self.out
        moves = self.out.is_terminal and not self.out.is_dumb_terminal
        self._spinner = self.out.status("") if moves else None
        self._panel: Live | None = None
        self._said = ""
        if moves:
            atexit.register(self.close)  # however the process ends, the cursor is shown again

    def __call__(self, event: Event) -> None:
        for line in self._lines(event):
            if line == self._said:
                continue
            self._said = line
            if isinstance(event, Failed | Finished | Progress | Serving) and self._spinner is not None:
                self._spinner.stop()
            if isinstance(event, Failed | Finished):
                self.close()
            print_text(self.errors if isinstance(event, Failed) else self.out, line)
        if isinstance(event, Joined) and self._spinner is not None and self._panel is None:
            self._spinner.stop()
            self._panel = Live(
                get_renderable=self.draw,
                console=self.out,
                refresh_per_second=1,
                transient=True,
                redirect_stderr=sys.stderr.isatty(),  # above the panel, but what goes elsewhere stays there
            )
            self._panel.start()
        passing = event.passing or (event.words if self.plain_lines is not None and event.plain is None else None)
        if passing is not None and self._spinner is not None and self._panel is None:
            self._spinner.update(passing)
            self._spinner.start()

    def _lines(self, event: Event) -> list[str]:
        """The lines that last of an event."""
        if self.plain_lines is not None:
            lines = self.plain_lines.take(event, self.status.clock())
        else:
            lines = [event.words] if Sink.TERMINAL in event.sinks and event.words is not None else []
        if isinstance(event, Finished) and self.status.given and self.status.role != "lab":
            lines.append(f"Thank you: {gave(self.status.given)}. {afterwards(self.status.role)}")
        return lines

    def draw(self) -> Group:
        """The panel as it is now."""
        first, *rest = panel(self.status, self.status.clock(), self.out.width)
        return Group(Text(first, style="bold"), *map(Text, rest))

    def close(self) -> None:
        """Stop the live panel."""
        if self._spinner is not None:
            self._spinner.stop()
        if self._panel is not None:
            self._panel.stop()
            self._panel = None
            self._spinner = None


@dataclass(slots=True)
class ProcessRow:
    """One process of a testnet, as the table shows it: its status, and the fault that was done to it last."""

    name: str
    status: Status = field(default_factory=Status)
    fault: str = ""

    def take(self, event: Event, now: float) -> None:
        """Follow the events of the process. A killed one may be heard for a moment yet."""
        if isinstance(event, Injected):
            self.fault = self.fault if event.action == "not applied" else event.action
        elif self.fault != "killed":
            self.fault = ""
            self.status.take(event, now)

    @property
    def doing(self) -> str:
        """The work of the process, in words."""
        waits_for, doing = self.status.waits_for, self.status.doing
        return self.fault or (f"waits for {waits_for}" if waits_for else doing or self.status.state)

    @property
    def step(self) -> tuple[int, int]:
        """The round, and how many of its inner steps are done."""
        last = self.status.last_step
        return (last.round, last.step + 1) if last is not None else (1, 0)

    def cells(self) -> tuple[str, ...]:
        """The table's columns."""
        status, ended = self.status, self.status.last_round
        replica = status.peer_id if status.role == "datacenter" else status.replica
        place = "{}.{}".format(*self.step) if status.last_step is not None else ""
        loss = f"{status.loss:.3f}" if status.loss is not None else ""
        rate = f"{status.tokens_per_second:,.0f}" if status.tokens_per_second else ""
        sent = (size(ended.pipeline_sent), size(ended.outer_sent)) if ended is not None else ("", "")
        return (self.name, replica[-6:], self.doing, place, loss, rate, *sent)


COLUMNS = ("process", "replica", "doing", "round.step", "train loss", "tokens/s", "pipeline", "outer")
NARROW_COLUMNS = {
    "process": "process",
    "doing": "doing",
    "round.step": "at",
    "train loss": "loss",
    "tokens/s": "tokens/s",
}
"""The columns of a testnet's table, and their headers, where lines are shorter than `WIDE`."""

WIDE = 120
GAP = 2
"""The spaces between two columns of a table without lines."""

LEAST_DOING, LINES_OF_DOING = 16, 2
"""The columns that the work of a process has at least, and its lines at most."""


def processes_table(rows: Sequence[ProcessRow], width: int) -> Table:
    """The processes of a testnet in lines of so many characters, each in `LINES_OF_DOING` at most: what does not fit of
    its work is left out at the end."""
    headers = {name: name for name in COLUMNS} if width >= WIDE else NARROW_COLUMNS
    cells = [dict(zip(COLUMNS, row.cells(), strict=True)) for row in rows]
    widths = {name: max(map(len, (header, *(row[name] for row in cells)))) for name, header in headers.items()}
    room = max(LEAST_DOING, width - sum(widths.values()) + widths["doing"] - GAP * (len(widths) - 1))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, header in headers.items():
        table.add_column(header, no_wrap=name != "doing")
    for row in cells:
        row["doing"] = "\n".join(textwrap.wrap(row["doing"], room, max_lines=LINES_OF_DOING, placeholder=" …"))
        table.add_row(*(Text(row[name]) for name in headers))
    return table


@dataclass(slots=True)
class TestnetScreen:
    """All processes: a live table on a terminal, plain lines elsewhere."""

    report: Report
    console: Console = field(default_factory=lambda: Console(highlight=False))
    rows: dict[str, ProcessRow] = field(default_factory=dict)
    live: Live | None = None
    bar: Bar | None = None

    __test__ = False  # pytest: this is no test

    def start(self, names: Sequence[str]) -> None:
        """Begin to draw."""
        self.rows = {name: ProcessRow(name) for name in names}
        if self.console.is_terminal:
            self.bar = Bar(
                TextColumn("steps"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn(), console=self.console
            )
            self.bar.add_task("steps", total=self.report.manifest.outer.rounds * self.report.manifest.inner.steps)
            self.live = Live(get_renderable=self.draw, console=self.console, refresh_per_second=4)
            self.live.start()

    def add(self, name: str) -> None:
        """One process more."""
        self.rows[name] = ProcessRow(name)

    def stop(self) -> None:
        """Leave the last picture."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def take(self, process: str, event: Event, seconds: float = 0.0) -> None:
        """Follow what a process says, or what was done to some, so many seconds after the start."""
        for name in event.processes if isinstance(event, Injected) else (process,):
            self.rows[name].take(event, monotonic())
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.steps_done)
        if isinstance(event, Injected):
            print_text(self.console, f"{minutes_and_seconds(seconds)} {process}: {event.words}")
        elif self.live is None and Sink.TESTNET in event.sinks:
            line = event.words if not isinstance(event, Serving) else f"Serving run {event.run_id[:12]}"
            print_text(self.console, f"{process}: {line}")

    @property
    def steps_done(self) -> int:
        """Inner steps of all rounds so far, where the swarm is furthest."""
        steps_in_round = self.report.manifest.inner.steps
        return max(
            (round - 1) * steps_in_round + min(done, steps_in_round)
            for round, done in (row.step for row in self.rows.values())
        )

    def draw(self) -> Group:
        """The table, the loss, the bar."""
        table = processes_table([*self.rows.values()], self.console.width)
        losses = [point.loss for point in self.report.losses()]
        latest = f"  held-out loss {sparkline(losses)}  {losses[0]:.3f} → {losses[-1]:.3f}" if losses else ""
        return Group(table, Text(latest), self.bar or Text(""))


# The end of a run


def report_tables(report: Report) -> Group:
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
    if report.peaks:
        most = max(report.peaks.items(), key=lambda item: item[1].measured)
        all_of_them = size(sum(peak.measured for peak in report.peaks.values()))
        peak_text = f"most in {most[0]}: {size(most[1].measured)}, by the estimate {size(most[1].estimate)}"
        lines.insert(-1, f"memory: {all_of_them} in {len(report.peaks)} processes; {peak_text}")
    chaos = chaos_table(result["chaos"]) if "chaos" in result else Text()
    return Group(table, chaos, Text("\n".join(("", *lines))))


def chaos_table(chaos: dict[str, Any]) -> Group:
    """The table of all faults, and lines on what became of the run."""
    columns = ("fault", "what", "at", "time")
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, header_style="bold")
    for fault in chaos["faults"]:
        done = fault["seconds"] is not None
        when = (
            (f"{fault['place'][0]}.{fault['place'][1]}", minutes_and_seconds(fault["seconds"])) if done else ("–", "–")
        )
        table.add_row(fault["fault"], Text("\n".join(fault["actions"])), *when)
    loss, difference = chaos["final_loss"], chaos["difference"]
    compared = "not compared with the lab"
    if difference is not None:
        compared = f"undisturbed lab {chaos['lab_loss']:.3f}: difference {difference:+.3f}, of at most {chaos['limit']}"
    agree = f"{'equal' if chaos['digests_equal'] else 'NOT equal'} in {len(chaos['alive'])} processes"
    lines = [
        f"rounds completed: {chaos['rounds_completed']} of {chaos['rounds_asked']}",
        f"digests after the last round: {agree if chaos['alive'] else 'none, nobody was there at the end'}",
        f"final loss {loss:.3f}; {compared}" if loss is not None else "final loss unknown",
    ]
    return Group(Text(), table, Text("\n".join(("", *lines))))
