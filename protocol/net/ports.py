"""Ports that a command is about to take, looked at before it begins with anything long."""

import socket
from errno import EADDRINUSE

from protocol.addresses import WILDCARDS, join_address
from protocol.errors import ResourceError


def require_free(host: str, port: int, count: int) -> None:
    """Check that `count` ports from `port` on can be listened at (port 0: any can).

    Raises:
        ResourceError: one is taken, or the address is not this machine's; the message names it.
    """
    for number in range(port, port + count) if port else ():
        try:
            _listener(host, number).close()
        except OSError as error:
            why = "the port is taken" if error.errno == EADDRINUSE else error.strerror or str(error)
            others = f"; --listen {join_address(host, port)} takes the ports {port} to {port + count - 1}"
            raise ResourceError(
                f"cannot listen on {join_address(host, number)}: {why}{others if count > 1 else ''}. Give another with "
                "--listen"
            ) from None


def _listener(host: str, port: int) -> socket.socket:
    if host in WILDCARDS and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, *_, address = min(addresses, key=lambda address: address[0] != socket.AF_INET)
    return socket.create_server((str(address[0]), port), family=family)
