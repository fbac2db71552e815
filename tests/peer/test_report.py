"""The report and its verdict, from invented events."""

import json

import pytest

from peer.events import Evaluated, Joined, RoundDone
from peer.report import Report
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 2})
PROCESSES = {"volunteer": "QmV", "datacenter": "QmD"}


def done(round: int, digest: str = "aa", tokens: int = 100, seconds: float = 2.0) -> RoundDone:
    return RoundDone(round, seconds, tokens, {"stage-0": 2}, {"stage-0": digest}, 10 * round, round)


def report(losses: tuple[float, ...] = (5.0, 4.0), digest_in_round_one: str = "aa") -> Report:
    made = Report(MANIFEST)
    for process, peer in PROCESSES.items():
        made.take(process, Joined(peer, process, 0, 0, "h:1"))
    for round, loss in enumerate(losses, start=1):
        made.take("volunteer", done(round))
        made.take("datacenter", done(round, digest_in_round_one if round == 1 else "aa", seconds=3.0))
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
        (report(digest_in_round_one="bb"), "after round 1 the peers of stage-0 hold 2 different states"),
        (Report(MANIFEST), "round 1 was not completed by anybody"),
    ],
    ids=["loss rose", "loss is no number", "a round is missing", "states differed once", "nothing happened"],
)
def test_anything_else_is_named(made: Report, words: str):
    assert words in made.verdict()


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
    report().write(tmp_path / "deep" / "report.json")
    assert json.loads((tmp_path / "deep" / "report.json").read_text())["outcome"] == "completed"
    assert (tmp_path / "deep" / "loss.png").read_bytes().startswith(b"\x89PNG")
