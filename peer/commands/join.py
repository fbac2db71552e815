"""`hetpeer join`, `replica` and `observe`: three roles of a peer."""

from dataclasses import dataclass
from pathlib import Path

from peer.compute.machine import DeviceName, cores
from peer.daemon import run_until
from peer.home import home, locked, peer_folder, remember
from peer.joining import PeerOptions
from peer.network.reach import Wish
from peer.process import Terminal, run, told
from protocol.cards import Role
from protocol.ticket import find


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


def join(options: JoinOptions, terminal: Terminal) -> int:
    """Serve until the run's last round; the exit code."""

    def serve() -> int:
        ticket = find(options.ticket, options.directory or home())
        place = options.role if options.stage is None else f"stage-{options.stage}"
        with locked(options.directory or peer_folder(ticket, place)) as folder:
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
                relay=options.relay,
            )
            return run(lambda stop: run_until(stop, settings, terminal.emit), terminal)

    return told(terminal.emit, serve)
