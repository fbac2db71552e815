"""How often the node lets somebody ask for a certificate. Pure: the clock is an argument.

A limit is the generic cell rate algorithm (ITU-T I.371, a token bucket by virtual scheduling): so many calls at once,
then one an interval. It keeps one number a key, the time at which the bucket would be full again.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

from protocol.errors import RefusedError

KEYS_KEPT = 2**14
"""Addresses, or invitations, that are remembered at once: some 2 MiB. Whoever can call from more networks than that is
not held by a limit for each; the least recently seen is forgotten first, so nobody who keeps asking is."""

ADDRESS_BURST, ADDRESS_SECONDS = 64, 1.0
"""A lecture hall behind one address joins at once; signing a certificate a second is no load."""

INVITATION_BURST, INVITATION_SECONDS = 256, 0.25
"""An invitation that has leaked brings no more than this, from however many addresses."""

ROUNDING_SECONDS = 1e-6
"""What sums of floats may be off by, and nobody waits for."""


@dataclass(slots=True)
class RateLimit:
    """`burst` calls at once for each key, then one every `seconds`."""

    burst: int
    seconds: float
    keys_kept: int = KEYS_KEPT
    _full_at: OrderedDict[str, float] = field(default_factory=OrderedDict, repr=False)

    def wait_seconds(self, key: str, now: float) -> float:
        """Take a call of this key: 0 if it may be made, else how long it must wait, and it is not counted."""
        full_at = max(self._full_at.pop(key, now), now)
        wait = full_at - now - (self.burst - 1) * self.seconds
        wait = wait if wait > ROUNDING_SECONDS else 0.0
        self._full_at[key] = full_at if wait else full_at + self.seconds
        if len(self._full_at) > self.keys_kept:
            self._full_at.popitem(last=False)
        return wait

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._full_at)


@dataclass(slots=True)
class Rates:
    """The limits of registration: by where a call comes from, and by the invitation it names, true or not."""

    by_network: RateLimit = field(default_factory=lambda: RateLimit(ADDRESS_BURST, ADDRESS_SECONDS))
    by_invitation: RateLimit = field(default_factory=lambda: RateLimit(INVITATION_BURST, INVITATION_SECONDS))

    def take(self, caller: str, invitation: str, now: float) -> None:
        """Count a call of `caller` (as gRPC names it) with an invitation's id, "" for none; `now` is monotonic.

        Raises:
            RefusedError: it comes too soon.
        """
        wait = self.by_network.wait_seconds(network_of(caller), now)
        whose = "from your network"
        if not wait and invitation:
            wait = self.by_invitation.wait_seconds(invitation, now)
            whose = "with this ticket's invitation"
        if wait:
            raise RefusedError(f"too many peers ask {whose} at once: try again in {math.ceil(wait)} s")


def caller_at(host: str, port: int) -> str:
    """What gRPC names a caller at an address."""
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def host_of(caller: str) -> str:
    """The address in gRPC's name of a caller, as `ipv4:192.0.2.1:5000` or `ipv6:%5B2001:db8::1%5D:5000`; else ""."""
    host = unquote(caller).partition(":")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def network_of(caller: str) -> str:
    """What one subscriber has: an IPv4 address, or the /64 of an IPv6 one (RFC 6177 gives a site no less). Callers
    without either share one name."""
    host = host_of(caller)
    return str(IPv6Network((host, 64), strict=False)) if ":" in host else host
