"""Leaving and coming back, in drawn orders that differ each day: no work is lost that anybody holds, and no wait is
without an end."""

import os
from datetime import date

import pytest

from protocol.outer import phases
from protocol.outer.progress import RunProgress
from tests.simulation import returning
from tests.simulation.returning import play

SCHEDULES = int(os.environ.get("HETPEER_RETURNING_SCHEDULES", "150"))
TODAY = int(os.environ.get("HETPEER_RETURNING_SEED", str(date.today().toordinal() * 1000)))


def test_nothing_is_lost_and_nobody_stands_still_whoever_leaves_and_comes_back():
    failed = [played for seed in range(TODAY, TODAY + SCHEDULES) if (played := play(seed)).objections]
    assert not failed, f"seed {failed[0].seed}: {failed[0].objections}"


PLANTED: dict[str, tuple[tuple[object, str, object], ...]] = {
    "whoever comes back takes its state for the newest": (
        (phases, "stands", lambda view, part: True),
        (returning, "stands", lambda view, part: True),
    ),
    "a peer is always abreast": ((phases, "is_abreast", lambda view: True),),
    "nobody remembers which states were held": ((RunProgress, "newest", lambda self, part, run=0: 0),),
    "nobody heeds a rewind": ((RunProgress, "heed", lambda self, rewind: False),),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_in_the_rules_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch):
    for owner, name, planted in PLANTED[mistake]:
        monkeypatch.setattr(owner, name, planted)
    assert any(play(seed).objections for seed in range(145, 170))


def test_schedules_are_eventful():
    played = [play(seed) for seed in range(60)]
    assert sum(outcome.rewinds for outcome in played)
    assert sum(not outcome.few for outcome in played) > len(played) / 2
    assert sum(outcome.rounds for outcome in played) > 40 * len(played)
