"""What each command does, once its options are read."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bootstrap.genesis import create_run
from peer import process
from peer.compute.machine import DeviceName, find_device
from peer.daemon import PeerOptions, run_until
from peer.events import Failed, Listener, Progress, Serving
from peer.home import home, locked, peer_folder
from peer.report import Report
from peer.screen import PeerScreen, TestnetScreen
from peer.testnet.options import TestnetOptions, check_manifest
from peer.testnet.run import run as run_swarm
from protocol import manifest as manifests
from protocol.atomic import write_atomically
from protocol.errors import HetpeerError, UserError
from protocol.records import Role
from protocol.run_files import Descriptor
from protocol.ticket import Ticket, find


def told(emit: Listener, command: Callable[[], int]) -> int:
    """Run a command; an error of ours becomes one line and an exit code."""
    try:
        return command()
    except HetpeerError as error:
        emit(Failed(str(error), error.exit_code))
        return error.exit_code


def run_peer(
    role: Role,
    ticket_text: str | None,
    stage: int | None,
    device: DeviceName,
    threads: int,
    directory: Path | None,
    listen: str | None,
    manifest: Path | None,
    emit: Listener,
    until_stdin_closes: bool,
) -> int:
    """`hetpeer join`, `replica` and `observe`."""

    def serve() -> int:
        ticket = find(ticket_text, directory or home())
        place = role if stage is None else f"stage-{stage}"
        with locked(directory or peer_folder(ticket, place)) as folder:
            if directory is None:
                remember(ticket)
            settings = PeerOptions(ticket, role, folder, stage, device, threads or cores(), listen, manifest)
            return process.run(lambda stop: run_until(stop, settings, emit), emit, until_stdin_closes)

    return told(emit, serve)


def run_bootstrap(
    run_toml: Path,
    listen: str,
    announced: str | None,
    directory: Path | None,
    data: Path | None,
    evaluate: bool,
    emit: Listener,
    until_stdin_closes: bool,
) -> int:
    """`hetpeer bootstrap`."""

    def serve() -> int:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65534:
            raise UserError(f"--listen takes HOST:PORT, not {listen!r}")
        if host == "0.0.0.0" and announced is None:
            raise UserError("listening on 0.0.0.0 needs --announce HOST: the address that peers can reach")
        manifest = manifests.load(run_toml)
        with locked(directory or home() / f"bootstrap-{manifest.run.name}") as folder:
            descriptor = create_run(manifest, folder, data, lambda doing: emit(Progress(doing)))

            def tell(ticket: Ticket) -> None:
                if directory is None:
                    remember(ticket)
                emit(Serving(str(ticket), ticket.run_id))

            return _serve_run(
                descriptor, folder, (host, int(port), announced), evaluate, tell, emit, until_stdin_closes
            )

    return told(emit, serve)


def _serve_run(
    descriptor: Descriptor,
    folder: Path,
    where: tuple[str, int, str | None],
    evaluate: bool,
    tell: Callable[[Ticket], None],
    emit: Listener,
    until_stdin_closes: bool,
) -> int:
    from bootstrap import node

    observers: list[subprocess.Popen[bytes]] = []

    def up(ticket: Ticket) -> None:
        tell(ticket)
        if evaluate:
            observers.append(_start_observer(ticket, folder))

    async def serve(stop: asyncio.Event) -> None:
        await node.serve(descriptor, folder, *where, up, stop)

    try:
        return process.run(serve, emit, until_stdin_closes)
    finally:
        for observer in observers:
            observer.communicate()  # closes its standard input, which stops it


def _start_observer(ticket: Ticket, folder: Path) -> subprocess.Popen[bytes]:
    """The evaluator beside a bootstrap node: a process of its own, since this node has no torch."""
    arguments = ["observe", str(ticket), "--dir", str(folder / "observer"), "--json", "--until-stdin-closes"]
    return subprocess.Popen([sys.executable, "-m", "peer.cli", *arguments], stdin=subprocess.PIPE)


def run_testnet(options: TestnetOptions) -> int:
    """`hetpeer testnet`."""

    def work() -> int:
        screen = TestnetScreen(Report(check_manifest(options)))
        return process.run(lambda stop: run_swarm(options, screen, stop), PeerScreen(), until_stdin_closes=False)

    return told(PeerScreen(), work)


def run_lab(
    run_toml: Path,
    report: Path | None,
    data: Path | None,
    directory: Path | None,
    device: DeviceName,
    threads: int,
    emit: Listener,
) -> int:
    """`hetpeer lab`."""

    def work() -> int:
        import torch

        from peer.events import Listeners
        from peer.lab.run import Lab

        torch.set_num_threads(threads or cores())
        manifest = manifests.load(run_toml)
        with tempfile.TemporaryDirectory(prefix="hetpeer-lab-") as temporary:
            folder = directory or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = create_run(manifest, folder, data, lambda doing: emit(Progress(doing)))
            builder = Report(manifest)
            Lab.open(descriptor, folder, find_device(device)).run(Listeners([emit, builder.listener("lab")]))
        if report is not None:
            builder.write(report)
        return 0

    return told(emit, work)


def remember(ticket: Ticket) -> None:
    """The last ticket used, so that `hetpeer join --stage 2` alone finds the run again."""
    home().mkdir(parents=True, exist_ok=True)
    write_atomically(home() / "ticket", f"{ticket}\n".encode())


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
