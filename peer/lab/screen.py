"""What a person sees of a sweep: how far it is, and each run that is under way."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from peer.lab.experiment import Case
from peer.lab.worker import Advanced, Ended, Started, WorkerMessage


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

    def hear(self, message: WorkerMessage) -> None:
        """What a run says."""
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
