"""The tables of these pages have a line for everything that they are about."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from protocol.events.lines import EVENT_TYPES
from tests.docs.pages import ROOT

SCHEMAS = sorted((ROOT / "protocol/schemas").glob("*.proto"))


def first_column(page: str) -> set[str]:
    """The words in code that begin the lines of a page's tables."""
    lines = re.findall(r"^\|([^|]*)\|", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {word for line in lines for word in re.findall(r"`([^`]+)`", line)}


def test_the_table_of_events_has_each_of_them_once_and_no_other():
    table = (ROOT / "docs/watching.md").read_text(encoding="utf-8").split("| event |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert sorted(named) == sorted(EVENT_TYPES)


def test_the_table_of_who_may_call_what_has_all_methods():
    methods = set()
    for schema in SCHEMAS:
        for name, body in re.findall(r"^service (\w+) \{(.*?)^\}", schema.read_text(), re.MULTILINE | re.DOTALL):
            methods |= {f"{name}.{method}" for method in re.findall(r"\brpc (\w+)\b", body)}
    assert len(methods) >= 15
    assert not methods - first_column("docs/wire.md")


def test_the_contract_on_generated_stubs_names_all_of_them():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = {module for contract in contracts for module in contract.get("protected_modules", ())}
    assert not {f"protocol.schemas.{path.stem}_pb2_grpc" for path in SCHEMAS if "service " in path.read_text()} - named


def test_the_glossary_names_files_that_are_there():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:peer|protocol|bootstrap)/[\w/]+\.py)`", text))
    assert len(paths) > 20
    assert not [path for path in paths if not (ROOT / path).is_file()]


def test_no_constant_of_the_tests_is_without_a_use():
    sources = {path: path.read_text(encoding="utf-8") for path in Path(ROOT / "tests").rglob("*.py")}
    words = Counter(word for source in sources.values() for word in re.findall(r"\b[A-Z][A-Z0-9_]+\b", source))
    unused = [
        f"{path.relative_to(ROOT)}: {target.id}"
        for path, source in sources.items()
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper() and words[target.id] == 1
    ]
    assert not unused
