"""TOML files whose tables are checked by pydantic, with errors that name the field."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.errors import ManifestError

MOST_DOTS = 1000
"""The most dots in a line of TOML: for a key a.a.a… tomllib needs memory that grows with the square of its length."""

MOST_QUOTED_CHARACTERS = 200
"""The most characters of a file that an error repeats: errors are for a screen."""


def shown(value: object) -> str:
    """A value of a JSON file, as errors repeat it."""
    return json.dumps(value)[:MOST_QUOTED_CHARACTERS]


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
        text = path.read_text(encoding="utf-8")
        if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
            raise ManifestError(f"{path} is no {what}: it has a line with more than {MOST_DOTS} dots")
        return tomllib.loads(text)
    except OSError as error:
        raise ManifestError(f"cannot read the {what} {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of tomllib too: a number of too many digits, a list in a list in …
        raise ManifestError(f"{path} is not valid TOML: {error}") from None


def validated(kind: type[AnySection], tables: dict[str, Any], source: str, *within: str) -> AnySection:
    """Check tables against a section, which stands at `within` in its file.

    Raises:
        ManifestError: a field is missing, unknown or wrong; the message names it.
    """
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([*within, *map(str, first["loc"])])[:MOST_QUOTED_CHARACTERS] or "manifest"
        reason = first["msg"].removeprefix("Value error, ")[:MOST_QUOTED_CHARACTERS]
        raise ManifestError(f"{source}: {where if where.isprintable() else repr(where)}: {reason}") from None


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
