"""A stage's spot checks of what its neighbours send it.

In each round it keeps some numbers of every payload, at places that it draws and tells nobody, and now and then has the
operator's observer compute a random microbatch again from the outer state. If what came is nothing like that, and
others of the same step are, it doubts the microbatch and has all of the group check these. Then whoever received what
was false first, in the order of passes, hangs up on its sender before anybody else does; so the others know that the
group is broken before they would blame somebody who passed on what it was sent.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import Tensor

from peer.compute.recomputation import places_in
from peer.model.number_format import number_format
from peer.network.duplex import BreachError
from peer.network.group import Link, is_doubt
from peer.network.spot_check_service import ask
from peer.swarm.group import likenesses
from peer.swarm.rounds.outer_round import OuterLoop
from protocol.clock import monotonic
from protocol.codec.frames import FramePosition, pack_doubt
from protocol.codec.spot_check import NOTHING, Likeness, ReceivedPass
from protocol.errors import LostMemberError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.schemas import pipeline_pb2 as pb

PASSES_KEPT = 512
"""Microbatches of which samples and token ids are kept: 32 KiB each with 2 × 1,024 tokens."""

DOUBTS = 8
"""Microbatches that are checked in a round because others ask for it: so many for each stage behind the link, so that
one that doubts all keeps nobody else's doubts from being heard."""

PAUSE_SECONDS = 60.0
"""After a question that was not answered no more microbatches are drawn for so long: there is no observer that audits,
or it is busy with the last round."""

AGAIN_SECONDS = 5.0
"""After so long the observer is asked again, for what it has not answered or for what a neighbour received; then less
often."""

PATIENCE_SECONDS = 120.0
"""Where a neighbour does not have checked what it received, or was sent what is false itself, this is the time between
the place of one false payload, in the order of passes, and the next: whoever received the first acts first."""


@dataclass(slots=True)
class PassInHand:
    """What has come of one microbatch: its token ids [b, L + 1], and samples, on the stage's device."""

    tokens: npt.NDArray[np.int64]
    activations: Tensor | None = None
    gradients: Tensor | None = None


@dataclass(slots=True)
class Received:
    """Samples of what a stage has received in a round, by the number of the microbatch in it; of the last
    `PASSES_KEPT`. Its methods are for the torch thread. `manifest` has the d / k of the group's frames."""

    manifest: Manifest
    stage: int
    passes: dict[int, PassInHand] = field(default_factory=dict)
    seed: int = field(default_factory=lambda: random.getrandbits(64))
    """Of the places: nobody may know it before this stage asks."""
    group_digest: str = ""
    """Over the outer state from which the group began the round."""
    at: Tensor | None = None
    """The places, on the stage's device: the same in all payloads of an inner loop."""

    def forward(self, number: int, tokens: npt.NDArray[np.int64], activations: Tensor | None) -> None:
        """Keep some of what came forward; `activations` are None at the first stage."""
        self.passes[number] = PassInHand(tokens, self._sample(activations, backward=False))
        if len(self.passes) > PASSES_KEPT:
            del self.passes[next(iter(self.passes))]

    def backward(self, number: int, gradients: Tensor | None) -> None:
        """Keep some of what came back; None at the last stage."""
        if number in self.passes:
            self.passes[number].gradients = self._sample(gradients, backward=True)

    def read(self, round: int, number: int) -> ReceivedPass | None:
        """What to ask about a microbatch; None: it has not come in both directions, or is not kept any more."""
        kept, last = self.passes.get(number), self.stage == self.manifest.replicas.stages - 1
        if kept is None or (kept.activations is None and self.stage) or (kept.gradients is None and not last):
            return None
        compression = self.manifest.compressions[0]
        there, back = (NOTHING if each is None else each.cpu().numpy() for each in (kept.activations, kept.gradients))
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
    activations: dict[int, float] = field(default_factory=dict)
    """Likenesses of what came from the stage before, by microbatch."""
    gradients: dict[int, float] = field(default_factory=dict)
    """Likenesses of what came from the stage behind, where they are judged."""
    checked: set[int] = field(default_factory=set)
    """The microbatches that were computed again for this stage."""
    exact: set[int] = field(default_factory=set)
    """The microbatches of the round's first step that were computed again from the weights that the group had."""
    doubted: set[int] = field(default_factory=set)
    """The microbatches that some stage of the group has asked all to check."""
    heard: Counter[PeerId] = field(default_factory=Counter)
    """How many of these each neighbour has told of."""
    owed: int = 0
    """The checks of others of a suspicious payload's step, for which as many are not drawn later."""
    accusing: int | None = None
    """The rank of the payload whose sender is to be accused."""
    again: float = 0.0
    """The time from which microbatches are drawn: a while after a question that was not answered."""
    over: bool = False
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    first_after: int = field(init=False)
    """After so many steps of the round a microbatch of the first is checked: not all groups' at the same time."""

    def __post_init__(self) -> None:
        """Hear of others' doubts from now on."""
        self.first_after = random.randint(1, max(1, min(PASSES_KEPT // self._n, self.outer.manifest.inner.steps)))
        for link in self._links:
            link.aside = partial(self._hear, link)

    @property
    def _links(self) -> list[Link]:
        return [each for each in (self.upstream, self.downstream) if each is not None]

    @property
    def _n(self) -> int:
        return self.outer.manifest.inner.microbatches

    @property
    def _sides(self) -> tuple[tuple[bool, Link | None, dict[int, float]], ...]:
        """Of each neighbour: whether what it sends goes backward, the link, and the likenesses of what came."""
        return (False, self.upstream, self.activations), (True, self.downstream, self.gradients)

    def end(self) -> None:
        """The inner loop is over, or the group is: nobody is accused any more."""
        self.over = True

    def step_taken(self, steps: int) -> None:
        """So many inner steps of the round are behind this stage: check a microbatch of one of them, now and then."""
        manifest, due = self.outer.manifest, likenesses.checks_in_a_step(self.outer.manifest)
        here = [number for number in list(self.received.passes) if number < steps * self._n and self._links]
        if not here or monotonic() < self.again:
            return
        first = [number for number in here if number < self._n]
        if first and steps == self.first_after and random.random() < likenesses.checks_of_the_first_step(manifest):
            self.owed += 1
            self.tasks.create_task(self._look(random.choice(first)))
        for _ in range(int(due) + (random.random() < due % 1)):
            if self.owed:
                self.owed -= 1
            else:
                self.tasks.create_task(self._look(random.choice(here)))

    async def _look(self, number: int, insist: bool = False) -> None:
        """Check a microbatch, and if it is suspicious others of its step; and see whether somebody sent what is false.
        What is suspicious is asked about until there is an answer, and so is what others doubt (`insist`)."""
        pause = AGAIN_SECONDS
        while not self.over and number in self.received.passes:
            await self._check(number)
            others = self._compared_with(number)
            for each in others:
                self.owed += each not in self.checked
                await self._check(each)
            self._judge()
            if {number, *others} <= self.checked or not (insist or others):
                return
            await asyncio.sleep(pause)
            pause *= 1.2

    def _compared_with(self, number: int) -> list[int]:
        """The microbatches of the same step that show how like payloads of it usually are, if what came of this one is
        suspicious; what is exact needs no others."""
        doubted, seen = number in self.doubted, [each for *_, each in self._sides if number in each]
        if number in self.exact or not any(likenesses.is_suspicious(number, each, doubted) for each in seen):
            return []
        return likenesses.others_of_step(number, self._n)[: likenesses.ENOUGH]

    def _is_false(self, number: int, backward: bool, seen: dict[int, float]) -> bool:
        doubted = number in self.doubted
        if (least := self._least_exact(number, backward, doubted)) is not None:
            return seen[number] < least
        return likenesses.is_false(number, self._n, seen, doubted)

    async def _check(self, number: int) -> None:
        """Have a microbatch computed again, if it was not yet, and note how like what came of it is."""
        if number in self.checked or (answer := await self._ask(number)) is None:
            return
        self.checked.add(number)
        manifest = self.outer.manifest
        if answer.same_state and number < self._n and not manifest.outer.overlap:
            self.exact.add(number)
        if self.upstream is not None:
            self.activations[number] = answer.activations
        if self.downstream is not None and (number in self.exact or likenesses.judges_gradients(manifest)):
            self.gradients[number] = answer.gradients

    async def _ask(self, number: int) -> Likeness | None:
        """How like what came of a microbatch is; None: nobody says, or it is too late."""
        async with self.one_at_a_time:
            asked = await self.outer.followed.torch_thread.run(self.received.read, self.round, number)
            if self.over or asked is None:
                return None
            asked = replace(asked, neighbours=tuple(link.peer for link in self._links))
            answer = await ask(asked, self.outer.reconciler)
            if answer is None:
                self.again = monotonic() + PAUSE_SECONDS
            return answer

    def _judge(self) -> None:
        """Doubt what is false, and accuse the sender of what came first in the order of passes."""
        found: list[tuple[int, bool, int]] = []
        stage, stages = self.received.stage, self.outer.manifest.replicas.stages
        for backward, _, seen in self._sides:
            place = likenesses.rank(stage, stages, backward)
            found += [(place, backward, number) for number in seen if self._is_false(number, backward, seen)]
        for number in {number for *_, number in found} - self.doubted:
            self._tell(number)
        if found and (self.accusing is None or min(found)[0] < self.accusing):
            self.accusing = min(found)[0]
            self.tasks.create_task(self._account(*min(found)))

    async def _account(self, place: int, backward: bool, number: int) -> None:
        """Hold the sender of a false payload to account: at once if what it received itself was true, or if it is the
        first stage, which receives nothing; else if nobody has who received something false before."""
        _, link, seen = self._sides[backward]
        what = "gradients" if backward else "activations"
        until, heard = monotonic() + place * PATIENCE_SECONDS, False
        pause = AGAIN_SECONDS
        while link is not None and not self.over and monotonic() < until:
            answer = await self._ask(number)
            if self.over or self.accusing != place:
                return
            received = answer.neighbours.get(link.peer) if answer is not None else None
            made_of_true = received is not None and self._is_made_of_true(number, backward, received)
            if made_of_true:
                break
            if made_of_true is None:
                where = self._position(number)
                self.end_group(LostMemberError(f"who of its group sent false {what} of {where} is not clear"))
                return
            if received is not None and not heard:  # from now on the neighbour has to act
                until, heard = monotonic() + place * PATIENCE_SECONDS, True
            await asyncio.sleep(min(pause, max(0.01, until - monotonic())))
            pause *= 1.5  # one peer has few questions in a round
        if self.over or self.accusing != place or link is None:
            return
        middle = None if number in self.exact else likenesses.usual(number, self._n, seen)
        beside = "" if middle is None else f", others of the step {middle:.2f}"
        like = f"{seen[number]:.3g} like what the outer state makes of them{beside}"
        self.end_group(link.breach(f"sent false {what} of {self._position(number)}: {like}"))

    def _is_made_of_true(self, number: int, backward: bool, received: tuple[float, float]) -> bool | None:
        """Whether a neighbour's payload of a microbatch is made of a true one; None: that is not clear. `received`: how
        like the activations and the gradients are that the neighbour has had checked."""
        stage, last = self.received.stage, self.outer.manifest.replicas.stages - 1
        of_gradients, sent = backward and stage + 1 < last, self._sides[backward][2][number]
        if (least := self._least_exact(number, of_gradients, doubted=True)) is not None:
            return likenesses.is_made_of_true_exact(received[of_gradients], sent, least)
        seen = self._sides[of_gradients][2] or self._sides[backward][2]  # of the same direction, if there are any here
        return likenesses.is_made_of_true(received[of_gradients], number, self._n, seen)

    def _least_exact(self, number: int, backward: bool, doubted: bool) -> float | None:
        """The likeness below which the payload is false if it is exact; None: it is not."""
        wires = self.outer.manifest.replicas.wires
        return likenesses.least_exact(wires[backward], doubted) if number in self.exact else None

    def _position(self, number: int) -> FramePosition:
        step, microbatch = divmod(number, self._n)
        return FramePosition(self.round, step, microbatch)

    # Doubts

    def _tell(self, number: int, but: Link | None = None) -> None:
        """Ask the others of the group to check a microbatch, too; `but` who said so."""
        self.doubted.add(number)
        for link in self._links:
            if link is not but:
                link.send(pack_doubt(self._position(number)))

    def _hear(self, link: Link, message: pb.Frame) -> bool:
        """Take a doubt that a neighbour tells or passes on. Returns whether the message is one."""
        if not is_doubt(message):
            return False
        place, n = message.doubt, self._n
        number = place.step * n + place.microbatch
        known = place.round != self.round or place.microbatch >= n or number in self.doubted
        stage, last = self.received.stage, self.outer.manifest.replicas.stages - 1
        most = DOUBTS * (stage if link is self.upstream else last - stage)
        if not (self.over or known) and self.heard[link.peer] < most:
            self.heard[link.peer] += 1
            self._tell(number, but=link)
            self.tasks.create_task(self._look(number, insist=True))
        return True
