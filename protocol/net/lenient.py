"""Lenient decoding: bytes that are no message are read as the empty message of their kind, which another peer may send
as well; in a stream, where the empty message may mean something, as `NO_MESSAGE`.

gRPC itself writes a traceback to the log for each, and then hands them to nobody: whoever asked is given None.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

Message = TypeVar("Message")


def or_empty(read: Callable[[bytes], Message]) -> Callable[[bytes | None], Message]:
    """Make a reader to which all bytes are a message; so is None, which a call that ended well without an answer
    brings."""

    def read_any(data: bytes | None) -> Message:
        try:
            return read(data or b"")
        except DecodeError:
            return read(b"")

    return read_any


NO_MESSAGE: object = object()


def or_none(read: Callable[[bytes], Message]) -> Callable[[bytes], Message | object]:
    """Make a reader that gives `NO_MESSAGE` for bytes that are no message."""

    def read_any(data: bytes) -> Message | object:
        try:
            return read(data)
        except DecodeError:
            return NO_MESSAGE

    return read_any


class AnyBytes(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic when it runs
    """The interceptor that stands next to the handlers of a server."""

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Let a handler's requests be any bytes."""
        handler = await continuation(details)
        if handler is None:
            return None
        reader = or_none if handler.request_streaming else or_empty
        return handler._replace(request_deserializer=reader(handler.request_deserializer))


class AnyAnswer(grpc.aio.Channel):
    """A channel on which answers may be any bytes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, *method: Any, **how: Any) -> Any:
        """Return a method as gRPC's own channel does, with its answers as any bytes; gRPC's stubs name the arguments
        beside the method."""
        return self._channel.unary_unary(*method, **_any(how))

    def unary_stream(self, *method: Any, **how: Any) -> Any:
        return self._channel.unary_stream(*method, **_any(how))

    def stream_unary(self, *method: Any, **how: Any) -> Any:
        return self._channel.stream_unary(*method, **_any(how))

    def stream_stream(self, *method: Any, **how: Any) -> Any:
        return self._channel.stream_stream(*method, **_any(how, or_none))

    async def __aenter__(self) -> "AnyAnswer":
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self._channel.close(None)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()


def _any(how: dict[str, Any], reader: Callable[..., Callable[[bytes], Any]] = or_empty) -> dict[str, Any]:
    read = how.get("response_deserializer")
    return how | {"response_deserializer": reader(read)} if read else how
