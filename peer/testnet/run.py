"""A testnet from its options to its verdict; and the undisturbed run of the same manifest, by `hetpeer lab` in another
process."""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from peer.process import first_error
from peer.telemetry.run_report import COMPLETED, Chaos
from peer.telemetry.terminal import TestnetScreen, print_text, report_tables
from peer.testnet.child import TestnetError
from peer.testnet.event_log import EventLog, faults_done
from peer.testnet.faults import Fault
from peer.testnet.processes import Testnet
from peer.testnet.testnet_options import TestnetOptions, to_toml
from protocol.errors import HetpeerError
from protocol.events.activity import RoundDone
from protocol.events.lines import from_line
from protocol.net.tasks import first_of


async def run_testnet(
    options: TestnetOptions, faults: Sequence[Fault], screen: TestnetScreen, stop: asyncio.Event
) -> None:
    """Run a testnet, write its report, and show the outcome.

    Raises:
        TestnetError: a process died, a round is missing, states differ, or the loss did not fall.
    """
    if options.device != "cpu":
        print_text(screen.console, SHARED_DEVICE.format(device=options.device))
    with prepared_folder(options) as (directory, log):
        testnet = Testnet(options, directory, screen, log, faults)
        await run_to_end(testnet, stop)
    await conclude(testnet, Chaos(faults_done(log.entries), testnet.alive) if faults else None, stop)


@contextmanager
def prepared_folder(options: TestnetOptions) -> Iterator[tuple[Path, EventLog]]:
    """A testnet's folder, made if need be, with the run's manifest in it; and the log of its events, open meanwhile."""
    directory = options.directory or Path(tempfile.mkdtemp(prefix="hetpeer-testnet-"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.toml").write_text(to_toml(options.manifest_tables()))
    log = EventLog.open(directory / "events.jsonl")
    try:
        yield directory, log
    finally:
        log.close()


SHARED_DEVICE = (
    "All processes share {device}, and take turns on it: this shows that the swarm works, not how quick it is. The "
    "outer state is the same at all peers, as ever; losses differ from those of a CPU in their last digits."
)
"""The words at the start of a testnet that computes on an accelerator."""

NEXT = (
    "Next, a run of your own, each command in a terminal: `hetpeer bootstrap examples/first-run/run.toml`, "
    "`hetpeer join --stage 0`, `hetpeer join --stage 1`, `hetpeer replica`."
)
"""The words for somebody whose first testnet has ended well."""


async def run_to_end(testnet: Testnet, stop: asyncio.Event) -> None:
    """Run a testnet to its end; what goes wrong is the failure in its report."""
    screen = testnet.screen
    screen.start(testnet.swarm.names)
    try:
        await testnet.run(stop)
    except* HetpeerError as group:
        screen.report.failure = str(first_error(group))
    finally:
        screen.stop()
    if stop.is_set():
        screen.report.failure = "stopped by hand"


async def conclude(testnet: Testnet, chaos: Chaos | None, stop: asyncio.Event) -> None:
    """Compare a disturbed run with the lab, write the report, and show the outcome.

    Raises:
        TestnetError: the run was no success.
    """
    options, screen = testnet.options, testnet.screen
    report = screen.report
    report.chaos = chaos
    if chaos is not None and options.compare and report.failure is None:
        try:
            chaos.lab_loss = await lab_loss(testnet.directory, options, screen.console, stop)
        except CompareError as error:
            report.failure = str(error)
    where = report.write(options.report or Path("report.json"))
    screen.console.print(report_tables(report))
    print_text(screen.console, where)
    if report.verdict() != COMPLETED:
        raise TestnetError(f"{report.verdict()}\nEverything the processes wrote is in {testnet.directory}")
    if options.directory is None:
        shutil.rmtree(testnet.directory)
    print_text(screen.console, NEXT)


# The undisturbed run of the same manifest


class CompareError(HetpeerError):
    """The lab could not run."""


async def lab_loss(directory: Path, options: TestnetOptions, console: Console, stop: asyncio.Event) -> float | None:
    """The final held-out loss of the lab on the run in `directory`; None after a stop.

    Raises:
        CompareError: the lab failed.
    """
    print_text(console, "Comparing with the undisturbed run, by `hetpeer lab` …")
    report = directory / "lab.json"
    where = [str(directory / "run.toml"), "--dir", str(directory / "bootstrap"), "--report", str(report)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "peer.cli", "lab", *where, "--device", options.device, "--threads", "1", "--json"),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        await first_of(_follow(process, options.rounds, console), stop.wait())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
    if stop.is_set():
        return None
    if code:
        raise CompareError(f"the lab, run for comparison, ended with exit code {code}")
    loss: float | None = json.loads(report.read_text())["rounds"][-1]["loss"]
    return float("nan") if loss is None else loss


async def _follow(process: asyncio.subprocess.Process, rounds: int, console: Console) -> None:
    """Tell the lab's rounds until it has ended."""
    assert process.stdout is not None
    async for line in process.stdout:
        with suppress(ValueError):
            match from_line(line.decode()):
                case RoundDone(round):
                    print_text(console, f"lab: round {round} of {rounds}")
                case _:
                    pass
    await process.wait()
