"""The link between the machines of one datacenter: a TLS connection in which each side has proved that it knows their
shared secret, and messages of bounded size in it.

A private key follows from the secret, and both sides have a certificate of that key. Each accepts only this
certificate, in TLS 1.3, which is encrypted, bound to the session and safe from replay: so nobody who lacks the secret
takes part, listens in, or stands between. One thread uses a link; it does not block for longer than `SILENCE_SECONDS`.
"""

import os
import secrets
import select
import socket
import ssl
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from protocol.addresses import WILDCARDS, join_address
from protocol.clock import monotonic
from protocol.errors import FormatError, ResourceError, UserError

MACHINE_HEARTBEAT_SECONDS = 5.0
"""A side that has nothing to say says so this often."""

SILENCE_SECONDS = 30.0
"""A side that has not said anything for so long has gone, or hangs."""

HANDSHAKE_SECONDS = 10.0
"""A caller has so long for TLS and for its first message."""

MOST_STRANGERS = 16
"""The largest number of callers in TLS handshakes at one time; others are closed at once."""

MOST_FIRST_BYTES = 2**12
"""The longest first message of a caller."""

MOST_MESSAGE_BYTES = 2**24
"""The longest message. What comes with it has the size that its reader expects."""

LINK_SECRET_BYTES = 32
MOST_SECRET_BYTES = 4096

_LENGTH = struct.Struct(">I")


class TlsLink:
    """One connection, whose other side has proved that it knows the secret. `fileno` lets others wait for it.

    All methods raise OSError once the other side has gone, or is silent: the message says which.
    """

    def __init__(self, connection: ssl.SSLSocket, peer: str) -> None:
        self.connection = connection
        self.peer = peer
        self.heard = self.spoke = monotonic()
        connection.settimeout(SILENCE_SECONDS)

    def fileno(self) -> int:
        """The file descriptor to wait for. Bytes that TLS has read ahead are not seen there: `waits` knows of them."""
        return self.connection.fileno()

    @property
    def interface(self) -> str:
        """The network interface of this machine through which the link runs."""
        return interface_of(self.connection.getsockname()[0])

    def waits(self) -> bool:
        """Whether something has come."""
        return self.connection.pending() > 0 or bool(select.select([self.connection], [], [], 0)[0])

    def keep(self) -> None:
        """Say that this side is there, if it has said nothing for a while; and notice if the other one has not."""
        if (silent := monotonic() - self.heard) > SILENCE_SECONDS and not self.waits():
            raise TimeoutError(f"{self.peer} has been silent for {silent:.0f} s")
        if monotonic() - self.spoke > MACHINE_HEARTBEAT_SECONDS:
            self.send(b"")

    def send(self, message: bytes, pieces: Iterable[memoryview] = ()) -> None:
        """Send a message, and pieces of memory whose sizes the other side knows. An empty message is a sign of life."""
        try:
            self.connection.sendall(_LENGTH.pack(len(message)) + message)
            for piece in pieces:
                self.connection.sendall(piece)
        except TimeoutError:
            raise TimeoutError(f"{self.peer} has taken nothing for {SILENCE_SECONDS:.0f} s") from None
        self.spoke = monotonic()

    def receive(self, most: int = MOST_MESSAGE_BYTES) -> bytes:
        """The next message, which may be a sign of life: empty.

        Raises:
            FormatError: it is longer than `most` bytes.
        """
        head = bytearray(_LENGTH.size)
        self.receive_into(memoryview(head))
        (size,) = _LENGTH.unpack(head)
        if size > most:
            raise FormatError(f"{self.peer} sends a message of {size} bytes; at most {most} are allowed")
        message = bytearray(size)
        self.receive_into(memoryview(message))
        return bytes(message)

    def receive_into(self, piece: memoryview) -> None:
        """Fill a piece of memory with what comes next."""
        while len(piece):
            try:
                count = self.connection.recv_into(piece)
            except TimeoutError:
                raise TimeoutError(f"{self.peer} has been silent for {SILENCE_SECONDS:.0f} s") from None
            if not count:
                raise ConnectionError(f"{self.peer} has closed the connection")
            self.heard = monotonic()
            piece = piece[count:]

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class LinkListener:
    """The first machine's side: `serve` is called with each new link and its first message, in a thread of its own, and
    closes the link at its end. `host` is this machine's address as the others dial it."""

    def __init__(self, host: str, port: int, secret: bytes, serve: Callable[[TlsLink, bytes], None]) -> None:
        """Listen.

        Raises:
            UserError: `host` is no address of this machine that others can dial.
            ResourceError: the port is taken.
        """
        self.address = _own_address(host)
        self.interface = interface_of(self.address)
        self._context = _context(secret, ssl.PROTOCOL_TLS_SERVER)
        self._serve = serve
        self._closed = threading.Event()
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        try:
            self._socket = _listening(self.address, port)
        except OSError as error:
            raise ResourceError(
                f"--rendezvous {join_address(host, port)} cannot be listened at: {error.strerror}"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="machines", daemon=True).start()

    def another_socket(self) -> tuple[int, int]:
        """Listen at another port of the same address; its file descriptor, which is the caller's, and its port."""
        with _listening(self.address, 0) as listening:
            port: int = listening.getsockname()[1]
            return listening.detach(), port

    def close(self) -> None:
        """Listen no longer. Links go on."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError:
                if self._closed.wait(0.1):
                    return
                continue  # one caller has hung up again, or there are too many
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection, peer[0]), daemon=True).start()
            else:
                connection.close()

    def _greet(self, connection: socket.socket, peer: str) -> None:
        link = None
        try:
            link = _secured(connection, self._context, peer, server_side=True)
            first = link.receive(MOST_FIRST_BYTES)
        except (OSError, FormatError):
            (link or connection).close()
            return
        finally:
            self._strangers.release()
        link.connection.settimeout(SILENCE_SECONDS)
        self._serve(link, first)


def connect_machine(host: str, port: int, secret: bytes, first: bytes) -> TlsLink:
    """Call the first machine, and send a first message.

    Raises:
        OSError: it does not answer, or does not know the secret.
    """
    connection = socket.create_connection((host, port), HANDSHAKE_SECONDS)
    link = None
    try:
        link = _secured(connection, _context(secret, ssl.PROTOCOL_TLS_CLIENT), host, server_side=False)
        link.send(first)
        return link
    except BaseException:
        (link or connection).close()
        raise


def read_secret(path: Path, *, make: bool) -> bytes:
    """The secret in a file that nobody but its owner can read. `make`: a new one, if there is no file.

    Raises:
        ResourceError: there is none, or it cannot be read or written.
        UserError: others may read it, or it is too short.
    """
    try:
        if make:
            with suppress(FileExistsError):
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "w") as new:
                    new.write(f"{secrets.token_hex(LINK_SECRET_BYTES)}\n")
        with path.open("rb") as file:
            mode, secret = os.fstat(file.fileno()).st_mode, file.read(MOST_SECRET_BYTES + 1).strip()
    except FileNotFoundError:
        raise ResourceError(f"--secret-file {path} is missing: copy it from the first machine") from None
    except OSError as error:
        raise ResourceError(f"--secret-file {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"--secret-file {path} can be read by others: chmod 600 {path}")
    if not LINK_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        raise UserError(
            f"--secret-file {path} has {len(secret)} bytes; a secret has {LINK_SECRET_BYTES} to {MOST_SECRET_BYTES}, "
            "all of chance: `openssl rand -hex 32` makes one"
        )
    return secret


def interface_of(address: str) -> str:
    """The name of the network interface that has an address; empty: none has it."""
    plain = address.partition("%")[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == plain for entry in addresses):
            return str(name)
    return ""


def _own_address(host: str) -> str:
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise UserError(f"--rendezvous {host}: {error.strerror}") from None
    own = next((address for address in found if interface_of(address)), None)
    if own is None or own in WILDCARDS:
        raise UserError(
            f"--rendezvous {host} is no address of this machine: name the one by which the other machines dial this one"
        )
    return own


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=MOST_STRANGERS)


def _secured(connection: socket.socket, context: ssl.SSLContext, peer: str, *, server_side: bool) -> TlsLink:
    """Shake hands, within `HANDSHAKE_SECONDS` of silence at most."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(HANDSHAKE_SECONDS)
    try:
        link = TlsLink(context.wrap_socket(connection, server_side=server_side), peer)
    except ssl.SSLCertVerificationError:
        raise ConnectionError(f"{peer} has another secret: --secret-file must be the same on all machines") from None
    link.connection.settimeout(HANDSHAKE_SECONDS)
    return link


def _context(secret: bytes, protocol: int) -> ssl.SSLContext:
    """TLS 1.3 with the certificate that follows from the secret, which the other side must have, too."""
    seed = HKDF(hashes.SHA256(), 48, None, b"hetpeer machine link 1").derive(secret)
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
    key = ec.derive_private_key(int.from_bytes(seed, "big") % (order - 1) + 1, ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hetpeer machine")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))  # clocks do not matter: the secret has no end
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)  # the same certificate on every machine
        .public_bytes(Encoding.PEM)
    )
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    with tempfile.TemporaryDirectory(prefix="hetpeer-") as folder:  # of mode 0700; `ssl` reads keys from files alone
        file = Path(folder) / "key.pem"
        file.write_bytes(certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        context.load_cert_chain(file)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody resumes a session; so all that comes is a message
    return context
