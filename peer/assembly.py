"""The assembly of one peer: a place in the run, sockets open, files here, and everything that a role works with."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc
import torch

from peer.compute.calibration import warm_up
from peer.governor import govern, readings_on
from peer.joining import (
    choose_stages,
    emit_place,
    fetch_needed_files,
    register_here,
    require_given,
    stages_elsewhere,
    text_sources,
)
from peer.network import address_changes
from peer.network.address_changes import AddressChanges, address_fields
from peer.network.admission import Admitted, glance, require_clock
from peer.network.attested import Attested
from peer.network.bans import Bans
from peer.network.blob_fetcher import BlobFetcher
from peer.network.contacts import Contacts
from peer.network.copies import Copies
from peer.network.discovery import Discovery
from peer.network.gossip import Reconciler
from peer.network.gossip_service import ReconciliationService
from peer.network.group import PipelineService
from peer.network.handover_service import HandoverService
from peer.network.intake import Intake, ledgers_of
from peer.network.kept_place import keep_a_slot, keep_renewing, stand_trial
from peer.network.reach import reach
from peer.network.reach.reach import MachineAddresses, Reach
from peer.network.reach.relayed import Reachability
from peer.network.reach.routes import Routes
from peer.network.receipt_exchange import CreditService, ReceiptCollector, SeenWork
from peer.network.reporter import Reporter
from peer.network.snapshot_transfer import SnapshotService
from peer.network.spot_check_service import SpotCheckService
from peer.planning.welcome import ahead_of, how_far, introduction
from peer.settings import PeerSettings
from peer.store.membership import StoredMembership, claim_folder, node_of
from peer.store.receipt_file import RECEIPTS, KeptReceipts
from peer.store.served import ContributionStore, SnapshotStore
from peer.swarm.node import AskNode, Node, Services, Workplace
from peer.telemetry.status import EventStream
from peer.torch_thread import Throttle, TorchThread
from protocol.errors import ResourceError
from protocol.events.activity import Notice, Progress, Warned
from protocol.files import write_atomically
from protocol.identity import PeerId
from protocol.limits import PEERS_SHARE
from protocol.net import dht as dhts
from protocol.net import gate as gates
from protocol.net.blobs import Blob, BlobService
from protocol.net.channels import Reachable, options
from protocol.net.connection_limits import OF_PEERS
from protocol.net.guard import Guard
from protocol.net.lenient import AnyBytes
from protocol.net.tasks import Children
from protocol.outer.phases import RunPhase
from protocol.run.run_files import DESCRIPTOR, Descriptor
from protocol.schemas import (
    blobs_pb2_grpc,
    credit_pb2_grpc,
    pipeline_pb2_grpc,
    reconciliation_pb2_grpc,
    snapshots_pb2_grpc,
    spot_checks_pb2_grpc,
    succession_pb2_grpc,
)
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Signer
from protocol.trust.records import PeerRecord, Register
from protocol.wording import tail

PEER_GRACE_SECONDS = 2.0
"""The seconds that calls in flight may take to end when the peer stops."""


@dataclass(frozen=True, slots=True)
class Network:
    """The sockets of a peer that has a place in a run, and whom it knows by them. The server does not answer yet."""

    server: grpc.aio.Server
    gate: gates.Gate
    machine: MachineAddresses
    reach: Reach
    reachability: Reachability
    discovery: Discovery
    contacts: Contacts
    bans: Bans


@asynccontextmanager
async def joined(
    settings: PeerSettings,
    identity: Identity,
    descriptor: Descriptor,
    stored: StoredMembership | None,
    device: torch.device,
    ask_node: AskNode,
    tasks: Children,
    emit: EventStream,
) -> AsyncIterator[Node]:
    """Take a place in the run, open the sockets and fetch the files; close everything again at the end. `tasks` end
    afterwards.

    Raises:
        HetpeerError: there is no place, or it does not fit this machine, or something needed cannot be had.
    """
    warming = tasks.spawn(asyncio.to_thread(warm_up))
    if await asyncio.to_thread(claim_folder, settings.directory, descriptor):
        emit(Warned(f"WARNING: {settings.directory / DESCRIPTOR} was damaged, and is written again: look at the disk"))
    emit(Notice(introduction(descriptor)))
    glancing = tasks.spawn(glance(settings.ticket)) if stored is None else None  # beside what follows: nobody waits
    choice = await asyncio.to_thread(choose_stages, settings, descriptor, identity, stored, device)
    membership = stored or await register_here(settings, descriptor, identity, choice.stages)
    stage = membership.card.stage
    if isinstance(membership, Admitted):
        require_clock(membership.clock_ahead, emit)
    space = await asyncio.to_thread(require_given, settings, descriptor, stage, device)
    view = await glancing if glancing is not None else None
    if view is not None:
        emit(Notice(how_far(view)))
    ahead = ahead_of(descriptor.manifest, view)
    first = await asyncio.to_thread(settings.first_download, descriptor, stage, ahead)
    for sentence in settings.what_is_taken(descriptor.manifest, stage, space, device, ahead, first):
        emit(Notice(sentence))
    moves_to = await asyncio.to_thread(stages_elsewhere, settings, descriptor, stage, device)
    async with AsyncExitStack() as opened:  # what is opened last is closed first
        network = await _open(settings, identity, descriptor, membership, opened, emit)
        network.discovery.update_record(moves_to=moves_to)
        copies = Copies(network.discovery, network.contacts, emit)
        await copies.require_none()
        record = network.discovery.record
        reporter = Reporter(emit.status)

        async def say_last_words() -> None:
            await reporter.close(settings.pausing)  # as it is then, not now

        opened.push_async_callback(say_last_words)
        opened.enter_context(emit.also(reporter))
        throttle = Throttle(synchronize=torch.cuda.synchronize) if device.type == "cuda" else Throttle()
        torch_thread = TorchThread(settings.threads, settings.niceness, throttle)
        opened.callback(torch_thread.stop)
        tasks.spawn(govern(settings.limits, throttle, partial(readings_on, device.type), emit))
        text = text_sources(settings, descriptor, membership, network.contacts.bandwidth, space)
        if isinstance(membership, Admitted):
            await fetch_needed_files(settings, descriptor, membership, network.contacts.bandwidth, emit)
        contribution_store = ContributionStore(
            settings.directory / "contributions", space.contribution_store(text.cache_bytes if text else 0)
        )
        shut_out: asyncio.Future[PeerId] = asyncio.get_running_loop().create_future()
        reconciler = _reconciler(settings, membership, network, contribution_store, shut_out, copies)
        opened.push_async_callback(reconciler.stop)
        workplace = Workplace(descriptor.manifest, settings.directory, stage, device, torch_thread, text)
        services = _services(workplace, network, reconciler, tasks)
        receipts = KeptReceipts(settings.directory / RECEIPTS, network.discovery.signer.authority)

        ask_again = partial(register_here, settings, descriptor, identity, (stage,))

        async def renew() -> bytes:
            return (await ask_again()).credentials.chain

        node = Node(
            workplace=workplace,
            settings=settings,
            services=services,
            discovery=network.discovery,
            reconciler=reconciler,
            receipt_collector=ReceiptCollector(services.credit.seen, reconciler, receipts, emit),
            emit=emit,
            upkeep=(
                lambda: keep_renewing(membership.credentials, renew, emit),
                lambda: stand_trial(network.discovery, ask_again, emit),
                lambda: keep_a_slot(network.discovery, ask_again, emit),
                network.reachability.keep,
                copies.watch,
                _address_changes(settings, network, reconciler, emit).watch,
            ),
            ask_node=ask_node,
            shut_out=shut_out,
            asked_to_leave=asyncio.Event(),
            insisted=asyncio.Event(),
            handing_over=asyncio.Event(),
            next_stage=asyncio.get_running_loop().create_future(),
        )
        _bind(network.server, settings, services, reconciler)
        network.discovery.report_moves_to(partial(_follow_move, network, services))
        emit(Progress("getting ready to compute"))
        await warming
        await network.gate.serve(network.server, membership.credentials.serving())
        await network.reachability.open(network.reach)
        write_atomically(settings.directory / "ticket", f"{settings.ticket}\n".encode(), 0o600)
        emit_place(settings, descriptor.manifest, record, choice, emit)
        reporter.start(network.contacts, partial(node_of, settings.directory))
        yield node


async def _open(
    settings: PeerSettings,
    identity: Identity,
    descriptor: Descriptor,
    place: Admitted | StoredMembership,
    opened: AsyncExitStack,
    emit: EventStream,
) -> Network:
    """Find out how others reach this peer, listen there, and meet the DHT; `opened` closes all of it.

    Raises:
        HetpeerError: an address cannot be listened at, or libp2p's daemon does not start.
        UnreachableError: no node of the DHT answers.
    """
    manifest, nodes = descriptor.manifest, settings.ticket.addresses
    records: dict[PeerId, PeerRecord] = {}
    bans = Bans(emit, records=records)
    authority = Authority(descriptor.run_id, descriptor.operator, bans.is_revoked)
    bandwidth = settings.bandwidth()
    asks = isinstance(place, Admitted)
    machine = await asyncio.to_thread(address_changes.machine_addresses, settings.ticket)
    own_reach = await reach.find_reach(settings.wish, settings.ticket, identity, settings.directory, asks=asks)
    if trouble := own_reach.objection or own_reach.doubt:
        emit(Progress(trouble))
    gate = await gates.bind(own_reach.host, own_reach.port, OF_PEERS, PEERS_SHARE)
    guard = Guard(bans.objection, gate.authenticate)
    server = grpc.aio.server(options=options(manifest, bandwidth.window), interceptors=[guard, AnyBytes()])
    try:
        for host in own_reach.also:
            await gate.add(host)
        dht = await dhts.start(
            identity,
            own_reach.host,
            own_reach.libp2p_port,
            Register(authority, manifest),
            place.addresses if isinstance(place, StoredMembership) else nodes,
            own_reach.hidden,
            lambda words: emit(Progress(words)),
            lambda source, error: bans.note(PeerId(source), error),
        )
    except BaseException:
        await gate.close(0.0)
        raise
    opened.push_async_callback(dht.stop)
    opened.push_async_callback(gate.close, PEER_GRACE_SECONDS)
    record = PeerRecord(
        peer_id=identity.peer_id,
        **address_fields(own_reach, gate.port, dht, settings.relay),
        role=settings.role,
        stage=place.card.stage,
        slot=place.card.slot,
        on_trial=place.card.on_trial,
        phase=RunPhase.CATCHING_UP,
    )
    signer = Signer(identity, authority, place.signed_card)
    discovery = Discovery(dht, signer, manifest, record, nodes, records, objection=bans.objection)

    def others_of(called: Reachable) -> Sequence[str]:
        """The addresses of a peer beside its first one; of the operator's node, those of the ticket's nodes."""
        if called.peer_id in records:
            return discovery.other_addresses_of(called.peer_id)
        return settings.ticket.other_node_addresses(called.address)

    routes = Routes(dht.streams, signer, discovery.relays_of, others_of)
    contacts = Contacts(manifest, place.credentials, bans.objection, bandwidth, routes)
    opened.push_async_callback(contacts.close)

    def hang_up(banned: PeerId) -> None:
        """End what a banned peer, or a peer that a banned gateway let in, has open with this one; whoever waits for
        them looks again."""
        for peer in (banned, *discovery.let_in_by(banned)):
            contacts.hang_up(peer)
        guard.cut_off(banned)
        discovery.news.ring()

    bans.listeners.append(hang_up)
    reachability = Reachability(
        gate.connect, dht.streams, discovery, bandwidth, nodes, emit, settings.relay, bans.objection
    )
    return Network(server, gate, machine, own_reach, reachability, discovery, contacts, bans)


def _address_changes(
    settings: PeerSettings, network: Network, reconciler: Reconciler, emit: EventStream
) -> AddressChanges:
    """The watch on the addresses of this machine."""
    return AddressChanges(
        settings.wish,
        settings.ticket,
        network.machine,
        network.reach,
        network.gate,
        network.reachability,
        network.discovery,
        network.contacts,
        emit,
        reconciler.compare,
    )


def _follow_move(network: Network, services: Services, before: PeerRecord, now: PeerRecord) -> None:
    """Close what is open to, and from, a peer that has given up an address: what goes there is not answered, and TCP
    would wait for it. Whoever waits for that peer calls it where it is now."""
    peer = now.peer_id
    network.contacts.hang_up(peer)
    services.pipeline.hang_up(peer, f"the address of peer {tail(peer)} has changed")
    if before.libp2p and before.libp2p != now.libp2p:
        network.contacts.closing.spawn(network.discovery.dht.streams.hang_up(peer))


def _reconciler(
    settings: PeerSettings,
    place: Admitted | StoredMembership,
    network: Network,
    contribution_store: ContributionStore,
    shut_out: asyncio.Future[PeerId],
    copies: Copies,
) -> Reconciler:
    """Return the reconciler of this peer with others' contributions. `shut_out` is done once the operator has taken out
    this peer, or the gateway that let it in; or has the error where something that counts cannot be kept."""
    discovery, bans, manifest = network.discovery, network.bans, network.contacts.manifest

    def revoked(author: PeerId) -> None:
        if author not in (discovery.record.peer_id, place.card.issuer):
            bans.revoke(author)
        elif not shut_out.done():
            shut_out.set_result(author)

    def unkept(error: ResourceError) -> None:
        if not shut_out.done():
            shut_out.set_exception(error)

    intake = Intake(
        manifest,
        discovery.signer,
        BlobFetcher(network.contacts.fetch, bans),
        contribution_store,
        ledgers_of(manifest, discovery.record),
        discovery.news,
        revoked=revoked,
        unkept=unkept,
        trials={} if settings.audit else None,
    )
    attested = Attested(discovery.signer, bans, settings.directory, intake.has_revoked)
    reconciler = Reconciler(manifest, discovery, network.contacts, intake, bans, attested, copies.on_call)
    if isinstance(place, Admitted):
        attested.receive(place.attestation, place.node.peer_id)
    return reconciler


def _services(workplace: Workplace, network: Network, reconciler: Reconciler, tasks: Children) -> Services:
    """Return the services that other peers may call."""
    manifest, signer = workplace.manifest, network.discovery.signer
    contribution_store, bandwidth = reconciler.intake.contribution_store, network.contacts.bandwidth
    snapshots = SnapshotStore(workplace.directory / "snapshots", manifest)
    handover = HandoverService(reconciler, workplace.stage, tasks)

    def served(sha256: str) -> Blob | None:
        return contribution_store.lookup(sha256) or snapshots.lookup(sha256) or handover.lookup(sha256)

    def is_contribution(sha256: str) -> bool:
        return contribution_store.lookup(sha256) is not None

    return Services(
        blobs=BlobService(manifest, served, bandwidth, is_contribution),
        snapshots=snapshots,
        credit=CreditService(SeenWork(signer, manifest)),
        pipeline=PipelineService(manifest),
        handover=handover,
        spot_checks=SpotCheckService(manifest, reconciler.attested),
    )


def _bind(server: grpc.aio.Server, settings: PeerSettings, services: Services, reconciler: Reconciler) -> None:
    """Have one port answer for all services of a peer in its role."""
    blobs_pb2_grpc.add_BlobsServicer_to_server(services.blobs, server)
    credit_pb2_grpc.add_CreditServicer_to_server(services.credit, server)
    snapshots_pb2_grpc.add_SnapshotsServicer_to_server(SnapshotService(services.snapshots), server)
    reconciliation_pb2_grpc.add_ReconciliationServicer_to_server(ReconciliationService(reconciler), server)
    if settings.role == "observer":
        spot_checks_pb2_grpc.add_SpotChecksServicer_to_server(services.spot_checks, server)
    if settings.role == "volunteer":
        pipeline_pb2_grpc.add_PipelineServicer_to_server(services.pipeline, server)
        succession_pb2_grpc.add_SuccessionServicer_to_server(services.handover, server)
