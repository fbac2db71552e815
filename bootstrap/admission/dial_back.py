"""Whether a peer can be dialled, tried once from here: nobody can see that from where it is itself.

A stranger may ask for it, so nothing is dialled but the address that its call came from, and of what answers it learns
only whether it is the key that it named.
"""

import asyncio
import math
import ssl
import time
from dataclasses import dataclass, field
from ipaddress import ip_address

from bootstrap.rate_limit import host_of, network_of
from protocol.addresses import is_ip, join, split
from protocol.errors import FormatError, RefusedError
from protocol.net.allowances import RateLimit
from protocol.net.tls_probe import probe
from protocol.trust.certificates import shown_by

DIAL_SECONDS = 5.0
"""For a name, a connection and a handshake: who answers later is no use to a pipeline."""

DIALS_AT_ONCE = 32

BURST, SECONDS = 64, 1.0
"""As often as one may register from a network (`bootstrap.rate_limit`): each newcomer asks once."""

NOBODY = "nothing answers there: a router or firewall on the way lets no connection in"


@dataclass(slots=True)
class Dialler:
    """Dials back. `open` are the dials that go on now."""

    limit: RateLimit = field(default_factory=lambda: RateLimit(BURST, SECONDS))
    open: int = 0

    async def dial(self, caller: str, peer: str, address: str) -> tuple[str, str]:
        """Dial who calls, as gRPC names it: `address` if its host is that of the call, else that host with its port.

        Returns:
            What was dialled, and why `peer` is not there (empty: it is).

        Raises:
            RefusedError: too often, too many at once, or the caller has no address.
            FormatError: `address` is none.
        """
        seen = host_of(caller)
        host, port = split(address)
        if not seen or not port:
            raise RefusedError("there is no address to dial")
        wait = self.limit.wait_seconds(network_of(caller), time.monotonic())
        if wait or self.open >= DIALS_AT_ONCE:
            raise RefusedError(f"too many ask to be dialled: try again in {math.ceil(wait or DIAL_SECONDS)} s")
        self.open += 1
        dialled = join(seen, port)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                if await _leads_to(host, seen):
                    dialled = address
                return dialled, await _objection(seen, port, peer)
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


async def _objection(host: str, port: int, peer: str) -> str:
    """Connect, and see whose certificate is shown. TLS proves that the key of it is there."""
    try:
        shown = shown_by((await probe(join(host, port), DIAL_SECONDS)).certificate)
    except (ssl.SSLError, FormatError):
        return "something else answers there"
    return "" if shown == peer else "another peer answers there"
