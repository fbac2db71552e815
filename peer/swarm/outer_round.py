"""One outer round of one peer: contribute, collect everybody's contributions, apply them, tell the digests."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from peer.handoff import TorchThread
from peer.network.contributions import Shelf, collect
from peer.network.discovery import Discovery
from peer.optim.grid import digest
from peer.optim.outer import OuterState
from peer.swarm.view import Peers, authors, disagreement, replicas
from protocol.contribution import Contribution, decode
from protocol.errors import FormatError, PeerError
from protocol.identity import ContributionName, Part, ReplicaId
from protocol.layout import EMBEDDING_TENSOR
from protocol.manifest import Manifest


@dataclass(slots=True)
class OuterLoop:
    """The outer state of every part that this peer follows, and what it needs to advance it."""

    manifest: Manifest
    states: dict[Part, OuterState]
    discovery: Discovery
    shelf: Shelf
    torch_thread: TorchThread
    decoded: dict[ContributionName, Contribution] = field(default_factory=dict)

    @property
    def grids(self) -> dict[Part, dict[str, Tensor]]:
        """θ of every part, in units of 2⁻²⁶."""
        return {part: state.grid for part, state in self.states.items()}

    async def wait_for_replicas(self) -> None:
        """Wait until all replicas of the run have formed."""
        await self.discovery.wait_until(lambda peers: len(replicas(peers)) >= self.manifest.replicas.total)

    async def contribute(self, round: int, replica: ReplicaId, moved: Mapping[Part, Mapping[str, Tensor]]) -> None:
        """Publish this replica's contribution to every part it authors."""
        for part, tensors in moved.items():
            run, steps = self.discovery.run_id, self.manifest.inner.steps
            blob, sent = await self.torch_thread.run(self.states[part].contribute, run, round, replica, steps, tensors)
            self.decoded[sent.name] = sent
            await self.shelf.put(sent.name, blob)

    async def finish(self, round: int) -> tuple[dict[str, int], dict[str, str]]:
        """Collect, apply, and announce the new state.

        Returns the number of contributions and the state's digest, by part.

        Raises:
            PeerError: another peer holds another state after the same set of contributions.
            UnreachableError: a replica is gone.
        """
        peers = await self.discovery.wait_until(self._complete)
        self._require_agreement(peers)
        async with asyncio.TaskGroup() as tasks:
            for part in self.states:
                tasks.create_task(self._collect(part, round, peers))
        counts: dict[str, int] = {}
        for part, state in self.states.items():
            chosen = [each for name, each in self.decoded.items() if (name.part, name.round) == (part, round)]
            await self.torch_thread.run(state.apply, chosen)
            counts[part] = len(chosen)
        self.decoded.clear()
        digests = await self.digests()
        await self.discovery.publish(self.discovery.record.model_copy(update={"round": round, "digests": digests}))
        return counts, digests

    async def digests(self) -> dict[str, str]:
        """SHA-256 of the grid of every part."""
        return {part: await self.torch_thread.run(digest, state.grid) for part, state in self.states.items()}

    def _complete(self, peers: Peers) -> bool:
        """Every part we follow has an author in each replica."""
        total = self.manifest.replicas.total
        return all(len(authors(peers, part)) >= total for part in self.states)

    def _require_agreement(self, peers: Peers) -> None:
        different = disagreement(self.discovery.record, peers)
        if different is not None:
            part, peer = different
            raise PeerError(f"{part} differs from that of peer {peer.peer_id[-8:]} after round {peer.round}")

    async def _collect(self, part: Part, round: int, peers: Peers) -> None:
        me = self.discovery.record.peer_id
        sources = tuple(peer.address for peer in authors(peers, part) if peer.peer_id != me)
        await collect(sources, self.manifest, part, round, replicas(peers), self.shelf, self._check)

    async def _check(self, blob: bytes, name: ContributionName) -> None:
        """Decode what a peer sent; whatever is wrong with it shows here."""
        contribution = await self.torch_thread.run(decode, blob, self.manifest)
        if contribution.name != name or contribution.run != self.discovery.run_id:
            raise FormatError(f"{name} turned out to be {contribution.name} of run {contribution.run[:8]}")
        self.decoded[name] = contribution


def embedding_digest(grid: Mapping[str, Tensor]) -> str:
    """What frames carry: the digest of the token embedding's grid."""
    return digest({EMBEDDING_TENSOR: grid[EMBEDDING_TENSOR]})
