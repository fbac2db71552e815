"""A run for a person: its peers, its last rounds and what happened last, as an operator's node sees them."""

import time

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from protocol.monitor import RoundView, View
from protocol.wording import printable, size

ROUNDS_SHOWN = 6
LINES_SHOWN = 8

UNUSUAL = ("lost", "gone", "paused", "leaving", "catching up", "on trial")
COLOURS = {"training": "green", "lost": "bold red", "gone": "dim", "paused": "yellow", "catching up": "cyan"}


def drawn(view: View, trouble: str = "") -> RenderableType:
    """The run for a person. `trouble`: why it may be another by now."""
    done = f"{view.tokens:,} tokens, {view.tokens_per_second:,.0f} a second"
    title = f"Run {view.run_id[:12]}: round {view.round} of {view.rounds}, {done}"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(""), peers_table(view)]
    whys = [f"{each.id[-8:]} is {each.state}: {each.why}" for each in view.peers if each.state in UNUSUAL]
    whys += [f"The group of {each.replica[-8:]} does not train: {each.broken}" for each in view.groups if each.broken]
    parts += [Text(printable(why), style="yellow") for why in whys]
    if view.history:
        parts += [Text(""), rounds_table(view)]
    if view.log:
        parts += [Text(""), *(Text(_line(each.at, each.words, each.peer)) for each in view.log[-LINES_SHOWN:])]
    if trouble:
        parts += [Text(""), Text(printable(trouble), style="yellow")]
    return Group(*parts)


def peers_table(view: View) -> Table:
    """Peers by group and stage, then datacenters and observers; credit where anybody has some."""
    credit = any(peer.credit for peer in view.peers)
    names = ("peer", "place", "group", "state", "at", "loss", "tokens/s", "up/s", "down/s")
    table = _table(*names, *(("credit",) if credit else ()))
    for peer in view.peers:
        volunteer = peer.role == "volunteer"
        cells = [
            Text(peer.id[-8:]),
            Text(f"stage {peer.stage}" if volunteer else peer.role),
            Text(peer.replica[-8:] or "–" if volunteer else "–"),
            Text(peer.state, style=COLOURS.get(peer.state, "")),
            Text(f"{peer.round}.{peer.step}" if peer.role != "observer" else f"{peer.round}"),
            Text("–" if peer.loss is None else f"{peer.loss:.3f}"),
            Text(f"{peer.tokens_per_second:,.0f}"),
            Text(size(peer.up)),
            Text(size(peer.down)),
            Text(f"{peer.credit:,}"),
        ]
        table.add_row(*cells[: len(table.columns)])
    return table


def rounds_table(view: View) -> Table:
    """The last rounds: loss through the boundaries and plain, who contributed, and what compression has saved."""
    table = _table("round", "took", "loss", "plain", "contributions", "late", "left", "sent", "uncompressed")
    for each in view.history[-ROUNDS_SHOWN:]:
        cells = (
            each.round,
            _took(each, view.now),
            "–" if each.loss is None else f"{each.loss:.3f}",
            "–" if each.loss_plain is None else f"{each.loss_plain:.3f}",
            len(each.contributions),
            ", ".join(peer[-8:] for peer in each.late) or "–",
            ", ".join(peer[-8:] for peer in each.left) or "–",
            size(each.pipeline_bytes + each.outer_bytes),
            size(each.uncompressed_bytes),
        )
        table.add_row(*(Text(printable(str(cell))) for cell in cells))
    return table


def _took(each: RoundView, now: float) -> str:
    if each.ended is None:
        return f"{max(0.0, now - each.began):.0f} s so far"
    return f"{each.ended - each.began:.1f} s"


def _line(at: float, words: str, peer: str) -> str:
    try:
        when = time.strftime("%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # no time that there is
        when = "--:--:--"
    return f"{when} {peer[-8:]:8} {printable(words)}"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table
