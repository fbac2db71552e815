"""What a person sees at the end of a run."""

import io

import pytest
from rich.console import Console

from peer.telemetry.damage import Damage
from peer.telemetry.run_report import Chaos, Report
from peer.telemetry.run_summary import summary
from peer.telemetry.toll import Memory, Shunned, Toll
from tests.peer.telemetry.test_run_report import report


def shown(made: Report) -> str:
    out = io.StringIO()
    Console(file=out, width=160, highlight=False).print(summary(made))
    return out.getvalue()


def test_it_has_a_row_a_round_and_the_outcome():
    said = shown(report())
    assert "5.000" in said
    assert "4.000" in said
    assert "stage-0:2" in said
    assert "outcome: completed" in said
    assert "fault" not in said


@pytest.mark.parametrize(
    ("lab", "words"),
    [(3.99, "final loss 4.000; undisturbed lab 3.990: difference +0.010, of at most 0.05"), (None, "not compared")],
)
def test_after_chaos_it_has_every_fault_and_what_became_of_the_run(lab: float | None, words: str):
    made = report()
    done = Damage("pause:stage=0@round=1+3s", ["paused volunteer", "resumed"], 72.0, (1, 3), 2.54, 1, 4)
    undone = Damage("kill:all@round=2", ["not done: the run was over before"], None, (2, 3), 0.0, 0, 0)
    made.chaos = Chaos([done, undone], frozenset({"volunteer", "datacenter"}), lab)
    lines = shown(made).splitlines()
    row = next(line for line in lines if "pause:stage=0" in line).split()
    assert row == ["pause:stage=0@round=1+3s", "paused", "volunteer", "1.3", "1:12", "2.5", "1", "4"]
    assert next(line for line in lines if "kill:all" in line).split()[-5:] == ["–"] * 5
    assert "rounds completed: 2 of 2" in lines
    assert "digests after the last round: equal in 2 processes" in lines
    assert any(words in line for line in lines)


def test_a_run_that_was_never_evaluated_has_no_loss_to_show():
    made = report(losses=())
    made.chaos = Chaos([], frozenset())
    assert "final loss unknown" in shown(made)
    assert "digests after the last round: none, nobody was there at the end" in shown(made)


def test_after_a_crowd_it_has_the_pace_the_memory_and_who_was_avoided():
    told: dict[str, object] = {"outcomes": {"clock": {"answered": 1200, "shut out": 3}, "door": {}}, "cpu_seconds": 2.5}
    memory, shunned = {"volunteer": Memory(500.0, 530.4, 510.0)}, {"clock": Shunned(2, 1, 1.5, 1.5)}
    toll = Toll("crowd:clock*2@round=2+9s", 10.0, 19.0, 10.25, 9.5, None, memory, shunned, told)
    made = report()
    made.chaos = Chaos([], frozenset(), tolls=[toll])
    lines = shown(made).splitlines()
    pace = "crowd:clock*2@round=2+9s: steps a second before 10.25, during 9.50, after –; its own CPU time 2.50 s"
    assert pace in lines
    assert next(line for line in lines if "volunteer" in line).split() == ["volunteer", "500", "530", "510"]
    clock = next(line for line in lines if line.strip().startswith("clock"))
    assert clock.split() == ["clock", "2", "1", "1.50", "1.50", *["1,200", "answered,", "3", "shut", "out"]]
    assert made.result()["chaos"]["crowds"][0]["during"] == 9.5
