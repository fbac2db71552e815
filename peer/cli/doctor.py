"""`hetpeer doctor`: what this machine and its links would be to a run, before it joins."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import DeviceOption, RowsOption, ThreadsOption, TicketArgument, takes, terminal
from protocol.errors import TicketError

if TYPE_CHECKING:
    import asyncio

    from peer.cli.examination import Around
    from peer.process import Terminal
    from protocol.manifest import Manifest
    from protocol.trust.ticket import Ticket

DOCTOR_EXAMPLES = (
    "Examples:\n\n  hetpeer doctor hetpeer1-…\n\n  hetpeer doctor hetpeer1-… --listen 0.0.0.0:7800\n\n"
    "  hetpeer doctor --preset 512m --stages 4 --device cpu"
)

NOT_TO_JOIN = 1
"""Exit code: something must be mended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The options of `hetpeer doctor`. With a `preset`, nobody is asked: its model in so many stages is the run."""

    ticket: TicketArgument = None
    preset: Annotated[
        str | None, typer.Option(help="Ask nobody: this machine alone, with the model of this name, such as 512m.")
    ] = None
    stages: Annotated[int, typer.Option(min=1, help="With --preset: pipeline stages.")] = 4
    device: DeviceOption = "auto"
    threads: ThreadsOption = 0
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder that the peer would have. Default: under ~/.hetpeer.")
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="As `hetpeer join` would have it: whether others can dial it is tried there."
        ),
    ] = None
    announce: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="What others dial, where a router forwards to this peer.")
    ] = None
    seconds: Annotated[
        float,
        typer.Option(min=0.1, metavar="S", help="How long to compute on each kind of stage."),
    ] = 8.0
    json: RowsOption = False


@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> None:
    """Say, without joining, what would be wrong, and which stages of a run this machine could serve how fast."""
    sys.exit(examine(options, terminal(options.json)))


def examine(options: DoctorOptions, terminal: "Terminal") -> int:
    """Check everything, show what was found; the exit code: 0 if this machine can join."""
    from peer.cli.examination import drawn, look_around, of_network, of_stages, rows
    from peer.cli.tables import show
    from peer.compute.capacity import cores, find_device
    from peer.diagnosis import machine
    from peer.diagnosis.finding import gravest
    from peer.network.reach.reach import Wish
    from peer.process import run_command, told
    from peer.store.home import home, peer_folder

    def work() -> int:
        ticket = None if options.preset else _ticket(options)
        device, threads = find_device(options.device), options.threads or cores()
        folder = options.directory or (peer_folder(ticket, "volunteer") if ticket else home())
        findings = machine.examine(device, threads, folder)
        around = None
        if ticket is not None:
            looked: list[Around] = []

            async def look(stop: "asyncio.Event") -> None:
                looked.append(await look_around(ticket, Wish(options.listen, options.announce), terminal))

            if code := run_command(look, terminal):
                return code
            around = looked[0]
            findings = [each for each in findings if each.name not in ("clock", "disk")]
            findings += of_network(around)
        manifest = _manifest(options, around)
        if manifest is not None:
            findings += of_stages(
                manifest,
                around,
                device=device,
                threads=threads,
                folder=folder,
                limit=options.seconds,
                terminal=terminal,
            )
        show(terminal, rows(findings), drawn(findings, manifest))
        return NOT_TO_JOIN if gravest([each.outcome for each in findings]) == "failure" else 0

    return told(terminal.emit, work)


def _ticket(options: DoctorOptions) -> "Ticket | None":
    """The ticket, as `hetpeer join` finds it; None where there is none and none was asked for."""
    from peer.store.home import home
    from protocol.trust import ticket as tickets

    try:
        return tickets.find(options.ticket, options.directory or home())
    except TicketError:
        if options.ticket is not None:
            raise
        return None


def _manifest(options: DoctorOptions, around: "Around | None") -> "Manifest | None":
    """The manifest of the run, or of a preset's model; None where the run's is not known."""
    from protocol import manifest as manifests

    if around is not None:
        return around.descriptor.manifest if around.descriptor else None
    preset = options.preset or "512m"
    return manifests.check_manifest(
        {"model": {"preset": preset}, "replicas": {"stages": options.stages}}, "--preset, --stages"
    )
