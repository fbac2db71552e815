"""TOML files whose tables are checked by pydantic, with errors that name the field."""

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.errors import ManifestError, UnknownFieldError
from protocol.files import read_given

MOST_DOTS = 1000
"""The most dots in a line of TOML: for a key a.a.a… tomllib needs memory that grows with the square of its length."""

MOST_QUOTED_CHARACTERS = 200
"""The most characters of a file that an error repeats: errors are for a screen."""


def shown(value: object) -> str:
    """A value of a JSON file, as errors repeat it."""
    return json.dumps(value)[:MOST_QUOTED_CHARACTERS]


MOST_QUOTED_VALUE = 40
"""The most characters of a value that an error repeats."""

EXPECTED = "Input should be "
"""The beginning of pydantic's words on a value that is out of range, or of another type."""

WORDS = {
    "missing": "is missing: give it, or a preset that has it",
    "model_type": "is no table",
}
"""The reasons of errors, by pydantic's names for them, where pydantic's words are no user's."""


class Section(BaseModel):
    """A table of a TOML file: frozen, with unknown keys, infinity and NaN as errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


AnySection = TypeVar("AnySection", bound=Section)


def read_tables(path: Path, what: str) -> dict[str, Any]:
    """Read the tables of a TOML file, which errors call a `what`.

    Raises:
        ManifestError: it cannot be read, or is not TOML.
    """
    try:
        text = read_given(path).decode("utf-8-sig")
        if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
            raise ManifestError(f"{path} is no {what}: it has a line with more than {MOST_DOTS} dots")
        return tomllib.loads(text)
    except OSError as error:
        raise ManifestError(f"cannot read the {what} {path}: {error.strerror}; give a file of TOML") from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is not valid TOML: no UTF-8 ({error.reason}); save it as UTF-8") from None
    except (ValueError, RecursionError) as error:  # of tomllib too: a number of too many digits, a list in a list in …
        raise ManifestError(f"{path} is not valid TOML: {error}{_toml_cure(text, str(error))}") from None


def _toml_cure(text: str, error: str) -> str:
    """Say what to do about a file that is not valid TOML, where its error does not say it; empty where it does."""
    if text.lstrip().startswith("{"):
        return '; it looks like JSON: write tables, as [model], and fields, as preset = "nano"'
    if "after a key" in error or "Invalid statement" in error:
        return '; write tables, as [model], and fields, as preset = "nano"'
    if "Invalid value" in error or "after a statement" in error:
        return '; text stands in straight quotation marks, as in preset = "nano"'
    if "Cannot declare" in error or "Cannot overwrite" in error:
        return "; it is there twice: leave one of them out"
    return ""


def validated(kind: type[AnySection], tables: dict[str, Any], source: str, *within: str) -> AnySection:
    """Check tables against a section, which stands at `within` in its file.

    Raises:
        ManifestError: a field is missing, unknown or wrong; the message names it.
    """
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        names = [name for name in first["loc"] if isinstance(name, str)]
        where = ".".join([*within, *names])[:MOST_QUOTED_CHARACTERS] or "manifest"
        reason = WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))[:MOST_QUOTED_CHARACTERS]
        if reason.startswith(EXPECTED):
            value, default = repr(first["input"])[:MOST_QUOTED_VALUE], _default(kind, first["loc"])
            reason = f"{_numbered(first['loc'])}is {value}, and has to be {reason.removeprefix(EXPECTED)}"
            reason += f"; usual is {shown(default)}" if default is not None else ""
        if first["type"] == "string_pattern_mismatch" and first["loc"] == ("run", "name"):
            reason = "give 1 to 64 of A-Z, a-z, 0-9, dot, _ and -"
        is_unknown = first["type"] == "extra_forbidden"
        if is_unknown:
            reason = f"there is no such field; {_near(kind, first['loc'])}"
        where = where if where.isprintable() else repr(where)
        raise (UnknownFieldError if is_unknown else ManifestError)(f"{source}: {where}: {reason}") from None


def _numbered(at: tuple[int | str, ...]) -> str:
    """The place of a value in its list, counted from 1, in words; empty: it stands in none."""
    return f"value {at[-1] + 1} " if at and isinstance(at[-1], int) else ""


def _default(kind: type[BaseModel], at: tuple[int | str, ...]) -> Any:
    """The value that a field, or a place in its list, has where nothing is given; None: none is known."""
    value: Any = kind
    for name in at:
        if isinstance(name, int):
            value = value[name] if isinstance(value, tuple) and name < len(value) else None
        elif isinstance(value, type) and issubclass(value, BaseModel) and name in value.model_fields:
            field = value.model_fields[name]
            is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            value = field.annotation if is_section else field.get_default()
        else:
            return None
    return value if isinstance(value, (int, float, str)) else None


def _near(kind: type[BaseModel], at: tuple[int | str, ...]) -> str:
    """The fields that may be meant by an unknown one, in words."""
    for name in at[:-1]:
        inner = kind.model_fields[str(name)].annotation if str(name) in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        kind = inner
    names = sorted(kind.model_fields)
    near = get_close_matches(str(at[-1])[:MOST_QUOTED_CHARACTERS], names, n=2)
    return f"is {' or '.join(near)} meant?" if near else f"there are {', '.join(names)}"


def filled(given: Any, presets: Mapping[str, Mapping[str, Any]]) -> Any:
    """Fill in, from the preset that a table names, the fields that the table does not give.

    Raises:
        ValueError: there is no such preset.
    """
    if not isinstance(given, dict) or "preset" not in given:
        return given
    fields = dict(given)
    name = fields.pop("preset")
    if not isinstance(name, str) or name not in presets:
        raise ValueError(f"unknown preset {str(name)[:60]!r}; there are {', '.join(presets)}")
    return {**presets[name], **fields}
