"""`python -m examples.experiments sweep` as a researcher uses it: real processes, stopped and killed."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from examples.experiments.results import read_records
from tests.reference.forked import EXPERIMENTS, Forked, hetpeer

EXPERIMENT = """
title = "small"
seeds = [1]
replicas = 2

[base.model]
layers = 2
d = 16
heads = 2
kv_heads = 2
ffn = 24
context = 16
vocabulary = 300

[base.replicas]
stages = 2
compression = 4

[base.inner]
steps = 2
sequences = 2
microbatch = 2

[base.outer]
rounds = ROUNDS

[[grid]]
mode = ["baseline", "uniform", "heterogeneous"]
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"Line {number} of a text about {number % 7} things." for number in range(900)))
    return path


def command(tmp_path: Path, text: Path, rounds: int, *more: str) -> list[str]:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(EXPERIMENT.replace("ROUNDS", str(rounds)))
    where = ["--data", str(text), "--out", str(tmp_path / "out"), "--device", "cpu"]
    return ["sweep", str(experiment), *where, *more]


def losses(tmp_path: Path) -> dict[str, float]:
    return {record.id: record.loss("replicas") for record in read_records(tmp_path / "out")}


def start(arguments: list[str]) -> Forked:
    return Forked(arguments, errors_join_output=True, program=EXPERIMENTS)


def done(arguments: list[str]) -> str:
    """What a sweep says that ends well."""
    ended = hetpeer(*arguments, program=EXPERIMENTS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_sweep_leaves_one_record_for_each_run_and_a_report_and_does_nothing_twice(tmp_path: Path, text: Path):
    first = done(command(tmp_path, text, 2))
    assert "3 of 3 runs" in first
    assert len(losses(tmp_path)) == 3
    assert "| uniform |" in (tmp_path / "out" / "experiment-paper" / "results.md").read_text()
    again = done(command(tmp_path, text, 2, "--json"))
    assert not [line for line in again.splitlines() if json.loads(line)["event"] in ("Started", "Ended")]
    assert len(read_records(tmp_path / "out")) == 3


def test_ctrl_c_stops_it_and_the_same_command_goes_on_to_the_same_results(tmp_path: Path, text: Path):
    rounds, saving = 30, ("--json", "--save-minutes", "0", "--jobs", "1")
    with start(command(tmp_path, text, rounds, *saving)) as stopped:
        assert stopped.stdout is not None
        for line in stopped.stdout:
            event = json.loads(line)
            if event["event"] == "Advanced" and event["done"] == 5:
                stopped.send_signal(signal.SIGINT)
    assert stopped.returncode == 130
    started = [
        json.loads(line)
        for line in done(command(tmp_path, text, rounds, *saving)).splitlines()
        if json.loads(line)["event"] == "Started"
    ]
    assert started[0]["done"] >= 4
    assert not list((tmp_path / "out" / "runs").iterdir())
    interrupted = losses(tmp_path)
    (tmp_path / "out").rename(tmp_path / "before")
    done(command(tmp_path, text, rounds))
    assert losses(tmp_path) == interrupted


def test_a_run_whose_process_is_killed_is_named_and_the_others_end(tmp_path: Path, text: Path):
    killed, told = False, []
    with start(command(tmp_path, text, 40, "--json", "--jobs", "1")) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(json.loads(line))
            if not killed and told[-1]["event"] == "Advanced":
                os.kill(child_of(process.pid), signal.SIGKILL)
                killed = True
    assert process.returncode == 1
    said = [event["doing"] for event in told if event["event"] == "Progress"]
    assert "baseline, seed 1: its process ended with exit code -9" in said
    assert len(losses(tmp_path)) == 2


def test_results_of_another_text_are_not_mixed_in(tmp_path: Path, text: Path):
    done(command(tmp_path, text, 1))
    other = tmp_path / "other.txt"
    other.write_text(text.read_text())
    refused = hetpeer(*command(tmp_path, other, 1), program=EXPERIMENTS)
    assert refused.returncode != 0
    assert "give another folder with --out" in refused.stdout + refused.stderr


def test_experiments_that_share_a_folder_share_their_runs_but_not_at_the_same_time(tmp_path: Path, text: Path):
    arguments = command(tmp_path, text, 20, "--json")
    with start(arguments) as first:
        assert first.stdout is not None
        next(line for line in first.stdout if json.loads(line)["event"] == "Advanced")
        refused = hetpeer(*arguments, program=EXPERIMENTS)
        assert refused.returncode != 0
        assert "another hetpeer process uses" in refused.stdout
        first.stdout.read()
    other = tmp_path / "other.toml"
    other.write_text(
        (tmp_path / "experiment.toml").read_text().replace('"small"', '"two of them"').replace('"baseline", ', "")
    )
    told = done([str(other) if each.endswith(".toml") else each for each in arguments])
    assert "Started" not in told
    assert "2 of 2 runs" in (tmp_path / "out" / "other-paper" / "results.md").read_text()


def test_a_folder_whose_text_is_not_known_is_an_error_of_one_line(tmp_path: Path, text: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.json").write_text("[1, 2")
    refused = hetpeer(*command(tmp_path, text, 1), program=EXPERIMENTS)
    assert refused.returncode != 0
    assert "does not say of which text these results are; give another folder with --out" in " ".join(
        (refused.stdout + refused.stderr).split()
    )


def child_of(pid: int) -> int:
    """The run's process: what the process that forks for the sweep has forked."""
    (run,) = (run for child in psutil.Process(pid).children() for run in child.children())
    return run.pid


def test_the_curve_has_every_nth_round_and_the_last(tmp_path: Path, text: Path):
    arguments = command(tmp_path, text, 5)
    experiment = tmp_path / "experiment.toml"
    experiment.write_text("evaluate_every = 2\n" + experiment.read_text())
    done(arguments)
    tokens_per_round = 2 * 2 * 2 * 16
    for record in read_records(tmp_path / "out"):
        assert [point.tokens / tokens_per_round for point in record.curve] == [2, 4, 5]
