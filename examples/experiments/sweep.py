"""All runs of an experiment, in processes side by side, each once: what has ended is not run again."""

import json
import multiprocessing
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from examples.experiments.experiment import Case
from examples.experiments.results import append, of, read_records
from examples.experiments.sweep_worker import Advanced, Ended, Setting, Started, WorkerMessage, state_folder, work
from peer.store.home import locked
from protocol.errors import FormatError, ManifestError
from protocol.files import write_atomically

SWEEP = "sweep.json"

MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
"""So that glibc keeps what torch frees, and logits are not written into fresh pages from the kernel in every step."""

OnMessage = Callable[[WorkerMessage], object]


@dataclass(slots=True)
class Running:
    """A process and the run in it."""

    case: Case
    process: BaseProcess
    messages: Connection
    ended: Ended | None = None


@contextmanager
def taken(folder: Path, data: Path | None) -> Iterator[None]:
    """Hold the folder, made or taken up again, for the results of one text: of as many experiments as one likes.

    Raises:
        ManifestError: its results are of another text.
        FormatError: what it says of itself cannot be read.
        ResourceError: another process holds it, or it cannot be written.
    """
    with locked(folder):
        path, text = folder / SWEEP, str(data) if data else None
        if path.exists():
            before = _text(path)
            if before != text:
                raise ManifestError(
                    f"{folder} has results of the text {before or 'sotu'}, not {text or 'sotu'}: "
                    "give another folder with --out"
                )
        else:
            write_atomically(path, (json.dumps({"data": text}) + "\n").encode())
        yield


def _text(path: Path) -> str | None:
    try:
        match json.loads(path.read_text()):
            case {"data": str() | None as text}:
                return text
    except (ValueError, OSError, RecursionError):
        pass
    raise FormatError(f"{path} does not say of which text these results are; give another folder with --out")


def missing(folder: Path, cases: Sequence[Case]) -> list[Case]:
    """The runs that have no record yet, each once."""
    done = of(cases, read_records(folder))
    return list({case.id: case for case in cases if case.id not in done}.values())


def run_cases(cases: Sequence[Case], setting: Setting, jobs: int, on_message: OnMessage) -> list[str]:
    """Run all cases, `jobs` at once. What went wrong, a sentence for each case that has no record now.

    An interrupt ends the processes; what they had saved is there the next time.
    """
    waiting, running, failures = deque(cases), list[Running](), list[str]()
    with _environment(), _ending(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.popleft(), setting))
            for messages in wait([each.messages for each in running]):
                one = next(each for each in running if each.messages is messages)
                try:
                    message: WorkerMessage = one.messages.recv()
                except EOFError:
                    running.remove(one)
                    one.process.join()
                    if one.ended is None:
                        failures.append(f"{one.case.name}: its process ended with exit code {one.process.exitcode}")
                    elif one.ended.record is None:
                        failures.append(f"{one.case.name}: {one.ended.failure}")
                    continue
                on_message(message)
                if isinstance(message, Ended):
                    one.ended = message
                    if message.record is not None:
                        append(setting.folder, message.record)
                        shutil.rmtree(state_folder(setting.folder, one.case), ignore_errors=True)
    return failures


def _start(case: Case, setting: Setting) -> Running:
    """Begin a run: where that is safe as a fork of a process that has imported what runs need, which takes seconds."""
    context: ForkServerContext | SpawnContext = multiprocessing.get_context("spawn")
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["examples.experiments.sweep_worker"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(case, setting, theirs), daemon=True)
    process.start()
    theirs.close()  # so that its end is the pipe's end
    return Running(case, process, ours)


@contextmanager
def _environment() -> Iterator[None]:
    """Within the block, the environment of this process has `MEMORY`, which the processes started there inherit."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in MEMORY.items() if name not in before})
    try:
        yield
    finally:
        for name in MEMORY.keys() - before.keys():
            os.environ.pop(name, None)


@contextmanager
def _ending(running: Sequence[Running]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in running:
            each.process.terminate()
        for each in running:
            each.process.join()


class SweepScreen:
    """A bar for all rounds of all runs, and one for each run under way; a line for each that has ended."""

    def __init__(self, cases: Sequence[Case], console: Console | None = None) -> None:
        self.cases = {case.id: case for case in cases}
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=console,
        )
        rounds = sum(case.manifest.outer.rounds for case in cases)
        self.all = self.bars.add_task(f"{len(cases)} runs", total=rounds, told="")
        self.tasks: dict[str, TaskID] = {}
        self.ended = 0

    def __enter__(self) -> "SweepScreen":
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def show(self, message: WorkerMessage) -> None:
        """Show what a run reports."""
        case = self.cases[message.case]
        match message:
            case Started(done=done):
                self.tasks[case.id] = self.bars.add_task(
                    case.name, total=case.manifest.outer.rounds, completed=done, told=""
                )
                self.bars.advance(self.all, done)
            case Advanced(done=done, loss=loss, tokens_per_second=speed):
                self.bars.update(
                    self.tasks[case.id], completed=done, told=f"training loss {loss:.3f}, {speed:,.0f} tokens/s"
                )
                self.bars.advance(self.all)
            case Ended(record=record, failure=failure):
                self.ended += 1
                if case.id in self.tasks:
                    self.bars.remove_task(self.tasks.pop(case.id))
                said = failure or "no record"
                if record is not None:
                    said = f"loss {record.loss('replicas'):.3f} in {record.seconds:.0f} s"
                self.bars.console.print(f"{case.name}: {said}", highlight=False)
                self.bars.update(self.all, description=f"{self.ended} of {len(self.cases)} runs")
