"""A testnet from its options to its verdict."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from peer.report import COMPLETED
from peer.screen import TestnetScreen, summary
from peer.testnet.options import TestnetOptions, to_toml
from peer.testnet.processes import Testnet, TestnetError


async def run(options: TestnetOptions, screen: TestnetScreen, stop: asyncio.Event) -> None:
    """Run a testnet, write its report, and show the outcome.

    Raises:
        TestnetError: a process died, a round is missing, states differ, or the loss did not fall.
    """
    directory = options.directory or Path(tempfile.mkdtemp(prefix="hetpeer-testnet-"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.toml").write_text(to_toml(options.manifest_tables()))
    report = screen.report
    testnet = Testnet(options, directory, report, screen)
    screen.start(testnet.names())
    try:
        await testnet.run(stop)
    except* TestnetError as group:
        report.failure = str(group.exceptions[0])
    finally:
        screen.stop()
    if stop.is_set():
        report.failure = "stopped by hand"
    report.write(options.report or Path("report.json"))
    screen.console.print(summary(report))
    if report.verdict() != COMPLETED:
        raise TestnetError(f"{report.verdict()}\nEverything the processes wrote is in {directory}")
    if options.directory is None:
        shutil.rmtree(directory)
