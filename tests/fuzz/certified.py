"""Readers of certificates and of what is asked for one. Mutated are the bytes that a signature covers, which is made
anew: TLS, or the authority's own key, has let them pass before; and the whole, as a file or a stranger has it."""

import ssl
from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from protocol.limits import RECORD_BYTES
from protocol.net import dht_checks
from protocol.trust import certificates, records
from protocol.trust.certificates import Caller
from protocol.trust.keys import Identity, peer_id_of
from protocol.trust.records import Register
from tests.fuzz.material import AUTHOR, AUTHORITY, GATEWAY, MANIFEST, OPERATOR, sealed, signer
from tests.fuzz.reader import Reader
from tests.fuzz.signatures import RECORD, behind_signature

import msgpack  # isort: skip

MADE, LASTS = 1_800_000_000.0, 3600.0
ENDS = MADE + LASTS
CERTIFIED = certificates.certify(OPERATOR, AUTHOR.key.public_key(), MADE, LASTS)
REGISTRATION = certificates.certify(OPERATOR, GATEWAY.key.public_key(), MADE, LASTS, gateway=True)
REQUEST = certificates.request(AUTHOR)

CALLER = Caller(AUTHOR.peer_id, ENDS, False, OPERATOR.peer_id)
REGISTRATION_CALLER = Caller(GATEWAY.peer_id, ENDS, True, OPERATOR.peer_id)


def der(pem: bytes) -> bytes:
    """A certificate's bare bytes."""
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def pem(data: bytes) -> bytes:
    """Any bytes at all, as a certificate in a file."""
    return ssl.DER_cert_to_PEM_cert(data).encode()


def signed_anew(who: Identity, content: bytes) -> bytes:
    """A certificate, or a request for one, whose content is any bytes at all, rightly signed with ECDSA and SHA-256."""
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    signature = who.key.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    return _tagged(0x30, content + algorithm + _tagged(0x03, b"\0" + signature))


def _tagged(tag: int, content: bytes) -> bytes:
    """DER: tag, length, content."""
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 128 | len(length)]) + length + content


def content(certificate: bytes) -> bytes:
    """What the signature of a certificate (PEM) covers."""
    return x509.load_pem_x509_certificate(certificate).tbs_certificate_bytes


def read_request(data: bytes) -> object:
    return peer_id_of(certificates.read_request(data))


def read_registration_certificate(data: bytes) -> Caller:
    return certificates.read_registration_certificate(data, OPERATOR.public)[0]


def by_authority(read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A reader of certificates, given what the authority signs."""
    return lambda data: read(signed_anew(OPERATOR, data))


# The DHT

REGISTER = Register(AUTHORITY, MANIFEST)
LIES = records.sign_record(signer(AUTHOR), RECORD)
OWNER, VALUE = (msgpack.packb(each) for each in (AUTHOR.peer_id, LIES))


def may_lie(subkey: bytes, value: bytes) -> bool:
    """Whether our node of the DHT would store it, or believe it of another."""
    until = records.expiration(RECORD)
    return dht_checks.is_valid(REGISTER, REGISTER.key(AUTHOR.peer_id), subkey, value, until, until)


def found(data: bytes) -> tuple[records.PeerRecord, ...]:
    """What a peer takes from the DHT of what a lawless node said."""
    return REGISTER.read({AUTHOR.peer_id: data, "x" * 99: data, GATEWAY.peer_id: data[:RECORD_BYTES]})


CERTIFICATES = (
    Reader("signing request", read_request, ((REQUEST, AUTHOR.peer_id),)),
    Reader(
        "signing request's content",
        lambda data: read_request(signed_anew(AUTHOR, data)),
        ((x509.load_der_x509_csr(REQUEST).tbs_certrequest_bytes, AUTHOR.peer_id),),
    ),
    Reader(
        "certificate",
        certificates.read_certificate,
        ((CERTIFIED, CALLER), (REGISTRATION + CERTIFIED, REGISTRATION_CALLER)),
        "text",
    ),
    Reader(
        "certificate's content",
        by_authority(lambda data: certificates.read_certificate(pem(data))),
        ((content(CERTIFIED), CALLER), (content(REGISTRATION), REGISTRATION_CALLER)),
    ),
    Reader("certificate's key", certificates.public_key, ((CERTIFIED, AUTHOR.public),), "text"),
    Reader(
        "certificate's key in its content",
        by_authority(lambda data: certificates.public_key(pem(data))),
        ((content(CERTIFIED), AUTHOR.public),),
    ),
    Reader("registration certificate", read_registration_certificate, ((der(REGISTRATION), REGISTRATION_CALLER),)),
    Reader(
        "content of a registration certificate",
        by_authority(read_registration_certificate),
        ((content(REGISTRATION), REGISTRATION_CALLER),),
    ),
    behind_signature(
        "record in the DHT",
        AUTHOR,
        records.RECORD,
        lambda data: records.read_record(data, AUTHOR.peer_id, AUTHORITY),
        LIES,
        RECORD,
    ),
    Reader("value in the DHT", lambda data: may_lie(OWNER, data), ((VALUE, True),), "msgpack", ()),
    Reader("subkey in the DHT", lambda data: may_lie(data, VALUE), ((OWNER, True),), "msgpack", ()),
    Reader(
        "signed value in the DHT",
        lambda data: may_lie(OWNER, msgpack.packb(sealed(AUTHOR, records.RECORD, data))),
        ((LIES[97 + len(records.RECORD) + 1 :], True),),
        "msgpack",
        (),
    ),
    Reader(
        "dictionary in the DHT",
        dht_checks.unpacked,
        ((dht_checks.packed_dictionary([dht_checks.DhtEntry("", OWNER, VALUE, 7.0)]), [(OWNER, VALUE, 7.0)]),),
        "msgpack",
        (),
    ),
    Reader("found in the DHT", found, ((LIES, (RECORD,)),), allowed=()),
)
