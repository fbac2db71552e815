"""A daemon is heard by its log and by Prometheus beside its terminal."""

import urllib.request
from pathlib import Path

import pytest

from peer.cli.commands.watching import watched
from peer.process import Terminal
from peer.telemetry.decisions import Dismissed
from peer.telemetry.events import Event, Progress
from peer.telemetry.journal import read
from protocol.errors import UserError

GONE = Dismissed("QmB", 2, 1, "it held the group up")


def test_all_hear_the_same(tmp_path: Path):
    said: list[Event] = []
    with watched(Terminal(said.append), tmp_path, "0") as heard:
        heard.emit(GONE)
        assert isinstance(said[0], Progress)
        url = said[0].doing.split()[-1]
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"hetpeer_memory_bytes" in answer.read()
    assert said[1:] == [GONE]
    assert [each.event for each in read(tmp_path)] == [said[0], GONE]


def test_without_being_asked_nothing_is_served(tmp_path: Path):
    said: list[Event] = []
    with watched(Terminal(said.append), tmp_path, None) as heard:
        heard.emit(GONE)
    assert said == [GONE]


def test_an_address_that_is_none_is_refused_before_the_peer_joins(tmp_path: Path):
    with pytest.raises(UserError, match="--metrics takes"), watched(Terminal(lambda event: None), tmp_path, "here"):
        pass
