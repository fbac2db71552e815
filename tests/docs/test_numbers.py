"""The README quotes numbers that a page of measurements has, each with a command that is there."""

import re

import pytest

from tests.docs.pages import ROOT

SOURCES = "".join(
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("benchmarks", "results", "paper-tables")
)

SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("## Measured")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| `(.+?)` \|$", SECTION, re.MULTILINE)


@pytest.mark.parametrize(("what", "measured", "command"), ROWS)
def test_a_number_is_one_that_was_measured(what: str, measured: str, command: str):
    numbers = re.findall(r"\d+(?:[.,]\d+)*", measured)
    assert numbers
    assert [each for each in numbers if not re.search(rf"(?<![\d.]){re.escape(each)}(?![\d]|\.\d)", SOURCES)] == []
    files = re.findall(r"(?:benchmarks|examples)/[\w/.-]+", command)
    assert files or command.startswith("hetpeer ")
    assert all((ROOT / file).is_file() for file in files)


def test_there_are_some():
    assert len(ROWS) >= 6
