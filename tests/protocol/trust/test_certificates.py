"""Certificates: what is made, what is read, and whom TLS takes."""

import asyncio
import hashlib
import time

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError, UnreachableError
from protocol.identity import PeerId
from protocol.net.blobs import BlobService, fetch
from protocol.net.channels import Credentials, connect, listen, options
from protocol.schemas import blobs_pb2_grpc
from protocol.trust import certificates
from protocol.trust.certificates import CERTIFICATE_BYTES, REQUEST_BYTES, SLACK_SECONDS, Caller
from protocol.trust.keys import Identity
from tests.reference.admitted import certified, credentials, identity, there
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
BLOB = b"some bytes"
OPERATOR, GATEWAY, PEER = identity("operator"), identity("gateway"), identity("peer")


def certificate(issuer: Identity, peer: Identity, gateway: bool = False, seconds: float = 3600.0) -> bytes:
    return certificates.certify(issuer, peer.key.public_key(), time.time(), seconds, gateway)


def der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def by_the_gateway(peer: Identity, gateway: bytes, is_gateway: bool = False) -> Credentials:
    """What a peer shows that a gateway with this certificate has let in."""
    chain = certificate(GATEWAY, peer, is_gateway) + gateway
    return Credentials(certificates.private_key(peer), chain, certificates.authority(OPERATOR))


def test_the_authority_is_the_same_bytes_every_time():
    assert certificates.authority(OPERATOR) == certificates.authority(OPERATOR)
    assert certificates.public_key(certificates.authority(OPERATOR)) == OPERATOR.public
    assert certificates.read_certificate(certificates.authority(OPERATOR)).certifies


def test_a_request_becomes_a_certificate_that_names_who_asked():
    now = 1_800_000_000.0
    key = certificates.read_request(certificates.request(PEER))
    made = certificates.certify(OPERATOR, key, now, 60.0)
    assert certificates.read_certificate(made) == Caller(
        PEER.peer_id, now + 60.0, certifies=False, issuer=OPERATOR.peer_id
    )
    assert certificates.public_key(made) == PEER.public
    assert x509.load_pem_x509_certificate(made).not_valid_before_utc.timestamp() == now - SLACK_SECONDS


def test_only_a_gateways_certificate_certifies():
    assert certificates.read_certificate(certificate(OPERATOR, GATEWAY, gateway=True)).certifies
    assert not certificates.read_certificate(certificate(OPERATOR, PEER)).certifies


def asked_with(key: object, algorithm: hashes.HashAlgorithm | None = None) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, algorithm).public_bytes(Encoding.DER)  # type: ignore[arg-type]


def another_signature() -> bytes:
    """A request whose key has not signed it: a valid signature of another key, in its place."""
    ours, theirs = x509.load_der_x509_csr(certificates.request(PEER)), None
    while theirs is None or len(theirs.signature) != len(ours.signature):  # DER drops leading zeros
        theirs = x509.load_der_x509_csr(asked_with(GATEWAY.key, hashes.SHA256()))
    return ours.public_bytes(Encoding.DER).replace(ours.signature, theirs.signature)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"garbage",
        certificates.request(PEER)[:-1],
        certificates.authority(OPERATOR),
        another_signature(),
        asked_with(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()),
        asked_with(ed25519.Ed25519PrivateKey.generate()),
        asked_with(rsa.generate_private_key(65537, 2048), hashes.SHA256()),
    ],
    ids=["nothing", "garbage", "cut short", "a certificate", "another's signature", "P-384", "Ed25519", "RSA"],
)
def test_what_is_no_request_signed_by_its_own_p_256_key_is_refused(request_bytes: bytes):
    with pytest.raises(FormatError, match="signing request"):
        certificates.read_request(request_bytes)


def test_sizes_are_checked_before_anything_is_parsed():
    with pytest.raises(FormatError, match=f"{REQUEST_BYTES} are allowed"):
        certificates.read_request(certificates.request(PEER) + bytes(REQUEST_BYTES))
    with pytest.raises(FormatError, match=f"{CERTIFICATE_BYTES} are allowed"):
        certificates.read_certificate(bytes(5 * CERTIFICATE_BYTES))


@given(st.binary(max_size=300))
def test_garbage_is_a_format_error_to_every_reader(data: bytes):
    armoured = b"-----BEGIN CERTIFICATE-----\nMIIB" + data + b"\n-----END CERTIFICATE-----\n"
    readers = (certificates.read_certificate, certificates.public_key, certificates.read_request)
    for read in (*readers, lambda each: certificates.read_registration_certificate(each, OPERATOR.public)):
        for each in (data, armoured):
            with pytest.raises(FormatError):
                read(each)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_nothing_that_the_authority_signed_can_be_changed(position: int, change: int):
    signed = der(certificate(OPERATOR, GATEWAY, gateway=True))
    damaged = bytearray(signed)
    damaged[position % len(damaged)] ^= change
    try:
        caller, _ = certificates.read_registration_certificate(bytes(damaged), OPERATOR.public)
    except FormatError:
        return
    body = [x509.load_der_x509_certificate(each).tbs_certificate_bytes for each in (bytes(damaged), signed)]
    assert body[0] == body[1]  # how the signature is packed may differ
    assert caller.peer == GATEWAY.peer_id


def test_a_door_is_the_operators_or_a_gateways():
    root, gateway = certificates.authority(OPERATOR), certificate(OPERATOR, GATEWAY, gateway=True)
    caller, shown = certificates.read_registration_certificate(der(root), OPERATOR.public)
    assert (caller.peer, shown) == (OPERATOR.peer_id, root)
    caller, shown = certificates.read_registration_certificate(der(gateway), OPERATOR.public)
    assert (caller.peer, shown) == (GATEWAY.peer_id, gateway)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (certificate(OPERATOR, PEER), "is a peer of the run, and may let nobody in"),
        (certificates.authority(identity("another operator")), "not certified by the authority that the ticket names"),
        (certificate(identity("another operator"), GATEWAY, gateway=True), "not certified by the authority"),
        (certificates.authority(PEER), "not certified by the authority"),
        (certificate(GATEWAY, PEER, gateway=True), "not certified by the authority"),
    ],
    ids=["a peer", "another run", "another run's gateway", "self-made", "a gateway's gateway"],
)
def test_nobody_else_is_a_door(shown: bytes, words: str):
    with pytest.raises(FormatError, match=words):
        certificates.read_registration_certificate(der(shown), OPERATOR.public)


def fetched(server: Credentials, caller: Credentials, name: str = "server") -> bytes:
    """What a call between two with these credentials fetches."""

    async def scene() -> bytes:
        serving = grpc.aio.server(options=options(MANIFEST))
        blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(MANIFEST, lambda sha256: BLOB), serving)
        address = f"127.0.0.1:{listen(serving, '127.0.0.1:0', server.serving())}"
        await serving.start()
        try:
            async with connect(there(name, address), MANIFEST, caller) as channel:
                return await fetch(channel, MANIFEST, hashlib.sha256(BLOB).hexdigest(), len(BLOB))
        finally:
            await serving.stop(None)

    return asyncio.run(asyncio.wait_for(scene(), 20))


def test_tls_takes_whom_a_gateway_has_certified_on_either_side():
    gateway = certificate(OPERATOR, GATEWAY, gateway=True)
    assert fetched(credentials("server"), by_the_gateway(PEER, gateway)) == BLOB
    assert fetched(by_the_gateway(identity("server"), gateway), certified(PEER, OPERATOR)) == BLOB


UNCERTIFIED: dict[str, Credentials] = {
    "by a peer": by_the_gateway(PEER, certificate(OPERATOR, GATEWAY)),
    "by a gateway that a gateway made": Credentials(
        certificates.private_key(PEER),
        certificate(identity("second"), PEER)
        + certificate(GATEWAY, identity("second"), gateway=True)
        + certificate(OPERATOR, GATEWAY, gateway=True),
        certificates.authority(OPERATOR),
    ),
    "by a gateway whose own has ended": by_the_gateway(PEER, certificate(OPERATOR, GATEWAY, True, seconds=-60.0)),
}


@pytest.mark.parametrize("how", UNCERTIFIED)
def test_tls_takes_nobody_else(how: str):
    with pytest.raises(UnreachableError, match="does not take this peer's certificate"):
        fetched(credentials("server"), UNCERTIFIED[how])


def test_ids_that_differ_only_in_case_have_different_names():
    one, other = PeerId("Qm" + "a" * 44), PeerId("Qm" + "a" * 43 + "A")
    assert one.lower() == other.lower()
    assert certificates.dns_name(one).lower() != certificates.dns_name(other).lower()


def test_what_is_no_id_has_no_name():
    for peer in ("0OIl", "ü", "a b"):
        with pytest.raises(FormatError, match="no peer's id"):
            certificates.dns_name(PeerId(peer))


def test_a_private_key_is_not_shown_by_accident():
    assert "PRIVATE" not in repr(credentials("peer"))
