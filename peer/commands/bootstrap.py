"""`hetpeer bootstrap`: the operator's node, and beside it, if asked for, an observer that evaluates."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from bootstrap import node
from bootstrap.genesis import create_run
from peer.events import Progress, Serving
from peer.home import home, locked, remember
from peer.process import Terminal, run, told
from protocol import manifest as manifests
from protocol.errors import LostMemberError, UserError
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

            async def work(stop: asyncio.Event) -> None:
                up: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()

                def tell(ticket: Ticket) -> None:
                    if options.directory is None:
                        remember(ticket)
                    terminal.emit(Serving(str(ticket), ticket.run_id))
                    up.set_result(ticket)

                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(node.serve(descriptor, folder, host, port, options.announce, tell, stop))
                    if options.evaluate:
                        tasks.create_task(_observe(up, folder, terminal, stop))

            return run(work, terminal)

    return told(terminal.emit, serve)


def _listen_address(options: BootstrapOptions) -> tuple[str, int]:
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65534:
        raise UserError(f"--listen takes HOST:PORT, not {options.listen!r}")
    if host == "0.0.0.0" and options.announce is None:
        raise UserError("listening on 0.0.0.0 needs --announce HOST: the address that peers can reach")
    return host, int(port)


async def _observe(up: asyncio.Future[Ticket], folder: Path, terminal: Terminal, stop: asyncio.Event) -> None:
    """Keep an observer beside this node: a process of its own, since this one has no torch. It speaks on our
    standard output, and stops when its standard input closes.

    Raises:
        LostMemberError: it died.
    """
    arguments = ["observe", str(await up), "--dir", str(folder / "observer"), "--until-stdin-closes"]
    if terminal.json:
        arguments.append("--json")
    observer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "peer.cli", *arguments, stdin=asyncio.subprocess.PIPE
    )
    assert observer.stdin is not None
    ended, stopping = asyncio.ensure_future(observer.wait()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        observer.stdin.close()
        code = await ended
    if code and not stop.is_set():
        raise LostMemberError(f"the observer that evaluates (process {observer.pid}) ended with exit code {code}")
