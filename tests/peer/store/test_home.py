"""Folders: one process each."""

import posixpath
from pathlib import Path

import pytest

from peer.store.home import (
    HOME_VARIABLE,
    home,
    in_use,
    locked,
    operators_folder,
    own_folders,
    peer_folder,
    peer_folders,
    ticket_folders,
)
from protocol.errors import ResourceError
from protocol.identity import RunId
from protocol.trust.ticket import Ticket

TICKET = Ticket(RunId("ab" * 32), b"\2" + b"k" * 32, ("h:1",), ())


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path):
    with locked(tmp_path / "peer"), pytest.raises(ResourceError, match="runs already: stop that one first"):
        locked(tmp_path / "peer").__enter__()
    with locked(tmp_path / "peer") as folder:
        assert folder.is_dir()


def test_a_second_peer_of_a_stage_gets_a_folder_of_its_own():
    first = peer_folder(TICKET, "stage-1")
    with locked(first):
        second = peer_folder(TICKET, "stage-1")
        assert second.name == "stage-1-2"
    assert peer_folder(TICKET, "stage-1") == first


def test_peers_that_start_at_one_moment_get_different_folders():
    folders = own_folders(TICKET, "stage-0")
    with locked(*folders) as first, locked(*folders) as second:
        assert [first.name, second.name] == ["stage-0", "stage-0-2"]
    with locked(*folders) as again:
        assert again == first


def test_peers_are_found_in_the_folders_of_their_runs_and_operators_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path))
    mine = peer_folder(TICKET, "stage-1")
    for folder in (
        mine,
        tmp_path / "cdcdcdcdcdcd/replica",
        tmp_path / "bootstrap-ab",
        tmp_path / "bootstrap-ab/observer",
    ):
        with locked(folder):
            assert in_use(folder)
        assert not in_use(folder)
    assert peer_folders(TICKET.run_id) == [mine]
    assert peer_folders(None) == [mine, tmp_path / "cdcdcdcdcdcd/replica"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot use the folder"):
        locked(tmp_path / "file" / "peer").__enter__()


def test_the_operators_folder_is_the_one_given_or_the_only_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HETPEER_HOME", str(tmp_path / "home"))
    with pytest.raises(ResourceError, match="--dir"):
        operators_folder(None)
    for name in ("bootstrap-a", "bootstrap-b"):
        (home() / name).mkdir(parents=True)
        (home() / name / "run.json").write_text("{}")
        if name == "bootstrap-a":
            assert operators_folder(None) == home() / name
    with pytest.raises(ResourceError, match=r"--dir.*/bootstrap-a, .*/bootstrap-b"):
        operators_folder(None)
    assert operators_folder(home() / "bootstrap-b") == home() / "bootstrap-b"
    with pytest.raises(ResourceError, match="--dir"):
        operators_folder(tmp_path)


def test_a_user_without_a_home_folder_is_told_what_to_give_and_needs_none_with_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setattr(posixpath, "expanduser", lambda path: path)  # as where a container runs as a number alone
    with pytest.raises(ResourceError, match=f"--dir, or set {HOME_VARIABLE}"):
        home()
    assert ticket_folders(tmp_path) == [tmp_path]
    assert ticket_folders() == []
