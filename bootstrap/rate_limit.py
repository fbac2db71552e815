"""The rate at which callers of the node may ask for a certificate. Pure: the clock is an argument."""

import math
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

from protocol.addresses import subscriber
from protocol.errors import RefusedError
from protocol.net.allowances import RateLimit

ADDRESS_BURST, ADDRESS_SECONDS = 64, 1.0
"""A lecture hall behind one address joins at once; signing a certificate a second is no load."""

INVITATION_BURST, INVITATION_SECONDS = 256, 0.25
"""An invitation that has leaked brings no more than this, from however many addresses."""


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
    """The subscriber that a caller is of (`protocol.addresses.subscriber`)."""
    return subscriber(host_of(caller))
