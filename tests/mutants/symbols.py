"""A symbol of a Python file, and a pattern in it that survives another layout of its lines."""

import ast
import re
from itertools import pairwise

TOKEN = re.compile(r"\w+|[^\w\s]")
WORD = re.compile(r"\w")
Span = tuple[int, int]


def spans(source: str, symbol: str) -> list[Span]:
    """The offsets in `source` at which the lines of `symbol` begin and end; one pair for each of its definitions.

    `symbol` is the qualified name of a function, a class or an assigned name, such as `Ledger.offer`; `""` names the
    whole file.
    """
    if not symbol:
        return [(0, len(source))]
    starts = [0, *(match.end() for match in re.finditer("\n", source)), len(source)]
    outermost, *inner = symbol.split(".")
    scopes = [statement for statement in definitions(ast.parse(source)) if outermost in names(statement)]
    for name in inner:
        scopes = [statement for scope in scopes for statement in definitions(scope) if name in names(statement)]
    return [(starts[first_line(scope) - 1], starts[scope.end_lineno or 0]) for scope in scopes]


def definitions(scope: ast.AST) -> list[ast.stmt]:
    """The definitions and assignments directly in a module, class or function, also those below its `if` or `try`."""
    inside: list[ast.stmt] = []
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt) and names(child):
            inside.append(child)
        elif not isinstance(child, ast.expr):
            inside += definitions(child)
    return inside


def names(statement: ast.stmt) -> list[str]:
    """The names that a definition or an assignment binds."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def first_line(statement: ast.stmt) -> int:
    """The first line of a statement, that of its first decorator where it has one."""
    return min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))])


def pattern(text: str) -> re.Pattern[str]:
    """A pattern that matches the tokens of `text` whatever whitespace, line breaks and trailing commas are between."""
    tokens = TOKEN.findall(text)
    parts = [re.escape(tokens[0])]
    for before, after in pairwise(tokens):
        between = r"\s+" if WORD.match(before) and WORD.match(after) else r"\s*"
        parts.append(rf"{between}(?:,\s*)?" if after in ")]}" and before != "," else between)
        parts.append(re.escape(after))
    left = r"(?<!\w)" if WORD.match(tokens[0]) else ""
    right = r"(?!\w)" if WORD.match(tokens[-1]) else ""
    return re.compile(left + "".join(parts) + right)


def occurrences(source: str, symbol: str, text: str) -> list[Span]:
    """Where the tokens of `text` occur in the definitions of `symbol`."""
    return [
        match.span() for start, end in spans(source, symbol) for match in pattern(text).finditer(source, start, end)
    ]
