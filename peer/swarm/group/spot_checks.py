"""A stage's spot checks of what its neighbours send it.

It keeps some numbers of every payload of a round's first step, at places that it draws and tells nobody, and once in a
round has the operator's observer compute a random microbatch of that step again from the outer state. If what came is
not that, the stage doubts the microbatch, and all of its group check it, too. The observer tells each stage what its
neighbours were told, so each sees by itself whether a neighbour made what is false of what is true, and hangs up then.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from peer.compute.recomputation import places_in
from peer.model.number_format import number_format
from peer.network.duplex import BreachError
from peer.network.group import Link
from peer.network.spot_check_service import ask
from peer.swarm.group.likenesses import (
    PayloadKind,
    chance_of_check,
    false_payload,
    is_made_of_true,
    likeness_of_sources,
)
from peer.swarm.rounds.outer_round import OuterLoop
from protocol.clock import monotonic
from protocol.codec.frames import FramePosition, pack_doubt
from protocol.codec.spot_check import NOTHING, Likeness, ReceivedPass
from protocol.errors import LostMemberError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.net.tasks import wait_at_most
from protocol.schemas import pipeline_pb2 as pb

PASSES_KEPT = 512
"""Microbatches of a step of which samples and token ids are kept: 32 KiB each with 2 × 1,024 tokens."""

CHECK_WITHIN = 1 / 4
"""The share of a round's steps after which a stage has checked its microbatch: later ones leave time to act."""

PAUSE_SECONDS = 60.0
"""The seconds after an unanswered question until a stage asks about another microbatch of its own choice: there is no
observer that audits, or it is busy with the last round."""

AGAIN_SECONDS = 6.0
"""The interval at which the observer is asked again about a microbatch that is doubted, in seconds."""

ANSWER_SECONDS = 90.0
"""The seconds that a stage waits for a neighbour that sent something false to have checked what it received, while the
observer answers; and once more as long for one that was sent something false itself to act on that."""


@dataclass(frozen=True, slots=True)
class PassInHand:
    """The payloads of one microbatch that have come: its token ids [b, L + 1], and samples, on the stage's device."""

    tokens: npt.NDArray[np.int64]
    activations: Tensor | None = None
    gradients: Tensor | None = None


@dataclass(slots=True)
class Received:
    """Samples of what a stage has received in a round's first step, by microbatch. `manifest` has the d / k of the
    group's frames. Its methods are for the torch thread."""

    manifest: Manifest
    stage: int
    passes: dict[int, PassInHand] = field(default_factory=dict)
    seed: int = field(default_factory=lambda: random.getrandbits(64))
    """The seed of the sampled positions: nobody may know it before this stage asks."""
    group_digest: str = ""
    """The digest over the outer state from which the group began the round."""
    at: Tensor | None = None
    """The places, on the stage's device: the same in all payloads of an inner loop."""

    def begin(self, group_digest: str) -> None:
        """Note the digest over the outer state from which the group begins the round."""
        self.group_digest = group_digest

    def forward(self, number: int, tokens: npt.NDArray[np.int64], activations: Tensor | None) -> None:
        """Keep some of what came forward of microbatch `number` of the round; `activations` are None at the first
        stage."""
        if number < min(self.manifest.inner.microbatches, PASSES_KEPT):
            self.passes[number] = PassInHand(tokens, self._sample(activations, backward=False))

    def backward(self, number: int, gradients: Tensor | None) -> None:
        """Keep some of what came back; None at the last stage."""
        if number in self.passes:
            self.passes[number] = replace(self.passes[number], gradients=self._sample(gradients, backward=True))

    def read(self, round: int, number: int) -> ReceivedPass | None:
        """Return the question about a microbatch; None: it has not come in both directions, or is not kept."""
        kept, last = self.passes.get(number), self.stage == self.manifest.replicas.stages - 1
        if kept is None or (kept.activations is None and self.stage) or (kept.gradients is None and not last):
            return None
        compression = self.manifest.compressions[0]
        there, back = (
            NOTHING if sample is None else sample.cpu().numpy() for sample in (kept.activations, kept.gradients)
        )
        return ReceivedPass(round, self.stage, compression, kept.tokens, self.seed, there, back, self.group_digest)

    def _sample(self, payload: Tensor | None, backward: bool) -> Tensor | None:
        if payload is None:
            return None
        values = number_format(self.manifest.replicas.wires[backward], self.manifest.k).unpack(payload)
        if self.at is None:
            self.at = places_in(values, self.seed)
        return values.flatten()[self.at]


@dataclass(slots=True)
class SpotChecking:
    """The spot checks of one stage in one inner loop of a group. `end_group` hangs up, and avoids who sent something
    false, if that is known."""

    outer: OuterLoop
    received: Received
    round: int
    upstream: Link | None
    downstream: Link | None
    end_group: Callable[[BreachError | LostMemberError], None]
    tasks: asyncio.TaskGroup
    doubted: set[int] = field(default_factory=set)
    """The microbatches that some stage of the group has asked all to check."""
    doubts_received: Counter[PeerId] = field(default_factory=Counter)
    """The number of doubts that each neighbour has sent."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    check_after: int = field(init=False)
    """The steps of the round after which a microbatch is checked: not all groups' at the same time."""

    def __post_init__(self) -> None:
        """Draw when to check."""
        self.check_after = random.randint(1, max(1, int(CHECK_WITHIN * self.outer.manifest.inner.steps)))

    @property
    def _links(self) -> list[Link]:
        return [link for link in (self.upstream, self.downstream) if link is not None]

    @property
    def over(self) -> bool:
        """Whether the inner loop is over, or the group is."""
        return self.ended.is_set()

    def end(self) -> None:
        """Accuse nobody from now on."""
        self.ended.set()

    def step_taken(self, steps: int) -> None:
        """Note that so many inner steps of the round are behind this stage: check a microbatch of the first, if it is
        time."""
        kept = list(self.received.passes)
        is_due = steps == self.check_after and kept and self._links
        if is_due and random.random() < chance_of_check(self.outer.manifest):
            self.tasks.create_task(self._check_until_answered(random.choice(kept), is_doubted=False))

    async def _check_until_answered(self, number: int, is_doubted: bool) -> None:
        """Have a microbatch computed again, and if a neighbour sent what is false, hold it to account."""
        answer = await self._ask(number)
        while answer is None and number in self.received.passes and not self.over:
            await wait_at_most(AGAIN_SECONDS if is_doubted else PAUSE_SECONDS, self.ended.wait())
            answer = await self._ask(number)
        if answer is None or not answer.same_state or self.over:
            return
        kind = false_payload(answer, self.outer.manifest, self.received.stage)
        link = self.upstream if kind == "activations" else self.downstream
        if kind is not None and link is not None:
            if number not in self.doubted:
                self._send_doubt(number)
            await self._blame_sender(link, kind, number, answer)

    async def _ask(self, number: int) -> Likeness | None:
        """Ask the observer how like the payloads that this stage received of a microbatch are to true ones; None: there
        is no answer, or the inner loop is over."""
        async with self.one_at_a_time:
            asked = await self.outer.followed.torch_thread.run(self.received.read, self.round, number)
            if self.over or asked is None:
                return None
            asked = replace(asked, neighbours=tuple(link.peer for link in self._links))
            return await ask(asked, self.outer.reconciler)

    async def _blame_sender(self, link: Link, kind: PayloadKind, number: int, first: Likeness) -> None:
        """Find out who is to blame for false payloads of a microbatch that a neighbour sent, and end the group.

        `first` is the observer's first answer; it is asked again every `AGAIN_SECONDS`, as the neighbour has its own
        sources, the payloads that it received, checked meanwhile.

        - True sources: the neighbour made the false payloads, and is blamed.
        - Sources not checked by the deadline: it is blamed.
        - False sources: whoever sent those is to blame. The stage beside that one has as long again to hang up,
          which ends this group, too; if it does not, nobody is blamed. But the last stage is: its only sources are
          this stage's activations, which were true.
        - Unclear sources: the group ends, and nobody is blamed.
        """
        manifest, stage = self.outer.manifest, self.received.stage
        position = FramePosition(self.round, 0, number)
        sent = first.activations if kind == "activations" else first.gradients
        answer: Likeness | None = first
        deadline, was_misled = monotonic() + ANSWER_SECONDS, False
        while not self.over:
            if answer is None:  # a silent observer is no fault of the neighbour's
                deadline = monotonic() + ANSWER_SECONDS
            else:
                sources = likeness_of_sources(answer, kind, link.peer, manifest, stage)
                sources_true = None if sources is None else is_made_of_true(sources, sent, manifest)
                if sources_true is False and not was_misled:
                    deadline, was_misled = deadline + ANSWER_SECONDS, True
                may_change = (sources is None or sources_true is False) and monotonic() < deadline
                if not may_change:
                    self.end()
                    if sources_true or sources is None or (sources_true is False and self._is_before_last(kind)):
                        lie = f"sent false {kind} of {position}: {sent:.3g} like what the outer state makes of them"
                        self.end_group(link.breach(lie))
                    else:
                        unclear = f"who of its group sent false {kind} of {position} is not clear"
                        self.end_group(LostMemberError(unclear))
                    return
            await wait_at_most(AGAIN_SECONDS, self.ended.wait())
            answer = await self._ask(number)

    def _is_before_last(self, kind: PayloadKind) -> bool:
        """Whether this stage is the last but one, and the payload came from the last."""
        return kind == "gradients" and self.received.stage + 2 == self.outer.manifest.replicas.stages

    # Doubts

    def _send_doubt(self, number: int, source: PeerId | None = None) -> None:
        """Ask the others of the group to check a microbatch, too."""
        self.doubted.add(number)
        for link in self._links:
            if link.peer != source:
                link.send(pack_doubt(FramePosition(self.round, 0, number)))

    def receive_doubt(self, neighbour: PeerId, doubt: pb.Place) -> None:
        """Take a doubt that a neighbour sends or passes on: one of each stage behind the link, as each checks one
        microbatch."""
        number, manifest, stage = doubt.microbatch, self.outer.manifest, self.received.stage
        is_known = doubt.round != self.round or doubt.step > 0 or number in self.doubted
        is_upstream = self.upstream is not None and neighbour == self.upstream.peer
        most = stage if is_upstream else manifest.replicas.stages - 1 - stage
        if (
            not (self.over or is_known)
            and number < manifest.inner.microbatches
            and self.doubts_received[neighbour] < most
        ):
            self.doubts_received[neighbour] += 1
            self._send_doubt(number, source=neighbour)
            self.tasks.create_task(self._check_until_answered(number, is_doubted=True))


class StageSpotChecks:
    """The spot checks of one stage in one inner loop after another."""

    def __init__(self, outer: OuterLoop, tasks: asyncio.TaskGroup) -> None:
        self.outer = outer
        self.tasks = tasks
        self._current: SpotChecking | None = None

    @contextmanager
    def checking(
        self,
        received: Received,
        round: int,
        upstream: Link | None,
        downstream: Link | None,
        end_group: Callable[[BreachError | LostMemberError], None],
    ) -> Iterator[SpotChecking]:
        """Check at random what the neighbours send in the inner loop of this block."""
        self._current = checks = SpotChecking(self.outer, received, round, upstream, downstream, end_group, self.tasks)
        try:
            yield checks
        finally:
            checks.end()

    def receive_doubt(self, neighbour: PeerId, doubt: pb.Place) -> None:
        """Take a neighbour's doubt, while an inner loop lasts."""
        if self._current is not None:
            self._current.receive_doubt(neighbour, doubt)
