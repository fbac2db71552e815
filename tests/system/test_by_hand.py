"""The README's four terminals, word by word, on a run of the same manifest that has fewer and shorter rounds."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 480


def commands() -> list[list[str]]:
    """The block of four commands under "By hand", as arguments of `hetpeer`."""
    section = (ROOT / "README.md").read_text().split("## By hand: four terminals")[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [shlex.split(line, comments=True) for line in block.group(1).splitlines()]


def test_the_four_terminals_of_the_readme_finish_the_run(tmp_path: Path):
    environment = os.environ | {"HETPEER_HOME": str(tmp_path)}
    typed = commands()
    text = (ROOT / typed[0][2]).read_text()
    for old, new in (("rounds = 6", "rounds = 2"), ("steps = 20 ", "steps = 4 "), ("warmup = 40", "warmup = 4")):
        assert old in text
        text = text.replace(old, new)
    typed[0][2] = str(tmp_path / "run.toml")
    (tmp_path / "run.toml").write_text(text)
    assert [line[:2] for line in typed] == [
        ["hetpeer", "bootstrap"],
        ["hetpeer", "join"],
        ["hetpeer", "join"],
        ["hetpeer", "replica"],
    ]

    def terminal(line: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "peer.cli", *line[1:]]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)

    operator = terminal(typed[0])
    peers: list[subprocess.Popen[str]] = []
    try:
        assert operator.stdout is not None
        assert any("The ticket, one line" in line for line in operator.stdout)
        peers = [terminal(line) for line in typed[1:]]
        ends = time.monotonic() + SECONDS
        for peer in peers:
            said, errors = peer.communicate(timeout=ends - time.monotonic())
            assert peer.returncode == 0, said + errors
            assert errors == ""
            assert "Finished: 2 rounds." in said
            assert "It has not begun yet" in said or "It is at round" in said  # by the operator's node
        assert "Round 2 of 2: helped with" in said
        operator.send_signal(signal.SIGINT)
        said, errors = operator.communicate(timeout=30)
        assert (operator.returncode, errors) == (130, "")
        assert "Stopped. The run is over" in said
    finally:
        for process in (operator, *peers):
            process.kill()
            process.communicate()
