"""`hetpeer bootstrap`: the operator's node, and beside it, if asked for, an observer that evaluates."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bootstrap import node
from bootstrap.genesis import create_run
from peer.events import Progress, Serving
from peer.home import home, locked, remember
from peer.process import Terminal, run, told
from protocol import manifest as manifests
from protocol.errors import UserError
from protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """What the command line said."""

    run_toml: Path
    listen: str
    announce: str | None
    directory: Path | None
    data: Path | None
    evaluate: bool


def bootstrap(options: BootstrapOptions, terminal: Terminal) -> int:
    """Create the run or take it up again, and serve it until stopped; the exit code."""

    def serve() -> int:
        host, port = _listen_address(options)
        manifest = manifests.load(options.run_toml)
        with locked(options.directory or home() / f"bootstrap-{manifest.run.name}") as folder:
            descriptor = create_run(manifest, folder, options.data, lambda doing: terminal.emit(Progress(doing)))
            observers: list[subprocess.Popen[bytes]] = []

            def tell(ticket: Ticket) -> None:
                if options.directory is None:
                    remember(ticket)
                terminal.emit(Serving(str(ticket), ticket.run_id))
                if options.evaluate:
                    observers.append(_start_observer(ticket, folder, terminal))

            async def work(stop: asyncio.Event) -> None:
                await node.serve(descriptor, folder, host, port, options.announce, tell, stop)

            try:
                return run(work, terminal)
            finally:
                for observer in observers:
                    observer.communicate()  # closes its standard input, which stops it

    return told(terminal.emit, serve)


def _listen_address(options: BootstrapOptions) -> tuple[str, int]:
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65534:
        raise UserError(f"--listen takes HOST:PORT, not {options.listen!r}")
    if host == "0.0.0.0" and options.announce is None:
        raise UserError("listening on 0.0.0.0 needs --announce HOST: the address that peers can reach")
    return host, int(port)


def _start_observer(ticket: Ticket, folder: Path, terminal: Terminal) -> subprocess.Popen[bytes]:
    """A process of its own, since this node has no torch; it speaks on our standard output."""
    arguments = ["observe", str(ticket), "--dir", str(folder / "observer"), "--until-stdin-closes"]
    if terminal.json:
        arguments.append("--json")
    return subprocess.Popen([sys.executable, "-m", "peer.cli", *arguments], stdin=subprocess.PIPE)
