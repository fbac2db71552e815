"""The undisturbed run of the same manifest, by `hetpeer lab` in a process of its own."""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from peer.telemetry.events import RoundDone, from_line
from protocol.errors import HetpeerError
from protocol.net.tasks import first_of


class CompareError(HetpeerError):
    """The lab could not run."""


async def lab_loss(directory: Path, rounds: int, console: Console, stop: asyncio.Event) -> float | None:
    """The final held-out loss of the lab on the run in `directory`; None after a stop.

    Raises:
        CompareError: the lab failed.
    """
    console.print("Comparing with the undisturbed run, by `hetpeer lab` …")
    report = directory / "lab.json"
    where = [str(directory / "run.toml"), "--dir", str(directory / "bootstrap"), "--report", str(report)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "peer.cli", "lab", *where, "--device", "cpu", "--threads", "1", "--json"),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        await first_of(_follow(process, rounds, console), stop.wait())
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
                    console.print(f"lab: round {round} of {rounds}", highlight=False)
                case _:
                    pass
    await process.wait()
