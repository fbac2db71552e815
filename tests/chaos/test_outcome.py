"""The report and the tables of what faults and crowds cost."""

import io
from collections.abc import Sequence

from rich.console import Console
from typer.testing import CliRunner

from tests.chaos.__main__ import app
from tests.chaos.damage import Damage
from tests.chaos.notation import ALL_NOTATIONS
from tests.chaos.outcome import MeasuredChaos, cost_tables
from tests.chaos.toll import AttackCost, BanStats, Memory
from tests.peer.telemetry.test_run_report import report

KILLED = Damage("kill:stage=0@round=1", ["killed volunteer"], 12.0, (1, 3), 2.54, 1, 4, (12.0, 14.5))
LATER = Damage("kill:stage=0@round=2", ["killed volunteer"], 20.0, (2, 3), 1.5, 1, 0, (20.0, 21.5))
UNDONE = Damage("kill:all@round=2", ["not done: the run was over before"], None, (2, 3), 0.0, 0, 0)


def shown(damages: Sequence[Damage], tolls: Sequence[AttackCost] = ()) -> list[str]:
    out = io.StringIO()
    chaos = MeasuredChaos(damages, frozenset(), tolls=tolls)
    Console(file=out, width=160, highlight=False).print(cost_tables(chaos))
    return out.getvalue().splitlines()


def test_each_fault_has_its_cost_in_the_report_beside_the_sums():
    made = report()
    made.chaos = MeasuredChaos([KILLED, LATER], frozenset(("volunteer", "datacenter")), 4.0)
    chaos = made.result()["chaos"]
    first = chaos["faults"][0]
    assert (first["fault"], first["seconds"], first["stood_still"]) == ("kill:stage=0@round=1", 12.0, (12.0, 14.5))
    assert (first["seconds_lost"], first["steps_lost"], first["steps_missed"]) == (2.54, 1, 4)
    assert (chaos["seconds_lost"], chaos["steps_lost"], chaos["steps_missed"]) == (4.04, 2, 4)
    assert (chaos["rounds_completed"], chaos["difference"]) == (2, 0.0)


def test_the_table_has_the_cost_of_every_fault():
    lines = [line.split() for line in shown([KILLED, UNDONE])]
    assert ["kill:stage=0@round=1", "2.5", "1", "4"] in lines
    assert ["kill:all@round=2", "–", "–", "–"] in lines
    assert ["all", "2.5", "1", "4"] in lines


def test_after_a_crowd_it_has_the_pace_the_memory_and_who_was_avoided():
    told: dict[str, object] = {"outcomes": {"clock": {"answered": 1200, "shut out": 3}, "door": {}}, "cpu_seconds": 2.5}
    memory, shunned = {"volunteer": Memory(500.0, 530.4, 510.0)}, {"clock": BanStats(2, 1, 1.5, 1.5)}
    toll = AttackCost("crowd:clock*2@round=2+9s", 10.0, 19.0, 10.25, 9.5, None, memory, shunned, told)
    lines = shown([], [toll])
    pace = "crowd:clock*2@round=2+9s: steps a second before 10.25, during 9.50, after –; its own CPU time 2.50 s"
    assert pace in lines
    assert next(line for line in lines if "volunteer" in line).split() == ["volunteer", "500", "530", "510"]
    clock = next(line for line in lines if line.strip().startswith("clock"))
    assert clock.split() == ["clock", "2", "1", "1.50", "1.50", *["1,200", "answered,", "3", "shut", "out"]]
    assert MeasuredChaos([], frozenset(), tolls=[toll]).result()["crowds"][0]["during"] == 9.5


def test_the_help_of_the_harness_has_every_kind_of_fault():
    help_page = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert [kind for kind in ALL_NOTATIONS if kind not in help_page] == []
