"""A peer that has joined: its identity, its place, its sockets and its outer state."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.devices.workers import Split
from peer.model.first_weights import read_basis, read_part
from peer.network.discovery import Discovery, keep_remembering
from peer.network.gossip import Reconciler
from peer.network.group import GroupService
from peer.network.handover_service import HandoverService
from peer.network.pipeline import PipelineService
from peer.network.receipt_collector import Earned
from peer.network.receipt_signer import CreditService, SeenWork
from peer.optim.outer import OuterState
from peer.store.receipt_file import RECEIPTS, KeptReceipts
from peer.store.snapshots import SnapshotStore
from peer.swarm.rounds.catch_up import catch_up, resume
from peer.swarm.rounds.deadline import Pace
from peer.swarm.rounds.farewell import AskFinished, ask_whether_over, keep_asking_whether_over, linger, take_last_state
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import FollowedPart, FollowedParts
from peer.swarm.text_reader import FileReader, Reader, TextSources, block_reader
from peer.telemetry.decisions import Left, Pulse
from peer.telemetry.events import Finished, Listener, Progress
from peer.torch_thread import TorchThread
from protocol.identity import Part, PeerId
from protocol.manifest import Manifest
from protocol.net.blobs import BlobService
from protocol.run.run_files import BASIS

SHUT_OUT = "the operator has taken this peer out of the run: nothing it contributes counts any longer"
GATEWAY_SHUT_OUT = (
    "the operator has taken out the gateway that let this peer in: start it again, with a ticket that names the "
    "operator's own node, which may let it in anew"
)

RoleWork = Callable[["Node"], Coroutine[Any, Any, None]]
"""What a peer does that has joined."""

PULSE_SECONDS = 5.0
"""So often a peer says how it goes."""

LAST_RECEIPTS_SECONDS = 3.0
"""So long it waits for what others sign of its work, before it goes."""


@dataclass(slots=True)
class Node:
    """Everything a role (volunteer, datacenter, observer) works with."""

    manifest: Manifest
    directory: Path
    device: torch.device
    stage: int
    slot: int
    discovery: Discovery
    reconciler: Reconciler
    snapshots: SnapshotStore
    blobs: BlobService
    pipeline: PipelineService
    group: GroupService
    handover: HandoverService
    torch_thread: TorchThread
    emit: Listener
    keep_certified: Callable[[], Coroutine[Any, Any, None]]
    """Renews this peer's certificate for as long as it lives."""
    stand_trial: Callable[[], Coroutine[Any, Any, None]]
    """Until what this peer contributes counts."""
    keep_reached: Callable[[], Coroutine[Any, Any, None]]
    """Sees that others reach this peer, if they cannot dial it."""
    ask_finished: AskFinished
    """Asks the operator's node whether the run is over."""
    shut_out: asyncio.Future[PeerId]
    """Is done when the operator has taken out this peer, or the gateway that let it in: who it was; or has the error
    that ends this peer."""
    text: TextSources | None = None
    """Where prepared text is; None: the tokens are among the run's files."""
    audit: bool = False
    """Whether this peer measures what contributions do (`peer/swarm/audit/auditing.py`)."""
    split_backward: bool = False
    """Whether a volunteer leaves the gradients of weights for when it would wait (`peer/compute/schedule.py`)."""
    max_memory: int | None = None
    """Bytes that this peer may use; None: what there is."""
    split: Split = field(default_factory=Split)
    """How a datacenter spreads its replica over this machine."""
    stays: bool = False
    """Whether this peer serves the last state after the run's end, until its user asks it to leave."""
    leaving: bool = False
    """The user has asked this peer to leave: it ends its inner step, contributes, and says goodbye."""

    told_finished: bool = False
    credit: CreditService = field(init=False)
    """What this peer has seen of others; `earned`: what they have signed of it."""
    earned: Earned = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is seen yet."""
        signer = self.reconciler.intake.signer
        self.credit = CreditService(SeenWork(signer, self.manifest))
        kept = KeptReceipts(self.directory / RECEIPTS, signer.authority)
        self.earned = Earned(self.credit.seen, self.reconciler, kept, self.emit)

    async def outer_loop(self, authored: Sequence[Part]) -> OuterLoop:
        """The outer state of the parts this peer follows, as its folder has it, or at genesis; error feedback for those
        it authors."""
        parts = {}
        for part, ledger in self.reconciler.intake.ledgers.items():
            genesis = await self.torch_thread.run(read_part, self.directory, self.manifest, part)
            parts[part] = FollowedPart(OuterState.begin(self.manifest, part, genesis, part in authored), ledger)
        followed = FollowedParts(
            manifest=self.manifest,
            run_id=self.discovery.run_id,
            me=self.discovery.record.peer_id,
            parts=parts,
            contribution_store=self.reconciler.intake.contribution_store,
            snapshots=self.snapshots,
            torch_thread=self.torch_thread,
            closed=self.earned.close,
        )
        pace = Pace(self.manifest.outer.patience)
        outer = OuterLoop(self.manifest, self.directory, followed, self.discovery, self.reconciler, self.emit, pace)
        await resume(outer)
        self.reconciler.intake.begin(followed.check)
        return outer

    @asynccontextmanager
    async def in_the_swarm(self, outer: OuterLoop) -> AsyncIterator[asyncio.TaskGroup]:
        """Meet the others, catch up with them, and keep in touch as long as the block lasts. At its end, serve until
        everybody has finished the last round."""
        async with asyncio.TaskGroup() as tasks:
            keeping = [
                tasks.create_task(self.discovery.keep_publishing()),
                tasks.create_task(self.discovery.keep_reading()),
                tasks.create_task(self.discovery.keep_attached()),
                tasks.create_task(keep_remembering(self.directory, self.discovery)),
                tasks.create_task(self.keep_certified()),
                tasks.create_task(self.stand_trial()),
                tasks.create_task(self.keep_reached()),
                tasks.create_task(outer.keep_noting()),
                tasks.create_task(self._keep_pulse()),
                tasks.create_task(self.earned.keep_asking()),
            ]
            await self.discovery.read()
            self.reconciler.keep_promises()
            await ask_whether_over(outer, self.ask_finished)
            await catch_up(outer)
            keeping.append(tasks.create_task(keep_asking_whether_over(outer, self.ask_finished)))
            keeping.append(tasks.create_task(self.reconciler.keep_comparing()))
            await self.publish()
            yield tasks
            if not self.leaving:
                await (take_last_state(outer) if outer.told_over else linger(outer))
            await self._stay(outer)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_RECEIPTS_SECONDS):
                    await self.earned.ask()
            await self._say_goodbye()
            for task in keeping:
                task.cancel()

    async def _stay(self, outer: OuterLoop) -> None:
        """Serve the last state to those who come late, if this peer is to, until it is asked to leave."""
        if self.stays and outer.finished and not self.leaving:
            self.emit_finished(outer)
            self.emit(Progress("staying, for those who come late: this peer holds the run's last state"))
        while self.stays and outer.finished and not self.leaving:
            await self.discovery.news.wait(PULSE_SECONDS)

    def leave(self) -> None:
        """The user asks this peer to go: what it has done is contributed, nothing new is begun."""
        self.leaving = True
        self.emit(Left(self.discovery.record.replica, "its owner stops or pauses this peer"))
        self.discovery.news.ring()

    async def _keep_pulse(self) -> None:
        """Say how it goes, for as long as this peer lives."""
        bandwidth, discovery = self.reconciler.contacts.bandwidth, self.discovery
        up, down = bandwidth.up, bandwidth.down
        while True:
            lost = len(discovery.missed())
            peers = len(discovery.others()) + lost
            self.emit(Pulse(up.frames_carried, up.bulk_carried, down.frames_carried, down.bulk_carried, peers, lost))
            await asyncio.sleep(PULSE_SECONDS)

    def emit_finished(self, outer: OuterLoop) -> None:
        """The run is over, unless this peer leaves it early, or has missed its end. It is told once."""
        if outer.finished and not self.told_finished:
            self.told_finished = True
            self.emit(Finished(self.manifest.outer.rounds, outer.followed.digests))

    async def _say_goodbye(self) -> None:
        """See that others have what this peer made, and that nobody waits for it."""
        self.discovery.tell(gone=True, replica="")
        await self.reconciler.hand_out()
        await self.publish()

    async def basis(self) -> Tensor | None:
        """U [d, d], where this peer needs it and so has fetched it."""
        if not (self.directory / BASIS).exists():
            return None
        return await self.torch_thread.run(read_basis, self.directory, self.manifest)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Reader]:
        """The run's text, to train on and to evaluate with, as long as the block lasts."""
        place = self.manifest, self.directory, self.torch_thread
        if self.text is None:
            yield FileReader(*place)
            return
        async with block_reader(self.text, *place, self.emit) as reader:
            yield reader

    async def publish(self, **changes: object) -> None:
        """Change this peer's record."""
        await self.discovery.publish(**changes)
