"""Whose trial is over: a small file in the node's folder."""

from pathlib import Path

import pytest

from bootstrap.admission import trials
from bootstrap.admission.trials import TRIALS, Trials
from protocol.errors import ResourceError
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
    assert (tmp_path / TRIALS).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b'{"required": 1}', b'{"required": true, "more": 1}', b"\xff"])
def test_a_damaged_file_is_no_empty_one(tmp_path: Path, content: bytes):
    (tmp_path / TRIALS).write_bytes(content)
    with pytest.raises(ResourceError, match="is damaged"):
        trials.read_trials(tmp_path)
