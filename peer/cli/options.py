"""What `join`, `replica` and `observe` may be told, but for the limits of `peer/cli/limits.py`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

TicketArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TICKET",
        help="The run's ticket, or a file with it. Else HETPEER_TICKET, else the last one used on this machine.",
    ),
]
ThreadsOption = Annotated[int, typer.Option(min=0, help="CPU cores for one operation; 0 takes all.")]
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder for this peer's key and the run's files. Default: under ~/.hetpeer."),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address for other peers to call. Default: the interface towards the operator, any port.",
    ),
]
AnnounceOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="What others dial, where that is not where this peer listens: a router's address, whose port you forward. "
        "libp2p then listens on the port after --listen's.",
    ),
]
ReachOption = Annotated[
    Literal["auto", "direct", "relay"],
    typer.Option(
        help="Whether others can dial this peer. auto: the operator's node tries; if not, relays carry their calls."
    ),
]
RelayOption = Annotated[
    bool,
    typer.Option(
        "--relay/--no-relay",
        help="Carry calls to peers behind routers that let nobody in, if this one can be dialled. Uses bandwidth.",
    ),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option("--manifest", metavar="RUN.toml", help="Join only if the run has exactly this manifest."),
]
CopyOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Your copy of the run's prepared text, in place of mirrors."),
]
AuditOption = Annotated[
    bool,
    typer.Option(
        "--audit",
        help="Evaluate; measure, and publish, what each peer's contributions do to the loss. Takes nobody out.",
    ),
]
StayOption = Annotated[
    bool,
    typer.Option("--stay", help="After the last round, stay and give the last state to who comes late, until Ctrl-C."),
]
StdinOption = Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)]
