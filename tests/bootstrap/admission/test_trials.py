"""Whose trial is over: a list in the operator's database."""

from pathlib import Path

from bootstrap.admission import trials
from bootstrap.admission.lists import Trials
from protocol.identity import PeerId

ANN, BOB = PeerId("QmAnn"), PeerId("QmBob")


def test_a_new_run_tries_nobody(tmp_path: Path):
    assert trials.read_trials(tmp_path) == Trials(required=False, stood=frozenset())


def test_what_is_noted_stays_though_trials_are_no_longer_asked_for(tmp_path: Path):
    trials.require(tmp_path, True)
    trials.note_stood(tmp_path, ANN)
    trials.note_stood(tmp_path, BOB)
    trials.note_stood(tmp_path, ANN)
    assert trials.read_trials(tmp_path) == Trials(required=True, stood=frozenset({ANN, BOB}))
    trials.require(tmp_path, False)
    assert trials.read_trials(tmp_path) == Trials(required=False, stood=frozenset({ANN, BOB}))
