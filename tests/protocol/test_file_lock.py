"""Processes exclude each other, and a dead one holds nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ResourceError
from protocol.file_lock import exclusive, try_lock

HOLD = """
import sys
from pathlib import Path
from protocol.file_lock import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_held_by_one_process_and_given_back_by_its_death(tmp_path: Path):
    path = tmp_path / "book"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (tmp_path / ".book.lock").open() as file:
            assert not try_lock(file.fileno())
            holder.kill()
            holder.wait()
            assert try_lock(file.fileno())


def test_it_is_given_back_at_the_end_of_the_block(tmp_path: Path):
    for _ in range(2):
        with exclusive(tmp_path / "book"), (tmp_path / ".book.lock").open() as file:
            assert not try_lock(file.fileno())
    assert not (tmp_path / "book").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ResourceError, match="missing"):
        exclusive(tmp_path / "missing" / "book").__enter__()
