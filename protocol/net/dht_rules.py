"""Rules for the contents of the DHT: those of a run, and what the clock lets pass whatever they say."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

import msgpack

from protocol.errors import FormatError
from protocol.limits import CLOCK_SLACK_SECONDS, RECORD_BYTES, RECORD_SECONDS, RECORDS_READ

SUBKEY_BYTES = 66
"""The longest subkey: a peer id of 64 characters in msgpack."""

VALUE_BYTES = RECORD_BYTES + 3
"""The longest value: a record in msgpack."""

_DICTIONARY_CODE = 0x50
"""The code of hivemind's dictionaries among msgpack's extensions."""


class Rules(Protocol):
    """A run's rules for the contents of the DHT. Our nodes neither store nor pass on nor read anything else, whoever
    sends it."""

    @property
    def keys(self) -> Sequence[str]:
        """All keys that there are."""

    def expiration(self, key: str, subkey: str, value: object) -> float:
        """Check a value. Returns when it expires, in seconds since 1970.

        Raises:
            FormatError: it may not lie there.
        """


class DhtEntry(NamedTuple):
    """An entry of the DHT: what lies, or is to lie, under one subkey. `subkey` and `value` are msgpack, as nodes send
    them."""

    key: str
    subkey: bytes
    value: bytes
    expiration: float

    @property
    def owner(self) -> str:
        """The subkey of an entry, if it may be valid; else empty."""
        try:
            return str(_scalar(self.subkey))
        except (ValueError, msgpack.UnpackException):
            return ""


def is_valid(rules: Rules, key: str, subkey: bytes, value: bytes, expiration: float, now: float) -> bool:
    """Whether the rules, and the clock, let a value lie under a key. `subkey` and `value` are msgpack, as nodes send
    them; a value without subkey has nil there."""
    if not is_plausible(DhtEntry(key, subkey, value, expiration), now):
        return False
    try:
        owner = _scalar(subkey)
        due = rules.expiration(key, owner, _scalar(value)) if isinstance(owner, str) else None
    except (ValueError, msgpack.UnpackException, FormatError):
        return False
    return expiration == due


def is_plausible(entry: DhtEntry, now: float) -> bool:
    """Whether an entry may be valid, by what can be seen without reading it."""
    short = isinstance(entry.value, bytes) and len(entry.value) <= VALUE_BYTES and len(entry.subkey) <= SUBKEY_BYTES
    return short and entry.expiration <= latest(now)  # nan is not


def latest(now: float) -> float:
    """The latest expiry that is still believed, in seconds since 1970 like `now`.

    It moves in steps, so that nodes whose clocks differ by seconds agree at nearly all times: a record that its holder
    believes and a reader does not would be there for some and not for others.
    """
    return (now // CLOCK_SLACK_SECONDS + 2) * CLOCK_SLACK_SECONDS + RECORD_SECONDS


def digest(entry: DhtEntry) -> bytes:
    """The hash by which an entry that was checked is known again."""
    return sha256(msgpack.packb(entry)).digest()


def unpacked(value: bytes) -> list[tuple[bytes, bytes, float]]:
    """Read a dictionary as hivemind sends it: the subkey, in msgpack again, the value and the expiry of each entry;
    nothing, if it is none.

    hivemind's own reader follows dictionaries in dictionaries for as long as they last, and believes their sizes.
    """
    try:
        whole = _scalar(value)
        if not isinstance(whole, msgpack.ExtType) or whole.code != _DICTIONARY_CODE:
            return []
        _, _, items = msgpack.unpackb(whole.data, max_array_len=2 * RECORDS_READ, max_map_len=0)
        return [
            (msgpack.packb(subkey), value, expiration)
            for subkey, value, expiration in items
            if isinstance(subkey, str) and isinstance(value, bytes) and isinstance(expiration, float)
        ]
    except (ValueError, TypeError, msgpack.UnpackException):
        return []


def _scalar(data: bytes) -> object:
    """Read a single value. Arrays in arrays are refused: msgpack takes memory for as many elements as each says
    it has."""
    return msgpack.unpackb(data, max_array_len=0, max_map_len=0)


def packed(entries: Iterable[DhtEntry]) -> bytes:
    """Write a dictionary as hivemind sends it."""
    items = [[each.owner, each.value, each.expiration] for each in entries]
    last = max((each.expiration for each in entries), default=0.0)
    data = msgpack.packb([float("inf"), last, items])
    return bytes(msgpack.packb(msgpack.ExtType(_DICTIONARY_CODE, data)))
