"""The address at which a bootstrap node is reached: as its operator gives it, and what is wrong with it."""

import socket
from collections.abc import Sequence

from bootstrap.node import Listen
from protocol.addresses import WILDCARDS, is_loopback, read_host, split_address
from protocol.errors import FormatError, UserError
from protocol.trust.ticket import Ticket

NODE_PORTS = 3
"""The ports of a node, one after the other: for newcomers, for libp2p, and for peers."""

MOST_PORT = 2**16 - NODE_PORTS


def listen_address(listen: str, announce: Sequence[str]) -> Listen:
    """Read the address at which a node listens, and the hosts that go into its ticket.

    Raises:
        UserError: these are no addresses, or nobody could reach it there.
    """
    try:
        host, port = split_address(listen)
        named = [read_host(text) for text in announce]
    except FormatError as error:
        raise UserError(f"--listen takes HOST:PORT, and --announce HOST: {error}") from None
    if any(other_port is not None for _, other_port in named):
        raise UserError("--announce takes HOST alone: the ports are those of --listen")
    if port > MOST_PORT:
        raise UserError(f"--listen takes a port up to {MOST_PORT}: libp2p and peers use the next two")
    if host in WILDCARDS and not named:
        raise UserError(f"listening on {host} needs --announce HOST: the address that peers can reach")
    for name, _ in named:
        _require_known(name)
    return Listen(host, port, tuple(name for name, _ in named))


def _require_known(host: str) -> None:
    """Raises UserError if there is no host of this name. A name service that does not answer now says nothing."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            raise UserError(
                f"--announce {host}: there is no host of this name; peers would look for it in vain. Look at how it is "
                "written, or give an address"
            ) from None


def reach_warning(ticket: Ticket) -> str:
    """A warning for the operator of a node that can be reached from its own machine alone; empty: it can be from
    elsewhere."""
    if not all(is_loopback(split_address(address)[0]) for address in ticket.node_addresses):
        return ""
    _, port = split_address(ticket.node_addresses[0])
    return (
        "this ticket works on this machine alone, as the node listens on loopback. For peers elsewhere, stop it and "
        f"start it with --listen 0.0.0.0:{port} --announce HOST, the name or address by which they reach this machine"
    )
