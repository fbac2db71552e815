"""The story of one peer: it learns what the run is, gets a place, fetches its files, and serves."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import grpc
import torch

from peer.compute.calibration import warm_up
from peer.joining import (
    comes_too_late,
    fetch_files,
    learn,
    recall_place,
    register,
    require_fit,
    require_place,
    tell_place,
    text_sources,
)
from peer.network import admission
from peer.network.admission import Admitted
from peer.network.attested import Attested
from peer.network.bans import Bans
from peer.network.blob_fetcher import BlobFetcher
from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.gossip import Reconciler
from peer.network.gossip_service import ReconciliationService
from peer.network.group import GroupService
from peer.network.handover_service import HandoverService
from peer.network.intake import Intake, ledgers_of
from peer.network.pipeline import PipelineService
from peer.network.reach import reach
from peer.network.reach.routes import Routes
from peer.network.renewal import keep_renewing, stand_trial
from peer.network.reporter import Reporter
from peer.network.snapshot_transfer import SnapshotService
from peer.network.ways import ways
from peer.settings import PeerSettings
from peer.store.contributions import ContributionStore
from peer.store.membership import Remembered, node_of
from peer.store.snapshots import SnapshotStore
from peer.swarm.group.volunteer import serve_stage
from peer.swarm.node import GATEWAY_SHUT_OUT, SHUT_OUT, Node, RoleWork
from peer.swarm.rounds.farewell import AskFinished, nobody_says
from peer.swarm.whole import observe, serve_datacenter
from peer.telemetry.events import Progress
from peer.telemetry.status import EventStream
from peer.torch_thread import TorchThread
from protocol.addresses import dialled_at, join
from protocol.errors import RefusedError, ResourceError, UnreachableError
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.net import dht as dhts
from protocol.net.backoff import pause_after
from protocol.net.blobs import Blob, BlobService
from protocol.net.channels import listen, options
from protocol.net.guard import Guard
from protocol.net.lenient import AnyBytes
from protocol.net.tasks import Children, first_of
from protocol.run.run_files import Descriptor
from protocol.schemas import (
    blobs_pb2_grpc,
    credit_pb2_grpc,
    group_pb2_grpc,
    pipeline_pb2_grpc,
    reconciliation_pb2_grpc,
    snapshots_pb2_grpc,
    succession_pb2_grpc,
)
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import Signer
from protocol.trust.records import PeerRecord, Register
from protocol.wording import size

LEAVE_SECONDS = 30.0
"""After Ctrl-C a peer ends its inner step and hands out its contribution; a slow one is cut short."""

FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 30.0
"""Between two attempts of a peer to come back to its run."""

GRACE_SECONDS = 2.0
"""How long calls in flight may take to end when the peer stops."""


async def run_peer(
    settings: PeerSettings, emit: EventStream, joined: asyncio.Future[Node], work: RoleWork | None = None
) -> None:
    """Join the run and serve until its last round, or do `work`. `joined` is given the node as soon as there is one.

    Raises:
        HetpeerError: with a message that a volunteer can act on.
    """
    identity = load_or_create(settings.directory)
    async with AsyncExitStack() as place:
        if work is None and await comes_too_late(settings, identity, emit):
            return
        # A peer that looks into the run for something else decides by what is there.
        ask_finished = nobody_says if work is not None else partial(admission.finished, settings.ticket)
        node = await _join(settings, identity, ask_finished, place, emit)
        joined.set_result(node)
        serve = work or {"volunteer": serve_stage, "datacenter": serve_datacenter, "observer": observe}[settings.role]
        await node.discovery.dht.while_alive(_until_shut_out(node, serve(node)))


async def _until_shut_out(node: Node, work: Coroutine[Any, Any, None]) -> None:
    """Raises RefusedError as soon as the operator takes this peer out, or the gateway that let it in: nobody talks to
    it any longer; and ResourceError when there is no room for what counts: this peer would not have the others' state.
    """
    async with Children() as children:
        task = children.spawn(work)
        await asyncio.wait((task, node.shut_out), return_when=asyncio.FIRST_COMPLETED)
        if node.shut_out.done():
            itself = node.shut_out.result() == node.discovery.record.peer_id
            raise RefusedError(SHUT_OUT if itself else GATEWAY_SHUT_OUT)
        await task


async def _join(
    settings: PeerSettings, identity: Identity, ask_finished: AskFinished, place: AsyncExitStack, emit: EventStream
) -> Node:
    """Get a place in the run. A peer that has had one before tries until the network lets it.

    Raises:
        HetpeerError: there is none; or nobody answers, and it may be the ticket that is wrong.
    """
    failures, tasks = 0, await place.enter_async_context(Children())
    while True:
        emit(Progress(f"asking {settings.ticket.operator} what the run is"))
        try:
            descriptor, remembered = await learn(settings, identity, emit)
            device = await asyncio.to_thread(require_fit, settings, descriptor)
            node = _joined(settings, identity, descriptor, remembered, device, ask_finished, tasks, emit)
            return await place.enter_async_context(node)
        except UnreachableError as error:
            if await recall_place(settings, identity) is None:
                raise
            failures += 1
            pause = pause_after(failures, FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
            emit(Progress(f"{error}; trying again in {pause:.0f} s"))
            await asyncio.sleep(pause)


@asynccontextmanager
async def _joined(
    settings: PeerSettings,
    identity: Identity,
    descriptor: Descriptor,
    remembered: Remembered | None,
    device: torch.device,
    ask_finished: AskFinished,
    tasks: Children,
    emit: EventStream,
) -> AsyncIterator[Node]:
    """A place in the run, sockets open and files here; all closed again at the end. `tasks` end afterwards."""
    manifest, directory = descriptor.manifest, settings.directory

    async def renew() -> bytes:
        return (await register(settings, descriptor, identity)).credentials.chain

    warming = tasks.spawn(asyncio.to_thread(warm_up))
    place = remembered or await register(settings, descriptor, identity)
    card, credentials = place.card, place.credentials
    space = await asyncio.to_thread(require_place, settings, descriptor, card.stage, device)
    emit(Progress(f"this run keeps up to {size(space.needed)} in {directory}, and never more than {size(space.limit)}"))
    records: dict[PeerId, PeerRecord] = {}
    bans = Bans(emit, records=records)
    authority = Authority(descriptor.run_id, descriptor.operator, bans.is_revoked)
    bandwidth, guard = settings.bandwidth(), Guard(bans.objection)
    server = grpc.aio.server(options=options(manifest, bandwidth.window), interceptors=[guard, AnyBytes()])
    way = await reach.find(settings.wish, settings.ticket, identity, directory, asks=remembered is None)
    if said := way.objection or way.doubt:
        emit(Progress(said))
    port = listen(server, join(way.host, way.port), credentials.serving())
    addresses, nodes = remembered.addresses if remembered else settings.ticket.addresses, settings.ticket.addresses
    try:
        dht = await dhts.start(
            identity,
            way.host,
            way.libp2p_port,
            Register(authority, manifest),
            addresses,
            way.hidden,
            lambda said: emit(Progress(said)),
        )
    except BaseException:
        await server.stop(None)
        raise
    async with AsyncExitStack() as opened:  # what is opened last is closed first
        opened.push_async_callback(dht.stop)
        opened.push_async_callback(server.stop, GRACE_SECONDS)
        record = PeerRecord(
            peer_id=identity.peer_id,
            address=way.address(port),
            libp2p="" if way.hidden else dialled_at(dht.addresses, way.announced[0]),
            role=settings.role,
            stage=card.stage,
            slot=card.slot,
            on_trial=card.on_trial,
            relays=settings.relay and not way.hidden,
        )
        signer = Signer(identity, authority, place.signed_card)
        discovery = Discovery(dht, signer, manifest, record, nodes, records, objection=bans.objection)
        reached = ways(way, port, dht.streams, discovery, bandwidth, bans, nodes, emit)
        contacts = Contacts(manifest, credentials, bans.objection, bandwidth, Routes(dht.streams, discovery))
        opened.push_async_callback(contacts.close)
        reporter = Reporter(emit.status)
        opened.push_async_callback(reporter.close, settings.pausing)
        emit.listeners.append(reporter)
        opened.callback(emit.listeners.remove, reporter)
        torch_thread = TorchThread(settings.threads, settings.niceness)
        opened.callback(torch_thread.stop)

        def hang_up(banned: PeerId) -> None:
            """End what a banned peer, or a peer that a banned gateway let in, has open with this one; whoever waits for
            them looks again."""
            for each in (banned, *discovery.let_in_by(banned)):
                contacts.hang_up(each)
            guard.cut_off(banned)
            discovery.news.ring()

        bans.listeners.append(hang_up)
        text = text_sources(settings, descriptor, place, bandwidth, space)
        if isinstance(place, Admitted):
            await fetch_files(settings, descriptor, place, bandwidth, emit)
        contribution_store = ContributionStore(
            directory / "contributions", space.contribution_store(text.cache_bytes if text else 0)
        )
        snapshots = SnapshotStore(directory / "snapshots", manifest)
        shut_out: asyncio.Future[PeerId] = asyncio.get_running_loop().create_future()

        def revoked(author: PeerId) -> None:
            if author not in (identity.peer_id, card.issuer):
                bans.revoke(author)
            elif not shut_out.done():
                shut_out.set_result(author)

        def unkept(error: ResourceError) -> None:
            if not shut_out.done():
                shut_out.set_exception(error)

        intake = Intake(
            manifest,
            signer,
            BlobFetcher(contacts, bans),
            contribution_store,
            ledgers_of(manifest, record),
            discovery.news,
            revoked=revoked,
            unkept=unkept,
            trials={} if settings.audit else None,
        )
        attested = Attested(signer, bans, directory, intake.has_revoked)
        reconciler = Reconciler(manifest, discovery, contacts, intake, bans, attested)
        if isinstance(place, Admitted):
            attested.hear(place.attestation, place.node.peer_id)
        handover = HandoverService(reconciler, card.stage, tasks)

        def served(sha256: str) -> Blob | None:
            return contribution_store.lookup(sha256) or snapshots.lookup(sha256) or handover.lookup(sha256)

        node = Node(
            manifest=manifest,
            directory=directory,
            device=device,
            stage=card.stage,
            slot=card.slot,
            discovery=discovery,
            reconciler=reconciler,
            snapshots=snapshots,
            blobs=BlobService(manifest, served, bandwidth),
            pipeline=PipelineService(manifest),
            group=GroupService(manifest, card.stage, identity.peer_id),
            handover=handover,
            torch_thread=torch_thread,
            emit=emit,
            keep_certified=lambda: keep_renewing(credentials, renew, emit),
            stand_trial=lambda: stand_trial(discovery, partial(register, settings, descriptor, identity), emit),
            keep_reached=reached.keep,
            ask_finished=ask_finished,
            shut_out=shut_out,
            stays=settings.stay,
            text=text,
            audit=settings.audit,
            split_backward=settings.schedule == "zero-bubble",
            max_memory=settings.memory_limit,
            split=settings.split,
        )
        _bind(server, node)
        emit(Progress("getting ready to compute"))
        await warming
        await server.start()
        await reached.open()
        write_atomically(directory / "ticket", f"{settings.ticket}\n".encode(), 0o600)
        tell_place(settings, manifest, record, remembered is not None, emit)
        reporter.start(contacts, partial(node_of, directory))
        yield node


def _bind(server: grpc.aio.Server, node: Node) -> None:
    """All services of a peer on one port."""
    blobs_pb2_grpc.add_BlobsServicer_to_server(node.blobs, server)
    credit_pb2_grpc.add_CreditServicer_to_server(node.credit, server)
    snapshots_pb2_grpc.add_SnapshotsServicer_to_server(SnapshotService(node.snapshots), server)
    reconciliation_pb2_grpc.add_ReconciliationServicer_to_server(ReconciliationService(node.reconciler), server)
    if node.discovery.record.role == "volunteer":
        pipeline_pb2_grpc.add_PipelineServicer_to_server(node.pipeline, server)
        group_pb2_grpc.add_GroupServicer_to_server(node.group, server)
        succession_pb2_grpc.add_SuccessionServicer_to_server(node.handover, server)


async def run_until(
    stop: asyncio.Event, settings: PeerSettings, emit: EventStream, work: RoleWork | None = None
) -> None:
    """Serve until the last round, or do `work`, or until `stop` is set; then leave in order: end the inner step,
    contribute what is done, and say goodbye, in `LEAVE_SECONDS` at most."""
    joined: asyncio.Future[Node] = asyncio.get_running_loop().create_future()
    async with Children() as children:
        serving = children.spawn(run_peer(settings, emit, joined, work))
        await first_of(asyncio.wait((serving,)), stop.wait())
        if not serving.done() and joined.done():
            emit(Progress("leaving: the inner step ends, and what is done is contributed"))
            joined.result().leave()
            await asyncio.wait((serving,), timeout=LEAVE_SECONDS)
    try:
        await serving
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
