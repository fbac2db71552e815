"""Peers of one small run in one process, with real sockets, keys, shelves and outer states; no DHT, no training."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import torch

from peer.network.attested import Attested
from peer.network.bans import Bans
from peer.network.blob_fetcher import BlobFetcher
from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.gossip import Reconciler
from peer.network.gossip_service import ReconciliationService
from peer.network.handover_service import HandoverService
from peer.network.intake import Intake
from peer.network.receipt_exchange import CreditService, ReceiptCollector, SeenWork
from peer.network.snapshot_transfer import SnapshotService
from peer.optim.outer import OuterState
from peer.store.receipt_file import RECEIPTS, KeptReceipts
from peer.store.served import ContributionStore, SnapshotStore
from peer.swarm.rounds.catch_up import resume_from_folder
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import FollowedPart, FollowedParts
from peer.swarm.rounds.round_policy import Pace
from peer.torch_thread import TorchThread
from protocol.events.event import Event
from protocol.identity import Part, PeerId, RunId, parts_authored
from protocol.layout import model_layout, part_layout, parts_followed
from protocol.manifest import Manifest
from protocol.net.blobs import Blob, BlobService
from protocol.net.channels import listen, options
from protocol.net.tasks import Children
from protocol.outer.ledger import Ledger
from protocol.outer.phases import RunPhase
from protocol.outer.window import Window
from protocol.schemas import (
    blobs_pb2_grpc,
    credit_pb2_grpc,
    reconciliation_pb2_grpc,
    snapshots_pb2_grpc,
    succession_pb2_grpc,
)
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, Role, Signer, issue
from protocol.trust.records import PeerRecord
from tests.reference.admitted import by_gateway, certified

RUN = RunId("ab" * 32)


class NoDht:
    """Peers here are introduced to each other by hand."""

    async def store(self, key: str, subkey: str, value: bytes, expiration: float) -> bool:
        return True

    async def read_all(self) -> dict[str, object]:
        return {}


@dataclass(slots=True)
class LoopbackPeer:
    """One peer: everything of a daemon but the training."""

    manifest: Manifest
    signer: Signer
    outer: OuterLoop
    handover: HandoverService
    receipt_collector: ReceiptCollector
    server: grpc.aio.Server
    said: list[Event] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.outer.discovery.record.peer_id

    @property
    def intake(self) -> Intake:
        return self.outer.reconciler.intake

    def digests(self) -> dict[str, str]:
        return self.outer.followed.digests

    async def contribute(self, round: int, seed: int, steps: int = 1) -> None:
        """An inner loop of so many steps whose outcome is random, and its contribution."""
        delta = moved(self.manifest, seed)
        authored = {part: delta[part] for part, each in self.outer.followed.parts.items() if each.state.error_feedback}
        await self.outer.contribute(round, steps, authored, {}, self.outer.workload.share(round))

    async def at(self, round: int) -> None:
        """Finish a round without waiting for anybody."""
        self.outer.enter(RunPhase.TRAINING)
        self.outer.discovery.update_record(round=round)
        await self.outer.settle()


def moved(manifest: Manifest, seed: int) -> dict[Part, dict[str, torch.Tensor]]:
    """A pseudo-gradient of the whole model."""
    generator = torch.Generator().manual_seed(seed)
    return {
        part: {name: (torch.rand(shape, generator=generator) - 0.5) * 1e-6 for name, shape in layout.items()}
        for part, layout in model_layout(manifest).items()
    }


def genesis(manifest: Manifest, part: Part) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randint(-(2**20), 2**20, shape, generator=generator, dtype=torch.int32)
        for name, shape in part_layout(manifest, part).items()
    }


@dataclass(slots=True)
class Village:
    """An operator, and the peers it has admitted."""

    manifest: Manifest
    folder: Path
    stack: AsyncExitStack
    operator: Identity
    peers: list[LoopbackPeer] = field(default_factory=list)
    interceptors: Sequence[grpc.aio.ServerInterceptor] = ()  # type: ignore[type-arg]
    more_services: Callable[[grpc.aio.Server, PeerId], None] = lambda server, peer: None
    """What a peer of this village serves beside."""
    slots: dict[str, int] = field(default_factory=dict)
    """By name, so that who starts again has its own."""
    gateways: dict[str, str] = field(default_factory=dict)
    """Who lets in which name; the others the operator does itself."""

    @property
    def authority(self) -> Authority:
        return Authority(RUN, self.operator.peer_id)

    async def join(
        self, name: str, stage: int | None = None, observes: bool = False, on_trial: bool = False
    ) -> LoopbackPeer:
        """One more datacenter, or observer, or volunteer of `stage` without a group, that knows the others and is known
        to them."""
        peer = await self.start(name, stage, observes, on_trial)
        self.peers.append(peer)
        self.introduce()
        return peer

    def introduce(self) -> None:
        """Everybody hears everybody's newest record."""
        for one in self.peers:
            for other in self.peers:
                if one is not other:
                    one.outer.discovery.meet(other.outer.discovery.record, in_person=True)

    def cut(self, *alone: LoopbackPeer) -> None:
        """Cut the network: these cannot hear the others, nor the others them."""
        for one in alone:
            for other in self.peers:
                if other not in alone:
                    one.outer.discovery.lose(other.outer.discovery.record.peer_id)
                    other.outer.discovery.lose(one.outer.discovery.record.peer_id)

    async def leave(self, peer: LoopbackPeer) -> None:
        """One says goodbye to everybody, and answers nobody any more."""
        peer.outer.discovery.update_record(gone=True, replica="")
        self.introduce()
        self.peers.remove(peer)
        for task in peer.outer.reconciler.tasks:
            task.cancel()
        await peer.server.stop(None)

    async def compare_all(self) -> None:
        """Everybody compares with everybody."""
        await self.calm()
        for peer in self.peers:
            for other in peer.outer.discovery.others():
                await peer.outer.reconciler.compare(other)
        await self.calm()

    async def calm(self) -> None:
        """Until nobody has anything to tell, or to tell in a moment."""
        reconcilers = [peer.outer.reconciler for peer in self.peers]
        while any(each.tasks or each.pending_news for each in reconcilers):
            for each in reconcilers:
                if each.news_timer is not None and each.pending_news:
                    each.news_timer.cancel()
                    each._send_pending_news()
            await asyncio.gather(*(task for each in reconcilers for task in each.tasks))

    async def round(self, round: int, contributors: list[LoopbackPeer]) -> None:
        """One round of these contributors; everybody finishes it."""
        for number, peer in enumerate(contributors):
            await peer.contribute(round, 100 * round + number)
        self.introduce()
        await self.compare_all()
        for peer in self.peers:
            await peer.at(round)
        self.introduce()

    async def start(
        self, name: str, stage: int | None = None, observes: bool = False, on_trial: bool = False
    ) -> LoopbackPeer:
        """A peer with this folder, which may have been another's before."""
        manifest, folder = self.manifest, self.folder / name
        identity = load_or_create(folder)
        gateway = load_or_create(self.folder / self.gateways[name]) if name in self.gateways else None
        shown = by_gateway(identity, gateway, self.operator) if gateway else certified(identity, self.operator)
        server = grpc.aio.server(options=options(manifest), interceptors=self.interceptors)
        address = f"127.0.0.1:{listen(server, '127.0.0.1:0', shown.serving())}"
        whole, place = list(model_layout(manifest)), stage or 0
        slot = self.slots.setdefault(name, len(self.slots))
        role: Role = "observer" if observes else "datacenter" if stage is None else "volunteer"
        record = PeerRecord(
            peer_id=identity.peer_id,
            address=address,
            role=role,
            stage=place,
            slot=slot,
            on_trial=on_trial,
            replica=identity.peer_id if role == "datacenter" else "",
        )
        granted = issue(self.operator, RUN, Card(gateway.peer_id, "gateway", 0, 0)) if gateway else b""
        card = issue(gateway or self.operator, RUN, Card(identity.peer_id, role, place, slot, on_trial), granted)
        signer = Signer(identity, self.authority, card)
        discovery, contacts, contribution_store = (
            Discovery(NoDht(), signer, manifest, record),
            Contacts(manifest, shown),
            ContributionStore(folder / "contributions"),
        )
        window = Window(manifest.outer.grace, manifest.outer.liars)
        followed_parts = whole if stage is None else parts_followed(manifest, stage)
        authored = {"observer": [], "datacenter": whole, "volunteer": parts_authored(place)}[role]
        ledgers = {part: Ledger(part, identity.peer_id, window) for part in followed_parts}
        said: list[Event] = []
        bans = Bans(said.append)
        fetcher = BlobFetcher(contacts.fetch, bans)
        intake = Intake(manifest, signer, fetcher, contribution_store, ledgers, discovery.news)
        attested = Attested(signer, bans, folder, intake.has_revoked)
        reconciler = Reconciler(manifest, discovery, contacts, intake, bans, attested)
        snapshots, torch_thread = SnapshotStore(folder / "snapshots", manifest), TorchThread(1)
        parts = {
            part: FollowedPart(OuterState.begin(manifest, part, genesis(manifest, part), part in authored), ledger)
            for part, ledger in ledgers.items()
        }
        kept = KeptReceipts(folder / RECEIPTS, self.authority)
        receipt_collector = ReceiptCollector(SeenWork(signer, manifest), reconciler, kept, said.append)
        followed = FollowedParts(manifest, RUN, identity.peer_id, parts, contribution_store, snapshots, torch_thread)
        intake.begin(followed.check)
        outer = OuterLoop(manifest, folder, followed, discovery, reconciler, said.append, Pace(3.0))
        handover = HandoverService(reconciler, place, Children())

        def served(sha256: str) -> Blob | None:
            return contribution_store.lookup(sha256) or snapshots.lookup(sha256) or handover.lookup(sha256)

        blobs = BlobService(manifest, served)
        blobs_pb2_grpc.add_BlobsServicer_to_server(blobs, server)
        reconciliation_pb2_grpc.add_ReconciliationServicer_to_server(ReconciliationService(reconciler), server)
        snapshots_pb2_grpc.add_SnapshotsServicer_to_server(SnapshotService(snapshots), server)
        succession_pb2_grpc.add_SuccessionServicer_to_server(handover, server)
        credit_pb2_grpc.add_CreditServicer_to_server(CreditService(receipt_collector.seen), server)
        self.more_services(server, identity.peer_id)
        await server.start()
        self.stack.callback(torch_thread.stop)
        self.stack.push_async_callback(server.stop, None)
        self.stack.push_async_callback(contacts.close)
        await resume_from_folder(outer)
        return LoopbackPeer(manifest, signer, outer, handover, receipt_collector, server, said)


@asynccontextmanager
async def village(manifest: Manifest, folder: Path, *names: str) -> AsyncIterator[Village]:
    """An operator with these peers."""
    async with AsyncExitStack() as stack:
        made = Village(manifest, folder, stack, load_or_create(folder / "operator"))
        for name in names:
            await made.join(name)
        yield made
        await made.calm()
