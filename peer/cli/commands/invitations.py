"""`hetpeer admin invite`, `invitations`, `withdraw` and `log`: what the bootstrap node's folder alone tells."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Group
from rich.text import Text

from bootstrap.admission import audit_log as logs
from bootstrap.admission import invitations as book
from bootstrap.admission.audit_log import AuditEntry
from peer.cli.commands.tables import invitation_rows, invitations_table, log_line, log_rows, show
from peer.process import Terminal, told
from peer.store.home import operators_folder, operators_ticket
from peer.telemetry.events import Progress
from protocol.errors import UserError
from protocol.trust.keys import load_or_create

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_DAYS = 3650


def duration(text: str) -> int:
    """Seconds of a time like 30m, 12h or 7d.

    Raises:
        UserError: it is none, or of no or too much time.
    """
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    seconds = int(found[1]) * SECONDS[found[2]] if found else 0
    if not 0 < seconds <= MOST_DAYS * SECONDS["d"]:
        raise UserError(f"{text[:40]!r} is no time: give a whole number and m, h or d, as in 30m, 12h or 7d")
    return seconds


def invite(uses: int, expires: str, directory: Path | None, terminal: Terminal, gateway: bool = False) -> int:
    """Make an invitation for peers, or for a gateway, and print its ticket, which is kept nowhere; the exit code."""

    def work(folder: Path) -> None:
        seconds, ticket, now = duration(expires), operators_ticket(folder), time.time()
        if gateway and load_or_create(folder).public != ticket.authority:
            raise UserError(f"{folder} is a gateway's: only the run's operator can make another, in its node's folder")
        token = book.invite(folder, uses, seconds, now, gateway)
        id = book.invitation_id(token)
        what = f"a gateway, {uses} uses" if gateway else f"{uses} uses"
        logs.write(folder, AuditEntry(what="invited", at=now, invitation=id, reason=f"{what} for {expires}"))
        expiry, line = int(now) + seconds, str(replace(ticket, token=token))
        row = {"invitation": id, "uses": uses, "expires": expiry, "ticket": line, "gateway": gateway}
        whom = "gateway" if gateway else "peer"
        number = f"one {whom}" if uses == 1 else f"{uses} {whom}s"
        lines = [
            f"Invitation {id}, for {number} until {book.date(expiry)}. The ticket, one line, shown only now:",
            "",
            line,
        ]
        if gateway:
            lines += ["", "Start the gateway with `hetpeer bootstrap --join` and this ticket. It can let in anybody."]
        elif not book.is_closed(folder):
            lines += ["", "This run is open, so its plain ticket does too: `hetpeer bootstrap --closed` closes it."]
        show(terminal, [row], "\n".join(lines))

    return _in_folder(directory, terminal, work)


def invitations(directory: Path | None, terminal: Terminal) -> int:
    """Show all invitations; the exit code."""

    def work(folder: Path) -> None:
        found, now = book.listed(folder), time.time()
        closed = "This run is closed: joining takes an invitation."
        said = closed if book.is_closed(folder) else "This run is open: joining takes no invitation."
        show(terminal, invitation_rows(found, now), Group(invitations_table(found, now), Text(f"\n{said}")))

    return _in_folder(directory, terminal, work)


def withdraw(invitation: str, directory: Path | None, terminal: Terminal) -> int:
    """Take an invitation back; the exit code."""

    def work(folder: Path) -> None:
        book.withdraw(folder, invitation)
        logs.write(folder, AuditEntry(what="withdrawn", at=time.time(), invitation=invitation))
        terminal.emit(Progress(f"invitation {invitation} is withdrawn: nobody gets in with its ticket any more"))

    return _in_folder(directory, terminal, work)


def log(last: int, directory: Path | None, terminal: Terminal) -> int:
    """Show the operator's log; the exit code."""

    def work(folder: Path) -> None:
        entries = logs.last(folder, last)
        show(terminal, log_rows(entries), "\n".join(map(log_line, entries)))

    return _in_folder(directory, terminal, work)


def _in_folder(directory: Path | None, terminal: Terminal, work: Callable[[Path], None]) -> int:
    def command() -> int:
        work(operators_folder(directory))
        return 0

    return told(terminal.emit, command)
