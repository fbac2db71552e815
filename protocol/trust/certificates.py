"""Certificates: they say by whose word a key may open channels in a run, and until when (X.509, ECDSA P-256).

The operator's key is the run's certificate authority. Its own certificate is the same bytes whenever it is made, so
nobody has to keep it. A gateway's certificate lets it certify peers itself, but no further gateways.

A certificate's key says whose it is: the side that is called takes the id that follows from it, whatever name is beside
it. The side that calls insists on a name: as TLS compares names without regard to case, and ids have one, the DNS name
is the id in base32. The common name is for people.
"""

import base64
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import base58
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from protocol.digest_cache import DigestCache
from protocol.errors import FormatError
from protocol.identity import NO_PEER, PeerId
from protocol.trust.keys import Identity, peer_id_of

REQUEST_BYTES = 4096
"""The longest signing request; one for a P-256 key takes some 300 bytes."""

PEER_CHARACTERS = 64
"""The longest name of an issuer that is read as a peer's id."""

CERTIFICATE_BYTES = 4096
"""The longest certificate, in DER; one takes some 600 bytes."""

READ_KEPT = 1024
"""The certificates of which it is remembered whom they name."""

SLACK_SECONDS = 3600
"""The time before it is made from which a certificate is valid: clocks differ."""

_FOREVER = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2999, 12, 31, tzinfo=datetime.UTC)
_SHA256 = hashes.SHA256()


@dataclass(frozen=True, slots=True)
class Caller:
    """The peer that a certificate names. `ends` is in seconds since 1970. `issuer` is the peer that certified it: TLS
    has held the name against the issuer's own certificate, which the operator signed."""

    peer: PeerId
    ends: float
    certifies: bool
    issuer: PeerId = NO_PEER


def dns_name(peer: PeerId) -> str:
    """The DNS name on which the side that calls insists.

    Raises:
        FormatError: this is no peer's id.
    """
    try:
        return base64.b32encode(base58.b58decode(peer)).decode().rstrip("=").lower() + ".hetpeer"
    except ValueError:
        raise FormatError(f"{peer[:64]!r} is no peer's id") from None


def authority(operator: Identity) -> bytes:
    """Make the run's root certificate (PEM), by which the operator's node also shows who it is."""
    builder = _builder(operator.peer_id, operator.key.public_key(), operator.peer_id, *_FOREVER, certifies=1)
    return _pem(builder.serial_number(1).sign(operator.key, _SHA256, ecdsa_deterministic=True))


def request(identity: Identity) -> bytes:
    """Make a signing request (DER), which shows that this peer has the key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.peer_id)])
    unsigned = x509.CertificateSigningRequestBuilder().subject_name(name)
    signed = unsigned.sign(identity.key, _SHA256, ecdsa_deterministic=True)
    return signed.public_bytes(Encoding.DER)


def read_request(data: bytes) -> ec.EllipticCurvePublicKey:
    """Check a signing request. Returns the key that it is for; nothing else that it asks for is heeded.

    Raises:
        FormatError: it is none, or not signed with its own key.
    """
    if len(data) > REQUEST_BYTES:
        raise FormatError(f"a signing request of {len(data)} bytes, where {REQUEST_BYTES} are allowed")
    with _refused("not a signing request"):
        request = x509.load_der_x509_csr(data)
        key = _p256(request.public_key())
        valid = request.is_signature_valid
    if not valid:
        raise FormatError("a signing request that its own key has not signed")
    return key


def certify(
    issuer: Identity, key: ec.EllipticCurvePublicKey, now: float, seconds: float, gateway: bool = False
) -> bytes:
    """Make a certificate (PEM) for a key, from `now` on for `seconds`. A gateway's lets it certify peers."""
    begins = datetime.datetime.fromtimestamp(now - SLACK_SECONDS, datetime.UTC)
    ends = datetime.datetime.fromtimestamp(now + seconds, datetime.UTC)
    builder = _builder(peer_id_of(key), key, issuer.peer_id, begins, ends, certifies=0 if gateway else None)
    numbered = builder.serial_number(x509.random_serial_number())
    return _pem(numbered.sign(issuer.key, _SHA256, ecdsa_deterministic=True))


READ: DigestCache[Caller] = DigestCache(READ_KEPT)


def read_certificate(pem: bytes) -> Caller:
    """Read whom a certificate names (the first, if it is a chain). TLS has checked it before, if it comes from a
    channel.

    Raises:
        FormatError: it is none.
    """
    _require_short(pem)
    caller = READ.get(pem)
    if caller is None:
        with _refused("not a certificate"):
            caller = _caller(x509.load_pem_x509_certificate(pem))
        READ.put(pem, caller)
    return caller


def public_key(pem: bytes) -> bytes:
    """Read the key that a certificate is for: 33 bytes, the compressed point.

    Raises:
        FormatError: it is none, or of another kind of key.
    """
    _require_short(pem)
    with _refused("not a certificate"):
        key = _p256(x509.load_pem_x509_certificate(pem).public_key())
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def read_registration_certificate(der: bytes, authority_key: bytes) -> tuple[Caller, bytes]:
    """Check the certificate of a node that lets newcomers in: it is the run's authority, or certified by it to certify.
    Returns whom it names, and the certificate (PEM).

    Args:
        authority_key: the operator's public key, as the ticket has it.

    Raises:
        FormatError: it is neither.
    """
    _require_short(der)
    with _refused("it is not certified by the authority that the ticket names"):
        shown = x509.load_der_x509_certificate(der)
        operator = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), authority_key)
        operator.verify(shown.signature, shown.tbs_certificate_bytes, ec.ECDSA(_SHA256))
        caller = _caller(shown)
    if not caller.certifies:
        raise FormatError("it is a peer of the run, and may let nobody in")
    return caller, _pem(shown)


def shown_by(der: bytes) -> PeerId:
    """The peer whose key a certificate (DER) is for, whoever signed it.

    Raises:
        FormatError: it is none.
    """
    _require_short(der)
    with _refused("not a certificate"):
        return _caller(x509.load_der_x509_certificate(der)).peer


def private_key(identity: Identity) -> bytes:
    """The peer's key as TLS takes it (PEM)."""
    return identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(
    peer: PeerId,
    key: ec.EllipticCurvePublicKey,
    issuer: PeerId,
    begins: datetime.datetime,
    ends: datetime.datetime,
    certifies: int | None,
) -> x509.CertificateBuilder:
    """Begin a certificate. `certifies` is the number of authorities that may stand below it; None: it is none
    itself."""
    unused = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    usage = dict.fromkeys(unused, False)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (peer, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name(peer))]), critical=False)
        .add_extension(x509.BasicConstraints(certifies is not None, certifies), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=certifies is not None, **usage), critical=True
        )
    )


def _caller(certificate: x509.Certificate) -> Caller:
    key = _p256(certificate.public_key())
    try:
        certifies = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, x509.DuplicateExtension):
        certifies = False
    issuers = [str(attribute.value) for attribute in certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)]
    issuer = PeerId(issuers[0] if len(issuers) == 1 and len(issuers[0]) <= PEER_CHARACTERS else "")
    return Caller(peer_id_of(key), certificate.not_valid_after_utc.timestamp(), certifies, issuer)


def _p256(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise FormatError("it is for another kind of key than P-256")
    return key


def _require_short(certificate: bytes) -> None:
    if len(certificate) > 4 * CERTIFICATE_BYTES:  # in PEM, and behind it a gateway's
        raise FormatError(f"a certificate of {len(certificate)} bytes, where {CERTIFICATE_BYTES} are allowed")


@contextmanager
def _refused(reason: str) -> Iterator[None]:
    """Raise what cryptography refuses as FormatError, with a reason. Its parsers raise much that has no common base:
    ValueError, InvalidVersion, UnsupportedAlgorithm, DuplicateExtension, InvalidSignature and others."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{reason}: {error}") from None
    except Exception as error:
        raise FormatError(f"{reason} ({type(error).__name__})") from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
