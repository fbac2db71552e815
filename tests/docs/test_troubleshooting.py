"""The troubleshooting page speaks of messages that the program says, word for word."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, prose

HEADINGS = re.findall(r"^### +`+ ?(.+?) ?`+ *$", prose(ROOT / "docs/troubleshooting.md"), re.MULTILINE)

LEAST_LETTERS = 10
"""That a message has of its own, beside what is formatted into it."""

TEMPLATE = re.compile(r"\{\w+(![a-z])?(:[^}]*)?\}")
"""A field in the words of an event (`protocol/events/event.py`)."""

NOT_SAID = ("help", "description", "metavar", "epilog")
"""Keywords whose strings are documentation."""


def said(tree: ast.AST) -> Iterator[str]:
    """The strings of a module but for its documentation, each as one text with … for what is formatted into it."""
    for field in ast.iter_child_nodes(tree):
        if isinstance(field, ast.Expr) and isinstance(field.value, ast.Constant):
            continue
        if isinstance(field, ast.keyword) and field.arg in NOT_SAID:
            continue
        if isinstance(field, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in field.values)
            for each in field.values:
                yield from said(each)
            continue
        if isinstance(field, ast.Constant) and isinstance(field.value, str):
            yield TEMPLATE.sub("…", field.value)
        yield from said(field)


def pattern(message: str) -> re.Pattern[str] | None:
    """What a message looks like when it is said; None where it has hardly a word of its own. A line of progress begins
    with a capital then (`protocol/events/activity.py`)."""
    if sum(each.isalpha() for each in message) < LEAST_LETTERS:
        return None
    first, rest = message[0], message[1:]
    begin = ".*" if first == "…" else f"[{re.escape(first)}{re.escape(first.upper())}]"
    return re.compile(begin + ".*".join(map(re.escape, rest.split("…"))), re.DOTALL)


@pytest.fixture(scope="module")
def messages() -> list[re.Pattern[str]]:
    """All that the program may say."""
    files: list[Path] = [path for name in ("peer", "protocol", "bootstrap") for path in (ROOT / name).rglob("*.py")]
    texts = {
        text for path in files if "_pb2" not in path.name for text in said(ast.parse(path.read_text(encoding="utf-8")))
    }
    return [found for text in texts if text and (found := pattern(text))]


def test_each_message_of_the_page_is_one_that_the_program_says(messages: list[re.Pattern[str]]):
    assert [each for each in HEADINGS if not any(message.fullmatch(each) for message in messages)] == []


def test_a_message_that_nobody_says_is_not_found(messages: list[re.Pattern[str]]):
    assert not any(message.fullmatch("the ticket is of paper: fold it") for message in messages)


def test_the_likely_ones_are_there_and_none_twice():
    assert len(HEADINGS) >= 40
    assert len(HEADINGS) == len(set(HEADINGS))
