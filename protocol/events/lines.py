"""Events as lines of JSON: {"event": "RoundDone", …}. Pure."""

import json
from dataclasses import asdict

from protocol.events import activity, decisions, group_decisions
from protocol.events.event import EVENT_TYPES, Event

__all__ = ["EVENT_TYPES", "from_line", "to_line"]

MODULES = activity, decisions, group_decisions
"""The modules that have events: importing them makes these known."""


def to_line(event: Event) -> str:
    """One line of JSON."""
    return json.dumps({"event": event.name} | asdict(event))


def from_line(line: str) -> Event:
    """Read what `to_line` wrote. Raises ValueError for anything else."""
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError(f"not an event: {line[:80]!r}") from None
    kind = fields.pop("event", None) if isinstance(fields, dict) else None
    try:
        return EVENT_TYPES[str(kind)](**fields)
    except (KeyError, TypeError):
        raise ValueError(f"not an event: {line[:80]!r}") from None
