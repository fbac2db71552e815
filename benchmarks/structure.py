"""How the product's code is partitioned: figures by which a change of its structure can be judged.

The product is `protocol`, `peer` and `bootstrap`, without generated code (`*_pb2*`). Each figure is read from the
syntax trees; nothing of the product runs. `--json` adds to each count what was counted. The figures are:

- files, and their lines;
- type names with several meanings: a class, or a CamelCase alias at module level, of one name in more than one module;
  type variables do not count;
- modules with one importer, of fewer than 80 lines: exactly one other module of the product imports it, at any place;
- single-use private functions under six lines: a function or method `_x` that its module names once, outside of its own
  body, in order to call it, and whose body without the docstring has fewer than six lines;
- import depth: the number of modules on the longest path through the imports, late ones and those for types alone too;
- bare tasks: `asyncio.create_task`, `asyncio.ensure_future` and `loop.create_task` outside of `protocol/net/tasks.py`,
  that is, tasks that no `TaskGroup` owns.
"""

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "peer", "bootstrap")

FEWEST_LINES = 80
"""A module below it wants more than one importer."""

FEWEST_BODY_LINES = 6
"""A private function below it wants more than one caller."""

Functions = ast.FunctionDef | ast.AsyncFunctionDef
Trees = dict[str, ast.Module]
"""By the modules' dotted names."""


def sources(root: Path) -> dict[str, str]:
    """The text of every module of the product, by its dotted name; a package's is that of its `__init__`."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if "_pb2" not in path.stem:
                parts = path.relative_to(root).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


# Types


def types_of(tree: ast.Module) -> Iterator[str]:
    """The names of the classes and of the CamelCase aliases at module level."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name) and not is_type_variable(value):
                    yield name


def is_type_variable(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in {"TypeVar", "ParamSpec"}


def ambiguous_types(trees: Trees) -> dict[str, list[str]]:
    """The modules that define a type name, for each that several define."""
    modules: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for name in sorted(set(types_of(tree))):
            modules[name].append(module)
    return {name: those for name, those in sorted(modules.items()) if len(those) > 1}


# Imports


def imports_of(module: str, trees: Trees) -> set[str]:
    """The product's other modules that `module` imports."""
    names: set[str] = set()
    for node in ast.walk(trees[module]):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(source), names=aliases):
                whole = {f"{source}.{alias.name}" for alias in aliases}
                names.update(whole & trees.keys())
                if whole - trees.keys():
                    names.add(source)
    return (names & trees.keys()) - {module}


def once_imported(imports: dict[str, set[str]], lines: dict[str, int]) -> dict[str, str]:
    """The only importer of each small module that has one."""
    importers = defaultdict(list)
    for importer, those in imports.items():
        for module in those:
            importers[module].append(importer)
    return {
        module: those[0]
        for module, those in sorted(importers.items())
        if len(those) == 1 and lines[module] < FEWEST_LINES
    }


def longest_path(imports: dict[str, set[str]]) -> list[str]:
    """The modules on the longest path, the importing one first.

    Raises:
        graphlib.CycleError: modules import each other in a circle.
    """
    longest: dict[str, list[str]] = {}
    for module in TopologicalSorter(imports).static_order():
        below = max((longest[each] for each in sorted(imports[module])), key=len, default=[])
        longest[module] = [module, *below]
    return max(longest.values(), key=len, default=[])


# Functions


def private_functions(tree: ast.Module) -> Iterator[Functions]:
    """The private functions at module level and the private methods, each of a name that the module defines once."""
    found = [
        node
        for owner in [tree, *(each for each in ast.walk(tree) if isinstance(each, ast.ClassDef))]
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"_(?!_)", node.name)
    ]
    times = Counter(node.name for node in found)
    yield from (node for node in found if times[node.name] == 1)


def mentions(tree: ast.AST) -> Counter[str]:
    """How often each name is read, by itself or as an attribute."""
    return Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )


def called(tree: ast.AST) -> set[str]:
    """The names of the functions and methods that are called."""
    return {
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    }


def body_lines(function: Functions) -> int:
    """The lines of the body, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def single_use(trees: Trees) -> list[str]:
    """`module:line name` of each small private function that is used once."""
    found = []
    for module, tree in trees.items():
        uses, calls = mentions(tree), called(tree)
        for function in private_functions(tree):
            name = function.name
            once = uses[name] == 1 and name in calls and not mentions(function)[name]
            if once and body_lines(function) < FEWEST_BODY_LINES:
                found.append(f"{module}:{function.lineno} {name}")
    return found


# Tasks


def bare_tasks(trees: Trees) -> list[str]:
    """`module:line` of each call that starts a task which no group owns."""
    started = re.compile(r"(.+\.)?ensure_future|create_task|(.*\b)?(asyncio|\w*loop|get_\w*loop\(\))\.create_task")
    return [
        f"{module}:{node.lineno}"
        for module, tree in trees.items()
        if module != "protocol.net.tasks"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and started.fullmatch(ast.unparse(node.func))
    ]


def measure(root: Path) -> dict[str, object]:
    """Every figure by its name: a count, or what was counted."""
    texts = sources(root)
    trees = {module: ast.parse(text) for module, text in texts.items()}
    lines = {module: len(text.splitlines()) for module, text in texts.items()}
    imports = {module: imports_of(module, trees) for module in trees}
    return {
        "files": len(texts),
        "lines": sum(lines.values()),
        "type names with several meanings": ambiguous_types(trees),
        f"modules with one importer, under {FEWEST_LINES} lines": once_imported(imports, lines),
        "single-use private functions under six lines": single_use(trees),
        "import depth": longest_path(imports),
        "bare tasks": bare_tasks(trees),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print each figure with what was counted")
    figures = measure(ROOT)
    if parser.parse_args().json:
        counted = {
            name: {"count": len(found), "found": found} if isinstance(found, dict | list) else {"count": found}
            for name, found in figures.items()
        }
        print(json.dumps(counted, indent=2))
        return
    for name, found in figures.items():
        print(f"{name:<48}{len(found) if isinstance(found, dict | list) else found:>7}")


if __name__ == "__main__":
    main()
