"""The base class of all events: what an event says in words, how much it matters, and why it came about. Pure."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]
"""How much an event matters to whoever looks after a daemon; `debug`: it only passes by, and no log keeps it."""


@dataclass(frozen=True, slots=True)
class EventBase:
    """An event without fields. A class of events overrides what differs from these defaults."""

    @property
    def name(self) -> str:
        """The event's name in JSON."""
        return type(self).__name__

    @property
    def level(self) -> Level:
        """How much it matters."""
        return "info"

    @property
    def words(self) -> str | None:
        """The event as a line worth keeping; None for what only passes by."""
        return None

    @property
    def passing(self) -> str | None:
        """The event as a line that the next one replaces; None: it is no such line."""
        return None

    @property
    def cause(self) -> str:
        """Why it came to this, as the event has it; empty: it says nothing of that."""
        return str(getattr(self, "reason", ""))
