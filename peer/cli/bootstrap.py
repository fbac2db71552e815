"""`hetpeer bootstrap`: the operator's node, and beside it, if asked for, an observer that evaluates."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import (
    JsonOption,
    LogJsonOption,
    StdinOption,
    TextOption,
    TrackOption,
    WeightsOption,
    duration,
    takes,
    terminal,
)
from protocol.errors import FormatError, UnreachableError, UserError

if TYPE_CHECKING:
    import asyncio

    from bootstrap.monitor.watch import Monitor
    from bootstrap.node import ServingRights
    from peer.process import Terminal
    from protocol.events.event import Listener
    from protocol.manifest import Manifest
    from protocol.run.run_files import Descriptor, RunFile
    from protocol.trust.ticket import Ticket

FIRST_USES, FIRST_SECONDS = 100, 30 * 86400
"""The uses and the duration of the invitation in the first ticket of a closed run."""

NOT_HELD = "WARNING: after the last round this node will not hold the model"
HOLD_ELSEWHERE = (
    "Before the run ends, start `hetpeer observe --stay` on a machine with more room; without it the last state is "
    "only in the folders of the peers that finish"
)

MUON_ALONE = (
    'WARNING: with inner.optimizer = "muon", a model that volunteers alone train may be good through their boundaries '
    "alone, and an exported model has none"
)
HAVE_WHOLE = (
    'Say inner.subspace_steps = true, plan for a datacenter, or use "adamw"; and compare the two losses that '
    "`hetpeer status` shows"
)

STATE_POLL_SECONDS = 2.0
"""The interval, at most, at which the node tells its operator that the run's state has changed, in seconds."""

BOOTSTRAP_EPILOG = (
    "Examples:\n\n  hetpeer bootstrap examples/first-run/run.toml\n\n"
    "  hetpeer bootstrap run.toml --listen 0.0.0.0:7700 --announce train.example.org --data ~/texts\n\n"
    "  hetpeer bootstrap run.toml --data ~/prepared --mirror https://data.example.org/prepared\n\n"
    "  hetpeer bootstrap run.toml --dashboard 8080\n\n"
    "  hetpeer bootstrap examples/runs/512m.toml --dry-run\n\n"
    "  hetpeer bootstrap --join hetpeer1-… --listen 0.0.0.0:7700 --announce second.example.org"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapOptions:
    """The options of `hetpeer bootstrap`. Revoking and trials take auditing, and auditing evaluating."""

    run_toml: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="The run's manifest; none with --join.")
    ] = None
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Newcomers knock here; libp2p and peers use the next two ports. Port 0: any three.",
        ),
    ] = "127.0.0.1:7700"
    announce: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Host in the ticket, where it is not --listen's. Once for each of several."),
    ] = None
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for the run's files. Default: under ~/.hetpeer.")
    ] = None
    data: TextOption = None
    mirror: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Where peers find the prepared text; once for each mirror.")
    ] = None
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Also follow the run and evaluate each round.")] = False
    keep_model: Annotated[
        bool,
        typer.Option(
            "--keep-model/--no-keep-model",
            help="Take the model at the end of the run, and hold it for latecomers and `hetpeer export`, until Ctrl-C. "
            "With --evaluate, the observer holds it in any case.",
        ),
    ] = True
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Evaluate, and measure what each peer's contributions do to the held-out loss."),
    ] = False
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke",
            help="Audit, and take out whoever does harm again and again, from its first harmful round on. Without this "
            "nobody is taken out; copies never are, for who copied whom cannot be seen.",
        ),
    ] = False
    join: Annotated[
        str | None,
        typer.Option(metavar="TICKET", help="Be a second node of a run that is served already, and let newcomers in."),
    ] = None
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed/--open",
            help="Let in only who has an invitation, or everybody. Default: as the run is; a new one is open.",
        ),
    ] = None
    life: Annotated[
        str,
        typer.Option(
            "--certificate-life", metavar="TIME", help="How long peers' certificates last; they are renewed in time."
        ),
    ] = "3d"
    trials: Annotated[
        bool | None,
        typer.Option(
            "--trials/--no-trials",
            help="Audit, and let what newcomers contribute count only once the audit has seen what it would do. "
            "Default: as the run is; a new one has none.",
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what the run would ask of each participant.")
    ] = False
    weights: WeightsOption = None
    log_json: LogJsonOption = False
    dashboard: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Show the run on a page in the browser, read-only. Without HOST, to this machine alone; with one, to "
            "everybody who can reach it.",
        ),
    ] = None
    track: TrackOption = None
    json: JsonOption = False
    until_stdin_closes: StdinOption = False


@takes(BootstrapOptions)
def bootstrap(options: BootstrapOptions) -> None:
    """Create a run (or take it up again), print its ticket, and serve it."""
    sys.exit(serve_run(options, terminal(options.json, options.until_stdin_closes, options.log_json)))


def serve_run(options: BootstrapOptions, terminal: "Terminal") -> int:
    """Create the run or take it up again, and serve it until stopped; the exit code."""
    import asyncio

    from bootstrap.admission import operator_lists
    from bootstrap.dashboard.server import dashboard_port, serve_dashboard
    from bootstrap.genesis import create_run
    from bootstrap.monitor.metrics import render
    from bootstrap.monitor.watch import Monitor
    from bootstrap.node import as_operator, serve_node
    from bootstrap.oddities import oddities, text_oddities, train_tokens
    from peer.cli.node_address import NODE_PORTS, listen_address, reach_warning
    from peer.cli.observer import hold_beside, keep_model, observe_beside, why_not_held
    from peer.cli.plan import dry_run
    from peer.cli.revoking import Operator
    from peer.process import exit_code_of, run_command
    from peer.store.home import home, locked, remember
    from peer.store.membership import mirrors_of
    from peer.telemetry.run_tracking import track_run
    from peer.telemetry.trackers import library_of
    from protocol.events.activity import Progress, Serving, Warned
    from protocol.manifest import load_manifest
    from protocol.net.ports import require_free
    from protocol.run.dataset import MOST_MIRRORS
    from protocol.trust import ticket as tickets
    from protocol.trust.keys import load_or_create

    def serve() -> int:
        if options.track:
            library_of(options.track)
        where, life = listen_address(options.listen, options.announce or ()), duration(options.life)
        mirrors = _mirrors(options)
        _require_operator(options)
        ticket = tickets.parse_ticket(options.join) if options.join else None
        if ticket is not None:
            name = f"gateway-{ticket.run_id[:12]}"
        else:
            if options.run_toml is None:
                raise UserError("give the run's manifest, RUN.toml, or --join TICKET to serve a run that exists")
            manifest = load_manifest(options.run_toml)
            if is_muon_alone(manifest):
                terminal.emit(Warned(f"{MUON_ALONE}. {HAVE_WHOLE}"))
            for odd in oddities(manifest):
                terminal.emit(Warned(f"WARNING: {odd}"))
            if options.dry_run:
                return dry_run(manifest, terminal)
            name = f"bootstrap-{manifest.run.name}"
        host = next(iter(where.announced), None)
        page = dashboard_port(options.dashboard, host) if options.dashboard else nullcontext()
        with locked(options.directory or home() / name) as folder, page as dashboard:
            require_free(where.host, where.port, NODE_PORTS)
            if ticket is None:
                descriptor = create_run(
                    manifest, folder, options.data, lambda doing: terminal.emit(Progress(doing)), options.weights
                )
                for odd in text_oddities(manifest, train_tokens(folder, descriptor)):
                    terminal.emit(Warned(f"WARNING: {odd}"))

            first_token = _close(options, folder)
            if first_token:
                lets_in = f"{FIRST_USES} newcomers in {FIRST_SECONDS // 86400} days"
                terminal.emit(Progress(f"the run is closed: its first ticket lets in {lets_in}, and is a secret"))
            if options.trials is not None:
                operator_lists.require_trials(folder, options.trials)
            audits = options.audit or options.revoke or (ticket is None and operator_lists.read_trials(folder).required)

            async def work(stop: asyncio.Event) -> None:
                up: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()

                def on_up(ticket: "Ticket") -> None:
                    if options.directory is None:
                        remember(ticket)
                    shown = replace(ticket, token=first_token)
                    if dashboard and dashboard.warning:
                        terminal.emit(Warned(dashboard.warning))
                    terminal.emit(Serving(str(shown), ticket.run_id, dashboard.url if dashboard else ""))
                    if warning := reach_warning(ticket):
                        terminal.emit(Warned(f"WARNING: {warning}"))
                    up.set_result(ticket)

                async def evaluate(node: Operator) -> None:
                    monitor.note_last_state("coming")
                    held = partial(monitor.note_last_state, "here")
                    chosen = {"audit": audits, "revoke": options.revoke, "attests": options.join is None}
                    await observe_beside(node, await up, terminal, stop, held, **chosen)

                async def hold(node: Operator) -> None:
                    if why := await asyncio.to_thread(why_not_held, node.descriptor, folder):
                        terminal.emit(Warned(f"{NOT_HELD}: {why}. {HOLD_ELSEWHERE}"))
                        return

                    async def beside(held: Callable[[], None]) -> None:
                        await hold_beside(node, await up, terminal, stop, held)

                    await keep_model(monitor, beside, terminal.emit, stop)

                if ticket:
                    served, rights = await _become_gateway(life, ticket, folder, options.data, terminal)
                else:
                    served, rights = descriptor, as_operator(load_or_create(folder), life)
                if mirrors and not served.prepared:
                    raise UserError("--mirror is for prepared text: see `hetpeer data prepare`")
                told_before = mirrors_of(folder) if ticket else ()
                others = tuple(dict.fromkeys((*mirrors, *told_before)))[:MOST_MIRRORS]
                keeps = options.evaluate or audits or (options.keep_model and options.join is None)
                monitor = await asyncio.to_thread(Monitor.of, served.manifest, served.run_id, folder)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(serve_node(served, folder, where, rights, on_up, stop, others, monitor, keeps))
                    if dashboard:
                        view = monitor.view
                        page_of = serve_dashboard(dashboard, view, monitor.until_changed, lambda: render(view()), stop)
                        tasks.create_task(page_of)
                    if options.track:
                        followed = monitor.view, monitor.until_changed, terminal.emit, stop
                        tasks.create_task(track_run(options.track, served, folder, *followed))
                    node = Operator(folder, load_or_create(folder), served)
                    tasks.create_task(emit_state(monitor, terminal.emit, up, stop))
                    if options.evaluate or audits:
                        tasks.create_task(evaluate(node))
                    elif options.keep_model and options.join is None:
                        tasks.create_task(hold(node))
                is_over = monitor.run_state.state == "finished"
                goes_on = "The run is over" if is_over else "Peers train on"
                terminal.emit(Progress(f"Stopped. {goes_on}, and the same command takes this node up again."))

            return run_command(work, terminal)

    return exit_code_of(terminal.emit, serve)


async def emit_state(monitor: "Monitor", emit: "Listener", up: "asyncio.Future[Ticket]", stop: "asyncio.Event") -> None:
    """Tell the operator the run's state and what it waits for, once the node is `up`, and again where either changes:
    in the words in which peers, `hetpeer status` and the dashboard are told it."""
    import asyncio

    from protocol.events.activity import Progress
    from protocol.net.tasks import first_of

    await first_of(asyncio.wait((up,)), stop.wait())
    last_words = ""
    while not stop.is_set():
        if (words := monitor.run_state.words) != last_words:
            last_words = words
            emit(Progress(words))
        await first_of(monitor.until_changed(STATE_POLL_SECONDS), stop.wait())


def _require_operator(options: BootstrapOptions) -> None:
    """Check that a second node of a run is not told what only the operator's own can do.

    Raises:
        UserError: it is.
    """
    if options.join and options.trials is not None:
        raise UserError("--trials is for the operator's own node: this one does as that one does")
    if options.join and options.dry_run:
        raise UserError("--dry-run is for RUN.toml: a run that is served already is there")
    if options.join and options.weights:
        raise UserError("--weights is for who creates a run: this one is created already")
    if options.join and options.revoke:
        raise UserError("--revoke is for the operator's own node: this one has another key")


def _close(options: BootstrapOptions, folder: Path) -> bytes:
    """Close the run to who has no invitation, or open it, if so asked; a run that is closed now gets a first
    invitation, whose token this is."""
    from bootstrap.admission import operator_lists
    from protocol.clock import unix_time

    if options.closed is None or options.closed == operator_lists.is_closed(folder):
        return b""
    operator_lists.set_closed(folder, options.closed)
    if not options.closed:
        return b""
    return operator_lists.add_invitation(folder, FIRST_USES, FIRST_SECONDS, unix_time())


def _mirrors(options: BootstrapOptions) -> tuple[str, ...]:
    from protocol.run.dataset import base_urls

    try:
        return base_urls(tuple(options.mirror or ()))
    except FormatError as error:
        raise UserError(f"--mirror: {error}") from None


async def _become_gateway(
    life: float, ticket: "Ticket", folder: Path, data: Path | None, terminal: "Terminal"
) -> tuple["Descriptor", "ServingRights"]:
    """Fetch what the run is, all its files, and the operator's word that this node may admit and certify peers.

    They come from the operator's node, or, if it is gone, from this folder, as they were at an earlier time. `data` is
    a copy of the run's prepared text, whose blocks this node then serves as well.
    """
    from bootstrap.admission import operator_lists
    from bootstrap.genesis import load_run
    from bootstrap.node import ServingRights
    from peer.network import admission
    from peer.store.membership import kept_credentials, read_membership, write_membership
    from protocol.clock import unix_time
    from protocol.events.activity import Progress
    from protocol.files import write_atomically
    from protocol.run.prepared import note_prepared_text, require_same
    from protocol.run.run_files import DESCRIPTOR
    from protocol.trust.keys import load_or_create

    identity = load_or_create(folder)
    try:
        descriptor = await admission.fetch_descriptor(ticket)
        admitted = await admission.register(ticket, descriptor, identity, "gateway", None)
    except UnreachableError as error:
        credentials = kept_credentials(folder, ticket, identity)
        if credentials is None or credentials.ends < unix_time():
            raise
        terminal.emit(Progress(f"{error}; going on with what {folder} has of the run"))
        return load_run(folder), ServingRights(credentials, life, read_membership(folder).card, ticket)

    def progress(file: "RunFile", received: int) -> None:
        terminal.emit(Progress(f"fetching {file.name}", received, file.size))

    names = [file.name for file in descriptor.files]
    await admission.fetch_files(admitted, descriptor, names, folder, progress)
    write_atomically(folder / DESCRIPTOR, descriptor.canonical())
    write_membership(folder, admitted.signed_card, admitted.credentials, admitted.mirrors, admitted.node)
    if data is not None:
        require_same(descriptor, data)
        note_prepared_text(folder, data)
    if admitted.closed:
        operator_lists.set_closed(folder, True)
    operator_lists.require_trials(folder, admitted.trials)
    return descriptor, ServingRights(admitted.credentials, life, admitted.signed_card, ticket)


def is_muon_alone(manifest: "Manifest") -> bool:
    """Whether Muon is to train in compressed groups alone, where nothing bounds what boundaries do not let pass."""
    alone = not manifest.replicas.datacenters and manifest.replicas.stages > 1
    free = manifest.inner.optimizer == "muon" and not manifest.inner.subspace_steps
    return free and manifest.compressed and alone
