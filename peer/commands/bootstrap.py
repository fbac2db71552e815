"""`hetpeer bootstrap`: the operator's node, and beside it, if asked for, an observer that evaluates."""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bootstrap.genesis import create_run, load_run
from bootstrap.node import Listen, Standing, as_operator
from bootstrap.node import serve as serve_node
from peer.events import Progress, Serving
from peer.home import home, locked, remember
from peer.network import operator
from peer.network.remembered import card_of, kept_credentials, remember_place
from peer.process import Terminal, run, told
from protocol import manifest as manifests
from protocol import ticket as tickets
from protocol.atomic import write_atomically
from protocol.errors import LostMemberError, UnreachableError, UserError
from protocol.keys import load_or_create
from protocol.manifest import Manifest
from protocol.run_files import DESCRIPTOR, Descriptor, RunFile
from protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """What the command line said."""

    run_toml: Path | None
    listen: str
    announce: str | None
    directory: Path | None
    data: Path | None
    evaluate: bool
    join: str | None = None
    certificate_seconds: float = 12 * 3600.0


def bootstrap(options: BootstrapOptions, terminal: Terminal) -> int:
    """Create the run or take it up again, and serve it until stopped; the exit code."""

    def serve() -> int:
        where = _listen_address(options)
        ticket = tickets.parse(options.join) if options.join else None
        if ticket is not None:
            name = f"gateway-{ticket.run_id[:12]}"
        else:
            manifest = _manifest(options)
            name = f"bootstrap-{manifest.run.name}"
        with locked(options.directory or home() / name) as folder:
            if ticket is None:
                descriptor = create_run(manifest, folder, options.data, lambda doing: terminal.emit(Progress(doing)))

            async def work(stop: asyncio.Event) -> None:
                up: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()

                def tell(ticket: Ticket) -> None:
                    if options.directory is None:
                        remember(ticket)
                    terminal.emit(Serving(str(ticket), ticket.run_id))
                    up.set_result(ticket)

                if ticket:
                    served, standing = await _become_gateway(options, ticket, folder, terminal)
                else:
                    served, standing = descriptor, as_operator(load_or_create(folder), options.certificate_seconds)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(serve_node(served, folder, where, standing, tell, stop))
                    if options.evaluate:
                        tasks.create_task(_observe(up, folder, terminal, stop))

            return run(work, terminal)

    return told(terminal.emit, serve)


def _manifest(options: BootstrapOptions) -> Manifest:
    if options.run_toml is None:
        raise UserError("give the run's manifest, RUN.toml, or --join TICKET to serve a run that exists")
    return manifests.load(options.run_toml)


async def _become_gateway(
    options: BootstrapOptions, ticket: Ticket, folder: Path, terminal: Terminal
) -> tuple[Descriptor, Standing]:
    """What the run is, all its files, and the operator's word that this node may admit and certify peers: from the
    operator's node, or, if it is gone, as this folder has them from an earlier time."""
    identity = load_or_create(folder)
    try:
        descriptor = await operator.describe(ticket)
        place = await operator.register(ticket, descriptor, identity, "gateway", None)
    except UnreachableError as error:
        credentials = kept_credentials(folder, ticket, identity)
        if credentials is None or credentials.ends < time.time():
            raise
        terminal.emit(Progress(f"{error}; going on with what {folder} has of the run"))
        return load_run(folder), Standing(credentials, options.certificate_seconds, card_of(folder), ticket)

    def progress(file: RunFile, received: int) -> None:
        terminal.emit(Progress(f"fetching {file.name}", received, file.size))

    names = [file.name for file in descriptor.files]
    await operator.fetch_files(place, descriptor, names, folder, progress)
    write_atomically(folder / DESCRIPTOR, descriptor.canonical())
    remember_place(folder, place.signed_card, place.credentials)
    return descriptor, Standing(place.credentials, options.certificate_seconds, place.signed_card, ticket)


def _listen_address(options: BootstrapOptions) -> Listen:
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65533:
        raise UserError(f"--listen takes HOST:PORT, not {options.listen!r}")
    if host == "0.0.0.0" and options.announce is None:
        raise UserError("listening on 0.0.0.0 needs --announce HOST: the address that peers can reach")
    return Listen(host, int(port), options.announce)


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
