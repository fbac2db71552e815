"""`python -m examples.experiments sweep` as a researcher uses it: real processes, stopped and killed."""

import json
import signal
from pathlib import Path

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
    rounds, saving = 8, ("--json", "--save-minutes", "0", "--jobs", "1")
    with start(command(tmp_path, text, rounds, *saving)) as stopped:
        assert stopped.stdout is not None
        for line in stopped.stdout:
            event = json.loads(line)
            if event["event"] == "Advanced" and event["done"] == 2:
                stopped.send_signal(signal.SIGINT)
    assert stopped.returncode == 130
    started = [
        json.loads(line)
        for line in done(command(tmp_path, text, rounds, *saving)).splitlines()
        if json.loads(line)["event"] == "Started"
    ]
    assert started[0]["done"] >= 1
    assert not list((tmp_path / "out" / "runs").iterdir())
    interrupted = losses(tmp_path)
    (tmp_path / "out").rename(tmp_path / "before")
    done(command(tmp_path, text, rounds))
    assert losses(tmp_path) == interrupted
