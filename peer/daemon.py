"""The story of one peer: it gives way to its owner, learns what the run is, gets a place, serves, and leaves in order.

A peer pauses when it is told to, or at quiet hours, and goes on as if it had been started again. Pausing is leaving in
order, as after Ctrl-C: the inner step ends, what is done is contributed, the group finds another member or waits.
Nothing is left running but this: no socket, no model, no DHT. The peer's folder keeps its key, its place and its state,
and from there it goes on.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial

from peer.assembly import joined
from peer.compute.capacity import family_bytes, give_memory_back
from peer.diagnosis.machine import before_joining
from peer.joining import (
    ask_for_place,
    comes_too_late,
    fetch_needed_files,
    keep_place,
    learn,
    recall_place,
    require_fit,
    require_place,
)
from peer.network import admission
from peer.pausing import PAUSE_POLL_SECONDS, Pauses
from peer.process import StopSignal, first_error
from peer.settings import PeerSettings
from peer.store.checkpoint import after_leaving, leave_stage
from peer.swarm.node import AskNode, Node, RoleWork
from peer.swarm.waits import for_the_node
from peer.swarm.work import follow_and_evaluate, serve_datacenter, serve_stage
from peer.telemetry.status import EventStream, gave
from peer.traffic import TrafficMeter
from protocol.clock import unix_time
from protocol.errors import HetpeerError, RefusedError, UnreachableError
from protocol.events.activity import Notice, Paused, PauseEnded, Progress, Warned
from protocol.events.event import Listener, PeerState
from protocol.net.allowances import pause_after
from protocol.net.tasks import Children, first_of
from protocol.trust.keys import load_or_create
from protocol.wording import size

MEMORY_SECONDS = 10.0
"""The interval at which the process's memory is read, in seconds."""

LEAVE_SECONDS = 30.0
"""The seconds after Ctrl-C in which a peer ends its inner step and hands out its contribution; then it is cut short."""

HAND_OVER_SECONDS = 65.0
"""The time that the only holder of a state has beyond that, in seconds: `peer.swarm.last_holder` bounds its wait."""

FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 30.0
"""The shortest and the longest pause between two attempts of a peer to come back to its run, in seconds."""

SHUT_OUT = "the operator has taken this peer out of the run: nothing it contributes counts any longer"
GATEWAY_SHUT_OUT = (
    "the operator has taken out the gateway that let this peer in: start it again, with a ticket that names the "
    "operator's own node, which may let it in anew"
)


async def run_with_pauses(
    stop: asyncio.Event, settings: PeerSettings, emit: EventStream, now: Callable[[], datetime] = datetime.now
) -> None:
    """Serve until the last round, or until `stop` is set, but for the pauses. `now` is the local time.

    Raises:
        HetpeerError: with a message that a volunteer can act on.
    """
    for finding in await asyncio.to_thread(before_joining, settings.device, unix_time()):
        emit(Warned(f"WARNING: {finding.words}"))
    meter = _meter(settings, emit, now)
    pauses = Pauses(settings.directory, settings.quiet, now, meter.reason if meter is not None else str)
    insisted = stop.insisted if isinstance(stop, StopSignal) else None
    async with Children() as children:
        children.spawn(_watch_memory(settings.memory_limit, emit))
        if meter is not None:
            children.spawn(_watch_traffic(meter, emit))
        while not stop.is_set():
            if reason := pauses.reason():
                emit(Paused(reason))
                await first_of(stop.wait(), pauses.wait_until_over())
                if stop.is_set():
                    return
                emit(PauseEnded())
            leave = asyncio.Event()
            try:
                next_stage = None
                async with Children() as watching:
                    watching.spawn(_leave_when_due(leave, stop, pauses))
                    next_stage = await run_until(leave, settings, emit, insisted=insisted)
                if stop.is_set() and emit.status.given and not emit.status.over:
                    emit(Notice(f"left in good order: {gave(emit.status.given)}, and the same command goes on"))
            except (HetpeerError, BaseExceptionGroup) as error:
                if stop.is_set() or not leave.is_set():
                    raise
                what = error if isinstance(error, HetpeerError) else first_error(error)
                emit(Notice(f"leaving was cut short: {what}"))
            if stop.is_set() or emit.status.over or not (leave.is_set() or next_stage is not None):
                return  # it was no pause that has ended it, and no move
            give_memory_back()
            if next_stage is not None:
                await first_of(change_stage(settings, next_stage, emit), stop.wait())


async def change_stage(settings: PeerSettings, stage: int, emit: Listener) -> None:
    """Move a volunteer that has left its stage to another: get a place there, fetch the run's files for it, and forget
    the state of the old one. Where one of these is not to be had, its place stays as it was, and it says so."""
    try:
        folder = settings.directory
        await asyncio.to_thread(after_leaving, folder)  # before anybody is asked
        descriptor = await admission.fetch_descriptor(settings.ticket)
        device = await asyncio.to_thread(require_fit, settings, descriptor)
        await asyncio.to_thread(require_place, settings, descriptor, stage, device)
        admitted = await ask_for_place(settings, descriptor, load_or_create(folder), (stage,))
        await fetch_needed_files(settings, descriptor, admitted, settings.bandwidth(), emit)
        await asyncio.to_thread(leave_stage, folder)
        await asyncio.to_thread(keep_place, folder, admitted)
        for file in descriptor.files:
            if file.name not in settings.files(descriptor, stage):
                (folder / file.name).unlink(missing_ok=True)
        emit(Notice(f"moved to stage {stage}"))
    except HetpeerError as error:
        emit(Warned(f"WARNING: this peer stays at its stage, and cannot move to stage {stage}: {error}"))


async def _leave_when_due(leave: asyncio.Event, stop: asyncio.Event, pauses: Pauses) -> None:
    """Have this peer leave once it is to stop, or to pause."""
    await first_of(stop.wait(), pauses.wait_until_due())
    leave.set()


def _meter(settings: PeerSettings, emit: Listener, now: Callable[[], datetime]) -> TrafficMeter | None:
    """The count of this peer's traffic, from what its folder has; None: its owner has set no limit."""
    if settings.traffic_limit is None:
        return None
    meter = TrafficMeter(settings.directory, settings.traffic_limit, settings.carried, emit, now)
    meter.begin()
    return meter


async def _watch_traffic(meter: TrafficMeter, emit: EventStream) -> None:
    """Count this peer's traffic, for as long as its process lives."""
    try:
        while True:
            meter.look(emit.status.state != PeerState.PAUSED)
            await asyncio.sleep(PAUSE_POLL_SECONDS)
    finally:
        meter.look(emit.status.state != PeerState.PAUSED)
        meter.keep()


async def _watch_memory(most: int | None, emit: Listener) -> None:
    """Say when this peer has grown beyond `most`: with so much it plans, but nothing holds it to that."""
    warned = 0
    while most is not None:
        used = family_bytes()
        if used > max(most, warned):
            warned = used + used // 10
            emit(Warned(f"WARNING: this peer uses {size(used)}, more than --max-memory {size(most)}"))
        await asyncio.sleep(MEMORY_SECONDS)


async def run_until(
    stop: asyncio.Event,
    settings: PeerSettings,
    emit: EventStream,
    work: RoleWork | None = None,
    insisted: asyncio.Event | None = None,
) -> int | None:
    """Join the run and serve until the last round, or do `work`, or until `stop` is set; then leave in order: end the
    inner step, contribute what is done, and say goodbye, in `LEAVE_SECONDS` at most. The only holder of a state stays
    for `HAND_OVER_SECONDS` more, until another has it, or `insisted` is set. Returns the stage to which this peer
    moves, if it has left for one.

    Raises:
        HetpeerError: with a message that a volunteer can act on. RefusedError: the operator takes this peer out, or
            the gateway that let it in, and nobody talks to it any longer. ResourceError: there is no room for what
            counts, and this peer would not have the others' state; or libp2p's daemon is gone for good.
    """
    async with AsyncExitStack() as open_resources, Children() as children:
        joining = children.spawn(_join(settings, work, open_resources, emit))
        await first_of(asyncio.wait((joining,)), stop.wait())
        if not joining.done():
            joining.cancel()
            await asyncio.wait((joining,))
        if joining.cancelled() and stop.is_set():
            return None
        node = joining.result()
        if node is None:
            return None
        serve = (
            work
            or {"volunteer": serve_stage, "datacenter": serve_datacenter, "observer": follow_and_evaluate}[
                settings.role
            ]
        )
        serving = children.spawn(serve(node))
        ended = asyncio.wait((serving, node.shut_out), return_when=asyncio.FIRST_COMPLETED)
        living = children.spawn(node.discovery.dht.while_alive(ended))
        await first_of(asyncio.wait((living,)), stop.wait())
        if not living.done():
            emit(Notice("leaving: what is done goes out first, in half a minute at most"))
            node.leave()
            if insisted is not None:
                children.spawn(_pass_on(insisted, node))
            await asyncio.wait((living,), timeout=LEAVE_SECONDS)
            if node.handing_over.is_set():
                await asyncio.wait((living,), timeout=HAND_OVER_SECONDS)
        if not living.done():
            serving.cancel()
            await asyncio.wait((living,))
        living.result()
        if node.shut_out.done():
            itself = node.shut_out.result() == node.discovery.record.peer_id
            raise RefusedError(SHUT_OUT if itself else GATEWAY_SHUT_OUT)
        if not (serving.cancelled() and stop.is_set()):
            serving.result()
        return node.next_stage.result() if node.next_stage.done() and not stop.is_set() else None


async def _pass_on(insisted: asyncio.Event, node: Node) -> None:
    """Have a peer that leaves wait no longer for another holder of its state, once its owner insists."""
    await insisted.wait()
    node.insisted.set()
    node.discovery.news.ring()


async def _join(settings: PeerSettings, work: RoleWork | None, place: AsyncExitStack, emit: EventStream) -> Node | None:
    """Get a place in the run, which `place` gives up. A peer that has had one before tries until the network lets it.
    None: it comes too late, and has been told so.

    Raises:
        HetpeerError: there is no place; or nobody answers, and it may be the ticket that is wrong.
    """
    identity = load_or_create(settings.directory)
    emit(Progress(f"asking {settings.ticket.operator} what the run is"))
    if work is None and not settings.hold and await comes_too_late(settings, identity, emit):
        return None

    ask_node: AskNode = partial(admission.ask_node, settings.ticket)
    failures, tasks = 0, await place.enter_async_context(Children())
    while True:
        try:
            descriptor, remembered = await learn(settings, identity, emit)
            device = await asyncio.to_thread(require_fit, settings, descriptor)
            node = joined(settings, identity, descriptor, remembered, device, ask_node, tasks, emit)
            return await place.enter_async_context(node)
        except UnreachableError as error:
            if await recall_place(settings, identity) is None:
                raise
            failures += 1
            pause = pause_after(failures, FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
            emit(for_the_node(settings.ticket.operator, str(error), MOST_PAUSE_SECONDS))
            await asyncio.sleep(pause)
