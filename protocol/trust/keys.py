"""The key of a peer: one ECDSA P-256 key, from which its libp2p identity follows, and which signs for it.

(P-256 because gRPC's TLS refuses Ed25519, and libp2p takes both.)
"""

import hashlib
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from protocol.errors import FormatError, ResourceError
from protocol.files import write_atomically
from protocol.identity import PeerId

_LIBP2P_ECDSA = b"\x08\x03"
"""`key_type = ECDSA` of libp2p's `PublicKey` and `PrivateKey` messages."""


SIGNATURE_BYTES = 64
PUBLIC_BYTES = 33

_ORDER_BYTES = SIGNATURE_BYTES // 2
_ALGORITHM = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
"""RFC 6979: what is signed again is the same bytes again, and no key is lost to a poor source of chance."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A peer's key on disk, as libp2p reads it, and the id that follows from it. `public` is the compressed point."""

    path: Path
    peer_id: PeerId
    public: bytes
    key: ec.EllipticCurvePrivateKey

    def sign(self, data: bytes) -> bytes:
        """Sign data. Returns 64 bytes: r and s, big-endian."""
        r, s = decode_dss_signature(self.key.sign(data, _ALGORITHM))
        return r.to_bytes(_ORDER_BYTES, "big") + s.to_bytes(_ORDER_BYTES, "big")


def signer_of(public: bytes, data: bytes, signature: bytes) -> PeerId:
    """Check a signature. Returns the id of the peer whose key made it.

    Raises:
        FormatError: it is none, or of another key.
    """
    r, s = (int.from_bytes(half, "big") for half in (signature[:_ORDER_BYTES], signature[_ORDER_BYTES:]))
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
        key.verify(encode_dss_signature(r, s), data, _ALGORITHM)
    except (ValueError, InvalidSignature):
        raise FormatError("a signature does not hold") from None
    return peer_id_of(key)


def load_or_create(directory: Path) -> Identity:
    """Load the identity that is kept in `directory`, or make a new one, readable by its owner only, where there is
    none.

    Raises:
        ResourceError: the file cannot be written, or is not a key of ours, or one that others may read.
    """
    path = directory / "identity.key"
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            new_key = ec.generate_private_key(ec.SECP256R1())
            der = new_key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
            write_atomically(path, _message(der), 0o600)  # whole or not at all, also after a power cut
        require_private(path)
        key = _parse(path.read_bytes())
    except OSError as error:
        raise ResourceError(f"cannot keep this peer's key in {path}: {error.strerror}") from None
    except ValueError:
        raise ResourceError(f"{path} is not a hetpeer key; move it away to get a new identity") from None
    public = key.public_key()
    compressed = public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return Identity(path, peer_id_of(public), compressed, key)


def require_private(path: Path) -> None:
    """Require that nobody but its owner may read or replace a secret file.

    Raises:
        ResourceError: others may.
        OSError: there is no such file.
    """
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ResourceError(
            f"{path} is a secret that others on this machine may read: "
            f"close it to them with `chmod 600 {path}`, or move it away to get a new identity"
        )


def _message(data: bytes) -> bytes:
    """Make a libp2p key message: the type, and `data` as field 2."""
    length = len(data)
    varint = b""
    while length > 0x7F:
        varint += bytes([length & 0x7F | 0x80])
        length >>= 7
    return _LIBP2P_ECDSA + b"\x12" + varint + bytes([length]) + data


def _parse(private_message: bytes) -> ec.EllipticCurvePrivateKey:
    start = private_message.find(b"\x30")  # the DER sequence begins behind type and length
    try:
        key = load_der_private_key(private_message[start:], password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # it wants a password, or is of a curve that is not known here
        raise ValueError("not a P-256 key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a P-256 key")
    return key


def peer_id_of_public(public: bytes) -> PeerId:
    """The libp2p id of a key in 33 bytes.

    Raises:
        FormatError: it is no point of the curve.
    """
    try:
        return peer_id_of(ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public))
    except ValueError:
        raise FormatError("this is no public key") from None


def peer_id_of(key: ec.EllipticCurvePublicKey) -> PeerId:
    """The libp2p id of a key."""
    public = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    multihash = b"\x12\x20" + hashlib.sha256(_message(public)).digest()
    return PeerId(base58.b58encode(multihash).decode())
