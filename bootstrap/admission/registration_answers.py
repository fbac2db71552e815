"""The answers to every caller, registered or not, within rates: whether a peer can be dialled, how good the way to the
node is, and how the run goes.

No token is asked for, not even in a closed run: what a stranger can take is bounded, for its network and for all
callers together, and an invitation need not be sent, nor looked up on disk, for what the node gives to everybody.
"""

import asyncio
import math
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address

from bootstrap.monitor.rounds import SwarmPace
from bootstrap.rate_limit import host_of, network_of
from protocol.addresses import is_ip, join_address, split_address
from protocol.clock import monotonic
from protocol.errors import FormatError, RefusedError
from protocol.limits import CHUNK_BYTES, DESCRIPTOR_BYTES
from protocol.monitor import View
from protocol.net.allowances import RateLimit
from protocol.net.tls_probe import probe
from protocol.trust.certificates import shown_by

EVERYBODY = ""


def _require_share(by_network: RateLimit, by_all: RateLimit, caller: str, now: float, objection: str) -> None:
    """Count a question of a caller, as gRPC names it, against what its network and what all callers may ask.

    Raises:
        RefusedError: it comes too soon; the message is the `objection`, and when to try again.
    """
    if wait := by_network.wait_seconds(network_of(caller), now) or by_all.wait_seconds(EVERYBODY, now):
        raise RefusedError(f"{objection}: try again in {math.ceil(wait)} s")


# Whether a peer can be dialled

DIAL_SECONDS = 5.0
"""The seconds for a name, a connection and a handshake: a peer that answers later is no use to a pipeline."""

DIALS_AT_ONCE = 32

DIALS_BURST, DIAL_PAUSE_SECONDS = 64, 1.0
"""The rate of dials for a network, the same as for registration (`bootstrap.rate_limit`): each newcomer asks once."""

NOBODY = "nothing answers there: a router or firewall on the way lets no connection in"


@dataclass(slots=True)
class Dialler:
    """Tries once whether a peer can be dialled: no peer can see that from where it is itself.

    A stranger may ask for it, so nothing is dialled but the address that its call came from, and of what answers it
    learns only whether it is the key that it named. `open` are the dials that go on now.
    """

    limit: RateLimit = field(default_factory=lambda: RateLimit(DIALS_BURST, DIAL_PAUSE_SECONDS))
    open: int = 0

    async def dial(self, caller: str, peer: str, address: str) -> tuple[str, str]:
        """Dial who calls, as gRPC names it: `address` if its host is that of the call, else that host with its port.

        Returns:
            What was dialled, and why `peer` is not there (empty: it is).

        Raises:
            RefusedError: too often, too many at once, or the caller has no address.
            FormatError: `address` is none.
        """
        caller_host = host_of(caller)
        host, port = split_address(address)
        if not caller_host or not port:
            raise RefusedError("there is no address to dial")
        wait = self.limit.wait_seconds(network_of(caller), monotonic())
        if wait or self.open >= DIALS_AT_ONCE:
            raise RefusedError(f"too many ask to be dialled: try again in {math.ceil(wait or DIAL_SECONDS)} s")
        self.open += 1
        dialled = join_address(caller_host, port)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                if await _leads_to(host, caller_host):
                    dialled = address
                shown = shown_by(
                    (await probe(join_address(caller_host, port), DIAL_SECONDS)).certificate
                )  # TLS proves its key
                return dialled, "" if shown == peer else "another peer answers there"
        except (ssl.SSLError, FormatError):
            return dialled, "something else answers there"
        except (TimeoutError, OSError):
            return dialled, NOBODY
        finally:
            self.open -= 1


async def _leads_to(host: str, seen: str) -> bool:
    """Whether `seen` is (one of) the addresses of `host`."""
    if is_ip(host):
        return str(ip_address(host)) == seen
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, UnicodeError):  # the latter: such a name cannot be
        return False
    return any(where[0] == seen for *_, where in found)


# How good the way to the node is

PIECES_BURST, PIECE_SECONDS = 320, 1.0
"""Pieces for one network: four `hetpeer doctor` at once (75 each), and another after a minute or so."""

ALL_PIECES_BURST, ALL_PIECES_SECONDS = 1024, 1 / 16
"""The rate of pieces for all callers together: thirteen at once, then 4 MiB a second, a third of a link of 100 Mb/s."""


@dataclass(slots=True)
class Measuring:
    """Answers who measures the way to the node, one piece after the other. `pace` is what the node saw of the run's."""

    pace: SwarmPace = field(default_factory=SwarmPace)
    by_network: RateLimit = field(default_factory=lambda: RateLimit(PIECES_BURST, PIECE_SECONDS))
    by_all: RateLimit = field(default_factory=lambda: RateLimit(ALL_PIECES_BURST, ALL_PIECES_SECONDS))
    _noise: bytes = field(default_factory=lambda: os.urandom(CHUNK_BYTES), repr=False)
    """No link makes it smaller than it is."""

    def answer(self, caller: str, piece: bytes, wanted: int) -> bytes:
        """A piece of `wanted` bytes for a caller, as gRPC names it, that has sent `piece`.

        Raises:
            RefusedError: either is too long, or they come too often.
        """
        if max(len(piece), wanted) > CHUNK_BYTES:
            raise RefusedError(f"a piece to measure with has {CHUNK_BYTES} bytes at most")
        objection = "too much is measured at once"
        _require_share(self.by_network, self.by_all, caller, monotonic(), objection)
        return self._noise[:wanted]


# How the run goes

VIEW_BYTES = DESCRIPTOR_BYTES - 4096
"""A message at the registration port has 1 MiB at most."""

FRESH_SECONDS = 0.5
"""The seconds for which an answer is given again, to any caller."""

VIEWS_BURST, VIEW_SECONDS = 64, 0.5
"""The rate of views for one network: what somebody who watches asks for, and some more."""

ALL_VIEWS_BURST, ALL_VIEWS_SECONDS = 512, 1 / 32
"""The rate of views for all callers together: a view of a hundred peers has 60 KB, so 2 MB a second."""


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
    """Answers whoever asks how the run goes with what `view` gives."""

    view: Callable[[], View]
    by_network: RateLimit = field(default_factory=lambda: RateLimit(VIEWS_BURST, VIEW_SECONDS))
    by_all: RateLimit = field(default_factory=lambda: RateLimit(ALL_VIEWS_BURST, ALL_VIEWS_SECONDS))
    _answer: bytes = b""
    _made: float = -math.inf

    def answer(self, caller: str) -> bytes:
        """The run, for a caller as gRPC names it.

        Raises:
            RefusedError: this is asked too often.
        """
        now = monotonic()
        objection = "the run's status is asked for too often"
        _require_share(self.by_network, self.by_all, caller, now, objection)
        if now - self._made > FRESH_SECONDS:
            self._answer, self._made = fitting(self.view()), now
        return self._answer
