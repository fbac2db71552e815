"""`hetpeer pause` and `resume` find the peers that run here; what a peer does about it is in tests/system."""

from pathlib import Path

import pytest

from peer.cli.commands.pausing import pause, resume
from peer.pausing import is_told
from peer.process import Terminal
from peer.store.home import locked, peer_folder
from peer.telemetry.events import Event, Failed, Progress
from protocol.identity import RunId
from protocol.trust.ticket import Ticket

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
        code, said = told(pause)
        assert code == 0
        assert len(said) == 2
        assert is_told(first)
        assert is_told(second)
        assert told(pause)[1][0].doing.endswith("has been told to pause before; `hetpeer resume` lets it go on")
        assert told(resume)[0] == 0
        assert not is_told(first)
        assert not is_told(second)


def test_a_ticket_means_the_peers_of_its_run_alone():
    with locked(peer_folder(ONE, "stage-1")) as first, locked(peer_folder(OTHER, "replica")) as second:
        assert told(pause, OTHER)[0] == 0
        assert not is_told(first)
        assert is_told(second)


def test_a_folder_means_its_peer(tmp_path: Path):
    with locked(tmp_path / "peer") as folder:
        assert told(pause, None, folder)[0] == 0
        assert is_told(folder)


def test_where_no_peer_runs_pausing_says_so_and_resuming_still_takes_the_word_back(tmp_path: Path):
    with locked(tmp_path / "peer") as folder:
        told(pause, None, folder)
    code, said = told(pause, None, folder)
    assert code == 4
    assert isinstance(said[0], Failed)
    assert "no peer runs in" in said[0].message
    code, said = told(resume, None, folder)
    assert code == 0
    assert isinstance(said[0], Progress)
    assert not is_told(folder)
    assert told(resume, None, folder)[0] == 4
    assert told(resume)[0] == 4
