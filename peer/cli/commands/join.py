"""`hetpeer join`, `replica` and `observe`: three roles of a peer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.cli.commands.watching import watched
from peer.compute.arithmetic import Arithmetic
from peer.compute.machine import DeviceName, cores
from peer.joining import PeerOptions
from peer.network.reach.reach import Wish
from peer.process import Terminal, run, told
from peer.settings import Manners
from peer.store.home import home, locked, own_folders, remember
from peer.supervisor import serve_as_guest
from protocol.trust.membership import Role
from protocol.trust.ticket import find


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """What the command line said; None is "choose for me". 0 threads are all cores."""

    role: Role
    ticket: str | None
    device: DeviceName
    threads: int
    directory: Path | None
    wish: Wish
    stage: int | None = None
    manifest: Path | None = None
    audit: bool = False
    relay: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of `Manners.of`."""
    schedule: str = "1f1b"
    data: Path | None = None
    processes: int = 1
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    metrics: str | None = None
    """[HOST:]PORT to serve them at."""
    stay: bool = False


def join(options: JoinOptions, terminal: Terminal) -> int:
    """Serve until the run's last round; the exit code."""

    def serve() -> int:
        manners = Manners.of(**options.asked)
        ticket = find(options.ticket, options.directory or home())
        place = options.role if options.stage is None else f"stage-{options.stage}"
        folders = [options.directory] if options.directory else own_folders(ticket, place)
        with locked(*folders) as folder, watched(terminal, folder, options.metrics) as heard:
            if options.directory is None:
                remember(ticket)
            settings = PeerOptions(
                ticket=ticket,
                role=options.role,
                directory=folder,
                stage=options.stage,
                device=options.device,
                threads=options.threads or cores(),
                wish=options.wish,
                manifest=options.manifest,
                audit=options.audit,
                manners=manners,
                data=options.data,
                relay=options.relay,
                stay=options.stay,
                split_backward=options.schedule == "zero-bubble",
                processes=options.processes,
                arithmetic=options.arithmetic,
            )
            return run(lambda stop: serve_as_guest(stop, settings, heard.emit), heard)

    return told(terminal.emit, serve)
