"""`hetpeer doctor`: would this machine do? A few lines, as in `peer/cli/__main__.py`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import DeviceOption, terminal


def doctor(
    ticket: Annotated[
        str | None,
        typer.Argument(
            metavar="TICKET",
            help="The run's ticket, or a file with it. Else HETPEER_TICKET, else the last one used on this machine.",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Ask nobody: this machine alone, with the model of this name, such as 512m.")
    ] = None,
    stages: Annotated[int, typer.Option(min=1, help="With --preset: pipeline stages.")] = 4,
    device: DeviceOption = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU cores for one operation; 0 takes all.")] = 0,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder that the peer would have. Default: under ~/.hetpeer.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="As `hetpeer join` would have it: whether others can dial it is tried there."
        ),
    ] = None,
    announce: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="What others dial, where a router forwards to this peer.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="How long to compute on each kind of stage."),
    ] = 8.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Say, without joining, what would be wrong, and which stages of a run this machine could serve how fast."""
    from peer.cli.commands.doctor import DoctorOptions
    from peer.cli.commands.doctor import doctor as run

    options = DoctorOptions(ticket, preset, stages, device, threads, directory, listen, announce, seconds)
    sys.exit(run(options, terminal(json)))
