"""Addresses as text: `host:port`, where the host is a name, an IPv4 address, or an IPv6 address in brackets; and the
multiaddresses of libp2p."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from protocol.errors import FormatError

WILDCARDS = ("0.0.0.0", "::")
"""Hosts that stand for every interface of this machine: one listens on them, and nobody can dial them."""

MOST_ADDRESS_CHARACTERS = 256

LOOPBACK = "127.0.0.1"

Ip = IPv4Address | IPv6Address

GLOBAL_UNICAST = IPv6Network("2000::/3")
"""The part of IPv6 in which the whole open internet lies."""

TRANSLATED = IPv6Network("64:ff9b::/96")
"""The part of IPv6 into which a gateway of the network (NAT64) translates IPv4 addresses."""


def split_address(address: str) -> tuple[str, int]:
    """Split an address into its host, without brackets, and its port.

    Raises:
        FormatError: it is no address; an IPv6 host without brackets is none, as its port could not be told from it.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if (
        not (
            colon and host and len(address) <= MOST_ADDRESS_CHARACTERS and address.isprintable() and " " not in address
        )
        or not (port.isascii() and port.isdigit() and int(port) < 2**16)
        or bracketed != (":" in host)
        or {"[", "]"} & set(host)
    ):
        raise FormatError(
            f"{address[:80]!r} is no HOST:PORT, with a port from 0 to {2**16 - 1} (an IPv6 host is in brackets, as in "
            "[::1]:7700)"
        )
    return host, int(port)


def read_place(text: str) -> tuple[str, int]:
    """Read `PORT`, which is on loopback, or `HOST:PORT`.

    Raises:
        FormatError: it is neither.
    """
    return split_address(text if ":" in text else f"{LOOPBACK}:{text}")


def join_address(host: str, port: int) -> str:
    """Join host and port to `host:port`; an IPv6 host gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_host(text: str) -> tuple[str, int | None]:
    """Read what a user names as `HOST` or `HOST:PORT`; the port is None where there is none. An IPv6 host alone may do
    without brackets.

    Raises:
        FormatError: it is neither.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if is_ip(bare) or ":" not in text:
        return split_address(join_address(bare, 0))[0], None
    return split_address(text)


def is_ip(host: str) -> bool:
    """Whether a host is an IP address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is an address on which only its own machine is reached."""
    return is_ip(host) and ip_address(host).is_loopback


def is_public(ip: Ip) -> bool:
    """Whether an address belongs to one host in the open internet. Not public are addresses of this machine, its
    network or its provider, of groups (multicast), and reserved ones; an IPv6 address that carries an IPv4 address is
    what that is."""
    if isinstance(ip, IPv4Address):
        return ip.is_global and not (ip.is_multicast or ip.is_reserved)
    if ip.ipv4_mapped is not None:
        return is_public(ip.ipv4_mapped)
    if ip in TRANSLATED:
        return is_public(IPv4Address(ip.packed[-4:]))
    if ip.sixtofour is not None:
        return is_public(ip.sixtofour)
    return ip in GLOBAL_UNICAST and ip.is_global


def subscriber(host: str) -> str:
    """The addresses that one subscriber has: an IPv4 address, or the /64 of an IPv6 one (RFC 6177 gives a site no
    less). "" where `host` is no IP address: callers without one count as one subscriber."""
    return _around(host, 32, 64)


def site(host: str) -> str:
    """The network around a subscriber, which one organisation may have: a /24, or a /48. "" as for `subscriber`."""
    return _around(host, 24, 48)


def _around(host: str, bits4: int, bits6: int) -> str:
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip
    bits = bits4 if isinstance(ip, IPv4Address) else bits6
    return str(ip) if bits == 32 else str(ip_network((ip, bits), strict=False))


def multiaddress(host: str, port: int) -> str:
    """The multiaddress of a libp2p node that listens on an IP address and a TCP port."""
    return f"/ip{ip_address(host).version}/{host}/tcp/{port}"


def moved(libp2p: str, host: str) -> str:
    """Put another host into a libp2p address. For a name, libp2p looks up addresses of the kind it listens on."""
    kind = libp2p.split("/")[1]
    if is_ip(host):
        kind = "ip6" if isinstance(ip_address(host), IPv6Address) else "ip4"
    elif kind.startswith("ip"):
        kind = f"dns{kind[-1]}"
    return "/".join(("", kind, host, *libp2p.split("/")[3:]))


def dialled_at(libp2p: tuple[str, ...], host: str) -> str:
    """The libp2p address of a node that others dial where they know the node as `host`; empty if there is none."""
    kind = "/ip6/" if is_ip(host) and ":" in host else "/ip4/"
    chosen = next((address for address in libp2p if address.startswith(kind)), next(iter(libp2p), ""))
    return chosen and moved(chosen, host)
