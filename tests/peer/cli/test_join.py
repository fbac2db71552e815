"""`hetpeer pause` and `resume` find the peers that run here; what a peer does about it is in tests/system. A daemon is
heard by its log and by Prometheus beside its terminal."""

import urllib.request
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.testing import CliRunner

from peer import process
from peer.cli.__main__ import app
from peer.cli.join import NOT_SETTINGS, pause_peers, resume_peers, watched
from peer.cli.options import ServingOptions
from peer.pausing import is_pause_requested
from peer.planning.memory import process_bytes
from peer.process import Terminal
from peer.settings import PeerSettings
from peer.store.home import locked, peer_folder
from peer.telemetry.journal import read_journal
from protocol.errors import UserError
from protocol.events.activity import Failed, Progress
from protocol.events.event import Event
from protocol.events.group_decisions import Dismissed
from protocol.identity import RunId
from protocol.trust.ticket import Ticket

GONE = Dismissed("QmB", 2, 1, "it held the group up")

ONE, OTHER = (Ticket(RunId(each * 32), b"\2" + b"k" * 32, ("h:1",), ()) for each in ("ab", "cd"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def told(command, ticket: Ticket | None = None, folder: Path | None = None) -> tuple[int, list[Event]]:
    said: list[Event] = []
    return command(None if ticket is None else str(ticket), folder, Terminal(said.append)), said


def test_without_a_name_all_peers_that_run_here_are_meant():
    with locked(peer_folder(ONE, "stage-1")) as first, locked(peer_folder(OTHER, "replica")) as second:
        code, said = told(pause_peers)
        assert code == 0
        assert len(said) == 2
        assert is_pause_requested(first)
        assert is_pause_requested(second)
        assert told(pause_peers)[1][0].doing.endswith("has been told to pause before; `hetpeer resume` lets it go on")
        assert told(resume_peers)[0] == 0
        assert not is_pause_requested(first)
        assert not is_pause_requested(second)


def test_a_ticket_means_the_peers_of_its_run_alone():
    with locked(peer_folder(ONE, "stage-1")) as first, locked(peer_folder(OTHER, "replica")) as second:
        assert told(pause_peers, OTHER)[0] == 0
        assert not is_pause_requested(first)
        assert is_pause_requested(second)


def test_a_folder_means_its_peer(tmp_path: Path):
    with locked(tmp_path / "peer") as folder:
        assert told(pause_peers, None, folder)[0] == 0
        assert is_pause_requested(folder)


def test_where_no_peer_runs_pausing_says_so_and_resuming_still_takes_the_word_back(tmp_path: Path):
    with locked(tmp_path / "peer") as folder:
        told(pause_peers, None, folder)
    code, said = told(pause_peers, None, folder)
    assert code == 4
    assert isinstance(said[0], Failed)
    assert "no peer runs in" in said[0].message
    code, said = told(resume_peers, None, folder)
    assert code == 0
    assert isinstance(said[0], Progress)
    assert not is_pause_requested(folder)
    assert told(resume_peers, None, folder)[0] == 4
    assert told(resume_peers)[0] == 4


# Who hears a daemon


def test_all_hear_the_same(tmp_path: Path):
    said: list[Event] = []
    with watched(Terminal(said.append), tmp_path, "0") as heard:
        heard.emit(GONE)
        assert isinstance(said[0], Progress)
        url = said[0].doing.split()[-1]
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"hetpeer_memory_bytes" in answer.read()
    assert said[1:] == [GONE]
    assert [each.event for each in read_journal(tmp_path)] == [Progress(said[0].doing), GONE]


def test_without_being_asked_nothing_is_served(tmp_path: Path):
    said: list[Event] = []
    with watched(Terminal(said.append), tmp_path, None) as heard:
        heard.emit(GONE)
    assert said == [GONE]


def test_an_address_that_is_none_is_refused_before_the_peer_joins(tmp_path: Path):
    with pytest.raises(UserError, match="--metrics takes"), watched(Terminal(lambda event: None), tmp_path, "here"):
        pass


def test_each_option_of_a_peer_is_a_setting_of_the_same_name_type_and_default():
    def declared(kind: type) -> dict[str, tuple[object, object]]:
        types = get_type_hints(kind)
        return {each.name: (types[each.name], each.default) for each in fields(kind)}

    options, settings = declared(ServingOptions), declared(PeerSettings)
    differing = {name for name in options if options[name] != settings.get(name)}
    of_settings = {"threads", "max_memory", "max_disk"}  # all cores is for the command; sizes may be bytes
    assert differing == {*NOT_SETTINGS, *of_settings}


def settings_asked(monkeypatch: pytest.MonkeyPatch) -> list[PeerSettings]:
    """The settings of the peers that commands would start from now on; none of them is started."""
    asked: list[PeerSettings] = []

    def run_command(serve: Any, terminal: Terminal) -> int:
        asked.append(serve.keywords["settings"])
        return 0

    monkeypatch.setattr(process, "run_command", run_command)
    return asked


@pytest.mark.parametrize(
    ("typed", "folder", "stage", "any_stage"),
    [
        ([], "volunteer", None, True),
        (["--stage", "any"], "volunteer", None, True),
        (["--stage", "0"], "stage-0", 0, False),
        (["--stage", "12"], "stage-12", 12, False),
    ],
)
def test_a_volunteer_names_its_stage_or_leaves_it_to_the_node_and_may_move_unless_it_names_one(
    monkeypatch: pytest.MonkeyPatch, typed: list[str], folder: str, stage: int | None, any_stage: bool
):
    asked = settings_asked(monkeypatch)
    done = CliRunner().invoke(app, ["join", *typed, str(ONE)])
    assert done.exit_code == 0, done.output
    assert [(each.directory.name, each.stage, each.any_stage) for each in asked] == [(folder, stage, any_stage)]


def test_a_peer_plans_with_what_its_process_takes_at_its_start_and_what_it_will_load(monkeypatch: pytest.MonkeyPatch):
    asked = settings_asked(monkeypatch)
    for command, resident in (("join", 2 * 10**8), ("replica", 9 * 10**8), ("observe", 3 * 10**8)):
        monkeypatch.setattr("peer.compute.capacity.resident_bytes", lambda resident=resident: resident)
        assert CliRunner().invoke(app, [command, str(ONE)]).exit_code == 0
        assert asked[-1].process_bytes == process_bytes(resident) > resident


@pytest.mark.parametrize("typed", ["two", "-1", "", "Any", "1.0"])
def test_a_stage_that_is_none_is_refused(typed: str):
    done = CliRunner().invoke(app, ["join", "--stage", typed, str(ONE)])
    assert done.exit_code == 2
    assert "is no number of a stage, and not any" in " ".join(done.output.replace("│", " ").split())


def test_a_datacenter_moves_to_no_stage(monkeypatch: pytest.MonkeyPatch):
    asked = settings_asked(monkeypatch)
    assert CliRunner().invoke(app, ["replica", str(ONE)]).exit_code == 0
    assert [(each.stage, each.any_stage) for each in asked] == [(None, False)]
