"""`hetpeer bootstrap`: the operator's node, and beside it, if asked for, an observer that evaluates."""

import asyncio
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from bootstrap.admission import invitations, trials
from bootstrap.admission.policy import OBSERVER
from bootstrap.dashboard.server import serve as serve_dashboard
from bootstrap.dashboard.server import taken
from bootstrap.genesis import create_run, load_run
from bootstrap.monitor.metrics import render
from bootstrap.monitor.watch import Monitor
from bootstrap.node import Listen, ServingRights, as_operator
from bootstrap.node import serve as serve_node
from peer.cli.commands.dry_run import dry_run
from peer.cli.commands.observer import Acquit, Revoke, observe
from peer.cli.options import duration
from peer.cli.revocation import Operator, spread
from peer.network import admission
from peer.process import Terminal, run, told
from peer.store.home import home, locked, remember
from peer.store.membership import card_of, kept_credentials, mirrors_of, remember_place, remember_text
from peer.telemetry.events import Progress, Serving, Suspected, Tried
from protocol import manifest as manifests
from protocol.addresses import WILDCARDS, read_host, split
from protocol.atomic import write_atomically
from protocol.errors import FormatError, UnreachableError, UserError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.run.dataset import MOST_MIRRORS, base_urls
from protocol.run.prepared import link, require_same
from protocol.run.run_files import DESCRIPTOR, Descriptor, RunFile
from protocol.trust import ticket as tickets
from protocol.trust.attestations import GRANTED, grant
from protocol.trust.keys import load_or_create
from protocol.trust.membership import Authority
from protocol.trust.ticket import Ticket

FIRST_USES, FIRST_SECONDS = 100, 30 * 86400
"""Of the invitation in the ticket that a closed run begins with; `hetpeer admin invite` makes others."""

MOST_PORT = 65533
"""The node takes the next two as well."""

OWN_SECONDS = 3600
"""For this node's observer to come in."""


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """What the command line said. Revoking and trials take auditing, and auditing evaluating."""

    run_toml: Path | None
    listen: str
    announce: str | None
    directory: Path | None
    data: Path | None
    evaluate: bool
    join: str | None = None
    audit: bool = False
    revoke: bool = False
    closed: bool | None = None
    certificate_life: str = "3d"
    trials: bool | None = None
    dry_run: bool = False
    weights: Path | None = None
    mirrors: tuple[str, ...] = ()
    dashboard: str | None = None


def bootstrap(options: BootstrapOptions, terminal: Terminal) -> int:
    """Create the run or take it up again, and serve it until stopped; the exit code."""

    def serve() -> int:
        where, life = _listen_address(options), duration(options.certificate_life)
        mirrors = _mirrors(options)
        if options.join and options.trials is not None:
            raise UserError("--trials is for the operator's own node: this one does as that one does")
        if options.join and options.dry_run:
            raise UserError("--dry-run is for RUN.toml: a run that is served already is there")
        if options.join and options.weights:
            raise UserError("--weights is for who creates a run: this one is created already")
        if options.join and options.revoke:
            raise UserError("--revoke is for the operator's own node: this one has another key")
        ticket = tickets.parse(options.join) if options.join else None
        if ticket is not None:
            name = f"gateway-{ticket.run_id[:12]}"
        else:
            manifest = _manifest(options)
            if options.dry_run:
                return dry_run(manifest, terminal)
            name = f"bootstrap-{manifest.run.name}"
        page = taken(options.dashboard, where.announced) if options.dashboard else nullcontext()
        with locked(options.directory or home() / name) as folder, page as dashboard:
            if ticket is None:
                descriptor = create_run(
                    manifest, folder, options.data, lambda doing: terminal.emit(Progress(doing)), options.weights
                )

            first_token = _close(options, folder)
            if first_token:
                lets_in = f"{FIRST_USES} newcomers in {FIRST_SECONDS // 86400} days"
                terminal.emit(Progress(f"the run is closed: its first ticket lets in {lets_in}, and is a secret"))
            if options.trials is not None:
                trials.require(folder, options.trials)
            audits = options.audit or options.revoke or (ticket is None and trials.read(folder).required)

            async def work(stop: asyncio.Event) -> None:
                up: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()

                def tell(ticket: Ticket) -> None:
                    if options.directory is None:
                        remember(ticket)
                    shown = replace(ticket, token=first_token)
                    if dashboard and dashboard.warning:
                        terminal.emit(Progress(dashboard.warning))
                    terminal.emit(Serving(str(shown), ticket.run_id, dashboard.url if dashboard else ""))
                    up.set_result(ticket)

                if ticket:
                    served, standing = await _become_gateway(life, ticket, folder, options.data, terminal)
                else:
                    served, standing = descriptor, as_operator(load_or_create(folder), life)
                if mirrors and not served.prepared:
                    raise UserError("--mirror is for prepared text: see `hetpeer data prepare`")
                told_before = mirrors_of(folder) if ticket else ()
                others = tuple(dict.fromkeys((*mirrors, *told_before)))[:MOST_MIRRORS]
                monitor = await asyncio.to_thread(Monitor.of, served.manifest, served.run_id, folder)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(serve_node(served, folder, where, standing, tell, stop, others, monitor))
                    if dashboard:
                        view = monitor.view
                        page_of = serve_dashboard(dashboard, view, monitor.until_changed, lambda: render(view()), stop)
                        tasks.create_task(page_of)
                    if options.evaluate or audits:
                        tasks.create_task(_observe(up, options, audits, served, folder, terminal, stop))
                terminal.emit(Progress("Stopped. Peers train on, and the same command takes this node up again."))

            return run(work, terminal)

    return told(terminal.emit, serve)


def _close(options: BootstrapOptions, folder: Path) -> bytes:
    """Close the run to who has no invitation, or open it, if so asked; a run that is closed now gets a first
    invitation, whose token this is."""
    if options.closed is None or options.closed == invitations.is_closed(folder):
        return b""
    invitations.set_closed(folder, options.closed)
    if not options.closed:
        return b""
    return invitations.invite(folder, FIRST_USES, FIRST_SECONDS, time.time())


def _manifest(options: BootstrapOptions) -> Manifest:
    if options.run_toml is None:
        raise UserError("give the run's manifest, RUN.toml, or --join TICKET to serve a run that exists")
    return manifests.load(options.run_toml)


def _mirrors(options: BootstrapOptions) -> tuple[str, ...]:
    try:
        return base_urls(options.mirrors)
    except FormatError as error:
        raise UserError(f"--mirror: {error}") from None


async def _become_gateway(
    life: float, ticket: Ticket, folder: Path, data: Path | None, terminal: Terminal
) -> tuple[Descriptor, ServingRights]:
    """What the run is, all its files, and the operator's word that this node may admit and certify peers: from the
    operator's node, or, if it is gone, as this folder has them from an earlier time. `data` is a copy of its prepared
    text, whose blocks this node then serves as well."""
    identity = load_or_create(folder)
    try:
        descriptor = await admission.describe(ticket)
        place = await admission.register(ticket, descriptor, identity, "gateway", None)
    except UnreachableError as error:
        credentials = kept_credentials(folder, ticket, identity)
        if credentials is None or credentials.ends < time.time():
            raise
        terminal.emit(Progress(f"{error}; going on with what {folder} has of the run"))
        return load_run(folder), ServingRights(credentials, life, card_of(folder), ticket)

    def progress(file: RunFile, received: int) -> None:
        terminal.emit(Progress(f"fetching {file.name}", received, file.size))

    names = [file.name for file in descriptor.files]
    await admission.fetch_files(place, descriptor, names, folder, progress)
    write_atomically(folder / DESCRIPTOR, descriptor.canonical())
    remember_place(folder, place.signed_card, place.credentials)
    remember_text(folder, place.mirrors, place.node)
    if data is not None:
        require_same(descriptor, data)
        link(folder, data)
    if place.closed:
        invitations.set_closed(folder, True)
    trials.require(folder, place.trials)
    return descriptor, ServingRights(place.credentials, life, place.signed_card, ticket)


def _listen_address(options: BootstrapOptions) -> Listen:
    try:
        host, port = split(options.listen)
        announced, other_port = read_host(options.announce) if options.announce is not None else (None, None)
    except FormatError as error:
        raise UserError(f"--listen takes HOST:PORT, and --announce HOST: {error}") from None
    if other_port is not None:
        raise UserError("--announce takes HOST alone: the ports are those of --listen")
    if port > MOST_PORT:
        raise UserError(f"--listen takes a port up to {MOST_PORT}: libp2p and peers use the next two")
    if host in WILDCARDS and announced is None:
        raise UserError(f"listening on {host} needs --announce HOST: the address that peers can reach")
    return Listen(host, port, announced)


async def _observe(
    up: asyncio.Future[Ticket],
    options: BootstrapOptions,
    audits: bool,
    descriptor: Descriptor,
    folder: Path,
    terminal: Terminal,
    stop: asyncio.Event,
) -> None:
    """Keep an observer beside this node, which audits if it is to: let what newcomers contribute count once they have
    stood their trial, and revoke whom it suspects if that is the policy.

    Raises:
        LostMemberError: it died.
    """
    ticket = await up
    if invitations.is_closed(folder):
        ticket = replace(ticket, token=invitations.invite(folder, 1, OWN_SECONDS, time.time()))
    revoke = _revoke_with(ticket, descriptor, folder, terminal) if options.revoke else None
    if options.join is None:
        await asyncio.to_thread(_name_attester, folder, descriptor)
    await observe(ticket, folder / OBSERVER, terminal, stop, audits, revoke, _acquit_in(folder))


def _name_attester(folder: Path, descriptor: Descriptor) -> None:
    """The operator's word that its own observer attests what it sees of closed rounds."""
    attester = load_or_create(folder / OBSERVER).peer_id
    word = grant(load_or_create(folder), Authority(descriptor.run_id, descriptor.operator), attester)
    write_atomically(folder / OBSERVER / GRANTED, word)


def _acquit_in(folder: Path) -> Acquit:
    """By this node's list, which it reads when a peer asks for its next card."""

    async def acquit(tried: Tried) -> None:
        await asyncio.to_thread(trials.note_stood, folder, PeerId(tried.peer))

    return acquit


def _revoke_with(ticket: Ticket, descriptor: Descriptor, folder: Path, terminal: Terminal) -> Revoke:
    """As the operator does by hand, with its key in this node's folder."""
    ours = Operator(folder, load_or_create(folder), descriptor)

    async def revoke(suspected: Suspected) -> None:
        await spread(suspected.peer, suspected.since, ours, ticket, terminal)

    return revoke
