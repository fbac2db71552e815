"""Runs in experiment trackers: what each library is told. The libraries stand in, as far as they are not here."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.telemetry.trackers import RoundsOfOne, TrackedRun, library_of, tracked_by
from protocol.errors import ResourceError
from protocol.events.activity import Evaluated, Finished, RoundDone, StepDone


def a_run(folder: Path) -> TrackedRun:
    return TrackedRun("speeches", "ab12", {"inner": {"steps": 20}}, folder)


class Recorder:
    """A library, or a run of it, that notes each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def note(*values: Any, **named: Any) -> "Recorder":
            self.calls.append((name, values, named))
            return self

        return note


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_run_is_begun_logged_and_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: Any):
    library = Recorder()
    monkeypatch.setitem(sys.modules, name, library)  # type: ignore[arg-type]
    with suppress(ZeroDivisionError), tracked_by(name, a_run(tmp_path)) as tracker:
        tracker.log(3, {"held-out loss": 4.5})
        _ = 1 / 0
    (began, _, options), (logged, values, at), (ended, _, _) = library.calls
    assert (began, logged, ended) == ("init", "log", "finish")
    assert (options["project"], options["resume"], options["config"]) == ("hetpeer", "allow", {"inner": {"steps": 20}})
    assert "ab12" in (options.get("id") or options["name"])
    assert (values, at) == (({"held-out loss": 4.5},), {"step": 3})


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tracked_by("tensorboard", a_run(tmp_path)) as tracker:
        tracker.log(1, {"held-out loss": 5.0})
        tracker.log(2, {"held-out loss": 4.0, "late": 1.0})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("held-out loss")] == [(1, 5.0), (2, 4.0)]
    assert [scalar.step for scalar in events.Scalars("late")] == [2]


def test_a_library_that_is_not_here_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ResourceError, match=r"--track wandb: .*pip install 'hetpeer\[wandb\]'"):
        library_of("wandb")


def test_the_rounds_of_one_process_have_its_losses_and_all_of_its_tokens():
    logged = list[tuple[int, Mapping[str, float]]]()
    rounds = RoundsOfOne(SimpleNamespace(log=lambda round, values: logged.append((round, values))))
    done = {"contributions": {}, "digests": {}, "pipeline_sent": 0, "outer_sent": 0}
    for round, losses in ((1, [6.0, 5.0, None]), (2, [4.0])):
        for step, loss in enumerate(losses):
            rounds.take(StepDone(round, step, loss, 10))
        rounds.take(RoundDone(round=round, seconds=2.0, tokens=30, **done))
        rounds.take(Evaluated(round, 3.0 + round, 4.0))
        rounds.take(Finished(2))
    assert [round for round, _ in logged] == [1, 1, 2, 2]
    assert logged[0][1] == {"tokens": 30.0, "seconds a round": 2.0, "training loss": 5.5}
    assert logged[1][1] == {"held-out loss": 4.0, "held-out loss, plain": 4.0}
    assert logged[2][1] == {"tokens": 60.0, "seconds a round": 2.0, "training loss": 4.0}
