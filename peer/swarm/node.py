"""A peer that has joined: its place in the run, what it serves, whom it meets, and what its owner asked for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.model.first_weights import read_basis
from peer.network.discovery import Discovery
from peer.network.gossip import Reconciler
from peer.network.group import PipelineService
from peer.network.handover_service import HandoverService
from peer.network.receipt_exchange import CreditService, ReceiptCollector
from peer.network.spot_check_service import SpotCheckService
from peer.settings import PeerSettings
from peer.store.served import SnapshotStore
from peer.swarm.text_reader import FileReader, Reader, TextSources, block_reader
from peer.torch_thread import TorchThread
from protocol.events.decisions import Left
from protocol.events.event import Listener
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.monitor import NodeWord
from protocol.net.blobs import BlobService
from protocol.run.run_files import BASIS

RoleWork = Callable[["Node"], Coroutine[Any, Any, None]]
"""The work of a peer that has joined."""

Upkeep = Callable[[], Coroutine[Any, Any, None]]
"""The work of a peer beside that of its role, for as long as it is in the swarm."""

AskNode = Callable[[], Coroutine[Any, Any, NodeWord]]
"""Asks the operator's node how far the run is, and whether it is over."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """The workplace of a peer: its folder with the run's files, the stage that a volunteer has, a device, and the
    thread that torch runs on."""

    manifest: Manifest
    directory: Path
    stage: int
    device: torch.device
    torch_thread: TorchThread
    text: TextSources | None
    """The sources of prepared text; None: the tokens are among the run's files."""

    async def basis(self) -> Tensor | None:
        """Read U [d, d]; None: this peer does not need it, and so has not fetched it."""
        if not (self.directory / BASIS).exists():
            return None
        return await self.torch_thread.run(read_basis, self.directory, self.manifest)

    @asynccontextmanager
    async def reading(self, emit: Listener) -> AsyncIterator[Reader]:
        """Open the run's text, to train on and to evaluate with, for as long as the block lasts."""
        if self.text is None:
            yield FileReader(self.manifest, self.directory, self.torch_thread)
            return
        async with block_reader(self.text, self.manifest, self.directory, self.torch_thread, emit) as reader:
            yield reader


@dataclass(frozen=True, slots=True)
class Services:
    """The services of a peer for others, all on one port."""

    blobs: BlobService
    snapshots: SnapshotStore
    credit: CreditService
    pipeline: PipelineService
    handover: HandoverService
    spot_checks: SpotCheckService


@dataclass(frozen=True, slots=True)
class Node:
    """A peer that has joined a run: what a role (volunteer, datacenter, observer) begins with."""

    workplace: Workplace
    settings: PeerSettings
    """The settings of its owner."""
    services: Services
    discovery: Discovery
    reconciler: Reconciler
    receipt_collector: ReceiptCollector
    emit: Listener
    upkeep: Sequence[Upkeep]
    ask_node: AskNode
    """Asks the operator's node how far the run is, and whether it is over."""
    shut_out: asyncio.Future[PeerId]
    """Is done when the operator has taken out this peer, or the gateway that let it in: who it was; or has the error
    that ends this peer."""
    asked_to_leave: asyncio.Event
    """Is set when this peer is to leave."""
    insisted: asyncio.Event
    """Is set when this peer is to leave although nobody else holds its state."""
    handing_over: asyncio.Event
    """Is set while this peer, asked to leave, waits for another to take the state that it alone holds."""
    next_stage: asyncio.Future[int]
    """Is done when this peer leaves to serve another stage, which it is."""

    def leave(self, reason: str = "its owner stops or pauses this peer") -> None:
        """Ask this peer to go: what it has done is contributed, nothing new is begun."""
        self.asked_to_leave.set()
        self.emit(Left(self.discovery.record.replica, reason))
        self.discovery.news.ring()
