"""`hetpeer bootstrap`: the operator's node, and beside it, if asked for, an observer that evaluates."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from bootstrap import node
from bootstrap.genesis import create_run, load_run
from peer.commands.admin import RevokeOptions, spread
from peer.commands.observer import Revoke, observe
from peer.events import Progress, Serving, Suspected
from peer.home import home, locked, remember
from peer.network import operator
from peer.process import Terminal, run, told
from protocol import manifest as manifests
from protocol import ticket as tickets
from protocol.atomic import write_atomically
from protocol.errors import UnreachableError, UserError
from protocol.keys import load_or_create
from protocol.manifest import Manifest
from protocol.run_files import DESCRIPTOR, Descriptor, RunFile
from protocol.ticket import Ticket

CARD = "card"
"""Where a gateway keeps the operator's word."""


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """What the command line said. Revoking takes auditing, and auditing evaluating."""

    run_toml: Path | None
    listen: str
    announce: str | None
    directory: Path | None
    data: Path | None
    evaluate: bool
    join: str | None = None
    audit: bool = False
    revoke: bool = False


def bootstrap(options: BootstrapOptions, terminal: Terminal) -> int:
    """Create the run or take it up again, and serve it until stopped; the exit code."""

    def serve() -> int:
        host, port = _listen_address(options)
        if options.join and options.revoke:
            raise UserError("--revoke is for the operator's own node: this one has another key")
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

                gateway = await _become_gateway(ticket, folder, terminal) if ticket else None
                served, card = gateway or (descriptor, b"")
                addresses = ticket.addresses if ticket else ()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(
                        node.serve(served, folder, host, port, options.announce, tell, stop, card, addresses)
                    )
                    if options.evaluate or options.audit or options.revoke:
                        tasks.create_task(_observe(up, options, served, folder, terminal, stop))

            return run(work, terminal)

    return told(terminal.emit, serve)


def _manifest(options: BootstrapOptions) -> Manifest:
    if options.run_toml is None:
        raise UserError("give the run's manifest, RUN.toml, or --join TICKET to serve a run that exists")
    return manifests.load(options.run_toml)


async def _become_gateway(ticket: Ticket, folder: Path, terminal: Terminal) -> tuple[Descriptor, bytes]:
    """What the run is, all its files, and the operator's word that this node may admit peers: from the operator's node,
    or, if it is gone, as this folder has them from an earlier time."""
    kept = folder / CARD
    identity = load_or_create(folder)
    try:
        descriptor = await operator.describe(ticket)
        _, card = await operator.admit(ticket, descriptor, identity.peer_id, "gateway", None)
    except UnreachableError:
        if not kept.exists():
            raise
        return load_run(folder), kept.read_bytes()

    def progress(file: RunFile, received: int) -> None:
        terminal.emit(Progress(f"fetching {file.name}", received, file.size))

    names = [file.name for file in descriptor.files]
    await operator.fetch_files(ticket, descriptor, names, folder, progress)
    write_atomically(kept, card)
    write_atomically(folder / DESCRIPTOR, descriptor.canonical())
    return descriptor, card


def _listen_address(options: BootstrapOptions) -> tuple[str, int]:
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65534:
        raise UserError(f"--listen takes HOST:PORT, not {options.listen!r}")
    if host == "0.0.0.0" and options.announce is None:
        raise UserError("listening on 0.0.0.0 needs --announce HOST: the address that peers can reach")
    return host, int(port)


async def _observe(
    up: asyncio.Future[Ticket],
    options: BootstrapOptions,
    descriptor: Descriptor,
    folder: Path,
    terminal: Terminal,
    stop: asyncio.Event,
) -> None:
    """Keep an observer beside this node, which audits if it is to, and revoke whom it suspects if that is the policy.

    Raises:
        LostMemberError: it died.
    """
    ticket = await up
    revoke = _revoke_with(ticket, descriptor, folder, terminal) if options.revoke else None
    await observe(ticket, folder / "observer", terminal, stop, options.audit or options.revoke, revoke)


def _revoke_with(ticket: Ticket, descriptor: Descriptor, folder: Path, terminal: Terminal) -> Revoke:
    """As the operator does by hand, with its key in this node's folder."""
    identity = load_or_create(folder)

    async def revoke(suspected: Suspected) -> None:
        await spread(
            RevokeOptions(suspected.peer, suspected.since, folder, None), ticket, descriptor, identity, terminal
        )

    return revoke
