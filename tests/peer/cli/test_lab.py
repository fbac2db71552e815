"""`hetpeer lab`, as a user types it: what it shows of its rounds, and what it leaves."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import peer.cli.lab
from peer.cli.__main__ import app
from peer.process import Terminal
from peer.telemetry.status import Status
from peer.telemetry.terminal import panel
from protocol.events.activity import Finished, Joined, Progress
from protocol.events.event import Event

RUN = """
[model]
preset = "pico"
[replicas]
groups = 1
datacenters = 0
stages = 2
[inner]
steps = 3
sequences = 1
microbatch = 1
warmup = 1
[outer]
rounds = 2
[evaluation]
sequences = 1
"""


@pytest.fixture
def typed(tmp_path: Path) -> list[str]:
    (tmp_path / "run.toml").write_text(RUN)
    numbers = " ".join(f"In the year {year} the people of town {year * year} wrote a text." for year in range(3000))
    (tmp_path / "text.txt").write_text(numbers)
    report = ["--report", str(tmp_path / "deep" / "lab.json"), "--data", str(tmp_path / "text.txt")]
    return ["lab", str(tmp_path / "run.toml"), *report, "--device", "cpu", "--threads", "1"]


def test_its_panel_knows_all_rounds_and_its_end_names_the_files(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    events: list[Event] = []
    panels: list[str] = []
    status = Status()

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, Joined):
            panels.extend(panel(status, 0.0, 80))

    monkeypatch.setattr(peer.cli.lab, "terminal", lambda json: Terminal(take, json, status=status))
    assert CliRunner().invoke(app, typed).exit_code == 0
    assert "round – of 2 " in panels[1] or "round 1 of 2 " in panels[1]
    assert "of 3" in panels[1]
    deep = tmp_path / "deep"
    assert events[-1] == Progress(f"The report is in {deep}/lab.json, its curve in {deep}/loss.png")
    assert isinstance(events[-2], Finished)
    assert {path.name for path in deep.iterdir()} == {"lab.json", "loss.png"}


def test_a_program_reads_finished_last_and_nobody_is_thanked_for_what_nobody_signed(typed: list[str]):
    lines = CliRunner().invoke(app, [*typed, "--json"]).stdout.splitlines()
    assert json.loads(lines[-1])["event"] == "Finished"
    shown = CliRunner().invoke(app, typed).stdout
    assert "Finished: 2 rounds." in shown
    assert "hetpeer credit" not in shown
