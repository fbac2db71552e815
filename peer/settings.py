"""How a peer behaves as a guest in somebody's house: what it may use of the line and the machine, and when."""

import re
from dataclasses import dataclass, field
from typing import Literal

from peer.pausing import QuietHours
from protocol.errors import UserError
from protocol.net.bandwidth import Bandwidth

Priority = Literal["low", "normal"]

LOW = 10
"""The niceness of a volunteer's torch thread: whatever else runs on the machine goes first."""

UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 2**20, "gib": 2**30, "tib": 2**40}


@dataclass(frozen=True, slots=True)
class Manners:
    """Limits; None: there is none. `max_up` and `max_down` are Mb/s, `max_memory` and `max_disk` bytes, `data_cache` GB
    of disk for blocks of the run's text; `private_mirrors`: it may come from this machine's own network."""

    max_up: float | None = None
    max_down: float | None = None
    max_memory: int | None = None
    max_disk: int | None = None
    data_cache: float = 4.0
    private_mirrors: bool = False
    quiet: QuietHours = field(default_factory=QuietHours)
    niceness: int = 0

    @staticmethod
    def of(
        max_up: float | None = None,
        max_down: float | None = None,
        max_memory: str | None = None,
        max_disk: str | None = None,
        data_cache: float = 4.0,
        private_mirrors: bool = False,
        quiet_hours: str | None = None,
        priority: Priority = "normal",
    ) -> "Manners":
        """What the command line said.

        Raises:
            UserError: some of it makes no sense; the message says what would.
        """
        Bandwidth.of(max_up, max_down)  # raises where they are too low
        quiet = QuietHours.parse(quiet_hours) if quiet_hours else QuietHours()
        memory = bytes_of("--max-memory", max_memory) if max_memory else None
        disk = bytes_of("--max-disk", max_disk) if max_disk else None
        niceness = LOW if priority == "low" else 0
        return Manners(max_up, max_down, memory, disk, data_cache, private_mirrors, quiet, niceness)

    def bandwidth(self) -> Bandwidth:
        """The two ways of this peer's connection, with these limits."""
        return Bandwidth.of(self.max_up, self.max_down)


def bytes_of(flag: str, text: str) -> int:
    """`8GB`, `7.5 GiB` or `900MB` in bytes.

    Raises:
        UserError: it says something else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in UNITS or not float(found[1]):
        raise UserError(f"{flag} {text!r}: give a size with its unit, such as 8GB or 900MB")
    return int(float(found[1]) * UNITS[found[2]])
