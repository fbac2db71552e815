"""A real daemon on a real (pseudo-)terminal: its panel, its metrics, its log lines, its log of events, and `why`."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import urllib.request
from pathlib import Path

from tests.reference.processes import HETPEER, SECONDS, hetpeer, serving

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 0
datacenters = 1
[inner]
steps = 8
sequences = 16
microbatch = 2
[outer]
rounds = 4
"""
WIDTH = 70


class Screen:
    """A pseudo-terminal, read as it is written."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
        self.drawn = b""
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.drawn += data

    def closed(self) -> str:
        """All that was drawn, once nobody can draw any more."""
        os.close(self.slave)
        self.reading.join(SECONDS)
        os.close(self.master)
        return self.drawn.decode()


def plain(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)


def test_a_replica_is_watched_and_asked_why(tmp_path: Path):
    folder = tmp_path / "replica"
    screen = Screen()
    with serving(RUN, tmp_path / "run") as ticket:
        options = ["--dir", str(folder), "--device", "cpu", "--threads", "1", "--metrics", "0", "--log-json"]
        environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
        process = subprocess.Popen(
            [*HETPEER, "replica", str(ticket), *options],
            stdin=subprocess.DEVNULL,
            stdout=screen.slave,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stderr is not None
        rows, scraped = [], ""
        for line in process.stderr:
            rows.append(json.loads(line))  # nothing but log lines comes there
            if rows[-1]["event"] == "RoundDone" and not scraped:
                url = next(row["doing"].split()[-1] for row in rows if "metrics for" in row.get("doing", ""))
                with urllib.request.urlopen(url, timeout=30) as answer:
                    scraped = answer.read().decode()
        assert process.wait(SECONDS) == 0, rows[-3:]
    process.stderr.close()
    assert re.search(r"^hetpeer_tokens_total [1-9]", scraped, re.MULTILINE)
    assert re.search(r"^hetpeer_memory_bytes [1-9]", scraped, re.MULTILINE)
    assert all({"time", "level", "event", "reason"} <= row.keys() for row in rows)
    assert [row["round"] for row in rows if row["event"] == "RoundDone"] == [1, 2, 3, 4]

    drawn = screen.closed()
    shown = plain(drawn)
    assert "datacenter · training" in shown
    assert re.search(r"round \d of 4 [█░]* ?step \d of 8", shown)
    assert "Finished: 4 rounds." in shown
    assert not re.search(r"\x1b\[(3|4|9|10)[0-9]m", drawn)
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # the cursor is back

    asked = hetpeer("why", "2", str(folder))
    assert asked.returncode == 0, asked.stderr
    assert "contribution to round 2 is out, of 8 inner steps" in asked.stdout
    assert "→ Counted" in asked.stdout
    unknown = hetpeer("why", "77", str(folder))
    assert unknown.returncode == 2
    assert "nothing is known of 77" in unknown.stderr


def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path):
    screen = Screen()
    with serving(RUN.replace("rounds = 4", "rounds = 4000"), tmp_path / "run") as ticket:
        options = ["--dir", str(tmp_path / "replica"), "--device", "cpu", "--threads", "1", "--log-json"]
        process = subprocess.Popen(
            [*HETPEER, "replica", str(ticket), *options],
            stdin=subprocess.DEVNULL,
            stdout=screen.slave,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TERM": "xterm"},
        )
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "RoundDone":
                process.send_signal(signal.SIGINT)
                break
        rest = [json.loads(line) for line in process.stderr]
        assert process.wait(SECONDS) == 130
    process.stderr.close()
    assert any(row["event"] == "Left" for row in rest)
    drawn = screen.closed()
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
