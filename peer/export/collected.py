"""The whole model after one round, from peers' folders: closed rounds from a snapshot, open ones from what they keep.
From a running swarm, an observer comes, catches up and goes, and its folder is taken.

Nothing is changed in the folders, whose peers may be at work. Each part is what a peer that starts from its folder
makes of it, so it has the digest that this peer tells.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.daemon import run_until
from peer.data.batches import Batch
from peer.export.written import Collected, named, run_file
from peer.model.first_weights import read_part
from peer.optim.grid import grid_digest
from peer.optim.outer import Grid, OuterState
from peer.settings import PeerSettings
from peer.store import checkpoint
from peer.store.checkpoint import Settled
from peer.store.served import ContributionStore, SnapshotStore
from peer.swarm.node import Node
from peer.swarm.presence import outer_loop, swarm_membership
from peer.swarm.rounds.catch_up import agree, catch_up
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import to_torch
from peer.telemetry.status import EventStream
from protocol.codec.contribution import Contribution, decode
from protocol.codec.snapshot import Header
from protocol.errors import FormatError, ResourceError, UnreachableError, UserError
from protocol.events.activity import Failed, Finished, Joined, Progress
from protocol.events.decisions import Left, Placed
from protocol.events.event import Event, Listener
from protocol.identity import Part, PeerId
from protocol.layout import elements, model_layout
from protocol.outer.history import History
from protocol.outer.ledger import Ledger
from protocol.outer.window import Window
from protocol.run.run_files import BASIS, HELD_OUT, TOKENIZER, TRAIN, Descriptor, genesis_file, read_kept
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import read_entry, read_revocation
from protocol.trust.ticket import Ticket

OBSERVER = "observer"
"""Beneath a bootstrap node's folder, where the observer beside it keeps its own."""

CATCH_UP_ATTEMPTS = 30
"""Attempts at catching up, a second or more apart: peers come and go."""

TRIES_ALONE = 5
"""The number of attempts where nobody is there at all."""


@dataclass(frozen=True, slots=True)
class PeerFolder:
    """A folder in which a peer of the run keeps its state, and what it noted of that last."""

    folder: Path
    settled: Settled


def collect(folders: Sequence[Path], round: int | None, emit: Listener) -> Collected:
    """The model after `round`, or after the last one that all folders have finished.

    Raises:
        UserError: the folders are not of one run, or have no such round.
        ResourceError: a part is in no folder, or what is there is damaged.
    """
    descriptor, *others = [read_kept(folder) for folder in folders]
    if any(folder_run.run_id != descriptor.run_id for folder_run in others):
        raise UserError(f"{named(folders)} are of different runs")
    places = [kept_folder for folder in folders if (kept_folder := _place(folder)) is not None]
    last = min((kept_folder.settled.round for kept_folder in places), default=0)
    chosen = last if round is None else round
    if not 0 <= chosen <= last:
        raise UserError(f"there is no round {chosen} here: round {last} is the last one finished in {named(folders)}")
    if not places:
        emit(Progress(f"{named(folders)}: no peer's state, so these are the weights that the run began with"))
    everywhere = tuple(dict.fromkeys([*folders, *(kept_folder.folder for kept_folder in places)]))
    grids, digests, counted = {}, {}, {}
    layouts, done = model_layout(descriptor.manifest), 0
    total = sum(map(elements, layouts.values()))
    for part, layout in layouts.items():
        emit(Progress(f"collecting {part} after round {chosen}", 4 * done, 4 * total))
        grids[part], digests[part], counted[part] = _part(descriptor, part, places, everywhere, chosen)
        done += elements(layout)
    for name in (TOKENIZER, BASIS):
        run_file(descriptor, everywhere, name)
    return Collected(descriptor, chosen, grids, digests, counted, everywhere)


def _place(folder: Path) -> PeerFolder | None:
    """The state in a folder, or, of the operator's node, in that of the observer beside it; None if there is none."""
    for own in (folder, folder / OBSERVER):
        if (settled := checkpoint.last_settled(own)) is not None:
            return PeerFolder(own, settled)
    return None


def _part(
    descriptor: Descriptor, part: Part, places: Sequence[PeerFolder], folders: Sequence[Path], round: int
) -> tuple[Grid, str, History]:
    """One part after a round, the same from all folders that have it; before round 1 from the run's files."""
    states: dict[str, tuple[Grid, History]] = {}
    reasons: list[str] = []
    for kept_folder in places:
        if part not in kept_folder.settled.digests:
            continue
        try:
            grid, history = _part_in(kept_folder, descriptor, part, folders, round)
        except ResourceError as error:
            reasons.append(str(error))
        else:
            states[grid_digest(grid)] = grid, history
    if not states and not round:
        grid = _first(descriptor, part, folders)
        states[grid_digest(grid)] = grid, History()
    if not states:
        which = "; ".join(reasons) or f"none of {named(folders)} holds it: give the folder of a peer that does, too"
        raise ResourceError(f"{part} after round {round}: {which}")
    if len(states) > 1:
        raise ResourceError(
            f"the folders hold {len(states)} different states of {part} after round {round}: ask the swarm, by a ticket"
        )
    ((name, (grid, history)),) = states.items()
    return grid, name, history


def _first(descriptor: Descriptor, part: Part, folders: Sequence[Path]) -> Grid:
    """The weights that a part began with."""
    tensors = read_part(run_file(descriptor, folders, genesis_file(part)).parent, descriptor.manifest, part)
    return OuterState.begin(descriptor.manifest, part, tensors, author=False).grid


def _part_in(
    place: PeerFolder, descriptor: Descriptor, part: Part, folders: Sequence[Path], round: int
) -> tuple[Grid, History]:
    """One part by one folder: from the last state that is not after the round, or the first weights, and on with what
    counted since.

    Raises:
        ResourceError: this folder has not what it takes.
    """
    manifest, last = descriptor.manifest, descriptor.manifest.outer.last_applied(round)
    newest, base, counted, start = None, 0, History(), None
    for header, tensors in SnapshotStore(place.folder / "snapshots", manifest).on_disk(part):
        newest = newest or header
        if header.round <= last:
            base, counted, start = header.round, header.history.copy(), to_torch(tensors)
            break
    start = start or _first(descriptor, part, folders)
    state = OuterState.begin(manifest, part, start, author=False)
    if base < last:
        shelved = _read_shelf(place, descriptor, part, newest)
        for number in range(base + 1, last + 1):
            chosen = shelved.chosen(number)
            if chosen:
                state.replace([], [shelved.read(chosen[author], descriptor, number) for author in sorted(chosen)])
            counted.add(number, chosen)
    return state.grid, counted


@dataclass(frozen=True, slots=True)
class Shelved:
    """The contributions to a part that a folder has. `ledger` is as when its peer starts again; `closed` are the rounds
    before, as far as they are kept: round → author → SHA-256 of what counts."""

    contribution_store: ContributionStore
    ledger: Ledger
    closed: dict[int, dict[PeerId, str]]

    def chosen(self, round: int) -> dict[PeerId, str]:
        """Return the contributions that count in a round. Raises ResourceError unless all of them are here."""
        if round > self.ledger.folded:
            return self.ledger.chosen(round)
        chosen, history = self.closed.get(round, {}), self.ledger.history
        if missing := [author for author in history.ranges if history.has(author, round) and author not in chosen]:
            raise ResourceError(
                f"{self.contribution_store.directory} no longer has what {len(missing)} peer(s) contributed to round "
                f"{round}: rounds from {self.ledger.folded} on are here"
            )
        return chosen

    def read(self, sha256: str, descriptor: Descriptor, round: int) -> Contribution:
        """One of them. Raises ResourceError if it is not what it is kept as."""
        try:
            found = decode(self.contribution_store.read(sha256), descriptor.manifest)
        except (OSError, FormatError) as error:
            raise ResourceError(f"cannot read a contribution in {self.contribution_store.directory}: {error}") from None
        if (found.run, found.name.part, found.name.round) != (descriptor.run_id, self.ledger.part, round):
            raise ResourceError(
                f"{self.contribution_store.directory} holds a contribution to something else than its name says"
            )
        return found


def _read_shelf(place: PeerFolder, descriptor: Descriptor, part: Part, newest: Header | None) -> Shelved:
    """Raises ResourceError if a contribution there is damaged: a state without it would be nobody's."""
    outer, authority = descriptor.manifest.outer, Authority(descriptor.run_id, descriptor.operator)
    contribution_store, ledger = (
        ContributionStore(place.folder / "contributions"),
        Ledger(part, PeerId(""), Window(outer.grace, outer.liars)),
    )
    if newest is not None:
        ledger.adopt(newest.round, newest.history.copy())
    ledger.advance(place.settled.round + 1)
    shelf, files, whole_ones = (
        Shelved(contribution_store, ledger, {}),
        len(list(contribution_store.directory.glob(f"{part}/????????-*"))),
        0,
    )
    for signed in contribution_store.revocations():
        ledger.revoke(read_revocation(signed, authority))
    for proof, _, whole in contribution_store.found(part):
        whole_ones += 1
        try:
            entry = read_entry(proof, [], authority)
        except FormatError:  # of a peer on trial: it counts nowhere
            continue
        if entry.name.round > ledger.folded:
            (ledger.take if whole else ledger.offer)(entry, vouched=True)
        elif whole and ledger.history.has(entry.name.author, entry.name.round):
            shelf.closed.setdefault(entry.name.round, {})[entry.name.author] = entry.sha256
    if whole_ones < files:
        raise ResourceError(
            f"{files - whole_ones} of {files} contributions in {contribution_store.directory / part} are damaged, or "
            "were dropped just now by its peer: try again, or ask the swarm, with a ticket"
        )
    return shelf


# From the swarm


async def bring_up_to_date(
    ticket: Ticket, folder: Path, threads: int, evaluates: bool, stop: asyncio.Event, emit: Listener
) -> Batch | None:
    """Take over what the swarm agrees on: states that more peers than may lie announce alike, and the contributions
    since, which their authors signed. `evaluates`: also read the held-out text, which is returned then.

    Raises:
        UnreachableError: nobody is in the run, or those who are do not give the state.
        HetpeerError: there is no place for an observer; the message says why.
    """
    without = (TRAIN,) if evaluates else (TRAIN, HELD_OUT)
    settings = PeerSettings(ticket=ticket, role="observer", directory=folder, threads=threads, without=without)

    held_out: Batch | None = None

    async def follow(node: Node) -> None:
        nonlocal held_out
        if evaluates:
            async with node.workplace.reading(node.emit) as reader:
                held_out = await reader.held_out()
        outer = await outer_loop(node, [])
        async with swarm_membership(node, outer):
            await _catch_up(outer)
            node.leave()

    await run_until(stop, settings, EventStream([of_a_visit(emit)]), follow)
    return held_out


def of_a_visit(emit: Listener) -> Listener:
    """Tell `emit` of a visit's events, but for those of a peer that takes part: its place, and that it goes. Errors are
    told by the command."""

    def on_event(event: Event) -> None:
        if not isinstance(event, Joined | Placed | Left | Finished | Failed):
            emit(event)

    return on_event


async def _catch_up(outer: OuterLoop) -> None:
    """Raises UnreachableError if the last round that the others were seen to finish cannot be had. They may go
    meanwhile: what they had has come by then, or has not."""
    met, last, witnesses = False, 0, outer.reconciler.witnesses
    for attempt in range(CATCH_UP_ATTEMPTS):
        met, last = met or bool(outer.discovery.others()), max(last, outer.view().run)
        if met and outer.clock > last and not witnesses.unanswered():
            await agree(outer)
            return
        if not met and attempt == TRIES_ALONE:
            break
        await outer.discovery.news.wait(1.0)
        await outer.discovery.read()
        await catch_up(outer)
    if not met:
        raise UnreachableError(
            "nobody is in the run now: instead of the ticket, give the folder of a peer or of the bootstrap node"
        )
    raise UnreachableError(f"round {last} cannot be had: those who hold it do not answer, or are gone; try again")
