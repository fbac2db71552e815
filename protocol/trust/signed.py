"""Signed messages: a peer says something in its own name, and anybody can check that without asking.

    signature (64 bytes) · public key (33 bytes, compressed point) · kind (ASCII) · 0 · fields (msgpack list)

The signature is ECDSA P-256 over everything behind the key. The kind keeps one message from being read as another.
"""

from functools import lru_cache
from typing import Any

import msgpack

from protocol.digest_cache import DigestCache
from protocol.errors import FormatError
from protocol.identity import PeerId
from protocol.limits import SIGNED_BYTES
from protocol.trust.keys import PUBLIC_BYTES, SIGNATURE_BYTES, Identity, peer_id_of_public, signer_of

MOST_ITEMS = 1024
"""The most items of a list or map: a peer's claims have as many parts at most. For a list in a list in a list, msgpack
sets aside the room that each of them says it needs."""

CHECKED_MESSAGES_KEPT = 8192
"""The checked messages whose hash and signer are remembered, 0.3 KiB each however long they are. The same proof comes
from many peers, and the same statement from one again and again; checking it takes 0.1 ms, finding it here a hundredth
of that. A thousand peers renew their records every quarter of a minute."""

VERIFIED: DigestCache[PeerId] = DigestCache(CHECKED_MESSAGES_KEPT)
"""The signers of messages whose signature holds."""


def sign_fields(identity: Identity, kind: str, fields: list[Any]) -> bytes:
    """Sign a message as this peer."""
    body = kind.encode() + b"\0" + bytes(msgpack.packb(fields))
    return identity.sign(body) + identity.public + body


def read_signed(data: bytes, kind: str) -> tuple[PeerId, list[Any]]:
    """Check a message of a kind. Returns (who signed it, its fields); the fields are still to be checked.

    Raises:
        FormatError: it is malformed, of another kind, or the signature does not hold.
    """
    body = _body(data, kind)
    return verify_signature(data), _fields(body, kind)


def verify_signature(data: bytes) -> PeerId:
    """Check the signature of a message, once. Returns its signer.

    Raises:
        FormatError: the signature does not hold.
    """
    signer = VERIFIED.get(data)
    if signer is None:
        head = SIGNATURE_BYTES + PUBLIC_BYTES
        signer = signer_of(data[SIGNATURE_BYTES:head], data[head:], data[:SIGNATURE_BYTES])
        VERIFIED.put(data, signer)
    return signer


def is_verified(data: bytes) -> bool:
    """Whether the signature of a message has been checked, and holds."""
    return VERIFIED.get(data) is not None


def claimed_fields(data: bytes, kind: str) -> tuple[PeerId, list[Any]]:
    """Read what a message of a kind claims: (who would have signed it, its fields). **Nothing of it is checked yet**:
    it decides whether checking is worth while.

    Raises:
        FormatError: it is malformed, or of another kind.
    """
    body = _body(data, kind)
    return _name(data[SIGNATURE_BYTES : SIGNATURE_BYTES + PUBLIC_BYTES]), _fields(body, kind)


def _body(data: bytes, kind: str) -> bytes:
    if len(data) > SIGNED_BYTES:
        raise FormatError(f"a signed message of {len(data)} bytes, where {SIGNED_BYTES} are allowed")
    head, prefix = SIGNATURE_BYTES + PUBLIC_BYTES, kind.encode() + b"\0"
    if not data[head:].startswith(prefix):
        raise FormatError(f"not a signed {kind}")
    return data[head + len(prefix) :]


def _fields(body: bytes, kind: str) -> list[Any]:
    try:
        fields = msgpack.unpackb(body, max_array_len=MOST_ITEMS, max_map_len=MOST_ITEMS)
    except (ValueError, msgpack.UnpackException):
        raise FormatError(f"a signed {kind} that cannot be read") from None
    if not isinstance(fields, list) or any(isinstance(field, bool) for field in fields):  # True would pass for 1
        raise FormatError(f"a signed {kind} that is no list of numbers, bytes and names")
    return fields


_name = lru_cache(CHECKED_MESSAGES_KEPT)(peer_id_of_public)
