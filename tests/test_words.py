"""Names and docstrings speak the field's language: each name has one meaning, each docstring stands alone."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = {name: text.split() for name, text in tomllib.loads((ROOT / "tests/words.toml").read_text()).items()}
LONG_FUNCTION_LINES = 10

SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for package in ("peer", "protocol", "bootstrap")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "_pb2" not in path.name
}
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def constants(tree: ast.Module) -> Iterator[str]:
    """The constants of a module."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", target.id):
                yield target.id


def functions(tree: ast.Module) -> Iterator[str]:
    """The public functions of a module, but for the one that a command begins with."""
    for node in tree.body:
        if isinstance(node, Functions) and not node.name.startswith("_") and node.name != "main":
            yield node.name


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring, those of assignments as well."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for index, statement in enumerate(body if isinstance(body, list) else ()):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            first = index == 0 and isinstance(node, ast.Module | ast.ClassDef | Functions)
            after = index > 0 and isinstance(body[index - 1], ast.Assign | ast.AnnAssign)
            if isinstance(statement.value.value, str) and (first or after):
                yield statement.lineno, statement.value.value


def private_locals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the name of each local variable of the list in a long function."""
    for node in ast.walk(tree):
        if isinstance(node, Functions) and (node.end_lineno or 0) - node.lineno > LONG_FUNCTION_LINES:
            for name in ast.walk(node):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id in WORDS["locals"]:
                    yield name.lineno, name.id


@pytest.mark.parametrize(("kind", "named"), [("constants", constants), ("functions", functions)])
def test_a_name_has_one_meaning(kind, named):
    where = defaultdict(list)
    for path, tree in TREES.items():
        for name in named(tree):
            where[name].append(path)
    several = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert several.keys() == set(WORDS[kind]), f"of several meanings, or an exception no longer needed: {several}"


def test_a_docstring_stands_alone():
    headless = [
        f"{path}:{line}: {text[:80]}"
        for path, tree in TREES.items()
        for line, text in docstrings(tree)
        if re.split(r"\W", text.strip(), maxsplit=1)[0] in WORDS["headless"]
    ]
    assert not headless, "\n".join(headless)


def test_a_local_is_a_noun_with_a_meaning():
    found = [f"{path}:{line}: {name}" for path, tree in TREES.items() for line, name in private_locals(tree)]
    assert not found, "\n".join(found)


PLAIN = '''
"""A module."""

SECONDS = 1.0
"""So often it is looked at."""


def look(peers):
    """Look at peers."""
    for each in peers:
        if each:
            pass



    found = 1



    return found
'''


def test_the_rules_find_what_they_are_for():
    tree = ast.parse(PLAIN)
    assert [*constants(tree)] == ["SECONDS"]
    assert [*functions(tree)] == ["look"]
    assert [text for _, text in docstrings(tree)] == ["A module.", "So often it is looked at.", "Look at peers."]
    assert [name for _, name in private_locals(tree)] == ["each", "found"]
