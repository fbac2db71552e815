"""`hetpeer admin`: what the run's operator alone can do. A few lines a command, as in `peer/cli/__main__.py`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import JsonOption, terminal

admin = typer.Typer(
    help="What the run's operator alone can do, on the machine of the bootstrap node.",
    no_args_is_help=True,
    epilog="Examples:\n\n  hetpeer admin peers\n\n  hetpeer admin invite --uses 5 --expires 7d\n\n"
    "  hetpeer admin revoke 8xK2mQpL",
)

FolderOption = Annotated[
    Path | None, typer.Option("--dir", help="The bootstrap node's folder, with its key. Default: the only one.")
]
RowsOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


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
    directory: FolderOption = None,
    json: RowsOption = False,
) -> None:
    """Print a ticket that lets some peers into a closed run, or makes a gateway of any run."""
    from peer.cli.commands.invitations import invite as run

    sys.exit(run(uses, expires, directory, terminal(json), gateway))


@admin.command(epilog="Examples:\n\n  hetpeer admin invitations\n\n  hetpeer admin invitations --dir ~/run --json")
def invitations(directory: FolderOption = None, json: RowsOption = False) -> None:
    """List the invitations: what is left of each, until when, and who has used it."""
    from peer.cli.commands.invitations import invitations as run

    sys.exit(run(directory, terminal(json)))


@admin.command(
    epilog="Example:\n\n  hetpeer admin withdraw 1f9a03c7\n\n"
    "Peers that have joined with it stay until their certificates end; `hetpeer admin revoke` shuts one out at once."
)
def withdraw(
    invitation: Annotated[
        str, typer.Argument(metavar="ID", help="The invitation, as `hetpeer admin invitations` shows it.")
    ],
    directory: FolderOption = None,
    json: JsonOption = False,
) -> None:
    """Take an invitation back: nobody gets in with its ticket any more."""
    from peer.cli.commands.invitations import withdraw as run

    sys.exit(run(invitation, directory, terminal(json)))


@admin.command(epilog="Examples:\n\n  hetpeer admin peers\n\n  hetpeer admin peers --dir ~/run --json")
def peers(directory: FolderOption = None, json: RowsOption = False) -> None:
    """List the peers that are in the run now, as they say of themselves."""
    from peer.cli.commands.admin import peers as run

    sys.exit(run(directory, terminal(json)))


@admin.command(epilog="Examples:\n\n  hetpeer admin log\n\n  hetpeer admin log --last 500 --json")
def log(
    last: Annotated[int, typer.Option(min=1, help="So many entries, the latest at the end.")] = 50,
    directory: FolderOption = None,
    json: RowsOption = False,
) -> None:
    """Show who was admitted, renewed, refused, invited and revoked, and what peers told of each other."""
    from peer.cli.commands.invitations import log as run

    sys.exit(run(last, directory, terminal(json)))


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
    directory: FolderOption = None,
    json: JsonOption = False,
) -> None:
    """Shut a peer out, and take its contributions out of the model, from a round on, everywhere."""
    from peer.cli.commands.admin import RevokeOptions
    from peer.cli.commands.admin import revoke as run

    sys.exit(run(RevokeOptions(peer, from_round, directory, ticket), terminal(json)))
