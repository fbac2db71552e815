"""A testnet from its options to its verdict."""

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from peer.process import first_error
from peer.telemetry.damage import damages
from peer.telemetry.run_report import COMPLETED, Chaos, Report
from peer.telemetry.terminal import TestnetScreen, summary
from peer.telemetry.toll import tolls
from peer.testnet import namespaces
from peer.testnet.child import TestnetError
from peer.testnet.compare import CompareError, lab_loss
from peer.testnet.event_log import EventLog
from peer.testnet.faults import ChaosItem, needs_namespaces
from peer.testnet.processes import Testnet
from peer.testnet.testnet_options import TestnetOptions, to_toml
from protocol.errors import HetpeerError


async def run_testnet(
    options: TestnetOptions, faults: tuple[ChaosItem, ...], screen: TestnetScreen, stop: asyncio.Event
) -> None:
    """Run a testnet, write its report, and show the outcome.

    Raises:
        TestnetError: a process died, a round is missing, states differ, or the loss did not fall.
        ResourceError: `faults` need namespaces, and this machine has none for us.
    """
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(namespaces.opened()) if needs_namespaces(faults) else None
        directory = options.directory or Path(tempfile.mkdtemp(prefix="hetpeer-testnet-"))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "run.toml").write_text(to_toml(options.manifest_tables()))
        log = EventLog.open(directory / "events.jsonl")
        stack.callback(log.close)
        testnet = Testnet(options, directory, screen.report, screen, log, faults, network)
        await _watch(testnet, screen, stop)
    report = screen.report
    if stop.is_set():
        report.failure = "stopped by hand"
    if faults:
        report.chaos = _chaos(report, testnet)
        if options.compare and report.failure is None:
            try:
                report.chaos.lab_loss = await lab_loss(directory, options.rounds, screen.console, stop)
            except CompareError as error:
                report.failure = str(error)
    report.write(options.report or Path("report.json"))
    screen.console.print(summary(report))
    if report.verdict() != COMPLETED:
        raise TestnetError(f"{report.verdict()}\nEverything the processes wrote is in {directory}")
    if options.directory is None:
        shutil.rmtree(directory)


async def _watch(testnet: Testnet, screen: TestnetScreen, stop: asyncio.Event) -> None:
    """The run itself; what goes wrong is the report's failure."""
    screen.start(testnet.swarm.names)
    try:
        await testnet.run(stop)
    except* HetpeerError as group:
        screen.report.failure = str(first_error(group))
    finally:
        screen.stop()


def _chaos(report: Report, testnet: Testnet) -> Chaos:
    outer, inner = report.manifest.outer, report.manifest.inner
    entries = testnet.log.entries
    paid = tolls(entries, testnet.crowds.witnessed)
    return Chaos(damages(entries, outer.rounds, inner.steps), testnet.alive, tolls=paid)
