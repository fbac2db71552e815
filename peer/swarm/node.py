"""A peer that has joined: its identity, its place, its sockets and its outer state."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from peer.data.tokens import Tokens, open_tokens
from peer.events import Listener
from peer.handoff import TorchThread
from peer.network.contributions import Shelf
from peer.network.discovery import Discovery
from peer.network.group import GroupService
from peer.network.pipeline import PipelineService
from peer.optim.outer import OuterState
from peer.swarm.outer_round import OuterLoop
from peer.swarm.view import all_at
from protocol.blobs import BlobService
from protocol.identity import Part
from protocol.manifest import Manifest
from protocol.run_files import BASIS, genesis_file

FAREWELL_SECONDS = 60.0
"""After the last round a peer serves its contributions until all others are done, at most so long."""


@dataclass(slots=True)
class Node:
    """Everything a role (volunteer, datacenter, observer) works with."""

    manifest: Manifest
    directory: Path
    device: torch.device
    stage: int
    slot: int
    discovery: Discovery
    shelf: Shelf
    blobs: BlobService
    pipeline: PipelineService
    group: GroupService
    torch_thread: TorchThread
    emit: Listener
    pipeline_sent: int = 0

    async def outer_loop(self, followed: Sequence[Part], authored: Sequence[Part]) -> OuterLoop:
        """The outer state at genesis, of the parts this peer follows; error feedback for those it authors."""
        states = {}
        for part in followed:
            genesis = await self.torch_thread.run(load_file, self.directory / genesis_file(part))
            states[part] = OuterState.begin(self.manifest, part, genesis, author=part in authored)
        return OuterLoop(self.manifest, states, self.discovery, self.shelf, self.torch_thread)

    async def basis(self) -> Tensor | None:
        """U [d, d], where this peer needs it and so has fetched it."""
        path = self.directory / BASIS
        if not path.exists():
            return None
        basis: Tensor = (await self.torch_thread.run(load_file, path))["basis"]
        return basis

    async def open_tokens(self, name: str) -> Tokens:
        """The run's tokens to train on, or to evaluate with; every id is checked."""
        return await self.torch_thread.run(open_tokens, self.directory / name, self.manifest.model.vocabulary)

    async def publish(self, **changes: object) -> None:
        """Change this peer's record."""
        await self.discovery.publish(self.discovery.record.model_copy(update=changes))

    async def linger(self) -> None:
        """Serve until every peer has finished the last round."""
        done = self.discovery.wait_until(lambda peers: all_at(peers, self.manifest.outer.rounds))
        try:
            await asyncio.wait_for(done, FAREWELL_SECONDS)
        except TimeoutError:
            return
