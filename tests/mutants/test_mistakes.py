"""Each planted mistake still applies, so that `python -m tests.mutants` says something of the product as it is."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.planting import ROOT, WORLD, Copy, Mistake, all_mistakes, is_there, judged

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


def digest_comparisons(source: str) -> list[str]:
    """The comparisons in a module of which one side hashes bytes or measures a file."""
    hashes = re.compile(r"hexdigest\(\)|\.digest\(\)|measure_file\(")
    compared = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Compare)]
    texts = [ast.get_source_segment(source, each) or "" for each in compared]
    return [text for text in texts if hashes.search(text)]


def test_a_mistake_is_planted_in_every_comparison_of_a_digest():
    """Bytes that come in are compared with what was announced at many places, and a reader that no longer compares
    looks like one that does as long as everybody is honest."""
    planted = [(mistake.file, mistake.old) for mistake in MISTAKES]
    compared = [
        (str(path.relative_to(ROOT)), text)
        for package in ("peer", "protocol", "bootstrap")
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in digest_comparisons(path.read_text(encoding="utf-8"))
    ]
    assert len(compared) >= 10
    assert not [(file, text) for file, text in compared if not any(f == file and text in old for f, old in planted)]


def test_every_mistake_has_a_name_of_its_own():
    assert not [name for name, times in Counter(mistake.name for mistake in MISTAKES).items() if times > 1]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("a = 2", "a = 3", "0 times"),
        ("a", "b", "2 times"),
        ("a = 1", "a = 1", "changes nothing"),
        ("# so", "# not so", "changes a comment"),
        ("a = 1", "a = ", "does not parse"),
    ],
)
def test_a_mistake_that_says_nothing_is_refused(old: str, new: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        Mistake("one", "a.py", old, new, "").planted("a = 1  # so\nprint(a)\n")


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
