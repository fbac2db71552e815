"""`hetpeer admin`: what the run's operator alone can do, in the folder of its bootstrap node."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import JsonOption, NodeFolderOption, RowsOption, duration, terminal
from protocol.errors import UserError

if TYPE_CHECKING:
    from peer.process import Terminal

admin = typer.Typer(
    help="What the run's operator alone can do, on the machine of the bootstrap node.",
    no_args_is_help=True,
    epilog="Examples:\n\n  hetpeer admin peers\n\n  hetpeer admin invite --uses 5 --expires 7d\n\n"
    "  hetpeer admin revoke 8xK2mQpL",
)


@admin.command(
    epilog="Examples:\n\n  hetpeer admin invite --uses 5 --expires 7d\n\n"
    "  hetpeer admin invite --expires 12h --dir ~/run --json\n\n  hetpeer admin invite --gateway\n\n"
    "The ticket is shown once. Whoever has it can join; who has joined may come back after it has expired."
)
def invite(
    uses: Annotated[int, typer.Option(min=1, help="How many peers may join with it.")] = 1,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="For how long newcomers may use it: 30m, 12h, 7d.")
    ] = "7d",
    gateway: Annotated[
        bool,
        typer.Option("--gateway", help="For another node of yours, which then lets in and certifies whom it likes."),
    ] = False,
    directory: NodeFolderOption = None,
    json: RowsOption = False,
) -> None:
    """Print a ticket that lets some peers into a closed run, or makes a gateway of any run."""
    from dataclasses import replace

    from bootstrap.admission import audit_log, operator_lists
    from bootstrap.admission.audit_log import AuditEntry
    from bootstrap.admission.database import date
    from peer.cli.tables import print_table
    from peer.store.home import operators_ticket
    from protocol.clock import unix_time
    from protocol.trust.keys import load_or_create

    shown = terminal(json)

    def work(folder: Path) -> None:
        seconds, ticket, now = duration(expires), operators_ticket(folder), unix_time()
        if gateway and load_or_create(folder).public != ticket.authority:
            raise UserError(f"{folder} is a gateway's: only the run's operator can make another, in its node's folder")
        token = operator_lists.add_invitation(folder, uses, seconds, now, gateway)
        id = operator_lists.invitation_id(token)
        what = f"a gateway, {uses} uses" if gateway else f"{uses} uses"
        audit_log.append_entry(
            folder, AuditEntry(what="invited", at=now, invitation=id, reason=f"{what} for {expires}")
        )
        expiry, line = int(now) + seconds, str(replace(ticket, token=token))
        row = {"invitation": id, "uses": uses, "expires": expiry, "ticket": line, "gateway": gateway}
        whom = "gateway" if gateway else "peer"
        number = f"one {whom}" if uses == 1 else f"{uses} {whom}s"
        until = date(expiry)
        lines = [f"Invitation {id}, for {number} until {until}. The ticket, one line, shown only now:", "", line]
        if gateway:
            lines += [
                "",
                "Start the gateway with `hetpeer bootstrap --join TICKET`. It can let in anybody.",
            ]
        elif not operator_lists.is_closed(folder):
            lines += ["", "This run is open, so its plain ticket does too: `hetpeer bootstrap --closed` closes it."]
        print_table(shown, [row], "\n".join(lines))

    sys.exit(_in_folder(directory, shown, work))


@admin.command(epilog="Examples:\n\n  hetpeer admin invitations\n\n  hetpeer admin invitations --dir ~/run --json")
def invitations(directory: NodeFolderOption = None, json: RowsOption = False) -> None:
    """List the invitations: what is left of each, until when, and who has used it."""
    from rich.console import Group
    from rich.text import Text

    from bootstrap.admission.operator_lists import is_closed, read_invitations
    from peer.cli.tables import invitation_rows, invitations_table, print_table
    from protocol.clock import unix_time

    shown = terminal(json)

    def work(folder: Path) -> None:
        kept_invitations, now = read_invitations(folder), unix_time()
        closed = "This run is closed: joining takes an invitation."
        headline = closed if is_closed(folder) else "This run is open: joining takes no invitation."
        print_table(
            shown,
            invitation_rows(kept_invitations, now),
            Group(invitations_table(kept_invitations, now), Text(f"\n{headline}")),
        )

    sys.exit(_in_folder(directory, shown, work))


@admin.command(
    epilog="Example:\n\n  hetpeer admin withdraw 1f9a03c7\n\n"
    "Peers that have joined with it stay until their certificates end; `hetpeer admin revoke` shuts one out at once."
)
def withdraw(
    invitation: Annotated[
        str, typer.Argument(metavar="ID", help="The invitation, as `hetpeer admin invitations` shows it.")
    ],
    directory: NodeFolderOption = None,
    json: JsonOption = False,
) -> None:
    """Take an invitation back: nobody gets in with its ticket any more."""
    from bootstrap.admission import audit_log, operator_lists
    from bootstrap.admission.audit_log import AuditEntry
    from protocol.clock import unix_time
    from protocol.events.activity import Progress

    shown = terminal(json)

    def work(folder: Path) -> None:
        operator_lists.withdraw_invitation(folder, invitation)
        audit_log.append_entry(folder, AuditEntry(what="withdrawn", at=unix_time(), invitation=invitation))
        shown.emit(Progress(f"invitation {invitation} is withdrawn: nobody gets in with its ticket any more"))

    sys.exit(_in_folder(directory, shown, work))


@admin.command(epilog="Examples:\n\n  hetpeer admin peers\n\n  hetpeer admin peers --dir ~/run --json")
def peers(directory: NodeFolderOption = None, json: RowsOption = False) -> None:
    """List the peers that are in the run, as they say of themselves, and the state of each as your node sees it."""
    from bootstrap.admission.operator_lists import read_revoked
    from peer.cli.revoking import states_of
    from peer.cli.tables import peer_rows, print_table, records_table
    from peer.network.admission import read_peers
    from peer.process import exit_code_of, run_query
    from peer.store.home import operators_folder, operators_ticket
    from protocol.run.run_files import DESCRIPTOR, parse_descriptor

    shown = terminal(json)

    def work() -> int:
        folder = operators_folder(directory)
        ticket = operators_ticket(folder)
        descriptor = parse_descriptor((folder / DESCRIPTOR).read_bytes(), ticket.run_id)
        present = [peer for peer in run_query(lambda: read_peers(ticket, descriptor), shown) if not peer.gone]
        revoked = {entry.peer for entry in read_revoked(folder)}
        states = run_query(lambda: states_of(present, revoked, ticket), shown)
        print_table(shown, peer_rows(present, states), records_table(present, states))
        return 0

    sys.exit(exit_code_of(shown.emit, work))


@admin.command(epilog="Examples:\n\n  hetpeer admin log\n\n  hetpeer admin log --last 500 --json")
def log(
    last: Annotated[int, typer.Option(min=1, help="So many entries, the latest at the end.")] = 50,
    directory: NodeFolderOption = None,
    json: RowsOption = False,
) -> None:
    """Show who was admitted, renewed, refused, invited and revoked, and what peers told of each other."""
    from bootstrap.admission import audit_log
    from peer.cli.tables import log_line, log_rows, print_table

    shown = terminal(json)

    def work(folder: Path) -> None:
        entries = audit_log.last(folder, last)
        print_table(shown, log_rows(entries), "\n".join(map(log_line, entries)))

    sys.exit(_in_folder(directory, shown, work))


@admin.command(
    epilog="Examples:\n\n  hetpeer admin revoke 8xK2mQpL\n\n"
    "  hetpeer admin revoke 8xK2mQpL --from-round 120 --dir ~/run\n\n"
    "While no peer can be told, it shuts the peer out of new certificates, and says what is left to do."
)
def revoke(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="A peer id, or its end as the logs show it.")],
    from_round: Annotated[
        int | None,
        typer.Option(min=1, help="The first round without its contributions. Default: the one that is going on."),
    ] = None,
    ticket: Annotated[
        str | None,
        typer.Argument(metavar="TICKET", help="The run's ticket, or a file with it. Default: the one in the folder."),
    ] = None,
    directory: NodeFolderOption = None,
    json: JsonOption = False,
) -> None:
    """Shut a peer out, and take its contributions out of the model, from a round on, everywhere."""
    from peer.cli.revoking import Operator, spread
    from peer.process import exit_code_of, run_query
    from peer.store.home import operators_folder, operators_ticket
    from protocol.trust.ticket import find_ticket

    shown = terminal(json)

    def work() -> int:
        folder = operators_folder(directory)
        found_ticket = find_ticket(ticket, folder) if ticket else operators_ticket(folder)
        operator = Operator.of(folder, found_ticket.run_id)
        run_query(lambda: spread(peer, from_round, operator, found_ticket, shown), shown)
        return 0

    sys.exit(exit_code_of(shown.emit, work))


def _in_folder(directory: Path | None, terminal: "Terminal", work: Callable[[Path], None]) -> int:
    """Do `work` in the node's folder; the exit code."""
    from peer.process import exit_code_of
    from peer.store.home import operators_folder

    def command() -> int:
        work(operators_folder(directory))
        return 0

    return exit_code_of(terminal.emit, command)
