"""The parts of the model that a peer follows: what counts in each, and the grids that follow from it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer.compute.capacity import give_heap_back
from peer.optim.bounds import check_magnitudes
from peer.optim.grid import grid_digest
from peer.optim.outer import Grid, OuterState
from peer.store.served import SNAPSHOTS_KEPT, ContributionStore, SnapshotStore
from peer.torch_thread import TorchThread
from protocol.codec.contribution import Contribution, decode, max_bytes
from protocol.codec.snapshot import Header
from protocol.errors import FormatError
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, RunId
from protocol.layout import elements, part_layout
from protocol.manifest import Manifest
from protocol.outer.data_plan import Reading
from protocol.outer.history import Claim
from protocol.outer.ledger import Entry, Ledger
from protocol.outer.set_difference import Authored

CLAIMS_KEPT = 8
"""Closed rounds whose digest a peer remembers, to compare with peers that are behind."""


@dataclass(slots=True)
class FollowedPart:
    """One part as this peer follows it.

    `settled` is what is in the grid of each open round, and `steps` the inner steps behind it; `authored` what the
    error feedback was charged for, and `own` where those contributions are: round → SHA-256.
    """

    state: OuterState
    ledger: Ledger
    authored: Authored = field(default_factory=Authored)
    own: dict[int, str] = field(default_factory=dict)
    settled: dict[int, dict[PeerId, str]] = field(default_factory=dict)
    steps: dict[int, dict[PeerId, int]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    digest: str = ""
    """The digest of the grid; empty while the grid changes."""
    left_after: int = 0
    """The last round that this peer had contributed to when it left a stage, this one or another, to move; 0: none."""

    def leave_stage(self, contributed: int) -> None:
        """Note that this peer has left a stage after it had contributed to this round."""
        self.left_after = contributed

    def begin_change(self) -> None:
        """Have no digest while the grid changes."""
        self.digest = ""

    def end_change(self, digest: str) -> None:
        """Note the digest of the grid as it is now."""
        self.digest = digest

    def claim(self, claim: Claim) -> None:
        """Tell the digest of closed rounds from now on, and of the last ones before them."""
        earlier = [earlier for earlier in self.claims if earlier.folded < claim.folded]
        self.claims = [*earlier, claim][-CLAIMS_KEPT:]

    def forget_own(self, rounds: Collection[int]) -> None:
        """Forget where this peer's own contributions to other rounds are."""
        self.own = {round: sha256 for round, sha256 in self.own.items() if round in rounds}

    def begin_anew(self) -> None:
        """Have nothing of open rounds in the grid, which has become another's."""
        self.settled, self.steps, self.claims, self.digest = {}, {}, [], ""

    def has_made(self, round: int) -> bool:
        """Whether this peer has made its contribution to a round, or may have, and has forgotten it as it moved."""
        return round in self.own or round <= self.left_after


def replace_in_grid(state: OuterState, before: Sequence[Contribution], after: Sequence[Contribution]) -> None:
    """Follow a change of a round's set in a part's grid, and give the memory of its old tensors back.

    Raises:
        DivergedError: a weight would leave the grid. Nothing is changed then.
    """
    state.replace(before, after)
    give_heap_back(sum(tensor.nbytes for tensor in state.grid.values()))


def contribute_from(
    state: OuterState, run_id: RunId, round: int, author: PeerId, steps: int, moved: Mapping[str, Tensor], slot: int
) -> tuple[bytes, Contribution]:
    """Make the contribution of a part (`OuterState.contribute`), and give the memory of what it was made of back."""
    blob, sent = state.contribute(run_id, round, author, steps, moved, slot)
    give_heap_back(sum(tensor.nbytes for tensor in state.grid.values()))
    return blob, sent


@dataclass(slots=True)
class FollowedParts:
    """All parts of the model that a peer follows, and where their contributions are."""

    manifest: Manifest
    run_id: RunId
    me: PeerId
    parts: dict[Part, FollowedPart]
    contribution_store: ContributionStore
    snapshots: SnapshotStore
    torch_thread: TorchThread
    fresh: dict[str, Contribution] = field(default_factory=dict)
    """Contributions decoded when they came, until they are settled."""
    reading: Reading = field(init=False)
    """The chunks of text that have been read, and those that are to be: a function of the embedding's closed rounds,
    for the peers that follow it."""

    def __post_init__(self) -> None:
        """Begin before round 1."""
        self.reading = Reading.begin(self.manifest)

    @property
    def grids(self) -> dict[Part, dict[str, Tensor]]:
        """θ of every part, in units of 2⁻²⁶: the dictionaries themselves, whose tensors change places on the torch
        thread and are never written to."""
        return {part: followed.state.grid for part, followed in self.parts.items()}

    async def ahead(self, round: int) -> dict[Part, Grid]:
        """Return where this peer's inner loop of `round` starts, for the parts of which its contribution to the round
        before is not applied yet: there its own stands for all."""
        last, found = round - 1, {}
        for part, followed in self.parts.items():
            if last in followed.own and last > self.manifest.outer.last_applied(last):
                own = await self.torch_thread.run(self._read, followed.own[last])
                found[part] = await self.torch_thread.run(followed.state.with_own, own)
        return found

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the grid of every part, as it was settled last."""
        return {str(part): followed.digest for part, followed in self.parts.items()}

    async def settle(self, clock: int, last: int) -> None:
        """Bring every grid to what the ledgers say of rounds up to `last`, and close the rounds that are due."""
        for part in self.parts:
            await self.settle_part(part, clock, last)
        self.fresh.clear()

    async def settle_part(self, part: Part, clock: int, last: int) -> None:
        """Bring one part's grid to what its ledger says of rounds up to `last`, and close its rounds that are due."""
        followed = self.parts[part]
        closed = followed.ledger.advance(clock)
        for round in sorted({*followed.ledger.open_rounds(), *followed.settled, *closed}):
            if round <= last or round in closed:
                while (after := followed.ledger.chosen(round)) != (before := followed.settled.get(round, {})):
                    contributions = await self.read_all(before), await self.read_all(after)
                    followed.begin_change()
                    await self.torch_thread.run(replace_in_grid, followed.state, *contributions)
                    followed.settled[round] = after  # the set may have changed meanwhile
                    followed.steps[round] = {
                        contribution.name.author: contribution.steps for contribution in contributions[1]
                    }
            if round in closed:
                followed.ledger.keep_closed(round)
                followed.ledger.fold(round)
                followed.steps.pop(round, None)
                await self._fold(part, followed.settled.pop(round, {}), lasting=round > closed[-1] - SNAPSHOTS_KEPT)
        followed.end_change(await self.torch_thread.run(grid_digest, followed.state.grid))

    def is_settled(self, last: int) -> bool:
        """Whether every grid has what the ledgers say of rounds up to `last`."""
        return all(
            followed.ledger.chosen(round) == followed.settled.get(round, {})
            for followed in self.parts.values()
            for round in {*followed.ledger.open_rounds(), *followed.settled}
            if round <= last
        )

    def in_grids(self) -> set[str]:
        """SHA-256 of the contributions to open rounds that are in the grids."""
        rounds = (settled for followed in self.parts.values() for settled in followed.settled.values())
        return {sha256 for settled in rounds for sha256 in settled.values()}

    async def _fold(self, part: Part, chosen: Mapping[PeerId, str], lasting: bool) -> None:
        """Close a round for ever: the state after it goes to disk, unless later ones do at once, and old contributions
        leave it."""
        followed = self.parts[part]
        if part == EMBEDDING:
            self.reading = self.reading.fold(steps_read(await self.read_all(chosen)), self.manifest)
        if lasting:
            await self.torch_thread.run(self._keep, part)
        await self._account(followed)
        if lasting:
            self.forget(part)

    def forget(self, part: Part) -> None:
        """Drop the contributions to rounds that are closed for long, but one's own while a state may be adopted that
        counts them or not."""
        followed = self.parts[part]
        folded = followed.ledger.folded
        last = folded - rounds_kept(self.manifest, part)
        followed.ledger.forget_closed(last)
        open_rounds = {round for round in followed.own if round > folded}
        followed.forget_own(open_rounds | followed.authored.sent.keys() | followed.authored.returned.keys())
        self.contribution_store.drop(part, last, keep=followed.own.values())

    def _keep(self, part: Part) -> None:
        """Write the state of a part's closed rounds to disk: θ without its open rounds, whose contributions are on
        disk. Runs on the torch thread."""
        followed = self.parts[part]
        ledger, last_first = followed.ledger, sorted(followed.settled, reverse=True)
        sets = ([self._read(digest) for digest in followed.settled[round].values()] for round in last_first)
        tensors = (tensor.numpy() for tensor in followed.state.closed(sets).values())
        reading = self.reading if part == EMBEDDING else None
        header = self.snapshots.write(part, ledger.folded, ledger.history, tensors, reading)
        self.claim(header)

    def claim(self, header: Header) -> None:
        """Tell the digest of the closed rounds from now on."""
        followed = self.parts[header.part]
        is_author = bool(followed.state.error_feedback)
        followed.claim(Claim(header.round, header.digest, header.history.total(), is_author))

    async def adopt(self, header: Header, folded: Grid) -> int:
        """Take a state over, from this disk or from others; how many of our contributions count nowhere in it, and go
        back into the error feedback."""
        followed = self.parts[header.part]
        followed.ledger.adopt(header.round, header.history.copy())
        self.reading = header.reading or self.reading
        await self.torch_thread.run(followed.state.adopt, folded)
        followed.begin_anew()
        self.claim(header)
        return await self._account(followed)

    async def _account(self, followed: FollowedPart) -> int:
        """Closed rounds decide what the error feedback is charged for; how many contributions went back into it."""
        back, again = followed.authored.adopt(followed.ledger)
        for name in back:
            await self.torch_thread.run(followed.state.put_back, await self._own(name))
        for name in again:
            await self.torch_thread.run(followed.state.take_out, await self._own(name))
        return len(back)

    async def _own(self, name: ContributionName) -> Contribution:
        return await self.torch_thread.run(self._read, self.parts[name.part].own[name.round])

    async def read_all(self, chosen: Mapping[PeerId, str]) -> list[Contribution]:
        """Read the contributions of a set: author → SHA-256."""
        return [await self.torch_thread.run(self._read, sha256) for sha256 in chosen.values()]

    def _read(self, sha256: str) -> Contribution:
        """Decode one contribution, unless it has been decoded already. Runs on the torch thread."""
        found = self.fresh.get(sha256)
        return found if found is not None else decode(self.contribution_store.read(sha256), self.manifest)

    async def check(self, blob: bytes, entry: Entry) -> None:
        """Decode what a peer sent; whatever is wrong with it shows here.

        Raises:
            FormatError: it is not a valid contribution, or not the one that was signed.
        """
        contribution = await self.torch_thread.run(decode, blob, self.manifest)
        if contribution.name != entry.name or contribution.run != self.run_id:
            raise FormatError(f"{entry.name} turned out to be {contribution.name} of run {contribution.run[:8]}")
        if contribution.slot != entry.slot:
            raise FormatError(f"{entry.name} names place {contribution.slot}, and its author's card {entry.slot}")
        await self.torch_thread.run(check_magnitudes, contribution, self.manifest)
        ledger = self.parts[entry.name.part].ledger
        if not ledger.window.is_past(ledger.clock, entry.name.round):  # of those there may be more than memory holds
            self.fresh[entry.sha256] = contribution


def steps_read(contributions: Iterable[Contribution]) -> dict[int, int]:
    """Slot → inner steps, of a round's contributions to the embedding. Of two that name one slot, as liars may, the
    longer counts: better left out than read twice."""
    read: dict[int, int] = {}
    for contribution in contributions:
        read[contribution.slot] = max(read.get(contribution.slot, 0), contribution.steps)
    return read


def rounds_kept(manifest: Manifest, part: Part) -> int:
    """The number of closed rounds whose contributions a peer keeps, for peers that come from an older state: as many as
    the run's replicas make in the bytes of one state. Whoever follows the run at all fetches a state in less time than
    these take; more of them would be more to fetch than a later state."""
    state = 4 * elements(part_layout(manifest, part))
    return state // (manifest.replicas.total * max_bytes(manifest, part))


def to_torch(tensors: Mapping[str, object]) -> Grid:
    """Return arrays as tensors, which share their memory."""
    return {name: torch.from_numpy(array) for name, array in tensors.items()}
