"""The rounds of a run in a tracker: each once, when it is complete, also after the node was started again."""

import asyncio
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.telemetry import run_tracking
from peer.telemetry.run_tracking import TRACKED, read_last, tell_rounds, to_tell, track_run, values_of
from peer.telemetry.trackers import TrackedRun
from protocol.events.event import Event
from protocol.monitor import RoundView, View


class Logged:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, Mapping[str, float]]] = []

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self.rounds.append((round, values))


def ended(round: int, loss: float | None = None) -> RoundView:
    return RoundView(round=round, began=10.0 * round, ended=10.0 * round + 7, loss=loss, loss_plain=loss, tokens=100)


def a_view(*history: RoundView, state: str = "training") -> View:
    return View.model_construct(history=list(history), state=state)


def test_a_round_is_told_once_it_is_evaluated_or_another_has_ended_or_the_run_is_over():
    one, two, open_round = ended(1), ended(2), RoundView(round=3, began=30.0)
    assert [round.round for round in to_tell(a_view(ended(1, 5.0)), 0)] == [1]
    assert [round.round for round in to_tell(a_view(one), 0)] == []
    assert [round.round for round in to_tell(a_view(one, two, open_round), 0)] == [1]
    assert [round.round for round in to_tell(a_view(two, one, state="finished"), 0)] == [1, 2]
    assert [round.round for round in to_tell(a_view(one, ended(2, 4.0)), 1)] == [2]


def test_the_numbers_of_a_round_have_no_loss_where_nobody_evaluated_it():
    assert values_of(ended(1, 5.0))["held-out loss"] == 5.0
    assert values_of(ended(1))["seconds a round"] == 7.0
    assert "held-out loss" not in values_of(ended(1))


def test_a_node_that_is_started_again_tells_no_round_twice(tmp_path: Path):
    tracker, again = Logged(), Logged()
    tell_rounds(tracker, a_view(ended(1, 5.0), ended(2, 4.5)), tmp_path)
    tell_rounds(again, a_view(ended(1, 5.0), ended(2, 4.5), ended(3, 4.0)), tmp_path)
    assert [round for round, _ in tracker.rounds] == [1, 2]
    assert [round for round, _ in again.rounds] == [3]
    (tmp_path / TRACKED).write_text("damaged")
    assert read_last(tmp_path) == 0


def run_until_stopped(monkeypatch: pytest.MonkeyPatch, folder: Path, tracker: Any) -> list[Event]:
    """A node's tracker that hears of one round, and is stopped when that is told or has failed."""
    said = list[Event]()
    run = SimpleNamespace(name="speeches")
    served: Any = SimpleNamespace(run_id="ab" * 32, manifest=SimpleNamespace(run=run, model_dump=dict))

    @contextmanager
    def opened(name: str, run: TrackedRun) -> Any:
        yield tracker

    monkeypatch.setattr(run_tracking, "tracked_by", opened)

    async def scene() -> None:
        stop = asyncio.Event()

        async def until_changed(seconds: float) -> None:
            stop.set()
            await asyncio.Event().wait()

        await track_run("wandb", served, folder, lambda: a_view(ended(1, 5.0)), until_changed, said.append, stop)

    asyncio.run(asyncio.wait_for(scene(), 30))
    return said


def test_a_tracker_hears_of_rounds_until_the_node_stops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tracker = Logged()
    assert run_until_stopped(monkeypatch, tmp_path, tracker) == []
    assert [round for round, _ in tracker.rounds] == [1]


def test_a_tracker_that_fails_is_reported_and_does_not_end_the_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Failing:
        def log(self, round: int, values: Mapping[str, float]) -> None:
            raise ConnectionError("no route to host")

    (said,) = run_until_stopped(monkeypatch, tmp_path, Failing())
    assert said.words == (
        "WARNING: --track wandb failed: no route to host; the run goes on, and is not logged there any more"
    )
    assert "wandb" not in sys.modules
