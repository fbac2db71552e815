"""The base of all events, and what each class of events declares: its fields with their bounds, its words, its level,
and where it goes. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from string import Formatter
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

from pydantic import ConfigDict

from protocol.wording import size, so_many, tail, tails

Level = Literal["debug", "info", "warning", "error"]
"""The importance of an event to whoever looks after a daemon. No log keeps `debug`."""


class PeerState(StrEnum):
    """The states of a peer: as it knows itself, and as the operator's node judges it."""

    STARTING = "starting"
    WAITING = "waiting"
    TRAINING = "training"
    CATCHING_UP = "catching up"
    ON_TRIAL = "on trial"
    PAUSED = "paused"
    LEAVING = "leaving"
    FINISHED = "finished"
    FAILED = "failed"
    GONE = "gone"
    """The peer has said goodbye."""
    LOST = "lost"
    """The peer has been silent for too long."""


class Sink(Flag):
    """The places where events go. Standard output with `--json` and standard error with `--log-json` have all."""

    TERMINAL = auto()
    JOURNAL = auto()
    NODE = auto()
    """The operator's node, and so the page. All fields of such events have bounds."""
    TESTNET = auto()
    """The lines of a testnet that has no live table."""


PRIVATE = Sink.TERMINAL | Sink.JOURNAL
REPORTED = PRIVATE | Sink.NODE
SHOWN = REPORTED | Sink.TESTNET


CHECKED = ConfigDict(strict=True, extra="ignore")
"""The rules for fields that another peer sends: exact types; those of a later version are skipped."""


class _Words(Formatter):
    """Formats the attributes of an event. `{peer!t}` is the tail of a peer id, or of several; `{reason!c}` begins with
    a capital; `{parts!l}` is a list with commas; `{sent!b}` is a number of bytes; `{steps:#inner step}` is "1 inner
    step" or "2 inner steps", and of a list says how many there are."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        return getattr(args[0], str(key))

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        match conversion:
            case "t":
                return tail(value) if isinstance(value, str) else tails(value)
            case "c":
                return value[:1].upper() + value[1:]
            case "l":
                return ", ".join(value)
            case "b":
                return size(value)
            case _:
                return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("#"):
            return so_many(value if isinstance(value, int) else len(value), format_spec[1:])
        return str(super().format_field(value, format_spec))


_WORDS = _Words()


@dataclass(frozen=True, slots=True)
class Event:
    """An event without fields. A class of events overrides what differs from these defaults."""

    __pydantic_config__: ClassVar[ConfigDict] = CHECKED
    sinks: ClassVar[Sink] = REPORTED
    _level: ClassVar[Level] = "info"
    _template: ClassVar[str | None] = None
    _plain: ClassVar[str | None] = None
    _cause: ClassVar[str] = ""
    state: ClassVar[PeerState | None] = None
    kept: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """The event's name in JSON."""
        return type(self).__name__

    @property
    def level(self) -> Level:
        """The importance of the event."""
        return self._level

    @property
    def words(self) -> str | None:
        """The event as a line worth keeping; None for what only passes by."""
        return None if self._template is None else _WORDS.format(self._template, self)

    @property
    def plain(self) -> str | None:
        """The event as a line for a person who has not asked for all lines (`--verbose`); None: that person reads none.
        Warnings and errors are for everybody."""
        if self._plain is not None:
            return _WORDS.format(self._plain, self) or None
        return self.words if self.level in ("warning", "error") else None

    @property
    def passing(self) -> str | None:
        """The event as a line that the next one replaces; None: it is no such line."""
        return None

    @property
    def cause(self) -> str:
        """The reason of the event, as far as its fields have it; empty if they have none."""
        return _WORDS.format(self._cause, self) if self._cause else str(getattr(self, "reason", ""))


Listener = Callable[[Event], None]

EVENT_TYPES: dict[str, type[Event]] = {}
"""All classes of events by their names in JSON. `protocol/events/lines.py` imports the modules that fill it."""

EventClass = TypeVar("EventClass", bound=Event)


@dataclass_transform(frozen_default=True)
def event(
    words: str | None = None,
    level: Level = "info",
    sinks: Sink = REPORTED,
    cause: str = "",
    state: PeerState | None = None,
    kept: tuple[str, ...] = (),
    plain: str | None = None,
) -> Callable[[type[EventClass]], type[EventClass]]:
    """Make a class of events: frozen, of this level and these sinks, and known by its name. `words`: the line worth
    keeping, with fields in braces; None: the class has a property for it, or there is none. `cause`: the reason,
    likewise; empty: the field `reason`, if there is one. `state`: the peer's from then on; it then waits for nothing.
    `kept`: the fields whose values the peer's status takes over. `plain`: the line without `--verbose`, likewise;
    empty: none; None: the words, if it is a warning or an error."""

    def register(declared: type[EventClass]) -> type[EventClass]:
        declared._template, declared._cause, declared._level, declared.sinks = words, cause, level, sinks
        declared.state, declared.kept, declared._plain = state, kept, plain
        kind = dataclass(frozen=True, slots=True)(declared)
        EVENT_TYPES.setdefault(kind.__dict__.get("name", kind.__name__), kind)
        return kind

    return register
