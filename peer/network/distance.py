"""How far away others are: what a small question takes there and back."""

import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from math import inf

import grpc

from protocol.identity import PeerId

FORGOTTEN = 1.1
"""The least that was measured is a peer's distance, since answers only ever come later than the link lets them; but a
peer may move, so each measurement may be so many times the one before."""


@contextmanager
def timed(channel: grpc.aio.Channel, peer: PeerId, trips: MutableMapping[PeerId, float]) -> Iterator[None]:
    """Note in `trips`, in seconds, what the question takes that is asked in this block. The first on a channel is no
    measure: opening it takes three round trips more."""
    opened, begun = channel.get_state() is grpc.ChannelConnectivity.READY, time.monotonic()
    yield
    if opened:
        trips[peer] = min(time.monotonic() - begun, FORGOTTEN * trips.get(peer, inf))
