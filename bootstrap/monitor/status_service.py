"""What the door answers to who asks how the run goes: whoever has the ticket may, within rates."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bootstrap.rate_limit import network_of
from protocol.errors import RefusedError
from protocol.limits import DESCRIPTOR_BYTES
from protocol.monitor import View
from protocol.net.allowances import RateLimit

VIEW_BYTES = DESCRIPTOR_BYTES - 4096
"""A message at the door has 1 MiB at most."""

FRESH_SECONDS = 0.5
"""So long an answer is given again, to whomever."""

NETWORK_BURST, NETWORK_SECONDS = 64, 0.5
"""For one network: what somebody who watches asks for, and some more."""

ALL_BURST, ALL_SECONDS = 512, 1 / 32
"""For everybody together: a view of a hundred peers has 60 KB, so 2 MB a second."""

EVERYBODY = ""


def fitting(view: View, most: int = VIEW_BYTES) -> bytes:
    """A view as JSON of `most` bytes: where all of it is longer, without the oldest rounds and lines, then without
    peers."""
    while len(packed := view.model_dump_json().encode()) > most:
        if len(view.history) > 1 or len(view.log) > 1:
            less = {"history": view.history[-(len(view.history) // 2) :], "log": view.log[-(len(view.log) // 2) :]}
            less = {name: rest if len(getattr(view, name)) > 1 else getattr(view, name) for name, rest in less.items()}
        elif view.peers or view.groups:
            less = {"peers": view.peers[: len(view.peers) // 2], "groups": view.groups[: len(view.groups) // 2]}
        else:
            less = {"history": [], "log": []}
        view = view.model_copy(update=less)
    return packed


@dataclass(slots=True)
class StatusAnswers:
    """Answers with what `view` gives."""

    view: Callable[[], View]
    by_network: RateLimit = field(default_factory=lambda: RateLimit(NETWORK_BURST, NETWORK_SECONDS))
    by_all: RateLimit = field(default_factory=lambda: RateLimit(ALL_BURST, ALL_SECONDS))
    _answer: bytes = b""
    _made: float = -math.inf

    def answer(self, caller: str) -> bytes:
        """The run, for a caller as gRPC names it.

        Raises:
            RefusedError: this is asked too often.
        """
        now = time.monotonic()
        wait = self.by_network.wait_seconds(network_of(caller), now) or self.by_all.wait_seconds(EVERYBODY, now)
        if wait:
            raise RefusedError(f"the run's status is asked for too often: try again in {math.ceil(wait)} s")
        if now - self._made > FRESH_SECONDS:
            self._answer, self._made = fitting(self.view()), now
        return self._answer
