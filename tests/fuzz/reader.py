"""One reader: what it reads, what is right for it, and what it may raise. Whatever else it does is a finding."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_type_hints

from google.protobuf.message import DecodeError

from protocol.errors import FormatError

Grammar = Literal["bytes", "msgpack", "json", "text"]
"""Of a reader's examples: values can be put into them where these have one."""

LONGEST_MESSAGE = 2000
"""Characters of an error: it goes to a volunteer's screen and log."""


@dataclass(frozen=True, slots=True)
class Reader:
    """`examples` are valid inputs, each with what `read` must return for it; `room` is what memory it may take, in
    bytes, beside its input."""

    name: str
    read: Callable[[bytes], object]
    examples: tuple[tuple[bytes, object], ...]
    grammar: Grammar = "bytes"
    allowed: tuple[type[Exception], ...] = (FormatError,)
    room: int = 64 * 2**20

    @property
    def seeds(self) -> list[bytes]:
        """The valid inputs alone."""
        return [data for data, _ in self.examples]

    def read_examples(self) -> None:
        """Read all valid inputs, and check what comes out."""
        for data, means in self.examples:
            found = self.read(data)
            assert found == means, f"{self.name}: {found!r} instead of {means!r}"

    def attempt(self, data: bytes) -> object:
        """Read it; None if it is refused as it may be. Anything else that goes wrong is raised."""
        try:
            found = self.read(data)
        except self.allowed as error:
            said = str(error)
            lines = said.splitlines()
            assert len(lines) == 1, f"not a line for a volunteer: {said[:200]!r}"
            assert len(said) <= LONGEST_MESSAGE, f"{len(said)} characters for a volunteer: {said[:200]!r}"
            return None
        assert_sound(found)
        return found


def from_protobuf(message: Any, data: bytes) -> Any:
    """The message in bytes. gRPC refuses those that are none before any of our code sees them."""
    try:
        return message.FromString(data)
    except DecodeError:
        raise FormatError("no message of this kind") from None


def assert_sound(value: object) -> None:
    """Numbers are numbers (True is not one, and msgpack has both), and what a class says of its fields holds."""
    match value:
        case float():
            assert math.isfinite(value), "not a finite number"
        case Mapping():
            for key, each in value.items():
                assert_sound(key)
                assert_sound(each)
        case tuple() | list() | set() | frozenset():
            for each in value:
                assert_sound(each)
        case _ if is_dataclass(value) and not isinstance(value, type):
            hints = get_type_hints(type(value))
            for field in fields(value):
                said, found = hints[field.name], getattr(value, field.name)
                said = getattr(said, "__supertype__", said)
                if said in (int, str, bytes, float, bool):
                    right = type(found) in ((int, float) if said is float else (said,))
                    assert right, f"{type(value).__name__}.{field.name} is {found!r}"
                assert_sound(found)
        case _:
            pass
