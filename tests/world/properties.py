"""What must be true when a schedule has been played, beside what `play` itself sees of the end."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from peer.cli.credit import check_receipts
from peer.model.first_weights import read_part
from peer.optim.grid import grid_digest as digest_of
from peer.process import INTERRUPTED
from peer.store.receipt_file import RECEIPTS
from peer.telemetry.status import Status
from protocol.errors import ResourceError, UnreachableError
from protocol.events.activity import Contributed, Finished, GroupBroken, Joined, Progress, StepDone
from protocol.events.event import Event
from protocol.events.group_decisions import Dismissed
from protocol.identity import EMBEDDING, Part, PeerId, contributes_to
from protocol.manifest import Manifest
from protocol.outer.data_plan import OWN_ORDER, chunks
from tests.reference import sparse_outer
from tests.world.evidence import Chosen, Evidence, Held, PartHeld, integers, sparse
from tests.world.owners import Owner, Process
from tests.world.world import World

PARTIAL = (".partial", ".part", ".tmp")
"""The endings of files that are being written."""

SILENT_SECONDS = 20.0
"""So long a peer may do nothing and say nothing."""

DOING_SECONDS = 30.0
"""So long it may be at what it has said that it does: a question to a node is given up after 20."""

THERE_SECONDS = 60.0
"""Who has been there for so long before anybody goes has the last state."""

OVER_SECONDS = 16.0
"""By so much a wait may last longer than it was told to last at most: at its end the others are looked at once more."""

MOST_SLOW = 3.0
"""Whose machine is so many times slower keeps these times; who is slower still has more of it."""

LATE_SECONDS = 10.0
"""Within this time a stranger who comes after the end is told so, and ends."""

BACK_SECONDS = 30.0
"""Within this time one that has been in the run before is: it looks for others for five seconds, and its machine may be
slow and far away."""


def at_the_end(world: World, peers: list[Owner], quiet_since: float) -> list[str]:
    """What is wrong with how peers have ended, what they hold, and what they have told; empty: nothing. `quiet_since`:
    when the last thing was broken."""
    return [
        *_ends(world, peers),
        *_misses(peers, quiet_since),
        *_files(peers),
        *_silences(world, peers),
        *_accused(peers),
        *_credit(world, peers),
        *world.evidence.objections,
        *_states(world),
        *_error_feedback(world.evidence),
        *_read_once(world),
    ]


def _ends(world: World, peers: list[Owner]) -> Iterable[str]:
    """Exit codes, and one state at the end, where the run was never in so few hands that nobody could know it."""
    digests: dict[str, dict[str, str]] = {}
    for owner in peers:
        for run in owner.runs:
            joined = any(isinstance(event, Joined) for _, event in run.events)
            known = (0, None) if run is owner.runs[-1] and not owner.left else (0, None, INTERRUPTED)
            unreached = run.exit_code == UnreachableError.exit_code and not joined  # the node was away
            full = run.exit_code == ResourceError.exit_code and run.was_full
            if run.exit_code not in known and not unreached and not full:
                yield f"{owner.name} ends with {run.exit_code}: {run.error}"
            for finished in (event for _, event in run.events if isinstance(event, Finished)):
                for part, digest in finished.digests.items():
                    digests.setdefault(str(part), {})[owner.name] = digest[:8]
    for part, said in digests.items():
        if len(set(said.values())) > 1 and not _in_few_hands(world, peers, Part(part)):
            yield f"at the end {part} has {len(set(said.values()))} states: {said}"
    if not digests:
        yield "nobody has finished the run"


def _in_few_hands(world: World, peers: list[Owner], part: Part) -> bool:
    """Whether no more peers have contributed to a part in a round than may lie in this run: who lost its folder, or
    comes then, can tell their state from no liar's, and goes its own way."""
    outer = world.manifest.outer
    authors: dict[int, set[str]] = {round: set() for round in range(1, outer.rounds + 1)}
    for owner in peers:
        if contributes_to(owner.role, owner.stage or 0, part):
            for _, event in (each for run in owner.runs for each in run.events):
                if isinstance(event, Contributed) and event.round in authors:
                    authors[event.round].add(owner.name)
    return any(len(each) <= outer.liars for each in authors.values())


def slowness(owner: Owner) -> float:
    """How much more time than others somebody has: none but where its machine is slower than slow."""
    return max(1.0, owner.machine.speed / MOST_SLOW)


def _misses(peers: list[Owner], quiet_since: float) -> Iterable[str]:
    """Who was there, undisturbed, for long before the first peer went, and goes without the last state."""
    ends = [at for owner in peers for run in owner.runs for at, event in run.events if isinstance(event, Finished)]
    for owner in peers:
        run = owner.runs[-1]
        there = min(ends, default=0.0) - max(run.started_at, quiet_since) >= slowness(owner) * THERE_SECONDS
        if there and run.exit_code == 0 and not any(isinstance(event, Finished) for _, event in run.events):
            yield f"{owner.name} was there all the time, and goes without the last state"


def _files(peers: list[Owner]) -> Iterable[str]:
    """Files that are half written. Who was stopped while it fetched the run's files, and came back only when the run
    was over, keeps what it has: a fetch goes on from there."""
    joined = [
        owner for owner in peers if any(isinstance(event, Joined) for run in owner.runs for _, event in run.events)
    ]
    left = [path.name for owner in joined for path in owner.folder.rglob("*") if path.suffix in PARTIAL]
    if left:
        yield f"files are half written: {left}"


def _accused(peers: list[Owner]) -> Iterable[str]:
    """Who avoids a neighbour of its group: all are honest here."""
    for owner in peers:
        for event in (event for run in owner.runs for _, event in run.events if isinstance(event, Dismissed)):
            yield f"{owner.name} dismisses {event.peer[-8:]}: {event.reason}"


# Who waits says so, and for how long


def _silences(world: World, peers: list[Owner]) -> Iterable[str]:
    for owner in peers:
        for run in owner.runs:
            yield from _silence(run, run.ended_at if run.ended_at is not None else world.loop.now, slowness(owner))


def is_progress(event: Event) -> bool:
    """Whether a peer has done something when it tells this."""
    return type(event).__name__ not in ("Pulse", "Credited", "Refused", "Avoided", "Waiting")


def _silence(run: Process, ends: float, more: float) -> Iterable[str]:
    """Where a process has done nothing for long, and not said what it waits for, or waited longer than it said. A
    machine that is so many times slower than slow may take so much longer."""
    status, acted = Status(), run.started_at
    for at, event in [*run.events, (ends, None)]:
        told = status.waiting is not None or status.state == "paused"
        silent = at - acted - run.stopped_between(acted, at)
        if silent > more * (DOING_SECONDS if status.doing else SILENT_SECONDS) and not told:
            yield (
                f"{run.name} was silent for {silent:.0f} s, from {acted:.1f} s on: {status.state}, {status.doing!r}, "
                f"round {status.round}"
            )
            acted = at
        wait = status.waiting
        if wait is not None and wait.most_seconds is not None:
            waited = at - status.waits_since - run.stopped_between(status.waits_since, at)
            if waited > wait.most_seconds + more * OVER_SECONDS:
                yield f"{run.name} waited {waited:.0f} s, and said {wait.most_seconds:.0f}, for {wait.waits_for!r}"
        if event is None:
            return
        status.take(event, at)
        if told or is_progress(event):
            acted = at


# Credit


def _credit(world: World, peers: list[Owner]) -> Iterable[str]:
    """Receipts hold, show no more than was done, and come to what the peer says of them."""
    for owner in peers:
        if not (owner.folder / RECEIPTS).is_dir():
            continue
        checked = check_receipts(owner.folder)
        yield from (f"{owner.name} has a receipt that does not hold: {each.why}" for each in checked.refused)
        me = checked.verifier.receiver
        runs = [run for run in owner.runs if run.status.peer_id == me]
        done: Counter[int] = Counter()
        for run in runs:
            for _, event in run.events:
                if isinstance(event, StepDone):
                    done[event.round] += event.tokens
                if isinstance(event, GroupBroken):  # the others may have taken the step that it has not
                    done[event.round] += world.manifest.tokens_per_step
        for each in checked.rounds:
            untold = (len(runs) - 1) * world.manifest.tokens_per_step  # who dies in a step does not tell of it
            if each.tokens > done[each.round] + untold:
                did = done[each.round]
                yield f"{owner.name} has receipts of {each.tokens} tokens in round {each.round}, and did {did}"
            if each.tokens_of_both > each.tokens:
                yield f"{owner.name}'s receipts of round {each.round} contradict each other: {each}"
        folder, told = sum(each.tokens for each in checked.rounds), owner.runs[-1].status.credit
        if owner.runs[-1].exit_code == 0 and runs and told != folder:
            yield f"{owner.name} says that it has credit for {told} tokens, and its receipts show {folder}"


# The state is F over what counts


def _states(world: World) -> Iterable[str]:
    """θ of each peer that has finished is the genesis less F of each round's set, computed afresh."""
    manifest, afresh = world.manifest, {}
    for held in world.evidence.held:
        for part, each in held.parts.items():
            counted = _counted(world.evidence, part, each)
            if isinstance(counted, str):
                yield f"{held.process}: {counted}"
                continue
            key = part, tuple((round, tuple(sorted(chosen.values()))) for round, chosen in sorted(counted.items()))
            if key not in afresh:
                afresh[key] = _afresh(world, part, counted, manifest)
            if afresh[key] != each.digest:
                yield f"{held.process} holds another state of {part} than F over what counts"


def _counted(evidence: Evidence, part: Part, held: PartHeld) -> dict[int, Chosen] | str:
    """Round → what counts in it, by what a peer holds; or what is wrong with that."""
    found = {round: dict(chosen) for round, chosen in held.open.items()}
    for sha256, sent in evidence.made.items():
        name = sent.name
        if name.part != part or name.round > held.folded or not held.history.has(name.author, name.round):
            continue
        closed_with = evidence.folded.get((part, name.round), {}).get(name.author, {sha256})
        if sha256 in closed_with:
            chosen = found.setdefault(name.round, {})
            if name.author in chosen:
                return f"two contributions {name} count"
            chosen[name.author] = sha256
    closed = sum(len(chosen) for round, chosen in found.items() if round <= held.folded)
    if closed != held.history.total():
        return f"{held.history.total()} contributions to {part} count in closed rounds, and {closed} of them were made"
    return found


def _afresh(world: World, part: Part, counted: Mapping[int, Chosen], manifest: Manifest) -> str:
    """The digest of θ, by the reference."""
    theta = integers(read_part(world.files, manifest, part))
    shapes, outer = {name: each.shape for name, each in theta.items()}, manifest.outer
    for round, chosen in counted.items():
        eta = sparse_outer.rate(outer.learning_rate, outer.final_learning_rate, round, outer.rounds)
        said = [sparse(world.evidence.made[sha256], shapes, world) for sha256 in chosen.values()]
        steps = [max(1, world.evidence.made[sha256].steps) for sha256 in chosen.values()]
        weights = steps if manifest.outer.weights == "steps" else None
        for name, shape in shapes.items() if said else ():
            sent = [each[name] for each in said]
            if manifest.outer.clip == "median":
                sent = sparse_outer.clip(sent, shape, manifest.outer.chunk_side)
            term = sparse_outer.outer_term(sent, shape, eta, manifest.outer.aggregate, weights)
            theta[name] -= term
    return digest_of({name: torch.from_numpy(tensor.astype(np.int32)) for name, tensor in theta.items()})


def _error_feedback(evidence: Evidence) -> Iterable[str]:
    """An author's error feedback is charged for what counts of its own in closed rounds, and for nothing else there;
    and for what is in the grid of an open one. No handover is in two of them."""
    successors: dict[tuple[Part, str], str] = {}
    for held in evidence.held:
        for part, each in held.parts.items():
            if each.account is None:
                continue
            counted = _counted(evidence, part, each)
            if isinstance(counted, str):
                continue
            own = {chosen[held.peer_id] for chosen in counted.values() if held.peer_id in chosen}
            charged = {evidence.contents[content] for content in each.account.taken}
            if missing := own - charged:
                yield f"{held.process} is not charged for {_names(evidence, missing)}, which counts"
            closed = {sha256 for sha256 in charged if evidence.made[sha256].name.round <= each.folded}
            if kept := closed - own:
                yield f"{held.process} is charged for {_names(evidence, kept)}, which counts nowhere"
            for handover in each.account.taken_over:
                if (other := successors.setdefault((part, handover), held.process)) != held.process:
                    yield f"{other} and {held.process} have both taken the same handover of {part}"


def _names(evidence: Evidence, contributions: Iterable[str]) -> str:
    return ", ".join(sorted(str(evidence.made[sha256].name) for sha256 in contributions))


# Text


def _read_once(world: World) -> Iterable[str]:
    """No chunk of text is behind two contributions that count, but for those of peers that had planned by other closed
    rounds than those that stand; and what is read for good, by the plan of what is read, is what is behind those of
    closed rounds."""
    evidence, gateway = world.evidence, any(owner.role == "gateway" for owner in world.owners.values())
    for held in evidence.held:
        if EMBEDDING not in held.parts:
            continue
        each = held.parts[EMBEDDING]
        counted = _counted(evidence, EMBEDDING, each)
        if isinstance(counted, str):
            continue
        read, for_good = Counter[int](), set[int]()
        apart = _planned_apart(evidence, counted)
        for round, chosen in counted.items():
            alike = {author: sha256 for author, sha256 in chosen.items() if author not in apart}
            for behind in _shares(evidence, round, alike, gateway):
                read.update(behind)
            if round <= each.folded:
                for_good = for_good.union(*_shares(evidence, round, chosen, gateway))
        if twice := sorted(chunk for chunk, count in read.items() if count > 1):
            yield f"by {held.process}, chunks {twice} are behind two contributions that count"
        if (planned := _for_good(held)) != for_good:
            yield (
                f"by {held.process}, chunks {sorted(planned ^ for_good)} are read for good and behind nothing "
                "that counts, or the other way round"
            )


def _planned_apart(evidence: Evidence, counted: Mapping[int, Chosen]) -> set[PeerId]:
    """The peers that have closed a round otherwise than it counts, and planned by that what they read."""
    return {
        peer
        for peer, closed in evidence.closed.items()
        if any(counted.get(round, {}) != chosen for round, chosen in closed)
    }


def _shares(evidence: Evidence, round: int, chosen: Chosen, gateway: bool) -> Iterable[set[int]]:
    """The chunks behind each contribution of a round. Two nodes that let newcomers in at the same moment may give both
    the same slot, and so the same share: of these the longer one counts, as the plan has it."""
    by_slot: dict[tuple[int, PeerId], set[int]] = {}
    for author, sha256 in chosen.items():
        sent = evidence.made[sha256]
        spans = evidence.read.get((author, round, sent.steps), ())
        key = (sent.slot, PeerId("") if gateway else author)
        by_slot[key] = by_slot.get(key, set()) | {chunk for chunk in chunks(spans) if chunk < OWN_ORDER}
    return by_slot.values()


def _for_good(held: Held) -> set[int]:
    """The chunks that are read for good, by the plan."""
    reading = held.reading
    open_ones = {*chunks(reading.free)} | {chunk for plan in reading.plans for chunk in chunks(plan.spans)}
    return {*range(reading.fresh)} - open_ones


# Who comes after the end


def told_in_time(world: World, owner: Owner, seconds: float) -> list[str]:
    """What is wrong with how somebody is treated who starts now, when the run is over."""
    process = world.start(owner)
    if not world.run_until(lambda: owner.process is None, seconds):
        status, begun = process.status, process.started_at
        doing = f"{status.state}, {status.doing!r}, waits for {status.waits_for!r}"
        world.run_until(lambda: owner.process is None, 120)
        return [f"{owner.name} comes after the end and goes on for {world.loop.now - begun:.1f} s: {doing}"]
    if process.exit_code != 0:
        return [f"{owner.name} comes after the end and ends with {process.exit_code}: {process.error}"]
    said = any(
        isinstance(event, Finished) or (isinstance(event, Progress) and "the run is over" in event.doing)
        for _, event in process.events
    )
    trained = any(isinstance(event, StepDone | Contributed) for _, event in process.events)
    return [f"{owner.name} comes after the end and is not told so"] * (not said) + [
        f"{owner.name} comes after the end and trains"
    ] * trained
