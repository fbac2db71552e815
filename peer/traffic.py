"""The traffic that a peer's owner allows in a month or a day: how much of it is used, kept over restarts, and until
when the peer pauses once it is used up.

<folder>/traffic.json     the month or day, and the bytes that this peer has moved in it, both ways

All that takes its turn at the peer's line is counted, packet headers included (`protocol/net/bandwidth.py`). The rest,
small questions and the DHT, is not seen there, and is counted as so much a second (`SMALL_BYTES_A_SECOND`).
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from protocol.clock import monotonic
from protocol.errors import ResourceError
from protocol.events.activity import Notice, TrafficCounted, Warned
from protocol.events.event import Listener
from protocol.files import open_regular, write_atomically
from protocol.net.bandwidth import WireTotal
from protocol.wording import size

USED_FILE = "traffic.json"

MOST_USED_FILE_BYTES = 200
MOST_BYTES_USED = 2**60
"""The largest file, and the largest number in it: more is damage."""

SMALL_BYTES_A_SECOND = 12_000.0
"""The bytes a second, both ways, of what does not take its turn at the line, while a peer is in its run. With a group
of two, a datacenter and a node, and rounds of 20 s, 8 kB/s went over the channels to others and 5 over the DHT's."""

WARNED_SHARE, HELD_SHARE = 0.8, 0.98
"""The shares of the limit at which the owner is warned, and at which the peer leaves: leaving in order takes some."""

WRITTEN_EVERY_SECONDS = 10.0
"""The interval at which the bytes are written down, in seconds: a peer that is killed forgets no more of them."""

TrafficPeriod = Literal["month", "day"]


@dataclass(frozen=True, slots=True)
class Used:
    """The bytes that a peer has moved in a month, "2026-11", or a day, "2026-11-29"."""

    window: str = ""
    wire_bytes: int = 0

    def with_more(self, wire_bytes: int, window: str) -> "Used":
        """Count more bytes, which were moved in `window`. What was moved in an earlier one no longer counts; where the
        clock went back, it does."""
        before = self.wire_bytes if window <= self.window else 0
        return Used(window, min(before + wire_bytes, MOST_BYTES_USED))


@dataclass(frozen=True, slots=True)
class TrafficLimit:
    """The bytes that a peer may move in a calendar month or day of local time. `words`: as its owner gave it."""

    most_bytes: int
    span: TrafficPeriod
    words: str

    def window(self, now: datetime) -> str:
        """The name of the month or day: names of later ones are larger."""
        return f"{now:%Y-%m}" if self.span == "month" else f"{now:%Y-%m-%d}"

    def ends(self, now: datetime) -> datetime:
        """The end of the month or day."""
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        day_after = midnight + timedelta(days=1)
        return day_after if self.span == "day" else (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)

    def reason(self, used: Used, now: datetime) -> str:
        """The reason why a peer pauses that has used so much; empty: it does not."""
        if used.with_more(0, self.window(now)).wire_bytes < HELD_SHARE * self.most_bytes:
            return ""
        return f"until {self.ends(now):%Y-%m-%d %H:%M}, for --max-traffic {self.words} is used up"

    def warning(self, used: Used, now: datetime) -> str:
        """The warning for a peer that has used so much; empty: there is enough left."""
        if used.window != self.window(now) or used.wire_bytes < WARNED_SHARE * self.most_bytes:
            return ""
        return (
            f"{size(used.wire_bytes)} of --max-traffic {self.words} are used: when all of it is, this peer pauses "
            f"until {self.ends(now):%Y-%m-%d %H:%M}"
        )


def read_used(folder: Path) -> Used:
    """Read what a peer has used; nothing, where its folder has no such file.

    Raises:
        ResourceError: the file is damaged, or cannot be read.
    """
    path = folder / USED_FILE
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            data = file.read(MOST_USED_FILE_BYTES + 1)
        match json.loads(data) if len(data) <= MOST_USED_FILE_BYTES else None:
            case {"window": str(window), "bytes": int(count)} if (
                window.isascii() and not isinstance(count, bool) and 0 <= count <= MOST_BYTES_USED
            ):
                return Used(window, count)
    except FileNotFoundError:
        return Used()
    except (OSError, ValueError):
        pass
    raise ResourceError(f"{path} is damaged")


def write_used(folder: Path, used: Used) -> None:
    """Write down what a peer has used. Raises ResourceError if that fails."""
    data = json.dumps({"window": used.window, "bytes": used.wire_bytes}).encode()
    write_atomically(folder / USED_FILE, data, 0o600)


@dataclass(slots=True)
class TrafficMeter:
    """The count of one peer's traffic. `carried` grows as its line carries bytes; `now` is the local time."""

    folder: Path
    limit: TrafficLimit
    carried: WireTotal
    emit: Listener
    now: Callable[[], datetime] = datetime.now
    clock: Callable[[], float] = monotonic
    used: Used = field(default_factory=Used)
    _counted: float = 0.0
    """The bytes of `carried` that `used` has."""
    _looked: float | None = None
    _kept: float = 0.0
    _warned: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Go on from what the folder has. A damaged file stops nobody: it is said."""
        try:
            self.used = read_used(self.folder)
        except ResourceError as error:
            self._warn(f"{error}: the traffic of this {self.limit.span} is counted from zero")
        if before := self.used.with_more(0, self.limit.window(self.now())).wire_bytes:
            self.emit(Notice(f"{size(before)} of --max-traffic {self.limit.words} are used already"))

    def look(self, is_online: bool) -> None:
        """Count the bytes since the last look, during which the peer was in its run or not (`is_online`); warn where
        few remain, and write their number down now and then."""
        clock, carried, now = self.clock(), self.carried.wire_bytes, self.now()
        small = SMALL_BYTES_A_SECOND * (clock - self._looked) if is_online and self._looked is not None else 0.0
        more = round(carried - self._counted + small)
        before = self.reason()
        self.used = self.used.with_more(more, self.limit.window(now))
        self._counted, self._looked = carried, clock
        if warning := self.limit.warning(self.used, now):
            self._warn(warning, self.used.window)
        if clock - self._kept >= WRITTEN_EVERY_SECONDS or self.reason() != before:
            self._kept = clock
            self.keep()
            self.emit(TrafficCounted(self.used.wire_bytes, self.limit.words))

    def reason(self) -> str:
        """The reason why this peer is to pause now; empty: it is not."""
        return self.limit.reason(self.used, self.now())

    def keep(self) -> None:
        """Write down what is used. A disk that errs stops nobody: it is said."""
        try:
            write_used(self.folder, self.used)
        except ResourceError as error:
            self._warn(f"{error}; a restart forgets this traffic")

    def _warn(self, words: str, once: str = "") -> None:
        if (once or words) not in self._warned:
            self._warned.add(once or words)
            self.emit(Warned(f"WARNING: {words}"))
