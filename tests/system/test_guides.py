"""The guides' first commands, as they stand there but for names and ports: an operator's, and three volunteers'."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.docs.pages import ROOT, typed
from tests.reference.processes import TEXT

SECONDS = 120

RUN = """
[run]
name = "mine"
[model]
preset = "nano"
layers = 3
[replicas]
groups = 1
datacenters = 0
stages = 3
[inner]
steps = 2
sequences = 2
microbatch = 2
[outer]
rounds = 2
"""


def command(page: str, *first: str) -> list[str]:
    """The first command of a page that begins so and has these options."""
    found = (list(each.words) for each in typed(ROOT / "docs" / page))
    return next(words for words in found if words[1] == first[0] and set(first) <= set(words))


def three_free_ports() -> int:
    """The first of three that follow each other."""
    for port in range(20_000, 30_000, 3):
        with ExitStack() as held:
            try:
                for each in range(port, port + 3):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", each))
            except OSError:
                continue
        return port
    raise RuntimeError("no three ports in a row are free")


def not_quiet() -> str:
    """A time zone in which it is noon, so that no quiet hours of the guide are now."""
    return f"GUIDE{time.gmtime().tm_hour - 12}"


def line_of(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> str:
    """The next line for which this holds."""
    assert process.stdout is not None
    return next(line for line in process.stdout if wanted(line))


def test_the_operators_and_the_volunteers_first_commands_finish_a_run(tmp_path: Path):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "text.txt").write_text(TEXT)
    environment = os.environ | {"HETPEER_HOME": str(tmp_path / "home"), "TZ": not_quiet(), "PYTHONPATH": str(ROOT)}
    names = {"train.example.org": "127.0.0.1", "home.example.org": "127.0.0.1"}
    names |= {"0.0.0.0:7700": f"0.0.0.0:{three_free_ports()}"}

    def arguments(words: list[str]) -> list[str]:
        return [sys.executable, "-m", "peer.cli", *(names.get(word, word) for word in words[1:])]

    def terminal(words: list[str], *more: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*arguments(words), *more], cwd=tmp_path, env=environment, text=True, **pipes)

    def done(words: list[str]) -> str:
        run = subprocess.run(
            arguments(words), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    operator = terminal(command("operator.md", "bootstrap", "--announce"), "--data", "text.txt")
    peers: list[subprocess.Popen[str]] = []
    try:
        names["hetpeer1-…"] = line_of(operator, lambda line: line.startswith("hetpeer1-")).strip()
        names["0.0.0.0:7710"] = f"0.0.0.0:{three_free_ports()}"
        assert "stage 2" in done(command("volunteer.md", "doctor"))
        for options in ((), ("--stage", "--quiet-hours"), ("--listen", "--announce")):
            peers.append(terminal(command("volunteer.md", "join", *options)))
            line_of(peers[-1], lambda line: line.startswith("Joined the run"))
        for peer in peers:
            said, errors = peer.communicate(timeout=SECONDS)
            assert (peer.returncode, errors) == (0, ""), said
            assert "Finished: 2 rounds." in said
        log = done(command("operator.md", "admin", "log", "--last"))
        assert (log.count("as volunteer"), log.count("as observer")) == (3, 1)  # the node's own takes the model
        done(command("operator.md", "admin", "peers"))
        operator.send_signal(signal.SIGINT)
        _, errors = operator.communicate(timeout=30)
        assert (operator.returncode, errors) == (130, "")
    finally:
        for process in (operator, *peers):
            process.kill()
            process.communicate()
