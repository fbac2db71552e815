"""What the peers of a simulated world compute, send and hold, noted as they do it: for what must be true at the end.

Nothing of the story depends on it: what is called does as it would without, and takes no time.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import peer.swarm.group.handover
from peer.optim.grid import grid_digest as digest_of
from peer.optim.outer import FACTOR_ONE, OuterState
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import FollowedParts
from protocol.codec.contribution import Contribution
from protocol.codec.contribution import contribution_digest as sha256_of
from protocol.identity import EMBEDDING, Part, PeerId
from protocol.manifest import Manifest
from protocol.outer.data_plan import Reading, Spans, first_chunks
from protocol.outer.history import History
from protocol.tensor_formats import UNITS_PER_ONE
from tests.reference import sparse_outer
from tests.world.loop import HOST

Integers = dict[str, NDArray[np.int64]]
Chosen = dict[PeerId, str]
"""Author → SHA-256 of its contribution."""


@dataclass(frozen=True, slots=True)
class Account:
    """What an error feedback has been charged for, by `content_of`, and the handovers in it, by their digest."""

    taken: frozenset[str] = frozenset()
    taken_over: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PartHeld:
    """A part as a peer holds it when it has finished: θ's digest, the closed rounds, what is in the grid of open ones.
    `account` is that of its error feedback; None: it authors nothing here."""

    digest: str
    folded: int
    history: History
    open: dict[int, Chosen]
    account: Account | None


@dataclass(frozen=True, slots=True)
class Held:
    """What a peer holds when it has finished the run."""

    process: str
    peer_id: PeerId
    parts: dict[Part, PartHeld]
    reading: Reading


@dataclass(slots=True)
class Evidence:
    """All that was noted in one world, whose manifest this is. `objections` are what cannot be true, seen on the
    spot."""

    manifest: Manifest
    made: dict[str, Contribution] = field(default_factory=dict)
    """Contributions, by SHA-256, as their authors made them."""
    contents: dict[str, str] = field(default_factory=dict)
    """`content_of` a contribution → SHA-256."""
    read: dict[tuple[PeerId, int, int], Spans] = field(default_factory=dict)
    """(author, round, inner steps) → the chunks behind that contribution."""
    folded: dict[tuple[Part, int], dict[PeerId, set[str]]] = field(default_factory=dict)
    """What somebody has closed a round with."""
    closed: dict[PeerId, list[tuple[int, Chosen]]] = field(default_factory=dict)
    """The rounds of the embedding that each peer has closed, and with what."""
    held: list[Held] = field(default_factory=list)
    objections: list[str] = field(default_factory=list)
    _accounts: dict[tuple[str, Part], dict[str, Account]] = field(default_factory=dict)
    """(peer id, part) → the digest of an error feedback that it has had → its account."""
    _now: dict[tuple[Any, Part], set[str]] = field(default_factory=dict)
    """(process, part) → the digests of which one is that of its error feedback now."""
    _given: set[str] = field(default_factory=set)
    """Digests of error feedback that was set aside for a successor."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what peers do in the block."""
        with (
            mock.patch.object(OuterState, "contribute", self._contribute(OuterState.contribute)),
            mock.patch.object(OuterState, "absorb", self._absorb(OuterState.absorb)),
            mock.patch.object(OuterState, "take_out", self._charge(OuterState.take_out, -1)),
            mock.patch.object(OuterState, "put_back", self._charge(OuterState.put_back, 1)),
            mock.patch.object(OuterLoop, "contribute", self._train(OuterLoop.contribute)),
            mock.patch.object(OuterLoop, "announce_finish", self._finish(OuterLoop.announce_finish)),
            mock.patch.object(FollowedParts, "_fold", self._fold(FollowedParts._fold)),
            mock.patch.object(peer.swarm.group.handover, "pack_state", self._give(PACK)),
            mock.patch.object(peer.swarm.group.handover, "added", self._take_over(ADDED)),
            mock.patch.object(peer.swarm.group.handover, "returned", self._take_back(RETURNED)),
        ):
            yield

    # Contributions, and the text behind them

    def _contribute(self, original: Any) -> Any:
        def contribute(state: OuterState, *arguments: Any, **named: Any) -> tuple[bytes, Contribution]:
            blob, sent = original(state, *arguments, **named)
            sha256 = sha256_of(blob)
            self.made[sha256], self.contents[content_of(sent)] = sent, sha256
            return blob, sent

        return contribute

    def _train(self, original: Any) -> Any:
        async def contribute(
            outer: OuterLoop, round: int, steps: int, moved: Any, optimizer: Any, share: Spans = ()
        ) -> None:
            if share:
                self.read[outer.followed.me, round, steps] = first_chunks(share, steps)
            await original(outer, round, steps, moved, optimizer, share)

        return contribute

    def _fold(self, original: Any) -> Any:
        async def fold(parts: FollowedParts, part: Part, chosen: Chosen, lasting: bool) -> None:
            said = self.folded.setdefault((part, parts.parts[part].ledger.folded), {})
            for author, sha256 in chosen.items():
                said.setdefault(author, set()).add(sha256)
            if part == EMBEDDING:
                self.closed.setdefault(parts.me, []).append((parts.parts[part].ledger.folded, dict(chosen)))
            await original(parts, part, chosen, lasting)

        return fold

    def _finish(self, original: Any) -> Any:
        def announce_finish(outer: OuterLoop) -> None:
            told = outer.finish_announced
            original(outer)
            if outer.finish_announced and not told:
                self.held.append(self._hold(outer))

        return announce_finish

    def _hold(self, outer: OuterLoop) -> Held:
        me, parts = outer.followed.me, {}
        for part, each in outer.followed.parts.items():
            ledger, feedback = each.ledger, each.state.error_feedback
            account = self._account(me, part, feedback) if feedback else None
            open_rounds = {round: dict(chosen) for round, chosen in each.settled.items()}
            for round, chosen in open_rounds.items():
                if chosen != (accepted := ledger.chosen(round)):
                    self._object(f"{part} of round {round} has {chosen} in its grid, and accepted are {accepted}")
            parts[part] = PartHeld(
                digest_of(each.state.grid), ledger.folded, ledger.history.copy(), open_rounds, account
            )
        return Held(HOST.get().name, me, parts, outer.followed.reading)

    # Error feedback: each change is the equation's, and begins where the one before has ended

    def _absorb(self, original: Any) -> Any:
        def absorb(state: OuterState, moved: Mapping[str, Tensor]) -> None:
            if state.manifest != self.manifest:  # what a machine is measured with
                return original(state, moved)
            before = integers(state.error_feedback)
            original(state, moved)
            factor, expected = round(state.manifest.outer.beta * FACTOR_ONE), dict(before)
            for name, delta in moved.items():
                units = np.rint(delta.numpy().astype(np.float64) * UNITS_PER_ONE).astype(np.int64)
                expected[name] = half_even(before[name] * factor, FACTOR_ONE) + units
            return self._changed(state, before, expected, lambda account: account)

        return absorb

    def _charge(self, original: Any, sign: int) -> Any:
        def charge(state: OuterState, sent: Contribution) -> None:
            if state.manifest != self.manifest:
                return original(state, sent)
            before, content = integers(state.error_feedback), content_of(sent)
            original(state, sent)
            expected = {name: tensor.copy() for name, tensor in before.items()}
            for name, values in sparse(sent, {name: each.shape for name, each in before.items()}, state).items():
                for place, value in values.items():
                    expected[name][place] += sign * value

            def charged(account: Account) -> Account:
                if (content in account.taken) is (sign < 0):
                    self._object(f"{sent.name} is {'taken out' if sign < 0 else 'put back'} twice")
                return replace(account, taken=account.taken ^ {content})

            return self._changed(state, before, expected, charged)

        return charge

    def _give(self, original: Any) -> Any:
        def pack_state(handed_over: Any) -> Any:
            for part, grid in handed_over.error_feedback.items():
                account = self._account(HOST.get().status.peer_id, part, grid)
                nothing = {name: np.zeros_like(tensor) for name, tensor in integers(grid).items()}
                self._given.add(key_of(integers(grid)))
                self._register(part, nothing, replace(account, taken_over=frozenset()), may_stay=False)
            return original(handed_over)

        return pack_state

    def _take_over(self, original: Any) -> Any:
        def added(own: Any, given: Any, manifest: Any, part: Part, round: int) -> Any:
            total = original(own, given, manifest, part, round)
            before, theirs, after = integers(own), integers(given), integers(total)
            account, handover = self._account(HOST.get().status.peer_id, part, own), key_of(theirs)
            if any((after[name] != before[name] + theirs[name]).any() for name in after):
                self._object(f"what is taken over of {part} is not the sum of both")
            if handover not in self._given:
                self._object(f"what is taken over of {part} was given by nobody")
            if handover in account.taken_over and any(each.any() for each in theirs.values()):
                self._object(f"a handover of {part} is taken twice")
            taken_over = account.taken_over | {handover}
            self._register(part, after, replace(account, taken_over=taken_over), may_stay=True)
            return total

        return added

    def _take_back(self, original: Any) -> Any:
        def returned(own: Any, blob: bytes, part: Part) -> Any:
            total = original(own, blob, part)
            self._register(part, integers(total), self._account(HOST.get().status.peer_id, part, own), may_stay=False)
            return total

        return returned

    def _changed(self, state: OuterState, before: Integers, expected: Integers, change: Any) -> None:
        after = integers(state.error_feedback)
        if any((after[name] != expected[name]).any() for name in expected):
            self._object(f"the error feedback of {state.part} is not what was computed less what was sent")
        known = self._now.get((HOST.get(), state.part))
        if known is not None and key_of(before) not in known:
            self._object(f"the error feedback of {state.part} has changed between two steps")
        account = self._account(HOST.get().status.peer_id, state.part, state.error_feedback, before)
        self._register(state.part, after, change(account), may_stay=False)

    def _register(self, part: Part, grid: Integers, account: Account, may_stay: bool) -> None:
        process, key = HOST.get(), key_of(grid)
        self._accounts.setdefault((process.status.peer_id, part), {})[key] = account
        if may_stay:
            if (process, part) in self._now:
                self._now[process, part].add(key)
        else:
            self._now[process, part] = {key}

    def _account(self, peer_id: str, part: Part, grid: Any, values: Integers | None = None) -> Account:
        values = integers(grid) if values is None else values
        known = self._accounts.setdefault((peer_id, part), {})
        account = known.get(key_of(values))
        if account is None:
            if any(tensor.any() for tensor in values.values()):
                self._object(f"the error feedback of {part} is none that this peer has had")
            account = known[key_of(values)] = Account()
        return account

    def _object(self, what: str) -> None:
        self.objections.append(f"{HOST.get().name}: {what}")


PACK = peer.swarm.group.handover.pack_state
ADDED = peer.swarm.group.handover.added
RETURNED = peer.swarm.group.handover.returned


def integers(grid: Mapping[str, Any]) -> Integers:
    """A copy of a grid."""
    return {
        str(name): (each.numpy() if isinstance(each, Tensor) else each).astype(np.int64) for name, each in grid.items()
    }


def key_of(grid: Integers) -> str:
    """The digest of a grid."""
    state = hashlib.sha256()
    for name, tensor in sorted(grid.items()):  # files have them in another order
        state.update(name.encode() + tensor.tobytes())
    return state.hexdigest()


def content_of(sent: Contribution) -> str:
    """What stands for a contribution, decoded as it is."""
    state = hashlib.sha256(f"{sent.name} {sent.steps} {sent.slot}".encode())
    for name, each in sent.tensors.items():
        state.update(name.encode() + np.asarray(each.offsets).tobytes() + np.asarray(each.values, np.int64).tobytes())
    return state.hexdigest()


def half_even(numerator: NDArray[np.int64], denominator: int) -> NDArray[np.int64]:
    """A quotient, rounded half to even."""
    quotient, rest = np.divmod(numerator, denominator)
    return quotient + ((2 * rest > denominator) | ((2 * rest == denominator) & (quotient % 2 == 1)))


def sparse(
    sent: Contribution, shapes: Mapping[str, tuple[int, ...]], state: Any
) -> dict[str, dict[tuple[int, ...], int]]:
    """What a contribution says, place by place, with chunks cut as the reference cuts them. `state` has a manifest."""
    outer, said = state.manifest.outer, {}
    for name, each in sent.tensors.items():
        offsets, values = iter(each.offsets.tolist()), iter(each.values.tolist())
        places: dict[tuple[int, ...], int] = {}
        for chunk in sparse_outer.chunks(shapes[name], outer.chunk_side):
            for _ in range(max(1, round(len(chunk) * outer.top_k / outer.chunk_side**2))):
                places[chunk[next(offsets)]] = next(values)
        said[name] = places
    return said
