"""The experiment trackers in which people already look: their own libraries, installed by whoever wants them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from protocol.errors import ResourceError
from protocol.events.activity import Evaluated, RoundDone, StepDone
from protocol.events.event import Event

TrackerName = Literal["trackio", "wandb", "tensorboard"]

PROJECT = "hetpeer"
"""The project under which runs are listed in a tracker."""


class Tracker(Protocol):
    """One run in a tracker. Calls may block on a disk; libraries send in threads of their own."""

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Note the values of a round."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as trackers list it. The same `id` goes on where it was; `config` is its manifest, a number or text a
    name; `folder` is for what is kept here."""

    name: str
    id: str
    config: Mapping[str, Any]
    folder: Path


@contextmanager
def _tensorboard(library: Any, run: TrackedRun) -> Iterator[Tracker]:
    writer = library.SummaryWriter(log_dir=str(run.folder / "tensorboard"))

    def log(round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, round)
        writer.flush()

    try:
        yield LoggedBy(log)
    finally:
        writer.close()


@contextmanager
def _wandb(library: Any, run: TrackedRun) -> Iterator[Tracker]:
    started = library.init(
        project=PROJECT, name=run.name, id=run.id, config=dict(run.config), resume="allow", dir=str(run.folder)
    )
    try:
        yield LoggedBy(lambda round, values: started.log(dict(values), step=round))
    finally:
        started.finish()


@contextmanager
def _trackio(library: Any, run: TrackedRun) -> Iterator[Tracker]:
    library.init(project=PROJECT, name=f"{run.name}-{run.id}", config=dict(run.config), resume="allow")
    try:
        yield LoggedBy(lambda round, values: library.log(dict(values), step=round))
    finally:
        library.finish()


@dataclass(frozen=True, slots=True)
class LoggedBy:
    """A tracker that is one function of its library."""

    function: Callable[[int, Mapping[str, float]], object]

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self.function(round, values)


_LIBRARIES: Mapping[TrackerName, tuple[str, Callable[[Any, TrackedRun], AbstractContextManager[Tracker]]]] = {
    "trackio": ("trackio", _trackio),
    "wandb": ("wandb", _wandb),
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
}


def library_of(name: TrackerName) -> Any:
    """Import a tracker's library, before anything that takes long.

    Raises:
        ResourceError: it is not installed.
    """
    try:
        return import_module(_LIBRARIES[name][0])
    except ImportError:
        raise ResourceError(f"--track {name}: its library is not here: pip install 'hetpeer[{name}]'") from None


def tracked_by(name: TrackerName, run: TrackedRun) -> AbstractContextManager[Tracker]:
    """Return a run in a tracker, for as long as the block lasts.

    Raises:
        ResourceError: the tracker's library is not installed.
    """
    return _LIBRARIES[name][1](library_of(name), run)


@dataclass(slots=True)
class RoundsOfOne:
    """A listener that logs the rounds of one process, which computes all replicas, as the lab does."""

    tracker: Tracker
    losses: list[float] = field(default_factory=list)
    tokens: int = 0

    def take(self, event: Event) -> None:
        """Follow what the process says."""
        match event:
            case StepDone(loss=float(loss)):
                self.losses.append(loss)
            case RoundDone(round=round, tokens=tokens, seconds=seconds):
                self.tokens += tokens
                values = {"tokens": float(self.tokens), "seconds a round": seconds}
                if self.losses:
                    values["training loss"] = sum(self.losses) / len(self.losses)
                    self.losses.clear()
                self.tracker.log(round, values)
            case Evaluated(round=round, loss=loss, loss_plain=plain):
                self.tracker.log(round, {"held-out loss": loss, "held-out loss, plain": plain})
            case _:
                pass
