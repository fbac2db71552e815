"""A process's folder for sockets, and what is left of those of processes that were killed."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from protocol.net import socket_folder
from protocol.net.socket_folder import remove_abandoned

ROOT = Path(__file__).parents[3]

PROCESS = """
import sys
from protocol.net.socket_folder import socket_folder
print(socket_folder(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files with a short name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def start() -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder, and the folder."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", PROCESS], cwd=ROOT, text=True, **pipes)
    return process, Path(process.stdout.readline().strip())


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_of_one_that_lives(parent: Path):
    killed, left = start()
    alive, kept = start()
    assert {left.parent, kept.parent} == {parent}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    (left / "s1").touch()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    third, own = start()
    assert not left.exists()
    assert kept.exists()
    for process, folder in ((alive, kept), (third, own)):
        process.communicate()
        assert not folder.exists()


def test_no_link_and_no_folder_that_is_being_made_is_removed(parent: Path):
    other = parent / "other"
    other.mkdir()
    (other / "lock").touch()
    (parent / f"{socket_folder.FOLDER_PREFIX}link").symlink_to(other)
    (parent / f"{socket_folder.FOLDER_PREFIX}new").mkdir()
    remove_abandoned(parent)
    assert os.listdir(other) == ["lock"]
    assert (parent / f"{socket_folder.FOLDER_PREFIX}new").is_dir()
