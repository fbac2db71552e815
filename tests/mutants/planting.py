"""Mistakes that somebody might make in the product, each a change of source text, and what must find it.

They lie in `mistakes/*.toml`, a file for each area. A mistake is planted in a copy of the tree, never in the tree
itself. `tests/simulation/mutants.py` has mistakes of its own, in the rules that the pure simulator plays. It plants
them in the modules of its own process, as it plays thousands of schedules for one that tells them apart.
"""

import ast
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from tests.mutants.symbols import Span, occurrences, spans

ROOT = Path(__file__).parent.parent.parent
TABLES = Path(__file__).parent / "mistakes"

LIMIT_SECONDS = 60
"""Within this time of a processor a mistake has to be found: nobody is in the way of that."""

CLEAN_SECONDS = 180
"""A test that a mistake is to fail has this long without it: the first one in a copy also compiles what numba keeps."""

WALL = 10
"""So many times as long it may take by the clock on the wall: a test may wait for something that never comes."""

WORLD = "world "
"""Begins what finds a mistake where that is seeds of `python -m tests.world`, and not a test."""

Outcome = Literal["killed", "survived", "no answer", "broken"]
"""`no answer`: nothing was found within the limit. `broken`: the test could not even be run."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A change of source text: in the symbol `at`, `old`, which occurs there once, becomes `new`.

    `at` is `file` or `file::Class.method`. `old` is compared token by token, so that another layout of its lines makes
    no difference. `killed_by` is the node id of a test, or `world` with the options of `python -m tests.world`.
    """

    name: str
    at: str
    old: str
    new: str
    killed_by: str

    @property
    def file(self) -> str:
        """The path of the changed file, relative to the tree."""
        return self.at.partition("::")[0]

    def span(self, source: str) -> Span:
        """The offsets in the source of its file at which `old` begins and ends.

        Raises:
            ValueError: the symbol is not there, or has `old` never or several times.
        """
        if not spans(source, symbol := self.at.partition("::")[2]):
            raise ValueError(f"there is no {self.at}: mend the mistake {self.name!r}")
        found = occurrences(source, symbol, self.old)
        if len(found) != 1:
            raise ValueError(f"{self.at} has {self.old!r} {len(found)} times: mend the mistake {self.name!r}")
        return found[0]

    def planted(self, source: str) -> str:
        """The source of its file with the mistake. Several lines of `new` are indented as the line that they replace.

        Raises:
            ValueError: the mistake does not fit any more; the message says why.
        """
        if self.old == self.new:
            raise ValueError(f"{self.name!r} changes nothing")
        start, end = self.span(source)
        line = source[source.rfind("\n", 0, start) + 1 : start]
        indent = line[: len(line) - len(line.lstrip())]
        planted = source[:start] + self.new.replace("\n", "\n" + indent) + source[end:]
        try:
            if ast.dump(ast.parse(planted)) == ast.dump(ast.parse(source)):
                raise ValueError(f"{self.name!r} changes a comment")
        except SyntaxError as error:
            raise ValueError(f"{self.file} with {self.name!r} does not parse: {error}") from None
        return planted


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one mistake: the test that failed, or what was said, and how long that took."""

    mistake: Mistake
    outcome: Outcome
    by: str
    seconds: float


def all_mistakes() -> list[Mistake]:
    """The mistakes of all areas, in the order of the tables."""
    return [
        Mistake(**table)
        for path in sorted(TABLES.glob("*.toml"))
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["mistake"]
    ]


def is_there(node_id: str, root: Path = ROOT) -> bool:
    """Whether a test is where its node id says, as far as its source tells: parameters are not looked at."""
    path, *names = node_id.split("[", 1)[0].split("::")
    if not (root / path).is_file() or not names:
        return False
    body = ast.parse((root / path).read_text(encoding="utf-8")).body
    for name in names:
        named = [each for each in body if getattr(each, "name", "") == name]
        if not named:
            return False
        body = getattr(named[-1], "body", [])
    return True


@dataclass(slots=True)
class Copy:
    """A copy of the tree in a folder, in which tests are run."""

    folder: Path
    passed: dict[str, str] = field(default_factory=dict)
    """What each test has said without any mistake; empty: it passes."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @staticmethod
    def of_tree(folder: Path) -> "Copy":
        """Copy what git knows of the tree, and what it would take in, to an empty folder."""
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        return Copy(folder)

    @contextmanager
    def planted(self, mistake: Mistake) -> Iterator[None]:
        """Have a mistake in the copy, for the block. Python tells sources apart by their second: each gets its own."""
        path = self.folder / mistake.file
        source, seconds = path.read_text(encoding="utf-8"), int(path.stat().st_mtime)
        path.write_text(mistake.planted(source), encoding="utf-8")
        os.utime(path, (seconds, seconds + next(self.numbers)))
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, (seconds, seconds))

    def try_out(self, mistake: Mistake, seconds: int = LIMIT_SECONDS) -> Found:
        """Plant a mistake and run what is to find it, for `seconds` of a processor at most; once for each test it is
        seen to pass without."""
        began = time.perf_counter()
        by = mistake.killed_by
        if by not in self.passed:
            outcome, said = self.run(by, max(CLEAN_SECONDS, seconds))
            self.passed[by] = "" if outcome == "survived" else f"{outcome} without any mistake: {said}"
            began = time.perf_counter()
        if self.passed[by]:
            return Found(mistake, "broken", self.passed[by], 0.0)
        with self.planted(mistake):
            own_cache = self.folder.parent / f"numba-{next(self.numbers)}"  # what is compiled has others' code in it
            outcome, said = self.run(by, seconds, own_cache if "codec/" in mistake.file else None)
            shutil.rmtree(own_cache, ignore_errors=True)
        return Found(mistake, outcome, said, time.perf_counter() - began)

    def run(self, what: str, seconds: int, numba: Path | None = None) -> tuple[Outcome, str]:
        """Run a test, or seeds of the simulated world, here: how that ends, and what failed."""
        if what.startswith(WORLD):
            command = ["-m", "tests.world", *what.removeprefix(WORLD).split()]
        else:
            command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=short", "-rfE", what]
        environment = os.environ | {
            "PYTHONPATH": str(self.folder),
            "CI": "1",  # the same examples at every run
            "PYTHONHASHSEED": "0",
            "NUMBA_CACHE_DIR": str(numba or self.folder.parent / "numba"),
        }
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)),
        )
        try:
            said, _ = process.communicate(timeout=WALL * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        return judged(what, process.returncode, said)


def judged(what: str, code: int, said: str) -> tuple[Outcome, str]:
    """How a run has ended, by its exit code and output, and which test or seed failed."""
    if code == 0:
        return "survived", what
    if code in (-signal.SIGKILL, -signal.SIGXCPU):
        return "no answer", f"{what} does not end"
    pattern = r"^seed (\d+) \(" if what.startswith(WORLD) else r"^(?:FAILED|ERROR) (tests/\S+?::.+?)(?: - |$)"
    failed = re.search(pattern, said, re.MULTILINE)
    if code != 1 or failed is None:
        return "broken", said.strip()[-400:]
    return "killed", f"{'world seed ' if what.startswith(WORLD) else ''}{failed.group(1)}"
