"""Each planted mistake still applies, so that `python -m tests.mutants` says something of the product as it is."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.planting import ROOT, WORLD, Copy, Mistake, all_mistakes, is_there, judged
from tests.mutants.symbols import Span

MISTAKES = all_mistakes()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_can_be_planted(mistake: Mistake):
    mistake.planted((ROOT / mistake.file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_what_finds_a_mistake_exists(mistake: Mistake):
    if mistake.killed_by.startswith(WORLD):
        assert (ROOT / "tests/world/__main__.py").is_file()
    else:
        assert is_there(mistake.killed_by)


def digest_comparisons(source: str) -> list[Span]:
    """The offsets of the comparisons in a module of which one side hashes bytes or measures a file."""
    hashes = re.compile(r"hexdigest\(\)|\.digest\(\)|measure_file\(")
    lines = [0, *(match.end() for match in re.finditer("\n", source))]
    compared = [
        (lines[node.lineno - 1] + node.col_offset, lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
    ]
    return [(start, end) for start, end in compared if hashes.search(source, start, end)]


def test_a_mistake_is_planted_in_every_comparison_of_a_digest():
    """Bytes that come in are compared with what was announced at many places, and a reader that no longer compares
    looks like one that does as long as everybody is honest."""
    compared, untouched = 0, []
    for path in (path for package in ("peer", "protocol", "bootstrap") for path in (ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        planted = [mistake.span(source) for mistake in MISTAKES if ROOT / mistake.file == path]
        for start, end in digest_comparisons(source):
            compared += 1
            if not any(first < end and start < last for first, last in planted):
                untouched.append(f"{path}: {source[start:end]}")
    assert compared >= 10
    assert not untouched


def test_every_mistake_has_a_name_of_its_own():
    assert not [name for name, times in Counter(mistake.name for mistake in MISTAKES).items() if times > 1]


@pytest.mark.parametrize(
    ("symbol", "old", "new", "reason"),
    [
        ("", "a = 2", "a = 3", "0 times"),
        ("", "a", "b", "2 times"),
        ("::a", "print(a)", "pass", "0 times"),
        ("::b", "a = 1", "a = 2", "there is no a.py::b"),
        ("", "a = 1", "a = 1", "changes nothing"),
        ("", "# so", "# not so", "changes a comment"),
        ("", "a = 1", "a = ", "does not parse"),
    ],
)
def test_a_mistake_that_says_nothing_is_refused(symbol: str, old: str, new: str, reason: str):
    at = f"a.py::{symbol.removeprefix('::')}" if symbol else "a.py"
    with pytest.raises(ValueError, match=reason):
        Mistake("one", at, old, new, "").planted("a = 1  # so\nprint(a)\n")


LAID_OUT = """
@decorated(2)
class Window:
    width: int = 2

    def folded(self, round: int) -> int:
        if round:
            return max(
                round - self.width,
                2,
            )
        return 2


def folded(round: int) -> int:
    return max(round - 2, 2)
"""


@pytest.mark.parametrize(
    ("at", "old", "new", "line"),
    [
        ("a.py::Window.width", "2", "3", "    width: int = 3"),
        ("a.py::Window", "decorated(2)", "decorated(3)", "@decorated(3)"),
        ("a.py::Window.folded", "max(round - self.width, 2)", "round", "            return round"),
        ("a.py::folded", "2, 2", "1, 2", "    return max(round - 1, 2)"),
        ("a.py::Window.folded", "if round:", "round += 1\nif round:", "        round += 1\n        if round:"),
    ],
)
def test_a_mistake_is_planted_in_a_symbol_whatever_the_layout_of_its_lines(at: str, old: str, new: str, line: str):
    planted = Mistake("one", at, old, new, "").planted(LAID_OUT)
    assert line in planted
    assert line not in LAID_OUT
    with pytest.raises(ValueError, match="times"):
        Mistake("one", "a.py", "2", "3", "").planted(LAID_OUT)


def test_a_mistake_is_gone_after_use(tmp_path: Path):
    path = tmp_path / "a.py"
    path.write_text("a = 1\n", encoding="utf-8")
    before = path.stat().st_mtime_ns // 10**9
    with Copy(tmp_path).planted(Mistake("one", "a.py", "1", "2", "")):
        assert path.read_text(encoding="utf-8") == "a = 2\n"
        assert path.stat().st_mtime_ns // 10**9 != before  # else Python would go on with what it has compiled
    assert path.read_text(encoding="utf-8") == "a = 1\n"
    assert path.stat().st_mtime_ns // 10**9 == before


def test_a_test_is_looked_for_by_its_name():
    here = "tests/mutants/test_mistakes.py"
    assert is_there(f"{here}::test_a_test_is_looked_for_by_its_name")
    assert is_there(f"{here}::test_a_mistake_can_be_planted[one]")
    assert not is_there(f"{here}::test_that_there_is_none")
    assert not is_there(here)


@pytest.mark.parametrize(
    ("what", "code", "said", "judgement"),
    [
        ("tests/a.py::b", 0, "1 passed", ("survived", "tests/a.py::b")),
        ("tests/a.py::b", 1, "x\nFAILED tests/a.py::b[1] - assert 0\n", ("killed", "tests/a.py::b[1]")),
        ("tests/a.py::b", -9, "", ("no answer", "tests/a.py::b does not end")),
        ("tests/a.py::b", 4, "ERROR: not found", ("broken", "ERROR: not found")),
        ("world --seed 3", 1, "seed 3 (ab12, 9 s):\n    it goes on\n", ("killed", "world seed 3")),
        ("world --seed 3", 1, "Traceback\nImportError", ("broken", "Traceback\nImportError")),
    ],
)
def test_only_a_test_that_fails_finds_a_mistake(what: str, code: int, said: str, judgement: tuple[str, str]):
    assert judged(what, code, said) == judgement
