"""Who is in a run, for who is not: the DHT is open to read, and its records are signed."""

import tempfile
from pathlib import Path

from peer.network.discovery import Peers
from peer.network.operator import address_towards
from protocol import dht as dhts
from protocol.cards import Authority
from protocol.keys import load_or_create
from protocol.records import Register
from protocol.run_files import Descriptor
from protocol.ticket import Ticket


async def read_peers(ticket: Ticket, descriptor: Descriptor) -> Peers:
    """What the peers of a run say of themselves now, by a node of its DHT that is there for a moment.

    Raises:
        UnreachableError: no node of the ticket answers, or there is no way to it.
        ResourceError: libp2p's daemon does not start.
    """
    register = Register(Authority(descriptor.run_id, descriptor.operator), descriptor.manifest)
    with tempfile.TemporaryDirectory(prefix="hetpeer-visit-") as temporary:  # libp2p wants an identity of its own
        host = address_towards(ticket.operator)
        dht = await dhts.start(load_or_create(Path(temporary)), host, 0, register, ticket.addresses)
        try:
            return register.read(await dht.read_all())
        finally:
            await dht.stop()
