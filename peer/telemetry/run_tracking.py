"""A run in an experiment tracker, as its operator's node sees it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from peer.telemetry.trackers import TrackedRun, Tracker, TrackerName, tracked_by
from protocol.events.activity import Warned
from protocol.events.event import Listener
from protocol.files import write_atomically
from protocol.monitor import RoundView, View
from protocol.net.tasks import first_of
from protocol.run.run_files import Descriptor
from protocol.wording import printable

TRACKED = "tracked"
"""The file with the last round that a tracker has, so that a node which is started again tells none twice."""

TRACKING_SECONDS = 30.0
"""The interval, at most, at which a node looks for rounds that have ended, in seconds."""


def values_of(round: RoundView) -> dict[str, float]:
    """The numbers of a round that has ended."""
    assert round.ended is not None
    values = {
        "tokens a round": float(round.tokens),
        "seconds a round": round.ended - round.began,
        "contributions": float(len(round.contributions)),
        "late": float(len(round.late)),
        "left": float(len(round.left)),
        "bytes in the pipeline": float(round.pipeline_bytes),
        "bytes in contributions": float(round.outer_bytes),
    }
    if round.loss is not None:
        values["held-out loss"] = round.loss
    if round.loss_plain is not None:
        values["held-out loss, plain"] = round.loss_plain
    return values


def to_tell(view: View, last: int) -> Iterator[RoundView]:
    """The rounds after `last` that are complete, in order: evaluated, or followed by another that has ended, or the
    run is over."""
    ended = sorted((round for round in view.history if round.ended is not None), key=lambda round: round.round)
    newest, over = ended[-1].round if ended else 0, view.state == "finished"
    for round in ended:
        if round.round > last and (round.loss is not None or round.round < newest or over):
            yield round


def read_last(folder: Path) -> int:
    """The last round that a tracker has of a run; 0: none, or its file is damaged."""
    try:
        return int((folder / TRACKED).read_text())
    except (OSError, ValueError):
        return 0


async def track_run(
    name: TrackerName,
    served: Descriptor,
    folder: Path,
    view: Callable[[], View],
    until_changed: Callable[[float], Awaitable[None]],
    emit: Listener,
    stop: asyncio.Event,
) -> None:
    """Tell a tracker each round of a run once, until `stop`. A tracker that fails is reported, and the node goes on."""
    try:
        manifest = served.manifest
        opened = tracked_by(name, TrackedRun(manifest.run.name, served.run_id[:12], manifest.model_dump(), folder))
        tracker = await asyncio.to_thread(opened.__enter__)
        try:
            await first_of(tell_as_they_end(tracker, view, until_changed, folder), stop.wait())
            await asyncio.to_thread(tell_rounds, tracker, view(), folder)
        finally:
            await asyncio.to_thread(opened.__exit__, None, None, None)
    except Exception as error:  # whatever a tracker's library raises is no reason to end the run
        what = printable(str(error))[:200] or type(error).__name__
        emit(Warned(f"WARNING: --track {name} failed: {what}; the run goes on, and is not logged there any more"))


async def tell_as_they_end(
    tracker: Tracker, view: Callable[[], View], until_changed: Callable[[float], Awaitable[None]], folder: Path
) -> None:
    """Tell a tracker each round that has ended, until cancelled."""
    while True:
        await asyncio.to_thread(tell_rounds, tracker, view(), folder)
        await until_changed(TRACKING_SECONDS)


def tell_rounds(tracker: Tracker, view: View, folder: Path) -> None:
    """Tell a tracker the rounds that it does not have yet, as `folder` notes."""
    for round in to_tell(view, read_last(folder)):
        tracker.log(round.round, values_of(round))
        write_atomically(folder / TRACKED, str(round.round).encode())
