"""The pauses of a peer: because its owner said so (`hetpeer pause`), at the hours of the day that are the owner's own,
or because the traffic of a month or a day is used up (`peer/traffic.py`).

<folder>/paused     is there as long as the peer is to pause; it outlives the process
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import Path

from protocol.errors import ResourceError, UserError

MARKER = "paused"

PAUSE_POLL_SECONDS = 1.0
"""The interval at which a peer checks whether it is to pause, or to go on, in seconds."""

BY_COMMAND = "by `hetpeer pause`; `hetpeer resume` goes on"


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Ranges of the day, in local time, that may go over midnight: the end is not in them."""

    ranges: tuple[tuple[time, time], ...] = ()

    @staticmethod
    def parse(text: str) -> "QuietHours":
        """`22:00-07:00`, or several with commas.

        Raises:
            UserError: the text says something else.
        """
        try:
            pairs = [tuple(time.fromisoformat(end.strip()) for end in span.split("-")) for span in text.split(",")]
            if any(len(pair) != 2 or pair[0] == pair[1] or any(end.tzinfo for end in pair) for pair in pairs):
                raise ValueError
        except ValueError:
            raise UserError(
                f"--quiet-hours {text!r}: give ranges of local time, such as 22:00-07:00, or 08:00-12:00,18:30-23:00"
            ) from None
        return QuietHours(tuple((begin, end) for begin, end in pairs))

    def until(self, now: time) -> time | None:
        """The end of the range that a time of the day is in; None: it is in none."""
        for begin, end in self.ranges:
            within = begin <= now < end if begin < end else now >= begin or now < end
            if within:
                return end
        return None


@dataclass(frozen=True, slots=True)
class Pauses:
    """Whether one peer is to pause now. `now` is the local time; `traffic` returns the reason where the traffic is used
    up, or empty."""

    folder: Path
    quiet: QuietHours = field(default_factory=QuietHours)
    now: Callable[[], datetime] = datetime.now
    traffic: Callable[[], str] = str

    def reason(self) -> str:
        """Return why this peer is to pause now; empty: it is not."""
        if is_pause_requested(self.folder):
            return BY_COMMAND
        until = self.quiet.until(self.now().time())
        return f"until {until:%H:%M}, for these are quiet hours" if until is not None else self.traffic()

    async def wait_until_due(self) -> str:
        """Wait until this peer is to pause. Returns why."""
        while True:
            if reason := self.reason():
                return reason
            await asyncio.sleep(PAUSE_POLL_SECONDS)

    async def wait_until_over(self) -> None:
        """Wait until this peer is to go on."""
        while True:
            if not self.reason():
                return
            await asyncio.sleep(PAUSE_POLL_SECONDS)


def is_pause_requested(folder: Path) -> bool:
    """Whether the peer of this folder has been told to pause."""
    return (folder / MARKER).exists()


def request_pause(folder: Path) -> bool:
    """Tell the peer of this folder to pause; False: it has been told already.

    Raises:
        ResourceError: the folder cannot be written.
    """
    try:
        os.close(os.open(folder / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        raise ResourceError(f"cannot write in {folder}: {error.strerror}") from None
    return True


def end_pause(folder: Path) -> bool:
    """Tell the peer of this folder to go on. Returns False if nobody had told it to pause.

    Raises:
        ResourceError: the folder cannot be written.
    """
    try:
        (folder / MARKER).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ResourceError(f"cannot write in {folder}: {error.strerror}") from None
    return True
