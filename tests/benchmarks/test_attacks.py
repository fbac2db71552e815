"""The benchmark of attacks reads what a testnet reports of its crowd; `tests/system/test_attackers.py` shows with real
processes that it is reported."""

import os
from typing import Any

import pytest

from benchmarks.attacks import KINDS, lost, row, table

CROWD: dict[str, Any] = {
    "attack": "crowd:clock*3@round=3+20s",
    "began": 30.0,
    "ended": 50.0,
    "before": 10.0,
    "during": 9.0,
    "after": 10.5,
    "memory": {
        "volunteer": {"before": 500.0, "most": 530.0, "after": 510.0},
        "datacenter": {"before": 600.0, "most": 590.0, "after": 600.0},
        "bootstrap": {"before": 400.0, "most": 410.0, "after": 400.0},
    },
    "shunned": {
        "clock": {"names": 2, "avoided": 2, "median_seconds": 1.5, "most_seconds": 2.0},
        "spam": {"names": 1, "avoided": 0, "median_seconds": None, "most_seconds": None},
    },
    "told": {"cpu_seconds": 2.5},
}


def report(**changes: object) -> dict[str, Any]:
    chaos = {"crowds": [CROWD], "digests_equal": True, "final_loss": 5.8} | changes
    return {"chaos": chaos, "outcome": "completed"}


def test_a_row_has_the_shares_of_the_pace_that_were_lost_and_the_growth_of_those_that_grew():
    found = row("all", 3, report(), calm=5.79)
    assert (found.steps_lost, found.steps_lost_after) == (pytest.approx(0.1), pytest.approx(-0.05))
    assert (found.most_growth, found.all_growth) == (30.0, 40.0)
    assert (found.admitted, found.avoided, found.avoided_seconds) == (3, "2 of 3", 1.5)
    assert found.loss_difference == pytest.approx(0.01)
    assert found.own_cpu == pytest.approx(2.5 / 20.0 / (os.cpu_count() or 1))


def test_an_attack_that_never_came_about_has_no_figures():
    found = row("door", 1, report(crowds=[], final_loss=None), calm=5.79)
    assert (found.steps_lost, found.loss_difference) == (None, None)


@pytest.mark.parametrize(("before", "now"), [(None, 1.0), (0.0, 1.0), (1.0, None)])
def test_without_a_pace_nothing_is_said_to_be_lost(before: float | None, now: float | None):
    assert lost(before, now) is None


def test_the_table_has_a_line_for_each_attack():
    lines = table([row("all", 3, report(), 5.79), row("dht", 1, report(digests_equal=False), 5.79)]).splitlines()
    for words in ("10%", "-5%", "2 of 3", "equal", "+0.010"):
        assert words in lines[1]
    assert "NOT" in lines[2]


def test_every_kind_can_be_asked_for():
    assert "all" in KINDS
    assert "clock" in KINDS
