"""Real `hetpeer` processes, and what they say."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from protocol.events.activity import Serving
from protocol.events.event import Event
from protocol.events.lines import from_line
from protocol.trust.ticket import Ticket, parse_ticket
from tests.reference.forked import HETPEER, SECONDS, Forked, hetpeer, run
from tests.reference.forks import can_fork

TEXT = "\n\n".join(
    f"{number} volunteers walked to the {place} of the village, and {number + 1} of them came back {how}."
    for number in range(60)
    for place in ("mill", "well", "church", "school", "bridge", "market")
    for how in ("singing", "in the rain", "with bread", "late")
)
"""A small text, so that runs begin at once."""

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = {datacenters}
[inner]
sequences = {sequences}
microbatch = {sequences}
"""
"""A run of two stages; what follows it goes into `[inner]`, or into tables of its own."""


E = TypeVar("E")


Started = subprocess.Popen[str] | Forked


def start(*arguments: str, inside: Sequence[str] = (), forked: bool = True) -> Started:
    """A process that prints its events and stops when its standard input closes. `inside`: what goes before it, so that
    it runs in another network namespace. What is not `forked` begins by the command line that a person types. It
    computes in fp32, as the lab does, whatever the CPU is good at. A node does not take the model at the end, unless it
    is told to: that is a process more."""
    more = ["--precision", "fp32"] if arguments[0] in ("join", "replica") else []
    if arguments[0] == "bootstrap" and "--keep-model" not in arguments:
        more = ["--no-keep-model"]
    own = [*arguments, *more, "--json", "--until-stdin-closes"]
    if forked and can_fork(HETPEER):
        return Forked(own, inside)
    return subprocess.Popen([*inside, *HETPEER, *own], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def events(process: Started) -> Iterator[Event]:
    """What a process says, as it comes."""
    assert process.stdout is not None
    return (from_line(line) for line in process.stdout)


@contextmanager
def serving(
    run_toml: str,
    folder: Path,
    listen: str = "127.0.0.1:0",
    inside: Sequence[str] = (),
    data: Sequence[str] = (),
    more: Sequence[str] = (),
) -> Iterator[Ticket]:
    """A bootstrap node with a run of this manifest and `TEXT`, or on other text by its options `data`, and with `more`
    options; the run's files are in `folder / "b"`."""
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(run_toml)
    (folder / "text.txt").write_text(TEXT)
    where = ["--listen", listen, "--dir", str(folder / "b"), *(data or ("--data", str(folder / "text.txt"))), *more]
    with start("bootstrap", str(folder / "run.toml"), *where, inside=inside) as process:
        yield parse_ticket(next(event.ticket for event in events(process) if isinstance(event, Serving)))
        process.communicate(timeout=SECONDS)


def finish(processes: Sequence[Started]) -> list[list[Event]]:
    """Wait until all have ended well; what each said."""
    said = [list(events(process)) for process in processes]
    for process in processes:
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0, said
    return said


class Peer:
    """A process that is listened to while it runs. It ends with the block."""

    def __init__(self, *arguments: str, inside: Sequence[str] = (), forked: bool = True) -> None:
        self.process = start(*arguments, inside=inside, forked=forked)
        self.said: list[Event] = []
        self._ended = False
        self._news = threading.Condition()
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "Peer":
        self._listening.start()
        return self

    def leave(self) -> None:
        """Ask it to go, without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __exit__(self, *_: object) -> None:
        self.leave()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
        self._listening.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _listen(self) -> None:
        for event in events(self.process):
            with self._news:
                self.said.append(event)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for(
        self, kind: type[E], holds: Callable[[E], bool] = lambda event: True, after: int = 0, seconds: float = SECONDS
    ) -> E:
        """The first event of a kind for which this holds, said already or soon; none of the first `after` events."""

        def found() -> E | None:
            return next((each for each in self.said[after:] if isinstance(each, kind) and holds(each)), None)

        with self._news:
            assert self._news.wait_for(lambda: found() is not None or self._ended, seconds), self.said
            event = found()
        assert event is not None, self.said
        return event

    def end(self, number: signal.Signals) -> int:
        """Send it a signal; its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        self._listening.join()
        return code


@dataclass(frozen=True)
class Outcome:
    """A testnet's report, everything its processes said, in order, and what a person saw."""

    report: dict[str, Any]
    log: list[dict[str, Any]]
    output: str

    def said(self, event: str, process: str = "") -> list[dict[str, Any]]:
        """The events of a kind, of one process or of all."""
        return [line for line in self.log if line["event"] == event and process in ("", line["process"])]

    def digests(self, lines: list[dict[str, Any]]) -> dict[str, set[str]]:
        """The digests of each part, as these lines have them."""
        found: dict[str, set[str]] = {}
        for line in lines:
            for part, digest in line["digests"].items():
                found.setdefault(part, set()).add(digest)
        return found


def swarm_arguments(directory: Path, *arguments: str) -> list[str]:
    """The options of a testnet of the smallest model in `directory` on `TEXT`, its `village.txt`."""
    (directory / "village.txt").write_text(TEXT)
    where = ["--dir", str(directory / "net"), "--report", str(directory / "report.json")]
    return [*where, "--data", str(directory / "village.txt"), "--preset", "pico", *arguments]


def completed_swarm(directory: Path, *arguments: str) -> Outcome:
    """A testnet that ran to its end, and was a success."""
    return _outcome(directory, hetpeer("testnet", *swarm_arguments(directory, *arguments)))


def attacked_swarm(directory: Path, *arguments: str) -> Outcome:
    """The same in the harness, whose processes begin quickly, and which has more faults (`tests/chaos/`)."""
    return _outcome(directory, run("tests.chaos", *swarm_arguments(directory, *arguments)))


def _outcome(directory: Path, done: subprocess.CompletedProcess[str]) -> Outcome:
    assert done.returncode == 0, done.stdout + done.stderr
    log = [json.loads(line) for line in (directory / "net" / "events.jsonl").read_text().splitlines()]
    return Outcome(json.loads((directory / "report.json").read_text()), log, done.stdout)
