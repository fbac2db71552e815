"""gRPC, set up once for all services: mutual TLS, options, the handshake, and foreign errors translated to ours.

Every channel between peers is mutual TLS under the run's authority. Who calls insists on the peer it means; who is
called knows by whom (`caller`). The one exception is the registration port, at which a newcomer, who has no certificate
yet, asks for one: there only the operator's node shows who it is.

A handshake that fails is over before any of our code runs on the side that is called: gRPC tells the server nothing of
it, and TLS 1.3 tells the caller only that the connection was closed. So the caller's error says what it can know.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import grpc

from protocol.clock import unix_time
from protocol.errors import (
    FormatError,
    HetpeerError,
    ManifestError,
    PeerError,
    RefusedError,
    ResourceError,
    UnreachableError,
)
from protocol.identity import PeerId
from protocol.limits import REGISTRATION_MESSAGE_BYTES, REGISTRATION_STREAMS, STREAMS, TLS_SECONDS
from protocol.manifest import Manifest, first_difference, message_bytes, parse_manifest
from protocol.net.lenient import AnyAnswer
from protocol.trust import certificates
from protocol.trust.certificates import Caller, dns_name

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]
"""The value that `read` gives at the end of a stream; the stubs do not know it."""

HANDSHAKE_KEY = "hetpeer-manifest"
_MANIFEST_PREFIX = "manifest "

_CONNECTING = "failed to connect"
"""The beginning of gRPC's message about a connection that did not come about."""

_HUNG_UP = "it hangs up on the handshake: it is stopping, or does not take this peer's certificate"

_HANDSHAKES = {
    "Hostname Verification": "there answers somebody else than the peer that is meant",
    "certificate has expired": "the certificate of who answers there has ended",
    "CERTIFICATE_VERIFY_FAILED": "who answers there has no certificate of this run's authority",
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS",
    "Socket closed": _HUNG_UP,
    "onnection reset": _HUNG_UP,
    "roken pipe": _HUNG_UP,
}
"""The words of gRPC and OpenSSL about a handshake that failed, and what each means."""

_UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_REFUSED = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.UNAUTHENTICATED,
}


@dataclass(slots=True)
class Credentials:
    """The credentials that this peer shows on every channel, all PEM. `chain`, its certificate and that of the gateway
    that gave it, is replaced when it is renewed: channels opened from then on show the new one."""

    key: bytes = field(repr=False)
    chain: bytes
    root: bytes

    @property
    def ends(self) -> float:
        """The time when the certificate ends, in seconds since 1970."""
        return certificates.read_certificate(self.chain).ends

    def _server(self) -> Any:
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.root)

    def serving(self) -> grpc.ServerCredentials:
        """Credentials for a server: every handshake shows the newest certificate, and wants one of the caller."""
        shown = self.chain

        def newest() -> Any:
            nonlocal shown
            if shown is self.chain:
                return None
            shown = self.chain
            return self._server()

        return grpc.dynamic_ssl_server_credentials(self._server(), newest, require_client_authentication=True)

    def calling(self) -> grpc.ChannelCredentials:
        """Credentials for a channel to a peer."""
        return grpc.ssl_channel_credentials(self.root, self.key, self.chain)

    def for_registration(self) -> grpc.ServerCredentials:
        """Credentials for the registration port, where callers have no certificate yet."""
        return grpc.ssl_server_credentials([(self.key, self.chain)])


class Reachable(Protocol):
    """A peer that can be called: a record, or a seat."""

    @property
    def peer_id(self) -> PeerId: ...
    @property
    def address(self) -> str: ...


PING_MILLISECONDS = 30_000
"""The time for a ping's answer. Pings wait behind frames, of which gRPC takes a megabyte at once: with a quarter of a
link of 2 Mb/s, 16 s."""


def options(manifest: Manifest | None, window: int | None = None) -> list[tuple[str, Any]]:
    """Channel and server options: a hung peer is noticed in 40 s, and no message exceeds the run's largest. `window` is
    the number of bytes that may be on their way to us on a stream before we read them; None: as many as the link needs.
    """
    largest = message_bytes(manifest)
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", largest),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", PING_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PING_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.lookahead_bytes", 8 << 20 if window is None else window),
        ("grpc.http2.bdp_probe", int(window is None)),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.server_handshake_timeout_ms", int(TLS_SECONDS * 1000)),
    ]


def registration_options() -> list[tuple[str, Any]]:
    """Options of the registration server: strangers send small messages, a few at once, and no sender runs ahead of its
    reader."""
    few = {
        "grpc.max_receive_message_length": REGISTRATION_MESSAGE_BYTES,
        "grpc.max_concurrent_streams": REGISTRATION_STREAMS,
        "grpc.http2.lookahead_bytes": REGISTRATION_MESSAGE_BYTES,
        "grpc.http2.bdp_probe": 0,
    }
    return [*(dict(options(None)) | few).items()]


def caller(context: Any) -> Caller:
    """Identify the caller by the certificate that TLS has checked.

    Raises:
        FormatError: nobody: the call came in at the registration port.
    """
    shown = (context.auth_context() or {}).get("x509_pem_cert")
    if not shown:
        raise FormatError("a call without a certificate")
    return certificates.read_certificate(bytes(shown[0]))


def handshake(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """The metadata of every call between peers of one run."""
    return ((HANDSHAKE_KEY, manifest.digest),)


async def require_manifest(context: Any, manifest: Manifest) -> None:
    """Server side of the handshake: refuse a caller of another run, and tell it ours to compare."""
    theirs = dict(context.invocation_metadata() or ()).get(HANDSHAKE_KEY)
    if theirs != manifest.digest:
        await refuse(context, _MANIFEST_PREFIX + manifest.canonical().decode())


async def speaks(context: Any, peer: PeerId, of: str) -> None:
    """Refuse a caller that is another peer than `peer`, who alone may speak of `of` here."""
    who = caller(context).peer
    if who != peer:
        await refuse(context, f"peer {who[-8:]} is not peer {peer[-8:]}, who alone speaks of {of}")


async def refuse(context: Any, reason: str) -> NoReturn:
    """End a call with a reason that the caller shows to its user."""
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
    raise AssertionError("abort returned")


def translate(
    error: grpc.aio.AioRpcError, address: str, ours: Manifest | None, shown: Credentials | None = None
) -> HetpeerError:
    """The one table from gRPC's status codes to our errors. `shown` is what this peer shows on the channel.

    Whoever fails the handshake is not the peer that was meant: nothing of it is held against that one.
    """
    code, details = error.code(), error.details() or ""
    if details.startswith(_CONNECTING):
        if shown is not None and shown.ends < unix_time() and _handshake(details) == _HUNG_UP:
            return UnreachableError(f"no answer from {address} (this peer's certificate has ended: renew it first)")
        details = _handshake(details) or details
    if code in _UNREACHABLE:
        return UnreachableError(f"no answer from {address} ({details[:200] or code.name.lower()})")
    if code in _REFUSED:
        if details.startswith(_MANIFEST_PREFIX):
            return _manifest_error(details.removeprefix(_MANIFEST_PREFIX), address, ours)
        return RefusedError(f"{address} refused: {details}")
    return PeerError(f"{address} broke the protocol: {code.name.lower()}: {details[:200]}")


def _handshake(details: str) -> str:
    """The reason why the handshake failed, if that is why there is no connection; else empty."""
    return next((meaning for said, meaning in _HANDSHAKES.items() if said in details), "")


def _manifest_error(canonical: str, address: str, ours: Manifest | None) -> HetpeerError:
    try:
        theirs = parse_manifest(canonical.encode())
    except ManifestError:
        return PeerError(f"{address} refused our manifest and sent none of its own")
    field = first_difference(ours, theirs) if ours else None
    return ManifestError(f"{address} runs another manifest: {field or 'this peer sent none'}")


def channel_to(
    peer: Reachable, manifest: Manifest, credentials: Credentials, window: int | None = None
) -> grpc.aio.Channel:
    """Make a channel to a peer, and to nobody else who may answer at its address. `window`: see `options`.

    Raises:
        FormatError: its id is none.
    """
    name = ("grpc.ssl_target_name_override", dns_name(peer.peer_id))
    how = [*options(manifest, window), name]
    return AnyAnswer(grpc.aio.secure_channel(peer.address, credentials.calling(), options=how))


@contextlib.asynccontextmanager
async def connect(
    peer: Reachable, manifest: Manifest, credentials: Credentials, window: int | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a peer for the block; gRPC's errors leave it as ours.

    Raises:
        UnreachableError, RefusedError, ManifestError, PeerError: what the calls inside ran into.
    """
    async with channel_to(peer, manifest, credentials, window) as channel:
        with translated(peer.address, manifest, credentials):
            yield channel


@contextlib.asynccontextmanager
async def connect_to_registration(address: str, operator: PeerId, root: bytes) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a registration port, whose certificate (PEM) was checked by
    `certificates.read_registration_certificate`, for the block.

    Raises:
        UnreachableError, RefusedError, ManifestError, PeerError: what the calls inside ran into.
    """
    name = ("grpc.ssl_target_name_override", dns_name(operator))
    credentials = grpc.ssl_channel_credentials(root)
    async with AnyAnswer(grpc.aio.secure_channel(address, credentials, options=[*options(None), name])) as channel:
        with translated(address, None):
            yield channel


@contextlib.contextmanager
def translated(address: str, manifest: Manifest | None, shown: Credentials | None = None) -> Iterator[None]:
    """Raise gRPC's errors as ours."""
    task = asyncio.current_task()
    cancelled = task.cancelling() if task else 0
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise translate(error, address, manifest, shown) from None
    except asyncio.CancelledError:  # also what gRPC raises in a call whose channel this peer closes
        if task is None or task.cancelling() > cancelled:
            raise
        raise UnreachableError(f"the connection to {address} was closed") from None
    except TimeoutError:
        raise UnreachableError(f"no answer from {address} in time") from None
    except grpc.aio.BaseError:  # the channel was closed under the call: this peer is leaving
        raise UnreachableError(f"the connection to {address} was closed") from None


def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials) -> int:
    """Bind a server to an address. Returns the port that it got.

    Raises:
        ResourceError: the port is taken, or the address is not this machine's.
    """
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise ResourceError(f"cannot listen on {address}: the port is taken or the address is not ours; try --listen")
    return port
