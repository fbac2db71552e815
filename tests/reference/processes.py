"""Real `hetpeer` processes, and what they say."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peer.events import Event, Serving, from_line
from protocol.ticket import Ticket, parse

HETPEER = [sys.executable, "-m", "peer.cli"]
SECONDS = 240

TEXT = "\n\n".join(
    f"{number} volunteers walked to the {place} of the village, and {number + 1} of them came back {how}."
    for number in range(60)
    for place in ("mill", "well", "church", "school", "bridge", "market")
    for how in ("singing", "in the rain", "with bread", "late")
)
"""A small text, so that runs begin at once."""


def start(*arguments: str) -> subprocess.Popen[str]:
    """A process that prints its events and stops when its standard input closes."""
    command = [*HETPEER, *arguments, "--json", "--until-stdin-closes"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def events(process: subprocess.Popen[str]) -> Iterator[Event]:
    """What a process says, as it comes."""
    assert process.stdout is not None
    return (from_line(line) for line in process.stdout)


@contextmanager
def serving(run_toml: str, folder: Path) -> Iterator[Ticket]:
    """A bootstrap node with a run of this manifest and `TEXT`; the run's files are in `folder / "b"`."""
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(run_toml)
    (folder / "text.txt").write_text(TEXT)
    where = ["--listen", "127.0.0.1:0", "--dir", str(folder / "b"), "--data", str(folder / "text.txt")]
    with start("bootstrap", str(folder / "run.toml"), *where) as process:
        yield parse(next(event.ticket for event in events(process) if isinstance(event, Serving)))
        process.communicate(timeout=SECONDS)


def finish(processes: list[subprocess.Popen[str]]) -> list[list[Event]]:
    """Wait until all have ended well; what each said."""
    said = [list(events(process)) for process in processes]
    for process in processes:
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0, said
    return said
