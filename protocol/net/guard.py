"""The guard that every call to a peer passes before its handler sees it: who calls, whether it may, and how much.

A caller has an allowance of calls, which fills up again with time, and so many calls open at once. What a call costs
beside itself, by what is in it, its handler takes from the same allowance (`charge`). Who has used it up is told so,
and is not cut off: honest peers wait. A call that has to be answered at once ends after `CALL_SECONDS`; so does one
whose caller does not take what it asked for. A stream goes on for as long as its caller shows certificates that hold,
in other calls, and `CERTIFICATE_SLACK_SECONDS` longer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from protocol.clock import monotonic, unix_time
from protocol.errors import FormatError
from protocol.identity import NO_PEER, PeerId
from protocol.limits import CALLERS_KEPT, CALLS_AT_ONCE, CALLS_PER_SECOND, CALLS_SAVED, CERTIFICATE_SLACK_SECONDS
from protocol.net.allowances import TokenBucket
from protocol.net.channels import caller, refuse
from protocol.net.tasks import Children
from protocol.patience import CALL_SECONDS
from protocol.trust.certificates import Caller

Handler = Callable[[Any, Any], Awaitable[Any]]
"""A handler of gRPC's, of a request, or the stream of requests, and its context."""

Objection = Callable[[PeerId], str]
"""A function that tells why a peer's calls are refused now; empty: they are not."""


OPEN_CALL_CHECK_SECONDS = 86400.0
"""The longest time between two looks whether an open call may go on: loops wait no longer than some weeks."""

_CUT_OFF = "cut off"
_TOO_LATE = grpc.StatusCode.DEADLINE_EXCEEDED


_paying: ContextVar["Callable[[float], bool]"] = ContextVar("paying")
"""The function that takes from the allowance of the peer whose call is being answered."""


async def charge(context: Any, cost: float, for_what: str) -> None:
    """Take the cost of a call's content, beside the call itself, from its caller's allowance; or refuse the call."""
    paying = _paying.get(None)
    if paying is not None and not paying(cost):
        await refuse(context, f"too much at once: {for_what}; wait a moment")


def no_objection(peer: PeerId) -> str:
    """An objection to nobody."""
    return ""


def no_gate(name: str, peer: PeerId) -> None:
    """A gate that keeps no connections."""


@dataclass(slots=True)
class Allowance:
    """The calls that one caller may still make, and those of it that are open."""

    calls: TokenBucket = field(default_factory=lambda: TokenBucket(CALLS_PER_SECOND, CALLS_SAVED))
    ends: float = 0.0
    """The time when the newest certificate ends that the caller has shown, in seconds since 1970."""
    open: dict[Any, asyncio.Task[Any]] = field(default_factory=dict)
    """The contexts of the caller's calls that are being answered, and the tasks that answer them."""
    issuer: PeerId = NO_PEER
    """The peer that certified the caller, by the certificate of its last call."""


@dataclass(slots=True)
class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic when it runs
    """The guard of a server, before all its handlers. `objection` is asked at every call; `authenticated` is told of
    every call that may be made, by which peer it is, and the name that gRPC has for the caller's connection."""

    objection: Objection = no_objection
    authenticated: Callable[[str, PeerId], None] = no_gate
    clock: Callable[[], float] = monotonic
    allowances: OrderedDict[PeerId, Allowance] = field(default_factory=OrderedDict)

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Put this guard before a handler."""
        handler = await continuation(details)
        if handler is None:  # no such method: gRPC says so itself
            return None
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._before_stream(handler.stream_stream), handler.request_deserializer, handler.response_serializer
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._before_chunks(handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._before_answer(handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )

    def cut_off(self, peer: PeerId) -> None:
        """End every call of a peer that is being answered, and the calls of those that it certified; tell them why."""
        for who, allowance in self.allowances.items():
            for task in allowance.open.values() if peer in (who, allowance.issuer) else ():
                task.cancel(_CUT_OFF)

    def _before_answer(self, handler: Handler) -> Handler:
        async def answer(request: Any, context: Any) -> Any:
            async with self._admitted(context):
                try:
                    async with asyncio.timeout(CALL_SECONDS):
                        return await handler(request, context)
                except TimeoutError:
                    await _abort(context, _TOO_LATE, f"no answer within {CALL_SECONDS:.0f} s")

        return answer

    def _before_chunks(self, handler: Callable[[Any, Any], AsyncGenerator[Any]]) -> Handler:
        async def answer(request: Any, context: Any) -> None:
            async with self._admitted(context):
                try:
                    async with _writing(context) as write, aclosing(handler(request, context)) as chunks:
                        async for chunk in chunks:
                            await write(chunk)
                except TimeoutError:
                    await _abort(context, _TOO_LATE, f"nothing was taken for {CALL_SECONDS:.0f} s")

        return answer

    def _before_stream(self, handler: Handler) -> Handler:
        async def answer(requests: Any, context: Any) -> None:
            async with self._admitted(context):
                await handler(requests, context)

        return answer

    @asynccontextmanager
    async def _admitted(self, context: Any) -> AsyncIterator[None]:
        """Admit a call, and count it as open until the block ends."""
        who = await self._admit(context)
        allowance, task = self._allowance(who.peer), asyncio.current_task()
        allowance.issuer = who.issuer
        assert task is not None
        allowance.open[context] = task
        _paying.set(lambda cost: not allowance.calls.spend(cost, self.clock()))
        looking: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal looking
            seconds_left = allowance.ends + CERTIFICATE_SLACK_SECONDS - unix_time()
            if seconds_left < 0:
                task.cancel(_CUT_OFF)
            else:
                looking = asyncio.get_running_loop().call_later(min(seconds_left + 0.1, OPEN_CALL_CHECK_SECONDS), look)

        look()
        try:
            yield
        except asyncio.CancelledError as error:
            if error.args != (_CUT_OFF,):  # the caller has gone, or the server stops
                raise
            task.uncancel()
            reason = self._objection(who) or _out_of_time(who.peer, allowance.ends) or "this peer hangs up"
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, reason)
        finally:
            if looking is not None:
                looking.cancel()
            allowance.open.pop(context, None)

    async def _admit(self, context: Any) -> Caller:
        """Refuse a call, or take it from its caller's allowance."""
        try:
            who = caller(context)
        except FormatError as error:
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        if reason := _out_of_time(who.peer, who.ends) or self._objection(who):
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, reason)
        self.authenticated(context.peer(), who.peer)
        allowance = self._allowance(who.peer)
        allowance.ends = max(allowance.ends, who.ends)
        if len(allowance.open) >= CALLS_AT_ONCE or allowance.calls.spend(1.0, self.clock()):
            await refuse(context, "too many calls: wait a moment")
        return who

    def _objection(self, who: Caller) -> str:
        """The objection to the caller, or to the gateway that certified it; empty: there is none."""
        if reason := self.objection(who.peer):
            return reason
        return (reason := self.objection(who.issuer)) and f"peer {who.peer[-8:]} was let in by a gateway, but {reason}"

    def _allowance(self, peer: PeerId) -> Allowance:
        known = self.allowances.get(peer)
        if known is None:
            known = self.allowances[peer] = Allowance()
            idle = (other for other, theirs in self.allowances.items() if other != peer and not theirs.open)
            if len(self.allowances) > CALLERS_KEPT and (longest := next(idle, None)) is not None:
                del self.allowances[longest]
        self.allowances.move_to_end(peer)
        return known


def _out_of_time(peer: PeerId, ends: float) -> str:
    """The objection to a caller whose certificate has ended: a connection outlives the certificate that it was opened
    with. Empty: it has not."""
    if ends < unix_time():
        return f"the certificate of peer {peer[-8:]} has ended: renew it, and connect again"
    return ""


@asynccontextmanager
async def _writing(context: Any) -> AsyncIterator[Callable[[Any], Awaitable[None]]]:
    """Open a way to write to a caller, which has to take each chunk in time; else TimeoutError.

    gRPC cannot end a call while something is on its way, so the end waits for that, however long it takes: this call
    still counts among the caller's, but holds no more than the one chunk.
    """
    writes = Children()

    async def write(chunk: Any) -> None:
        writing = writes.spawn(context.write(chunk))
        await asyncio.wait((writing,), timeout=CALL_SECONDS)
        if not writing.done():
            raise TimeoutError
        writing.result()

    try:
        yield write
    finally:
        await asyncio.gather(*writes, return_exceptions=True)  # which ends them if this call is cancelled


async def _abort(context: Any, code: grpc.StatusCode, reason: str) -> NoReturn:
    await context.abort(code, reason)
    raise AssertionError("abort returned")
