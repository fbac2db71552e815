"""`hetpeer status`: the run as an operator's node sees it (its peers, its last rounds, what happened last), asked for
at the registration port."""

import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import TICKET_HELP, terminal
from protocol.errors import RefusedError, UnreachableError

if TYPE_CHECKING:
    import asyncio

    from rich.console import RenderableType
    from rich.table import Table

    from peer.process import Terminal
    from protocol.monitor import PeerView, View
    from protocol.trust.ticket import Ticket

WATCH_SECONDS = 2.0

ROUNDS_SHOWN = 6
LINES_SHOWN = 8
MOST_NAME = 64

UNUSUAL = ("lost", "gone", "paused", "leaving", "catching up", "on trial")
STATE_COLOURS = {"training": "green", "lost": "bold red", "gone": "dim", "paused": "yellow", "catching up": "cyan"}

STATUS_EXAMPLES = (
    "Examples:\n\n  hetpeer status hetpeer1-…\n\n  hetpeer status --watch\n\n  hetpeer status hetpeer1-… --json"
)


def status(
    ticket: Annotated[
        str | None,
        typer.Argument(
            metavar="[TICKET]",
            help=TICKET_HELP,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on and show what changes, until Ctrl-C.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the whole view as JSON, one object; with --watch, one a line.")
    ] = False,
) -> None:
    """Show how a run goes: who is there and what each does, the rounds with their loss, and what happened last."""
    from peer.process import exit_code_of, run_command
    from peer.store.home import ticket_folders
    from protocol.trust.ticket import find_ticket

    shown = terminal(json)

    def work() -> int:
        found_ticket = find_ticket(ticket, *ticket_folders())
        return run_command(lambda stop: _show(found_ticket, watch, shown, stop), shown)

    sys.exit(exit_code_of(shown.emit, work))


async def _show(ticket: "Ticket", watch: bool, terminal: "Terminal", stop: "asyncio.Event") -> None:
    from rich.live import Live

    from peer.cli.tables import console_for_people
    from peer.network.admission import ask_status

    if not watch:
        view = await ask_status(ticket)
        if terminal.json:
            print(view.model_dump_json(), flush=True)
        else:
            console = console_for_people()
            console.print(run_tables(view, "", console.width))
    elif terminal.json:
        async for view, _ in _views(ticket, stop):
            print(view.model_dump_json(), flush=True)
    else:
        with Live(console=console_for_people(), auto_refresh=False) as live:
            async for view, trouble in _views(ticket, stop):
                live.update(run_tables(view, trouble, live.console.width), refresh=True)


async def _views(ticket: "Ticket", stop: "asyncio.Event") -> AsyncIterator[tuple["View", str]]:
    """The run as it is now and then, until `stop`; while the node does not answer, as it was last, and why.

    Raises:
        HetpeerError: it does not answer at all.
    """
    from peer.network.admission import ask_status
    from protocol.net.tasks import wait_at_most

    view, trouble = await ask_status(ticket), ""
    while True:
        yield view, trouble
        await wait_at_most(WATCH_SECONDS, stop.wait())
        if stop.is_set():
            return
        try:
            view, trouble = await ask_status(ticket), ""
        except (UnreachableError, RefusedError) as error:
            trouble = str(error)


# The run for a person


NARROW = 104
"""The characters of a line below which tables leave out what fits no more: a number that breaks is read wrongly."""


def run_tables(view: "View", trouble: str, width: int) -> "RenderableType":
    """The run for a person, in lines of so many characters. `trouble`: why it may be another by now."""
    from rich.console import Group
    from rich.text import Text

    from protocol.wording import lasting, printable

    done = f"{view.tokens:,} tokens, {view.tokens_per_second:,.0f} a second"
    state = f"{view.state}, " if view.state else ""
    remaining = f", about {lasting(view.seconds_left)} left" if view.seconds_left and view.seconds_left >= 1 else ""
    name = printable(f"{view.name[:MOST_NAME]} ({view.run_id[:12]})" if view.name else view.run_id[:12])
    title = f"Run {name}: {state}round {view.round} of {view.rounds}, {done}{remaining}"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(""), peers_table(view, width)]
    whys = []
    if view.state_why:
        since = max(0.0, min(view.state_since, view.now))
        whys.append(f"The run is {view.state} since {_clock_time(since)}: {view.state_why}")
    whys += [
        f"{view_row.id[-8:]} is {view_row.state}: {view_row.why}{_unheard(view_row)}"
        for view_row in view.peers
        if view_row.state in UNUSUAL and not (view_row.state == "gone" and view.state == "finished")
    ]
    whys += [
        f"The group of {view_row.replica[-8:]} does not train: {view_row.broken}"
        for view_row in view.groups
        if view_row.broken
    ]
    whys += [
        f"The group of {view_row.replica[-8:]} is slow: {view_row.slow}" for view_row in view.groups if view_row.slow
    ]
    whys += [f"{view.short[0].upper()}{view.short[1:]}"] if view.short else []
    parts += [Text(printable(why), style="yellow") for why in whys]
    if view.history:
        parts += [Text(""), rounds_table(view, width)]
        parts += [Text(sentence, style="dim") for sentence in about_rounds(view)]
    if lines := [line for line in view.log if line.kind != "Evaluated"]:  # the table of rounds has the losses
        parts += [Text(""), *(Text(_line(line.at, line.words, line.peer)) for line in lines[-LINES_SHOWN:])]
    if trouble:
        parts += [Text(""), Text(printable(trouble), style="yellow")]
    return Group(*parts)


def _unheard(peer: "PeerView") -> str:
    """A phrase on how long a peer has paused, which reports nothing meanwhile; empty: it does not pause."""
    if peer.state != "paused":
        return ""
    return f" (since {_clock_time(peer.heard)}; whether its process still runs is not known)"


def peers_table(view: "View", width: int) -> "Table":
    """Peers by group and stage, then datacenters and observers; credit where anybody has some. The group and the links
    are left out where lines are short."""
    from rich.text import Text

    from peer.cli.tables import empty_table
    from protocol.wording import size

    credit = any(peer.credit for peer in view.peers)
    names = ("peer", "place", "group", "state", "at", "loss", "tokens/s", "up/s", "down/s", "credit")
    shown = _shown(names, {"group", "up/s", "down/s"} if width < NARROW else set(), () if credit else ("credit",))
    table = empty_table(*(names[column] for column in shown))
    for peer in view.peers:
        volunteer = peer.role == "volunteer"
        cells = [
            Text(peer.id[-8:]),
            Text(f"stage {peer.stage}" if volunteer else peer.role),
            Text(peer.replica[-8:] or "–" if volunteer else "–"),
            Text(peer.state, style=STATE_COLOURS.get(peer.state, "")),
            Text(f"{peer.round}.{peer.step}" if peer.role != "observer" else f"{peer.round}"),
            Text("–" if peer.loss is None else f"{peer.loss:.3f}"),
            Text(f"{peer.tokens_per_second:,.0f}"),
            Text(size(peer.up)),
            Text(size(peer.down)),
            Text(f"{peer.credit:,}" if peer.credit else "–"),
        ]
        table.add_row(*(cells[column] for column in shown))
    return table


def rounds_table(view: "View", width: int) -> "Table":
    """The last rounds: loss through the boundaries and plain, who contributed, and what compression has saved."""
    from rich.text import Text

    from peer.cli.tables import empty_table
    from protocol.wording import printable, size

    names = ("round", "took", "loss", "plain", "contributions", "late", "left", "sent", "uncompressed")
    shown = _shown(names, {"plain", "uncompressed"} if width < NARROW else set())
    table = empty_table(*(names[column] for column in shown), breaks=("late", "left"))
    for entry in view.history[-ROUNDS_SHOWN:]:
        so_far = f"{max(0.0, view.now - entry.began):.0f} s so far"
        took = so_far if entry.ended is None else f"{entry.ended - entry.began:.1f} s"
        took = "–" if took == "0.0 s" else took  # the node has seen its end alone
        cells = (
            entry.round,
            took,
            "–" if entry.loss is None else f"{entry.loss:.3f}",
            "–" if entry.loss_plain is None else f"{entry.loss_plain:.3f}",
            len(entry.contributions),
            ", ".join(peer[-8:] for peer in entry.late) or "–",
            ", ".join(peer[-8:] for peer in entry.left) or "–",
            size(entry.pipeline_bytes + entry.outer_bytes),
            size(entry.uncompressed_bytes),
        )
        table.add_row(*(Text(printable(str(cells[column]))) for column in shown))
    return table


def about_rounds(view: "View") -> list[str]:
    """Sentences on what the table of the last rounds does not show, and why."""
    shown = view.history[-ROUNDS_SHOWN:]
    gaps = [(one.round + 1, after.round - 1) for one, after in pairwise(shown) if after.round > one.round + 1]
    missing = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in gaps)
    sentences = [f"The node was away in round {missing}, and knows nothing of it."] if missing else []
    if not any(entry.loss is not None for entry in view.history) and any(entry.ended for entry in shown):
        sentences.append("Nobody measures the held-out loss: `hetpeer bootstrap --evaluate` does.")
    return sentences


def _shown(names: Sequence[str], *without: Collection[str]) -> list[int]:
    """The columns of a table but for those of certain names."""
    return [column for column, name in enumerate(names) if not any(name in left_out for left_out in without)]


def _clock_time(at: float) -> str:
    """A time of the day, in Unix seconds, as this machine's clock shows it."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # no time that there is
        return "--:--:--"


def _line(at: float, words: str, peer: str) -> str:
    from protocol.wording import printable

    return f"{_clock_time(at)} {peer[-8:]:8} {printable(words)}"
