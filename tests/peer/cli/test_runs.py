"""The runs of a machine, as its folders tell them."""

import json
from pathlib import Path

import pytest

from bootstrap.monitor.watch import Monitor
from peer.cli.options import terminal
from peer.cli.runs import ELSEWHERE, list_runs
from peer.store.home import locked
from peer.store.membership import MEMBERSHIP, KeptMembership
from peer.telemetry.journal import EVENTS_FILE, JournalEntry
from protocol.events.activity import Finished, Joined, Paused, PauseEnded, RoundDone
from protocol.events.event import Event
from protocol.monitor import RoundView
from protocol.run.run_files import DESCRIPTOR, RunFile, descriptor_of, file_names
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Card, Role, issue
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

MANIFEST, OPERATOR = small_manifest(run={"name": "ours"}, outer={"rounds": 40}), identity("operator")
DESCRIPTION = descriptor_of(MANIFEST, OPERATOR.peer_id, [RunFile(name, "ef" * 32, 5) for name in file_names(MANIFEST)])
DONE = RoundDone(11, 1.0, 0, {}, {}, 0, 0)
JOINED = Joined("QmA", "volunteer", 1, 0, "h:1")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path))
    return tmp_path / DESCRIPTION.run_id[:12]


def peer(folder: Path, role: Role, *events: Event) -> Path:
    me = load_or_create(folder).peer_id
    (folder / DESCRIPTOR).write_bytes(DESCRIPTION.canonical())
    card = issue(OPERATOR, DESCRIPTION.run_id, Card(me, role, 1 if role == "volunteer" else 0, 0))
    (folder / MEMBERSHIP).write_text(KeptMembership(card=card).model_dump_json())
    (folder / "lock").touch()
    lines = [JournalEntry(1.0, 12 if event is DONE else 0, event).line() for event in events]
    (folder / EVENTS_FILE).write_text("\n".join(["half a li", *lines]))
    return folder


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert list_runs(terminal(json=True)) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_folder_has_its_run_role_round_and_state(home: Path, capsys: pytest.CaptureFixture[str]):
    peer(home / "datacenter", "datacenter", JOINED, DONE, Finished(40))
    peer(home / "stopped", "volunteer", JOINED, DONE)
    paused = peer(home / "paused", "volunteer", JOINED, DONE, Paused("until 07:00"))
    running = peer(home / "running", "volunteer", JOINED, DONE, Paused("until 07:00"), PauseEnded(), JOINED)
    with locked(paused), locked(running):
        rows = listed(capsys)
    assert [(row["role"], row["state"], row["round"], row["rounds"]) for row in rows] == [
        ("datacenter", "finished", 12, 40),
        ("volunteer, stage 1", "paused", 12, 40),
        ("volunteer, stage 1", "running", 12, 40),
        ("volunteer, stage 1", "stopped", 12, 40),
    ]
    assert {(row["run"], row["run_id"]) for row in rows} == {("ours", DESCRIPTION.run_id)}
    assert rows[0]["folder"] == str(home / "datacenter")


def test_an_operators_node_is_listed_with_the_round_of_its_observer(home: Path, capsys: pytest.CaptureFixture[str]):
    node = home.parent / "bootstrap-ours"
    peer(node / "observer", "observer", JOINED, DONE)
    (node / DESCRIPTOR).write_bytes(DESCRIPTION.canonical())
    assert [(row["role"], row["round"], row["state"]) for row in listed(capsys)] == [("operator's node", 12, "stopped")]


def test_a_node_without_an_observer_is_listed_with_the_round_that_it_has_seen(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    node = home.parent / "bootstrap-ours"
    node.mkdir()
    (node / DESCRIPTOR).write_bytes(DESCRIPTION.canonical())
    assert [row["round"] for row in listed(capsys)] == [0]
    monitor = Monitor.of(MANIFEST, DESCRIPTION.run_id, node)
    ended = RoundView(round=29, began=1.0, ended=2.0), RoundView(round=30, began=2.0)
    monitor.write(True, monitor.fold.to_keep(2.0).model_copy(update={"history": [*ended]}))
    assert [row["round"] for row in listed(capsys)] == [30]


def test_a_damaged_folder_is_passed_over_and_a_card_of_nobody_is_no_role(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    (peer(home / "first", "volunteer") / DESCRIPTOR).write_bytes(b"?")
    (peer(home / "second", "volunteer") / MEMBERSHIP).write_bytes(b"?")
    assert [(row["role"], row["round"]) for row in listed(capsys)] == [("second", 0)]


def test_a_person_reads_a_table_and_where_others_are(home: Path, capsys: pytest.CaptureFixture[str]):
    assert list_runs(terminal()) == 0
    assert capsys.readouterr().out.startswith("No run is under")
    peer(home / "stage-1", "volunteer", JOINED, DONE)
    assert list_runs(terminal()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ours stage 1 12 of 40 stopped" in shown
    assert "12 of 40" in shown
    assert ELSEWHERE in shown


def test_no_word_of_the_table_breaks_at_eighty_columns(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    folder = home / "long" / "longer-and-longer-and-longer" / "datacenter"
    monkeypatch.setattr("peer.store.home.peer_folders", lambda run: [peer(folder, "datacenter", JOINED, DONE)])
    assert list_runs(terminal()) == 0
    header, row, *lines = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert header.split() == ["run", "role", "round", "state", "folder"]
    assert row.split()[:6] == ["ours", "datacenter", "12", "of", "40", "stopped"]
    column = header.index("folder")
    end = next(number for number, line in enumerate(lines) if line.startswith("A peer"))
    path = [line[column:] for line in (row, *lines[:end])]
    assert "".join(path) == str(folder)
    assert all(line.endswith("/") for line in path[:-1])
