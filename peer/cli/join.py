"""`hetpeer join`, `replica` and `observe`: the three roles of a peer. And `pause` and `resume`, for the peers that run
on this machine."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peer.cli.options import ANY_STAGE, JsonOption, ServingOptions, takes, terminal

if TYPE_CHECKING:
    from peer.process import Terminal
    from protocol.trust.membership_card import Role

JOIN_EXAMPLES = (
    "Examples:\n\n  hetpeer join hetpeer1-…\n\n  hetpeer join --stage 2 hetpeer1-…\n\n"
    "  HETPEER_TICKET=hetpeer1-… hetpeer join\n\n"
    "  hetpeer join --max-up 5 --max-down 40 --max-memory 8GB --quiet-hours 18:30-23:00 hetpeer1-…\n\n"
    "  hetpeer join --metrics 9477 --log-json hetpeer1-… 2>> hetpeer.log"
)
REPLICA_EXAMPLES = (
    "Examples:\n\n  hetpeer replica hetpeer1-… --device cuda\n\n"
    "  hetpeer replica hetpeer1-… --device cuda --nproc 8 --precision bf16 --compile\n\n"
    "  hetpeer replica hetpeer1-… --nproc 8 --nnodes 2 --rendezvous 10.0.0.1:7800 --secret-file ~/machines.key\n\n"
    "  hetpeer replica --node-rank 1 --nproc 8 --nnodes 2 --rendezvous 10.0.0.1:7800 --secret-file ~/machines.key"
)
OBSERVE_EXAMPLES = "Examples:\n\n  hetpeer observe hetpeer1-…\n\n  hetpeer observe hetpeer1-… --audit"
PAUSE_EXAMPLES = "Examples:\n\n  hetpeer pause\n\n  hetpeer pause --dir ~/peer"
RESUME_EXAMPLES = "Examples:\n\n  hetpeer resume\n\n  hetpeer resume --dir ~/peer"

JOIN_OPTIONS = "stage device directory announce max_traffic max_up max_memory quiet_hours"
REPLICA_OPTIONS = "device nproc precision compiled directory listen announce data"
OBSERVE_OPTIONS = "audit device directory listen announce data stay json"
"""The options that `--help` shows of each; `--help-all` shows all."""

NOT_SETTINGS = ("ticket", "directory", "metrics", "verbose", "log_json", "json", "until_stdin_closes", "help_all")
"""The options that the command itself uses. All others are fields of `PeerSettings`, by the same names."""


@takes(
    ServingOptions, without="audit stay hold nproc nnodes node_rank rendezvous secret_file microbatch", priority="low"
)
def join(options: ServingOptions) -> None:
    """Volunteer: serve one stage of a replica group."""
    sys.exit(serve("volunteer", options))


@takes(ServingOptions, without="stage stay hold", relay=True)
def replica(options: ServingOptions) -> None:
    """Datacenter: train a whole, uncompressed replica. The first also evaluates each round."""
    sys.exit(compute_for_first(options) if options.node_rank else serve("datacenter", options))


@takes(
    ServingOptions,
    without="stage manifest nproc nnodes node_rank rendezvous secret_file precision compiled memory microbatch",
)
def observe(options: ServingOptions) -> None:
    """Follow a run without contributing, and evaluate each round."""
    sys.exit(serve("observer", options))


def serve(role: "Role", options: ServingOptions) -> int:
    """Serve until the run's last round; the exit code."""
    from peer.compute.capacity import cores, resident_bytes
    from peer.daemon import run_with_pauses
    from peer.network.machine_link import read_secret
    from peer.planning.memory import process_bytes
    from peer.process import exit_code_of, run_command
    from peer.settings import PeerSettings
    from peer.store.home import locked, own_folders, remember, ticket_folders
    from protocol.net.ports import require_free
    from protocol.trust.ticket import find_ticket

    shown = terminal(options.json, options.until_stdin_closes, options.log_json, options.verbose)

    def work() -> int:
        ticket = find_ticket(options.ticket, *ticket_folders(options.directory))
        is_chosen = options.stage not in (None, ANY_STAGE)
        any_stage = role == "volunteer" and not is_chosen
        role_name = f"stage-{options.stage}" if is_chosen else role
        folders = [options.directory] if options.directory else own_folders(ticket, role_name)
        wished = {
            option.name: getattr(options, option.name) for option in fields(options) if option.name not in NOT_SETTINGS
        }
        wished |= {"threads": options.threads or cores(), "any_stage": any_stage}
        wished["process_bytes"] = process_bytes(resident_bytes())  # all is imported, and nothing of the run is here yet
        wished["stage"] = options.stage if is_chosen else None
        settings = PeerSettings(ticket=ticket, role=role, directory=folders[0], **wished)
        if settings.nnodes > 1:
            read_secret(settings.meeting.secret_file, make=True)
        with locked(*folders) as folder, watched(shown, folder, options.metrics):
            if address := settings.wish.listens:
                require_free(*address, 2 if options.announce else 1)  # libp2p takes the next, where it is forwarded
            if options.directory is None:
                remember(ticket)
            settings = replace(settings, directory=folder)
            return run_command(partial(run_with_pauses, settings=settings, emit=shown.emit), shown)

    return exit_code_of(shown.emit, work)


def compute_for_first(options: ServingOptions) -> int:
    """Compute as another machine of a datacenter, until the first one says that the run is over; the exit code."""
    import asyncio

    from peer.compute.capacity import cores, find_device
    from peer.devices.machines import Hello
    from peer.devices.other_machine import Limits, OtherMachine
    from peer.network.machine_link import connect_machine, read_secret
    from peer.process import exit_code_of, run_command
    from peer.settings import LOW_NICENESS, Meeting, bytes_of
    from protocol.errors import UserError
    from protocol.events.activity import Progress
    from protocol.manifest import load_manifest
    from protocol.net.tasks import Children, first_of

    shown = terminal(options.json, options.until_stdin_closes, options.log_json)

    async def serve_first(stop: asyncio.Event) -> None:
        if options.ticket is not None:
            raise UserError(f"--node-rank {options.node_rank}: only the first machine, of rank 0, takes a ticket")
        meeting = Meeting.of(options.nnodes, options.node_rank, options.rendezvous, options.secret_file)
        secret, device = read_secret(meeting.secret_file, make=False), find_device(options.device)
        expected = load_manifest(options.manifest).digest if options.manifest else ""
        hello = Hello.of(options.nnodes, options.nproc, device.type, expected, options.node_rank)
        niceness, most = LOW_NICENESS if options.priority == "low" else 0, bytes_of("--max-memory", options.max_memory)
        loop = asyncio.get_running_loop()

        def say(doing: str) -> None:
            loop.call_soon_threadsafe(shown.emit, Progress(doing))

        machine = OtherMachine(
            hello,
            Limits(device, options.threads or cores(), niceness, most),
            str(options.rendezvous),
            partial(connect_machine, meeting.host, meeting.port, secret),
            say,
        )
        async with Children() as children:
            running = children.spawn(asyncio.to_thread(machine.run))
            await first_of(asyncio.wait((running,)), stop.wait())
            machine.stop()
            await running

    return exit_code_of(shown.emit, lambda: run_command(serve_first, shown))


@contextmanager
def watched(terminal: "Terminal", folder: Path, metrics: str | None) -> Iterator["Terminal"]:
    """A terminal that also writes `folder`'s log of events, and serves `metrics` ([HOST:]PORT; None: none).

    Raises:
        UserError: that is no address, or cannot be listened to.
    """
    from peer.compute.capacity import family_bytes
    from peer.telemetry.journal import Journal
    from protocol.events.activity import Notice

    with ExitStack() as stack:
        emit = terminal.emit
        stack.enter_context(emit.also(Journal(folder, emit, emit.status)))
        if metrics is not None:
            from peer.telemetry.prometheus import Metrics, served

            counting = Metrics(emit.status, family_bytes)
            url = stack.enter_context(served(counting.registry, metrics))
            stack.enter_context(emit.also(counting))
            emit(Notice(f"metrics for Prometheus are at {url}"))
        yield terminal


# Peers that run here

PeerFolderOption = Annotated[
    Path | None, typer.Option("--dir", help="The peer's folder. Default: every peer that runs here.")
]
RunArgument = Annotated[
    str | None, typer.Argument(metavar="TICKET", help="Only peers of this run. Default: of all runs.")
]


def pause(ticket: RunArgument = None, directory: PeerFolderOption = None, json: JsonOption = False) -> None:
    """Let the peers of this machine leave their groups in order, and compute and serve nothing until `resume`."""
    sys.exit(pause_peers(ticket, directory, terminal(json)))


def resume(ticket: RunArgument = None, directory: PeerFolderOption = None, json: JsonOption = False) -> None:
    """Let paused peers go on: they catch up with their run, and train again."""
    sys.exit(resume_peers(ticket, directory, terminal(json)))


def pause_peers(ticket: str | None, directory: Path | None, terminal: "Terminal") -> int:
    """Tell the running peers of a run, or of a folder, to pause; the exit code."""
    from peer import pausing
    from peer.process import exit_code_of
    from peer.store.home import in_use
    from protocol.events.activity import Progress

    def run() -> int:
        for folder in _peers_here(ticket, directory, in_use):
            new = pausing.request_pause(folder)
            words = "pauses as soon as its inner step has ended" if new else "has been told to pause before"
            terminal.emit(Progress(f"the peer in {folder} {words}; `hetpeer resume` lets it go on"))
        return 0

    return exit_code_of(terminal.emit, run)


def resume_peers(ticket: str | None, directory: Path | None, terminal: "Terminal") -> int:
    """Tell the paused peers of a run, or of a folder, to go on. Returns the exit code."""
    from peer import pausing
    from peer.process import exit_code_of
    from peer.store.home import in_use
    from protocol.events.activity import Progress

    def run() -> int:
        for folder in _peers_here(ticket, directory, lambda path: in_use(path) or pausing.is_pause_requested(path)):
            words = "goes on" if pausing.end_pause(folder) else "had not been told to pause"
            terminal.emit(Progress(f"the peer in {folder} {words}"))
        return 0

    return exit_code_of(terminal.emit, run)


def _peers_here(ticket: str | None, directory: Path | None, is_meant: Callable[[Path], bool]) -> list[Path]:
    """The folders of the peers of this machine that are meant: of one folder, of one run, or of all.

    Raises:
        ResourceError: there are none.
    """
    from peer.store.home import peer_folders
    from protocol.errors import ResourceError
    from protocol.trust.ticket import find_ticket

    folders = [directory] if directory else peer_folders(find_ticket(ticket, Path()).run_id if ticket else None)
    if meant := [folder for folder in folders if is_meant(folder)]:
        return meant
    where = f"in {directory}" if directory else "here that was started without --dir"
    raise ResourceError(f"no peer runs {where}: name the folder of the one you mean with --dir")
