"""Checks of what lies in the DHT: a run's rules for it, and what the clock lets pass whatever they say; and the costs
that others may cause a node, in calls and in records that it has not seen before.

Anybody can call a node, under as many names as he likes. So each name has an allowance, those without a record of their
own have one together, and all have one. Who is of the run is served while strangers have used theirs up. Each record is
checked once, on a thread for it, and as many as its source may cost.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, Protocol

import msgpack

from protocol.clock import monotonic, unix_time
from protocol.errors import FormatError
from protocol.limits import (
    CALLERS_KEPT,
    CLOCK_SLACK_SECONDS,
    DHT_MEMBER_PER_SECOND,
    DHT_MEMBER_SAVED,
    DHT_PER_SECOND,
    DHT_SAVED,
    DHT_STRANGER_PER_SECOND,
    DHT_STRANGER_SAVED,
    DHT_STRANGERS_PER_SECOND,
    DHT_STRANGERS_SAVED,
    RECORD_BYTES,
    RECORDS_READ,
    SIGNATURES_OF_A_MESSAGE,
)
from protocol.net.allowances import RateLimit, TokenBucket
from protocol.patience import RECORD_SECONDS
from protocol.trust.membership_card import FallenError

SUBKEY_BYTES = 66
"""The longest subkey: a peer id of 64 characters in msgpack."""

MOST_DHT_VALUE_BYTES = RECORD_BYTES + 3
"""The longest value: a record in msgpack."""

_DICTIONARY_CODE = 0x50
"""The code of hivemind's dictionaries among msgpack's extensions."""

CHECKED_RECORDS_KEPT = 16384
"""The hashes of checked records that are kept, those of some minutes: these are not checked again."""


class Rules(Protocol):
    """A run's rules for the contents of the DHT. Our nodes neither store nor pass on nor read anything else, whoever
    sends it."""

    @property
    def keys(self) -> Sequence[str]:
        """All keys that there are."""

    def expiration(self, key: str, subkey: str, value: object) -> float:
        """Check a value. Returns when it expires, in seconds since 1970.

        Raises:
            FormatError: it may not lie there; `FallenError`: others may not have heard yet that it may not.
        """

    def signatures(self, value: object) -> int:
        """Count the signatures that checking a value takes now."""


Offence = Callable[[str, FormatError], None]
"""A function that hears of peers of the run that passed on what their own node must have refused."""


def no_offence(source: str, error: FormatError) -> None:
    """Report nothing."""


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
    try:
        return is_plausible(entry := DhtEntry(key, subkey, value, expiration), now) and require_valid(rules, entry) >= 0
    except FormatError:
        return False


def require_valid(rules: Rules, entry: DhtEntry) -> int:
    """Check an entry, which is plausible, by the rules. Returns the number of signatures that were checked.

    Raises:
        FormatError: it may not lie there; `FallenError`: others may not have heard yet that it may not.
    """
    try:
        owner, value = _scalar(entry.subkey), _scalar(entry.value)
    except (ValueError, msgpack.UnpackException):
        raise FormatError("an entry of the DHT that cannot be read") from None
    if not isinstance(owner, str):
        raise FormatError("an entry of the DHT that is nobody's")
    signatures = rules.signatures(value)
    if rules.expiration(entry.key, owner, value) != entry.expiration:
        raise FormatError(f"the record of {owner[:64]!r} expires at another time than is said")
    return signatures


def is_plausible(entry: DhtEntry, now: float) -> bool:
    """Whether an entry may be valid, by what can be seen without reading it."""
    short = (
        isinstance(entry.value, bytes)
        and len(entry.value) <= MOST_DHT_VALUE_BYTES
        and len(entry.subkey) <= SUBKEY_BYTES
    )
    return short and entry.expiration <= latest(now)  # nan is not


def latest(now: float) -> float:
    """The latest expiry that is still believed, in seconds since 1970 like `now`.

    It moves in steps, so that nodes whose clocks differ by seconds agree at nearly all times: a record that its holder
    believes and a reader does not would be there for some and not for others.
    """
    return (now // CLOCK_SLACK_SECONDS + 2) * CLOCK_SLACK_SECONDS + RECORD_SECONDS


def entry_digest(entry: DhtEntry) -> bytes:
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


def packed_dictionary(entries: Iterable[DhtEntry]) -> bytes:
    """Write a dictionary as hivemind sends it."""
    items = [[entry.owner, entry.value, entry.expiration] for entry in entries]
    last = max((entry.expiration for entry in entries), default=0.0)
    data = msgpack.packb([float("inf"), last, items])
    return bytes(msgpack.packb(msgpack.ExtType(_DICTIONARY_CODE, data)))


@dataclass(slots=True)
class Costs:
    """The costs that each source may still cause to this node. `is_member` tells whether a source has a record in the
    run."""

    is_member: Callable[[str], bool]
    clock: Callable[[], float] = monotonic
    members: RateLimit = field(init=False)
    strangers: RateLimit = field(init=False)
    all_strangers: TokenBucket = field(init=False)
    all: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self.members = RateLimit(DHT_MEMBER_SAVED, 1 / DHT_MEMBER_PER_SECOND, CALLERS_KEPT)
        self.strangers = RateLimit(DHT_STRANGER_SAVED, 1 / DHT_STRANGER_PER_SECOND, CALLERS_KEPT)
        self.all_strangers = TokenBucket(DHT_STRANGERS_PER_SECOND, DHT_STRANGERS_SAVED)
        self.all = TokenBucket(DHT_PER_SECOND, DHT_SAVED)

    def spend(self, source: str, cost: float) -> bool:
        """Take so much from what a source has left; whether there was enough."""
        now, buckets = self.clock(), self._buckets(source)
        if any(bucket.wait_seconds(cost, now) for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.take(cost, now)
        return True

    def charge(self, source: str, cost: float) -> None:
        """Take what has been spent already: it may be owed."""
        for bucket in self._buckets(source):
            bucket.take(cost, self.clock())

    def _buckets(self, source: str) -> tuple[TokenBucket, ...]:
        """All from which a source has to pay."""
        if self.is_member(source):
            return self.members.bucket(source), self.all
        return self.strangers.bucket(source), self.all_strangers, self.all


@dataclass(slots=True)
class Checks:
    """The checks of one node: which records it has seen, and which peers of the run it knows by them."""

    rules: Rules
    offence: Offence = no_offence
    friends: set[str] = field(default_factory=set)
    """The peers to which this node itself has gone."""
    costs: Costs = field(init=False)
    verified: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    members: dict[str, float] = field(default_factory=dict)
    """The peers that have a record in the run, and until when."""
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "records"))

    def __post_init__(self) -> None:
        self.costs = Costs(self.is_member)

    def is_member(self, source: str) -> bool:
        """Whether a peer has a record in the run, or is one that this node has gone to."""
        return source in self.friends or self.members.get(source, 0.0) > unix_time()

    async def valid(self, entries: Sequence[DhtEntry], source: str) -> list[DhtEntry]:
        """Select the entries that are valid. New ones are checked as far as their source may cost checks; signatures of
        cards beside their own are owed. A peer of the run has checked what it passes on: for what cannot be valid
        anywhere it is reported; a stranger pays for as many signatures as a record can have."""
        now = unix_time()
        plausible = {entry_digest(entry): entry for entry in entries if is_plausible(entry, now)}
        new = [entry for key, entry in plausible.items() if key not in self.verified and self.costs.spend(source, 1.0)]
        if new:
            judged = await asyncio.get_running_loop().run_in_executor(self.worker, _judge, self.rules, new)
            self.costs.charge(source, judged.signatures - len(new))
            for entry in judged.valid:
                self._note(entry)
            if judged.error is not None and self.members.get(source, 0.0) > now:
                self.offence(source, judged.error)
        return [entry for key, entry in plausible.items() if key in self.verified]

    def holds(self, entry: DhtEntry) -> bool:
        """Whether an entry, which may have been checked already, is valid."""
        return entry_digest(entry) in self.verified or is_valid(self.rules, *entry, unix_time())

    def stop(self) -> None:
        """Stop checking."""
        self.worker.shutdown(wait=False, cancel_futures=True)

    def _note(self, entry: DhtEntry) -> None:
        self.verified[entry_digest(entry)] = None
        self.members[entry.owner] = max(entry.expiration, self.members.get(entry.owner, 0.0))
        if len(self.verified) > CHECKED_RECORDS_KEPT:
            self.verified.popitem(last=False)
        if len(self.members) > CALLERS_KEPT:
            now = unix_time()
            self.members = {peer: until for peer, until in self.members.items() if until > now}


@dataclass(slots=True)
class Judged:
    """The outcome of checking entries: those that are valid, the number of signatures that were checked, at least one
    for each entry, and the error of one that is valid nowhere, if there is one."""

    valid: list[DhtEntry] = field(default_factory=list)
    signatures: int = 0
    error: FormatError | None = None


def _judge(rules: Rules, entries: Iterable[DhtEntry]) -> Judged:
    """Check entries, on the thread for it, which lets others go on after each."""
    judged = Judged()
    for entry in entries:
        try:
            judged.signatures += max(1, require_valid(rules, entry))
            judged.valid.append(entry)
        except FormatError as error:
            judged.signatures += SIGNATURES_OF_A_MESSAGE
            if not isinstance(error, FallenError):
                judged.error = error
        time.sleep(0)
    return judged
