"""Peers with certificates, and who certified them: what TLS wants in tests, without a door."""

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from peer.network.contacts import Contacts
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.net.channels import Credentials
from protocol.trust import certificates
from protocol.trust.keys import Identity, peer_id_of

AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class There:
    """A peer to call."""

    peer_id: PeerId
    address: str


@cache
def identity(name: str) -> Identity:
    """The key of a peer of this name; the same whenever it is asked for in these tests."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return Identity(Path(), peer_id_of(key.public_key()), public, key)


def certified(peer: Identity, operator: Identity, seconds: float = AN_HOUR) -> Credentials:
    """What a peer shows that this operator has certified; with `seconds` below 0, until so long ago."""
    chain = certificates.certify(operator, peer.key.public_key(), time.time(), seconds)
    return Credentials(certificates.private_key(peer), chain, certificates.authority(operator))


def by_gateway(peer: Identity, gateway: Identity, operator: Identity) -> Credentials:
    """What a peer shows that a gateway of this operator's has certified."""
    authority = certificates.certify(operator, gateway.key.public_key(), time.time(), AN_HOUR, gateway=True)
    chain = certificates.certify(gateway, peer.key.public_key(), time.time(), AN_HOUR) + authority
    return Credentials(certificates.private_key(peer), chain, certificates.authority(operator))


def credentials(name: str, operator: str = "operator") -> Credentials:
    """What the peer of this name shows."""
    return certified(identity(name), identity(operator))


def there(name: str, address: str) -> There:
    """The peer of this name, at an address."""
    return There(identity(name).peer_id, address)


def contacts(name: str, manifest: Manifest) -> Contacts:
    """How the peer of this name calls others. To be closed."""
    return Contacts(manifest, credentials(name))
