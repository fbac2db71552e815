"""The key that is the peer: one ECDSA P-256 key, from which its libp2p identity follows.

(P-256 because gRPC's TLS refuses Ed25519, and libp2p takes both.)
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import base58
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from protocol.errors import ResourceError
from protocol.identity import PeerId

_LIBP2P_ECDSA = b"\x08\x03"
"""`key_type = ECDSA` of libp2p's `PublicKey` and `PrivateKey` messages."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A peer's key on disk, as libp2p reads it, and the id that follows from it."""

    path: Path
    peer_id: PeerId


def load_or_create(directory: Path) -> Identity:
    """The identity kept in `directory`; a new one is made where there is none, readable by its owner only.

    Raises:
        ResourceError: the file cannot be written or is not a key of ours.
    """
    path = directory / "identity.key"
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            _write_private(path, _private_message(ec.generate_private_key(ec.SECP256R1())))
        return Identity(path, _peer_id(path.read_bytes()))
    except OSError as error:
        raise ResourceError(f"cannot keep this peer's key in {path}: {error.strerror}") from None
    except ValueError:
        raise ResourceError(f"{path} is not a hetpeer key; move it away to get a new identity") from None


def _write_private(path: Path, data: bytes) -> None:
    """Created closed to others, not closed afterwards."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _message(data: bytes) -> bytes:
    """A libp2p key message: the type, and `data` as field 2."""
    length = len(data)
    varint = b""
    while length > 0x7F:
        varint += bytes([length & 0x7F | 0x80])
        length >>= 7
    return _LIBP2P_ECDSA + b"\x12" + varint + bytes([length]) + data


def _private_message(key: ec.EllipticCurvePrivateKey) -> bytes:
    return _message(key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()))


def _peer_id(private_message: bytes) -> PeerId:
    start = private_message.find(b"\x30")  # the DER sequence begins behind type and length
    key = load_der_private_key(private_message[start:], password=None)
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    multihash = b"\x12\x20" + hashlib.sha256(_message(public)).digest()
    return PeerId(base58.b58encode(multihash).decode())
