"""gRPC, set up once for all services: options, the handshake, and foreign errors translated to ours."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, NoReturn

import grpc

from protocol.errors import (
    HetpeerError,
    ManifestError,
    PeerError,
    RefusedError,
    ResourceError,
    UnreachableError,
)
from protocol.limits import message_bytes
from protocol.manifest import Manifest, difference, parse

EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]
"""What `read` gives at the end of a stream; the stubs do not know it."""

HANDSHAKE_KEY = "hetpeer-manifest"
_MANIFEST_PREFIX = "manifest "

_UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_REFUSED = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ALREADY_EXISTS,
}


def options(manifest: Manifest | None) -> list[tuple[str, Any]]:
    """Channel and server options: a hung peer is noticed in 15 s, and no message exceeds the run's largest."""
    largest = message_bytes(manifest)
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", largest),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.lookahead_bytes", 8 << 20),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.so_reuseport", 0),
    ]


def handshake(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Metadata of every call between peers of one run."""
    return ((HANDSHAKE_KEY, manifest.digest),)


async def require_manifest(context: Any, manifest: Manifest) -> None:
    """Server side of the handshake: refuse a caller of another run, and tell it ours to compare."""
    theirs = dict(context.invocation_metadata() or ()).get(HANDSHAKE_KEY)
    if theirs != manifest.digest:
        await refuse(context, _MANIFEST_PREFIX + manifest.canonical().decode())


async def refuse(context: Any, reason: str) -> NoReturn:
    """End a call with a reason that the caller shows to its user."""
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
    raise AssertionError("abort returned")


def translate(error: grpc.aio.AioRpcError, address: str, ours: Manifest | None) -> HetpeerError:
    """The one table from gRPC's status codes to our errors."""
    code, details = error.code(), error.details() or ""
    if code in _UNREACHABLE:
        return UnreachableError(f"no answer from {address} ({details[:200] or code.name.lower()})")
    if code in _REFUSED:
        if details.startswith(_MANIFEST_PREFIX):
            return _manifest_error(details.removeprefix(_MANIFEST_PREFIX), address, ours)
        return RefusedError(f"{address} refused: {details}")
    return PeerError(f"{address} broke the protocol: {code.name.lower()}: {details[:200]}")


def _manifest_error(canonical: str, address: str, ours: Manifest | None) -> HetpeerError:
    try:
        theirs = parse(canonical.encode())
    except ManifestError:
        return PeerError(f"{address} refused our manifest and sent none of its own")
    field = difference(ours, theirs) if ours else None
    return ManifestError(f"{address} runs another manifest: {field or 'this peer sent none'}")


@contextlib.asynccontextmanager
async def connect(address: str, manifest: Manifest | None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to `host:port`; gRPC's errors leave it as ours.

    Raises:
        UnreachableError, RefusedError, ManifestError, PeerError: what the calls inside ran into.
    """
    async with grpc.aio.insecure_channel(address, options=options(manifest)) as channel:
        with translated(address, manifest):
            yield channel


@contextlib.contextmanager
def translated(address: str, manifest: Manifest | None) -> Iterator[None]:
    """Raise gRPC's errors as ours."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise translate(error, address, manifest) from None
    except TimeoutError:
        raise UnreachableError(f"no answer from {address} in time") from None
    except grpc.aio.BaseError:  # the channel was closed under the call: this peer is leaving
        raise UnreachableError(f"the connection to {address} was closed") from None


def listen(server: grpc.aio.Server, address: str) -> int:
    """Bind a server; the port it got.

    Raises:
        ResourceError: the port is taken, or the address is not this machine's.
    """
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise ResourceError(f"cannot listen on {address}: the port is taken or the address is not ours; try --listen")
    return port
