"""Events as JSON: {"event": "RoundDone", …}, the same on standard output, in a journal and in a report. Pure."""

import json
import math
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_json

from protocol.events import activity, decisions, group_decisions, waiting
from protocol.events.event import EVENT_TYPES, Event, Sink
from protocol.events.fields import MOST_LISTED, MOST_TEXT

__all__ = ["EVENT_TYPES", "event_of", "from_line", "reported_event", "row_of", "to_line", "to_plain"]

MODULES = activity, decisions, group_decisions, waiting
"""The modules that have events: importing them makes these known."""


def to_plain(value: Any, cut: bool = False) -> Any:
    """A value as strict JSON has it: what is no finite number is null. `cut`: long texts, lists and tables are cut."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value[:MOST_TEXT] if cut else value
        case _ if is_dataclass(value):
            return {part.name: to_plain(getattr(value, part.name), cut) for part in fields(value)}
        case dict():
            items = [*value.items()][: MOST_LISTED if cut else None]
            return {key: to_plain(element, cut) for key, element in items}
        case list() | tuple():
            return [to_plain(element, cut) for element in value[: MOST_LISTED if cut else None]]
        case _:
            return value


def row_of(event: Event, cut: bool = False) -> dict[str, Any]:
    """The name of an event, and its fields."""
    row: dict[str, Any] = {"event": event.name} | to_plain(event, cut)
    return row


def event_of(row: dict[str, Any], kind: type[Event] | None = None) -> Event:
    """The event of a row that this machine wrote, whose fields are not checked; of another `kind` than the row names,
    if one is given.

    Raises:
        KeyError, TypeError: it is none.
    """
    name = str(row["event"])
    kind, hints = kind or EVENT_TYPES[name], _hints(name)
    return kind(**{key: _as_declared(hints.get(key), value) for key, value in row.items() if key != "event"})


def _as_declared(hint: Any, value: Any) -> Any:
    """A value of JSON as a field has it: JSON knows neither NaN nor tuples nor classes."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint(**value)
    if hint is float and value is None:
        return math.nan
    if get_origin(hint) in (list, tuple):
        return get_origin(hint)(_as_declared(get_args(hint)[0], element) for element in value)
    return value


def reported_event(row: dict[str, Any]) -> Event | None:
    """The event of a row that another peer reports, within the bounds of its fields; None: this version knows no such
    event, or none that is reported.

    Raises:
        ValidationError: it breaks a bound.
    """
    name = str(row.get("event"))
    is_known = name in EVENT_TYPES and Sink.NODE in EVENT_TYPES[name].sinks
    return _checked(name).validate_json(to_json(row)) if is_known else None


@cache
def _hints(name: str) -> dict[str, Any]:
    return get_type_hints(EVENT_TYPES[name])


@cache
def _checked(name: str) -> TypeAdapter[Event]:
    return TypeAdapter(EVENT_TYPES[name])


def to_line(event: Event) -> str:
    """One line of JSON."""
    return json.dumps(row_of(event))


def from_line(line: str) -> Event:
    """Read what `to_line` wrote. Raises ValueError for anything else."""
    try:
        row = json.loads(line)
        return event_of(row)
    except (KeyError, TypeError, RecursionError):
        raise ValueError(f"not an event: {line[:80]!r}") from None
