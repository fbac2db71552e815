"""The outer state of one peer, through all rounds: contribute, wait for the others, settle what counts."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from peer.events import Contributed, Listener
from peer.handoff import TorchThread
from peer.network.discovery import Discovery
from peer.network.reconciliation import Reconciler
from peer.optim.bounds import check_magnitudes
from peer.optim.grid import digest
from peer.optim.outer import OuterState
from peer.swarm.deadline import Pace
from peer.swarm.view import awaited, replicas
from protocol.contribution import Contribution, decode
from protocol.errors import FormatError
from protocol.identity import Part, PeerId
from protocol.layout import EMBEDDING_TENSOR
from protocol.ledger import Claim, Entry, Ledger
from protocol.manifest import Manifest
from protocol.reconciliation import Authored

CATCH_UP_TRIES = 20

CLAIMS_KEPT = 8
"""Closed rounds whose digest a peer remembers, to compare with peers that are behind."""


@dataclass(slots=True)
class FollowedPart:
    """One part of the model as this peer follows it.

    `settled` is what is in the grid of each open round; `authored` what the error feedback was charged for.
    """

    state: OuterState
    ledger: Ledger
    authored: Authored = field(default_factory=Authored)
    settled: dict[int, dict[PeerId, str]] = field(default_factory=dict)
    digest: str = ""


@dataclass(slots=True)
class OuterLoop:
    """The outer state of every part that this peer follows, and what it needs to advance it."""

    manifest: Manifest
    parts: dict[Part, FollowedPart]
    discovery: Discovery
    reconciler: Reconciler
    torch_thread: TorchThread
    emit: Listener
    pace: Pace
    started: float = field(default_factory=time.monotonic)
    """When the round began here."""
    arrivals: dict[Part, dict[PeerId, float]] = field(default_factory=dict)
    """When the contributions to this round came."""
    fresh: dict[str, Contribution] = field(default_factory=dict)
    """Contributions decoded when they came, until they are settled."""

    @property
    def grids(self) -> dict[Part, dict[str, Tensor]]:
        """θ of every part, in units of 2⁻²⁶."""
        return {part: each.state.grid for part, each in self.parts.items()}

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the grid of every part, as it was settled last."""
        return {str(part): each.digest for part, each in self.parts.items()}

    @property
    def clock(self) -> int:
        """The round this peer works on."""
        return self.discovery.record.round + 1

    @property
    def over(self) -> bool:
        """Whether the last round is finished."""
        return self.clock > self.manifest.outer.rounds

    @property
    def begun(self) -> bool:
        """A run begins when all the replicas of its manifest have formed; who comes later finds it under way."""
        formed = len(replicas(self.discovery.peers())) >= self.manifest.replicas.total
        return formed or self.clock > 1 or self._others_at() > 0

    async def catch_up(self) -> None:
        """Go to where the others are: take from them, by their word, what counted while this peer was not there."""
        await self._compare_with_all()
        target = self._others_at()
        if target < self.clock:
            return
        self.reconciler.witnesses = min(self.manifest.outer.liars + 1, len(self.discovery.others()))
        for part, each in self.parts.items():
            each.ledger.advance(target + 1)
            self.reconciler.catch_up(part, target)
        for _ in range(CATCH_UP_TRIES):
            await self._compare_with_all()
            if self.reconciler.caught_up:
                break
        self.discovery.tell(round=target)
        await self.settle()

    async def _compare_with_all(self) -> None:
        await asyncio.gather(*(self.reconciler.compare(peer) for peer in self.discovery.others()))

    async def compare_with(self, peer: PeerId) -> None:
        """Take from one peer what it has and this one has not."""
        if peer in self.discovery.records:
            await self.reconciler.compare(self.discovery.records[peer])

    # A round

    async def contribute(self, round: int, steps: int, moved: Mapping[Part, Mapping[str, Tensor]]) -> None:
        """Publish this replica's contribution to every part it authors.

        If this peer made one for the round already, as a member of another group, or the round is over, Δ goes into
        the error feedback, and later contributions carry it.
        """
        self.discovery.tell(contributed=max(round, self.discovery.record.contributed))
        for part, tensors in moved.items():
            followed = self.parts[part]
            if round in followed.authored.sent or round < self.clock or not steps:
                await self.torch_thread.run(followed.state.absorb, tensors)
                continue
            run, me = self.discovery.run_id, self.discovery.record.peer_id
            blob, sent = await self.torch_thread.run(followed.state.contribute, run, round, me, steps, tensors)
            followed.authored.send(sent.name)
            entry = await self.reconciler.publish(part, round, blob)
            self.fresh[entry.sha256] = sent
        await self.discovery.publish()
        self.emit(Contributed(round, steps))

    async def finish(self, round: int) -> dict[str, int]:
        """Wait for the others, settle, and go on to the next round; the number of contributions by part."""
        await self.wait_for_others(round)
        for part in self.parts:
            self.pace.remember(self._arrived(part), self._expected(part, round))
        self.discovery.tell(round=max(round, self._others_at()))
        counts: dict[str, int] = {part: len(each.ledger.chosen(round)) for part, each in self.parts.items()}
        await self.settle()
        self.arrivals.clear()
        self.started = time.monotonic()
        await self.discovery.publish()
        return counts

    def late(self, round: int) -> bool:
        """Whether a replica that still trains in this round should end its inner loop with the steps it has."""
        if self._others_at() >= round:
            return True
        self._note_arrivals(round)
        now = time.monotonic()
        stops = [self.pace.stop(self.started, self._arrived(part), self._expected(part, round)) for part in self.parts]
        return any(stop is not None and now > stop for stop in stops)

    async def wait_for_others(self, round: int, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Until the contributions of all who train are here, the deadline has passed, or the others have gone on; False
        if interrupted before."""
        while not self._complete(round):
            if interrupted():
                return False
            self._note_arrivals(round)
            waits = [
                self.pace.wait(self.started, self._arrived(part), self._expected(part, round)) for part in self.parts
            ]
            known = [wait for wait in waits if wait is not None]
            left = max(known) - time.monotonic() if len(known) == len(waits) else None
            if left is not None and left <= 0:
                break
            await self.discovery.news.wait(min(left, 1.0) if left is not None else 1.0)
        self._note_arrivals(round)
        return True

    def _complete(self, round: int) -> bool:
        return self._others_at() > round or all(
            self._awaited(part, round) <= each.ledger.accepted.get(round, {}).keys()
            and len(each.ledger.accepted.get(round, {})) >= self._least(round)
            for part, each in self.parts.items()
        )

    def _others_at(self) -> int:
        return self.discovery.common_round(self.manifest.outer.liars)

    def _least(self, round: int) -> int:
        """The first round is of all who began the run together, seen already or not; no round is of nobody."""
        return self.manifest.replicas.total if round == 1 else 1

    def _expected(self, part: Part, round: int) -> int:
        return max(len(self._awaited(part, round)), self._least(round))

    def _awaited(self, part: Part, round: int) -> frozenset[PeerId]:
        return awaited(self.discovery.peers(), part, round)

    def _arrived(self, part: Part) -> list[float]:
        return list(self.arrivals.get(part, {}).values())

    def _note_arrivals(self, round: int) -> None:
        now = time.monotonic()
        for part, each in self.parts.items():
            for author in each.ledger.accepted.get(round, {}):
                self.arrivals.setdefault(part, {}).setdefault(author, now)

    # What counts

    async def settle(self) -> None:
        """Bring every grid to what the ledgers say, and close the rounds that are due."""
        for part in self.parts:
            await self.settle_part(part)
        self.fresh.clear()

    async def settle_part(self, part: Part) -> None:
        """Bring one grid to its ledger's set. With `overlap`, the last round's contributions wait for the next time."""
        followed = self.parts[part]
        last = self.clock - 1 - int(self.manifest.outer.overlap and not self.over)
        due = followed.ledger.advance(self.clock)
        for round in sorted({*followed.ledger.open_rounds(), *followed.settled}):
            if round <= last:
                await self._settle_round(followed, round)
        for round in due:
            await self._settle_round(followed, round)
            followed.ledger.fold(round)
            await self._fold(part, round, followed.settled.pop(round, {}))
        followed.digest = await self.torch_thread.run(digest, followed.state.grid)

    async def _settle_round(self, followed: FollowedPart, round: int) -> None:
        """Put a round's set into the grid; again, if it changes meanwhile."""
        while (after := followed.ledger.chosen(round)) != (before := followed.settled.get(round, {})):
            contributions = await self._contributions(before), await self._contributions(after)
            await self.torch_thread.run(followed.state.replace, *contributions)
            followed.settled[round] = after

    async def _fold(self, part: Part, round: int, chosen: Mapping[PeerId, str]) -> None:
        followed, me = self.parts[part], self.discovery.record.peer_id
        await self.torch_thread.run(followed.state.fold, await self._contributions(chosen))
        self.reconciler.shelf.drop(part, round, keep=chosen.get(me))
        await self.claim(part)

    async def claim(self, part: Part) -> None:
        """Tell the digest of the closed rounds."""
        followed = self.parts[part]
        ledger = followed.ledger
        folded = await self.torch_thread.run(digest, followed.state.folded)
        claim = Claim(ledger.folded, folded, ledger.history.total(), bool(self.discovery.record.replica))
        self.reconciler.claims[part] = [*self.reconciler.claims.get(part, []), claim][-CLAIMS_KEPT:]

    async def _contributions(self, chosen: Mapping[PeerId, str]) -> list[Contribution]:
        return [await self.torch_thread.run(self._read, sha256) for sha256 in chosen.values()]

    def _read(self, sha256: str) -> Contribution:
        """On the torch thread."""
        found = self.fresh.get(sha256)
        return found if found is not None else decode(self.reconciler.shelf.read(sha256), self.manifest)

    async def check(self, blob: bytes, entry: Entry) -> None:
        """Decode what a peer sent; whatever is wrong with it shows here.

        Raises:
            FormatError: it is not a valid contribution, or not the one that was signed.
        """
        contribution = await self.torch_thread.run(decode, blob, self.manifest)
        if contribution.name != entry.name or contribution.run != self.discovery.run_id:
            raise FormatError(f"{entry.name} turned out to be {contribution.name} of run {contribution.run[:8]}")
        await self.torch_thread.run(check_magnitudes, contribution, self.manifest)
        if entry.name.round >= self.clock:
            self.fresh[entry.sha256] = contribution


def embedding_digest(grid: Mapping[str, Tensor]) -> str:
    """What frames carry: the digest of the token embedding's grid."""
    return digest({EMBEDDING_TENSOR: grid[EMBEDDING_TENSOR]})
