"""The report and its verdict, from invented events."""

import json

import pytest

from peer.telemetry.run_report import LIMIT_NATS, Chaos, FaultDone, Report
from protocol.events.activity import Evaluated, Finished, Joined, RoundDone
from protocol.events.decisions import Audited, Suspected
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 2})
PROCESSES = {"volunteer": "QmV", "datacenter": "QmD"}


def done(round: int, digest: str = "aa", tokens: int = 100, seconds: float = 2.0) -> RoundDone:
    return RoundDone(round, seconds, tokens, {"stage-0": 2}, {"stage-0": digest}, 10 * round, round)


def report(losses: tuple[float, ...] = (5.0, 4.0), others: tuple[str, ...] = ("aa", "aa")) -> Report:
    """Of two rounds; `others` are the datacenter's digests after each, where the volunteer's are all "aa"."""
    made = Report(MANIFEST)
    for process, peer in PROCESSES.items():
        made.take(process, Joined(peer, process, 0, 0, "h:1"))
    for round, loss in enumerate(losses, start=1):
        made.take("volunteer", done(round))
        made.take("datacenter", done(round, others[round - 1], seconds=3.0))
        made.take("datacenter", Evaluated(round, loss, loss - 0.1))
    return made


def test_a_whole_run_is_completed():
    assert report().verdict() == "completed"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (report(losses=(4.0, 5.0)), "the loss did not fall: 4.000 after round 1, 5.000 at the end"),
        (report(losses=(4.0, float("nan"))), "the loss did not fall"),
        (report(losses=(5.0,)), "round 2 was not completed by datacenter, volunteer"),
        (report(others=("bb", "bb")), "after round 1 the peers of stage-0 hold 2 different states"),
        (report(others=("aa", "bb")), "after round 2 the peers of stage-0 hold 2 different states"),
        (Report(MANIFEST), "round 1 was not completed by anybody"),
    ],
    ids=[
        "loss rose",
        "loss is no number",
        "a round is missing",
        "states split",
        "states split at the end",
        "nothing happened",
    ],
)
def test_anything_else_is_named(made: Report, words: str):
    assert words in made.verdict()


def test_states_that_differ_until_a_late_contribution_is_everywhere_are_no_split():
    assert report(others=("bb", "aa")).verdict() == "completed"


def test_a_process_that_missed_a_round_is_named():
    made = report()
    del made.rounds[1].done["volunteer"]
    assert made.verdict() == "round 1 was not completed by volunteer"


def test_its_numbers_are_sums_over_processes():
    result = report().result()
    assert [row["tokens"] for row in result["rounds"]] == [200, 200]
    assert [row["seconds"] for row in result["rounds"]] == [3.0, 3.0]
    assert result["tokens_per_second"] == pytest.approx(400 / 6)
    assert result["bytes"] == {
        "pipeline_sent": 40,
        "outer_sent": 4,
        "peers": {"QmV": {"pipeline_sent": 20, "outer_sent": 2}, "QmD": {"pipeline_sent": 20, "outer_sent": 2}},
    }
    assert result["digests"] == {"stage-0": {"QmV": "aa", "QmD": "aa"}}


def test_it_is_written_with_its_picture(tmp_path):
    where = report().write(tmp_path / "deep" / "report.json")
    assert where == f"The report is in {tmp_path}/deep/report.json, its curve in {tmp_path}/deep/loss.png"
    assert json.loads((tmp_path / "deep" / "report.json").read_text())["outcome"] == "completed"
    assert (tmp_path / "deep" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_no_picture_is_named_where_nothing_was_evaluated(tmp_path):
    assert report(losses=()).write(tmp_path / "report.json") == f"The report is in {tmp_path}/report.json"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_number_that_is_none_is_null_in_the_file(tmp_path):
    report(losses=(4.0, float("nan"))).write(tmp_path / "report.json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    written = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
    assert [row["loss"] for row in written["rounds"]] == [4.0, None]


def test_an_audit_is_in_the_result_where_there_was_one():
    made = report()
    assert "audit" not in made.result()
    made.take("bootstrap", Audited(1, {"QmV": -0.5}))
    made.take("bootstrap", Audited(1, {"QmD": 0.25}))
    made.take("bootstrap", Suspected("QmV", "it does harm", 1))
    assert made.result()["audit"] == {
        "gains": {"1": {"QmV": -0.5, "QmD": 0.25}},
        "suspected": [{"peer": "QmV", "reason": "it does harm", "since": 1}],
    }


# After chaos

KILLED = FaultDone("kill:stage=0@round=1", ["killed volunteer"], 12.0, (1, 3))


def disturbed(alive: tuple[str, ...] = ("volunteer", "datacenter"), lab: float | None = 4.0) -> Report:
    made = report()
    made.chaos = Chaos([KILLED], frozenset(alive), lab)
    return made


def test_who_was_away_for_a_while_need_not_have_all_rounds():
    made = disturbed()
    del made.rounds[1].done["volunteer"]
    assert made.verdict() == "completed"


def test_states_may_differ_before_the_end():
    made = report(others=("bb", "aa"))
    made.chaos = Chaos([], frozenset(PROCESSES))
    assert made.verdict() == "completed"


def test_who_is_dead_at_the_end_need_not_agree():
    made = disturbed(alive=("datacenter",))
    made.take("volunteer", done(2, "other"))
    assert made.verdict() == "completed"
    assert made.result()["chaos"]["digests_equal"]


def test_who_is_there_at_the_end_must_agree():
    made = disturbed()
    made.take("volunteer", done(2, "other"))
    assert made.verdict() == "at the end the peers of stage-0 hold different states"
    assert not made.result()["chaos"]["digests_equal"]


def test_who_ended_the_last_round_without_a_late_contribution_may_have_it_when_it_ends():
    made = disturbed()
    digests = made.rounds[2].done["volunteer"].digests
    made.take("volunteer", done(2, "other"))
    made.take("volunteer", Finished(2, digests))
    assert made.verdict() == "completed"


def test_who_is_there_at_the_end_must_have_the_last_round():
    made = disturbed()
    del made.rounds[2].done["volunteer"]
    assert made.verdict() == "round 2 was not completed by volunteer"


@pytest.mark.parametrize(("lost", "words"), [(1, "round 1 was not completed by anybody"), (2, "round 2 was not")])
def test_every_round_must_be_completed_by_somebody(lost: int, words: str):
    made = disturbed()
    made.rounds[lost].done.clear()
    assert words in made.verdict()
    assert made.result()["chaos"]["rounds_completed"] == 1


@pytest.mark.parametrize(
    ("lab", "words"),
    [
        (4.0 - LIMIT_NATS / 2, "completed"),
        (5.0, "completed"),
        (None, "completed"),
        (4.0 - 2 * LIMIT_NATS, "the final loss is 0.100 nats above the undisturbed lab's, more than 0.05"),
        (float("nan"), "the final loss is nan nats above"),
    ],
    ids=["a little worse", "better", "not compared", "too much worse", "the lab diverged"],
)
def test_it_may_end_only_a_little_worse_than_undisturbed(lab: float | None, words: str):
    assert words in disturbed(lab=lab).verdict()


def test_the_last_round_must_be_evaluated():
    made = disturbed()
    made.rounds[2].evaluated = None
    assert made.verdict() == "round 2 was not evaluated"


def test_the_result_has_every_fault_and_what_became_of_the_run():
    chaos = disturbed().result()["chaos"]
    assert chaos["faults"][0] == {
        "fault": "kill:stage=0@round=1",
        "actions": ["killed volunteer"],
        "seconds": 12.0,
        "place": (1, 3),
    }
    assert (chaos["rounds_completed"], chaos["rounds_asked"]) == (2, 2)
    assert chaos["alive"] == ["datacenter", "volunteer"]
    assert (chaos["final_loss"], chaos["lab_loss"], chaos["difference"], chaos["limit"]) == (4.0, 4.0, 0.0, LIMIT_NATS)


def test_without_chaos_nothing_of_it_is_in_the_result():
    assert "chaos" not in report().result()
