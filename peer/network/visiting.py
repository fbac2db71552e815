"""Visits to a run by somebody who is not in it: the DHT is open to read, and its records are signed."""

import tempfile
from pathlib import Path

from peer.network.admission import address_towards
from peer.network.contacts import Contacts
from peer.network.gossip import ANSWER_SECONDS
from protocol.errors import HetpeerError
from protocol.net import dht as dhts
from protocol.net.channels import Reachable, handshake
from protocol.run.run_files import Descriptor
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.records import Peers, Register
from protocol.trust.ticket import Ticket


async def read_peers(ticket: Ticket, descriptor: Descriptor) -> Peers:
    """Read what the peers of a run say of themselves now, by a node of its DHT that exists for a moment.

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


async def tell_revocation(peer: Reachable, signed: bytes, contacts: Contacts) -> bool:
    """Bring the operator's revocation to one peer, which tells it on. Returns whether the peer heard it."""
    try:
        async with contacts.to(peer) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            message = pb.Revocations(revocations=[signed])
            await stub.Revoke(message, metadata=handshake(contacts.manifest), timeout=ANSWER_SECONDS)
    except HetpeerError:
        return False
    return True
