"""A failing schedule, made smaller while it still fails."""

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.schedule import Event, Schedule


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Delta debugging: drop events, in halves first and then ever fewer at once, until each that is left matters."""
    size = max(1, len(schedule.events) // 2)
    while True:
        smaller = _without_some(schedule, size, fails)
        if smaller is None and size == 1:
            return _simpler(schedule, fails)
        size = max(1, size // 2) if smaller is None else size
        schedule = smaller or schedule


def _without_some(schedule: Schedule, size: int, fails: Callable[[Schedule], bool]) -> Schedule | None:
    for start in range(0, len(schedule.events), size):
        left: tuple[Event, ...] = schedule.events[:start] + schedule.events[start + size :]
        if fails(candidate := replace(schedule, events=left)):
            return candidate
    return None


def _simpler(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Fewer rounds, and a network that neither loses nor repeats."""
    for change in ({"loss": 0.0}, {"repeats": 0.0}, {"slow": frozenset()}):
        if fails(candidate := replace(schedule, **change)):  # type: ignore[arg-type]
            schedule = candidate
    while schedule.rounds > 1 and fails(candidate := replace(schedule, rounds=schedule.rounds - 1)):
        schedule = candidate
    return schedule
