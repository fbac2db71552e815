"""Ports that a command is about to take, looked at before it begins with anything long."""

import socket
from collections.abc import Sequence
from errno import EADDRINUSE
from typing import Any

from protocol.addresses import WILDCARDS, join_address
from protocol.errors import ResourceError

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""An address of a host, as `getaddrinfo` returns it."""


def require_free(host: str, port: int, count: int) -> None:
    """Check that `count` ports from `port` on can be listened at (port 0: any can).

    Raises:
        ResourceError: one is taken, or the address is not this machine's; the message names it.
    """
    for number in range(port, port + count) if port else ():
        try:
            addresses = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)
            listening_socket(host, number, addresses).close()
        except OSError as error:
            why = "the port is taken" if error.errno == EADDRINUSE else error.strerror or str(error)
            others = f"; --listen {join_address(host, port)} takes the ports {port} to {port + count - 1}"
            raise ResourceError(
                f"cannot listen on {join_address(host, number)}: {why}{others if count > 1 else ''}. Give another with "
                "--listen"
            ) from None


def listening_socket(
    host: str, port: int, addresses: Sequence[AddressInfo], backlog: int | None = None
) -> socket.socket:
    """A socket that listens at a public address, of which `addresses` are what the name service has. A wildcard is for
    both kinds of addresses; a name, for its IPv4 address if it has one.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    if host in WILDCARDS and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    family, *_, address = min(addresses, key=lambda address: address[0] != socket.AF_INET)
    return socket.create_server((str(address[0]), port), family=family, backlog=backlog)
