"""The number of inner steps that this peer's replica takes in a round, and the chunks of the text it reads in them.

Replicas differ in speed, and a round is over when the slowest has contributed that is worth waiting for. With
`inner.most_steps` a quick one takes more than H steps meanwhile.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from statistics import median_low

from peer.network.discovery import Discovery
from peer.swarm.rounds.parts import FollowedParts
from protocol.events.decisions import GoalChanged
from protocol.events.event import Listener
from protocol.identity import EMBEDDING, PeerId
from protocol.manifest import Manifest
from protocol.outer.data_plan import Spans, chunks, first_chunks

SPEED_ROUNDS = 8

TRAVEL_SECONDS = 2.0
"""The typical delay of a contribution after its announcement, in seconds."""

UNEVEN = 1.25
"""Replicas whose speeds differ by less are even: over slow lines contributions travel for longer."""

STEADY = 0.05
"""A number of steps that differs from that of the rounds before by no more than this share changes nothing."""


@dataclass(slots=True)
class Speeds:
    """The speeds of replicas, in seconds an inner step: the slowest other's and this peer's own, of the last rounds.
    Pure."""

    slowest: deque[float] = field(default_factory=lambda: deque(maxlen=SPEED_ROUNDS))
    own: deque[float] = field(default_factory=lambda: deque(maxlen=SPEED_ROUNDS))

    def note(self, seconds: Mapping[PeerId, float], steps: Mapping[PeerId, int], me: PeerId) -> None:
        """A round has ended: so many `seconds` after its beginning each replica's contribution came, with so many
        `steps` behind it."""
        others = [
            (lasted - TRAVEL_SECONDS) / steps[peer]
            for peer, lasted in seconds.items()
            if peer != me and steps.get(peer)
        ]
        if others and steps.get(me) and seconds.get(me, 0.0) > 0.0:
            self.slowest.append(max(others))
            self.own.append(seconds[me] / steps[me])

    @property
    def ratio(self) -> float:
        """The number of steps that this peer's replica takes while the slowest takes one; 1: as many, or nobody knows
        yet."""
        return median_low(self.slowest) / median_low(self.own) if self.own else 1.0

    def goal(self, usual: int, most: int) -> int:
        """Return the number of steps to take in a round in which the slowest takes the `usual` number, `most` at
        most."""
        return min(most, int(usual * self.ratio)) if self.ratio >= UNEVEN else usual


@dataclass(slots=True)
class Workload:
    """The steps and the text of this peer's replica, round by round."""

    manifest: Manifest
    followed: FollowedParts
    discovery: Discovery
    emit: Listener
    speeds: Speeds = field(default_factory=Speeds)
    goal: int = field(init=False)
    """The inner steps that this peer's replica means to take in a round, as it was decided last."""

    def __post_init__(self) -> None:
        """Begin as all do."""
        self.goal = self.manifest.inner.steps

    @property
    def looks(self) -> bool:
        """Whether this peer may take more steps than others, and so looks at what these contribute."""
        return bool(self.manifest.inner.most_steps) and EMBEDDING in self.followed.parts

    def begin(self, round: int) -> Spans:
        """Decide how many inner steps this peer's replica means to take in a round that begins; its share."""
        inner = self.manifest.inner
        goal = self.speeds.goal(inner.steps, inner.steps_at_most)
        if abs(goal - self.goal) > STEADY * self.goal or goal == inner.steps != self.goal:
            self.goal = goal
            self.emit(GoalChanged(round, goal, self.speeds.ratio))
        return self.share(round)

    def share(self, round: int) -> Spans:
        """The chunks that this peer's replica is to read in a round, in this order: one for each inner step."""
        share = self.followed.reading.share(round, self.discovery.record.slot, self.manifest)
        return first_chunks(share, self.goal)

    def upcoming(self, round: int, share: Spans, done: int = 0) -> Iterator[int]:
        """The chunks that this peer's replica reads next: of its share of a round after the first `done`, and of its
        shares of the rounds that are planned after it."""
        later = (self.share(later_round) for later_round in range(round + 1, self.followed.reading.planned + 1))
        return chain(islice(chunks(share), done, None), *map(chunks, later))

    def note(self, round: int, seconds: float, lasted: Mapping[PeerId, float], awaited: Iterable[PeerId]) -> None:
        """A round has ended, which took so many `seconds`, and in which each replica's contribution to the token
        embedding came when it had `lasted` so long. Who was `awaited`, and has not come, takes longer for H steps."""
        missing = {peer for peer in awaited if peer not in lasted}
        steps = self.followed.parts[EMBEDDING].steps.get(round, {}) | dict.fromkeys(missing, self.manifest.inner.steps)
        self.speeds.note({**dict.fromkeys(missing, seconds), **lasted}, steps, self.followed.me)
