"""What the door answers to who measures the way to it, and how much of that anybody gets.

Newcomers measure before they have a place, so there is nobody to hold to account but an address, and no token is asked
for, not even in a closed run: what a stranger can take is bounded for all callers together, and an invitation need not
be sent, nor looked up on disk, for what the node gives to everybody.
"""

import math
import os
import time
from dataclasses import dataclass, field

from bootstrap.monitor.pace import SwarmPace
from bootstrap.rate_limit import network_of
from protocol.errors import RefusedError
from protocol.limits import CHUNK_BYTES
from protocol.net.allowances import RateLimit

NETWORK_BURST, NETWORK_SECONDS = 320, 1.0
"""Pieces for one network: four `hetpeer doctor` at once (75 each), and another after a minute or so."""

ALL_BURST, ALL_SECONDS = 1024, 1 / 16
"""For everybody together: thirteen at once, then 4 MiB a second, a third of a link of 100 Mb/s."""

EVERYBODY = ""


@dataclass(slots=True)
class Measuring:
    """Answers one piece after the other. `pace` is what the node has seen of the run's."""

    pace: SwarmPace = field(default_factory=SwarmPace)
    by_network: RateLimit = field(default_factory=lambda: RateLimit(NETWORK_BURST, NETWORK_SECONDS))
    by_all: RateLimit = field(default_factory=lambda: RateLimit(ALL_BURST, ALL_SECONDS))
    _noise: bytes = field(default_factory=lambda: os.urandom(CHUNK_BYTES), repr=False)
    """No link makes it smaller than it is."""

    def answer(self, caller: str, piece: bytes, wanted: int) -> bytes:
        """A piece of `wanted` bytes for a caller, as gRPC names it, that has sent `piece`.

        Raises:
            RefusedError: either is too long, or they come too often.
        """
        if max(len(piece), wanted) > CHUNK_BYTES:
            raise RefusedError(f"a piece to measure with has {CHUNK_BYTES} bytes at most")
        now = time.monotonic()
        wait = self.by_network.wait_seconds(network_of(caller), now) or self.by_all.wait_seconds(EVERYBODY, now)
        if wait:
            raise RefusedError(f"too much is measured at once: try again in {math.ceil(wait)} s")
        return self._noise[:wanted]
