"""The operator's view of the run: rows for a program, tables for a person. Strings from peers are shown as text."""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bootstrap.admission.audit_log import AuditEntry
from bootstrap.admission.database import Invitation, date
from peer.process import Terminal
from peer.telemetry.terminal import print_text
from protocol.trust.records import PeerRecord
from protocol.wording import moment, printable

TableRow = dict[str, Any]


def print_table(terminal: Terminal, rows: Iterable[TableRow], drawn: RenderableType) -> None:
    """Rows as JSON, one a line; or what a person sees of them."""
    if terminal.json:
        for row in rows:
            print(json.dumps(row), flush=True)
    elif not isinstance(drawn, str):
        console_for_people().print(drawn)
    elif drawn:
        print_text(console_for_people(), drawn)


WIDTH_OF_FILES = 120
"""The width of a line in columns, where the output has none of its own."""


def console_for_people() -> Console:
    """Standard output, as wide as its terminal; a file or a pipe has `WIDTH_OF_FILES`, if COLUMNS says no other."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=WIDTH_OF_FILES)


def peer_rows(peers: Sequence[PeerRecord], states: Mapping[str, str]) -> list[TableRow]:
    """The rows of what each peer's record says, and its state by peer id."""
    names = ("peer_id", "role", "stage", "slot", "on_trial", "replica", "round", "contributed", "address")
    rows = [{name: getattr(peer, name) for name in names} for peer in peers]
    return [row | {"state": states.get(row["peer_id"], "")} for row in rows]


def records_table(peers: Sequence[PeerRecord], states: Mapping[str, str]) -> Table:
    """Peers by the end of their ids, which is enough for `hetpeer admin revoke`, each with its state by peer id."""
    names = ("peer", "state", "role", "stage", "slot", "replica", "round", "contributed", "address")
    table = empty_table(*names, breaks=("state", "role", "address"))
    for peer in peers:
        role = f"{peer.role}, on trial" if peer.on_trial else peer.role
        state = states.get(peer.peer_id, "") or "–"
        cells = (peer.peer_id[-8:], state, role, peer.stage, peer.slot, peer.replica[-8:] or "–", peer.round)
        _add(table, *cells, peer.contributed or "–", peer.address)
    return table


def invitation_rows(invitations: Sequence[Invitation], now: float) -> list[TableRow]:
    """Invitations, and what each is to a newcomer."""
    return [
        invitation.model_dump(mode="json", exclude={"sha256", "revoked"})
        | {"left": invitation.left, "state": invitation.state(now)}
        for invitation in invitations
    ]


def invitations_table(invitations: Sequence[Invitation], now: float) -> Table:
    """Invitations, the oldest first."""
    table = empty_table("id", "for", "state", "uses left", "expires", "used by", breaks=("used by",))
    for invitation in invitations:
        used_by = " ".join(peer[-8:] for peer in invitation.used_by) or "–"
        whom = "gateways" if invitation.gateway else "peers"
        _add(
            table,
            invitation.id,
            whom,
            invitation.state(now),
            f"{invitation.left} of {invitation.uses}",
            date(invitation.expires),
            used_by,
        )
    return table


def log_rows(entries: Sequence[AuditEntry]) -> list[TableRow]:
    """Entries without what does not apply to them."""
    return [entry.model_dump(exclude_defaults=True) for entry in entries]


def log_line(entry: AuditEntry) -> str:
    """An entry as one line, at this machine's time."""
    stage = f" of stage {entry.stage}" if entry.stage is not None and entry.role == "volunteer" else ""
    slot = f", slot {entry.slot}" if entry.slot is not None else ""
    parts = (
        moment(entry.at),
        f"{entry.what:9}",
        entry.peer and f"peer {entry.peer[-8:]}",
        entry.role and f"as {entry.role}{stage}{slot}",
        entry.address and f"from {entry.address}",
        entry.invitation and f"by invitation {entry.invitation}",
    )
    line = " ".join(part for part in parts if part)
    colon = ":" if any(parts[2:]) else ""  # without anybody, the reason says what was done
    return printable(f"{line}{colon} {entry.reason}" if entry.reason else line)


def empty_table(*names: str, breaks: Collection[str] = ()) -> Table:
    """A table of these columns, without rows. Cells of the columns `breaks` have several lines where there is no room
    for one; no other breaks, as half a number or a word is read wrongly."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        whole = name not in breaks
        table.add_column(name, no_wrap=whole, overflow="ellipsis" if whole else "fold", min_width=len(name))
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text(printable(str(cell))) for cell in cells))
