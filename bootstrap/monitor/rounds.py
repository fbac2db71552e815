"""The rounds of a run as peers tell of them: who contributed, who was late or left and why, loss and bytes; and how
long a round takes the swarm. Pure: the clock is an argument."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median_low

from protocol.codec.contribution import expected_bytes
from protocol.codec.frames import Payload
from protocol.identity import PeerId
from protocol.layout import elements, model_layout
from protocol.manifest import Manifest
from protocol.monitor import RoundView
from protocol.outer.whereabouts import common_round
from protocol.trust.records import PeerRecord, may_author

JUDGE_SECONDS = 5.0
"""The seconds after the end of a round in which all who were there have reported it."""

LATE_SECONDS = 3.0
"""A contribution told of so long after a round's end came after it."""

MOST_CLAIMS = 16
"""Losses of one round that are listened to: a run has one or two peers that evaluate."""

BF16_BYTES = 2
"""The bytes of a value in bf16, which a run would use if it had the links for it."""

TOKEN_ID_BYTES = 4
"""A token id, which goes along with activations either way."""

Losses = tuple[float, float]
"""Through the boundaries, and plain."""


def resolved(claims: dict[PeerId, Losses]) -> tuple[PeerId, Losses] | None:
    """Return whose losses are shown: of three or more claims the one in the middle, so that one liar moves nothing; of
    fewer, the first. None without claims."""
    if len(claims) < 3:
        return next(iter(claims.items()), None)
    middle = median_low(claims.values())
    return next((who, losses) for who, losses in claims.items() if losses == middle)


@dataclass(slots=True)
class Round:
    """One outer round. Times are Unix seconds by the node's clock; dictionaries are by peer."""

    round: int
    began: float
    ended: float | None = None
    judged: bool = False
    stepped: dict[PeerId, int] = field(default_factory=dict)
    """Inner steps that were told of while it lasted."""
    contributed: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    """Inner steps, and when that was told."""
    done: dict[PeerId, float] = field(default_factory=dict)
    """The time at which each peer ended the round."""
    claims: dict[PeerId, Losses] = field(default_factory=dict)
    tokens: dict[PeerId, int] = field(default_factory=dict)
    late: dict[PeerId, str] = field(default_factory=dict)
    left: dict[PeerId, str] = field(default_factory=dict)
    missed: dict[PeerId, str] = field(default_factory=dict)
    """The reasons for which others waited no longer."""
    pipeline_bytes: int = 0
    outer_bytes: int = 0
    uncompressed_bytes: int = 0

    def end(self, now: float) -> None:
        """Enough peers have ended it: when the one in the middle of them has."""
        at = median_low(self.done.values()) if self.done else now
        self.ended = min(now, max(self.began, at))

    def judge(self, awaited: set[PeerId], known: set[PeerId], inner_steps: int) -> None:
        """Say who was late. `awaited`: who was there and should have contributed; `known`: whose record says that it
        has, though it told nothing."""
        assert self.ended is not None
        self.judged = True
        for peer, (_, at) in self.contributed.items():
            if at > self.ended + LATE_SECONDS:
                self.late.setdefault(peer, f"its contribution came {at - self.ended:.0f} s after the round had ended")
        for peer in awaited - self.contributed.keys() - known - self.left.keys():
            steps = min(self.stepped.get(peer, 0), inner_steps)
            did = f"it had done {steps} of {inner_steps} inner steps when the others had ended the round"
            self.late.setdefault(peer, self.missed.get(peer, did))

    def view(self) -> RoundView:
        """Return the round as people see it."""
        losses = resolved(self.claims)
        who, (loss, plain) = losses if losses else ("", (None, None))
        return RoundView(
            round=self.round,
            began=self.began,
            ended=self.ended,
            loss=loss,
            loss_plain=plain,
            evaluated_by=who,
            tokens=sum(self.tokens.values()),
            contributions={peer: steps for peer, (steps, _) in self.contributed.items()},
            late={str(peer): why for peer, why in self.late.items()},
            left={str(peer): why for peer, why in self.left.items()},
            pipeline_bytes=self.pipeline_bytes,
            outer_bytes=self.outer_bytes,
            uncompressed_bytes=self.uncompressed_bytes,
        )


def recalled(kept: RoundView) -> Round:
    """A round that has ended, as it was kept."""
    ended = kept.ended if kept.ended is not None else kept.began
    round = Round(kept.round, kept.began, ended, judged=True)
    round.contributed = {PeerId(peer): (steps, ended) for peer, steps in kept.contributions.items()}
    if kept.loss is not None and kept.loss_plain is not None:
        round.claims = {PeerId(kept.evaluated_by): (kept.loss, kept.loss_plain)}
    round.tokens = {PeerId(""): kept.tokens}
    round.late = {PeerId(peer): why for peer, why in kept.late.items()}
    round.left = {PeerId(peer): why for peer, why in kept.left.items()}
    round.pipeline_bytes, round.outer_bytes = kept.pipeline_bytes, kept.outer_bytes
    round.uncompressed_bytes = kept.uncompressed_bytes
    return round


@cache
def pipeline_ratio(manifest: Manifest, compression: int) -> float:
    """Return how many times more bytes the frames of a group would have without the projection onto `compression`-th
    parts of d."""
    inner, model = manifest.inner, manifest.model
    ids = TOKEN_ID_BYTES * inner.microbatch * (model.context + 1)
    k = model.d // compression
    sent = sum(Payload(wire, inner.microbatch, model.context, k).size for wire in manifest.replicas.wires)
    whole = 2 * Payload("bf16", inner.microbatch, model.context, model.d).size
    return (whole + ids) / (sent + ids)


@cache
def outer_ratio(manifest: Manifest) -> float:
    """Return how many times more bytes uncompressed contributions would have."""
    layout = model_layout(manifest)
    whole = BF16_BYTES * sum(elements(part) for part in layout.values())
    return whole / sum(expected_bytes(manifest, part) for part in layout)


# How long a round takes

PACE_ROUNDS_KEPT = 8
"""Their mean is what a round takes: fewer would tell more of one slow peer, more of a swarm that was another."""


def seconds_a_round(ends: Sequence[tuple[int, float]], now: float) -> float:
    """The seconds from the end of a round to that of the next, by the ends of rounds; 0 where there are not two. A
    round that lasts longer than others already counts."""
    if len(ends) < 2:
        return 0.0
    (first, begun), (last, ended) = ends[0], ends[-1]
    return max((ended - begun) / (last - first), (now - begun) / (last - first + 1))


def time_left(entries: Iterable[Round], finished: int, rounds: int, now: float) -> float | None:
    """The seconds to the end of a run of so many `rounds`, of which one is `finished`, by its last rounds' mean length;
    None: no two ends are known. A round that lasts longer than others already counts."""
    ends = [(entry.round, entry.ended) for entry in entries if entry.ended is not None and entry.round <= finished]
    ends = sorted(ends)[-PACE_ROUNDS_KEPT - 1 :]
    if len(ends) < 2 or finished >= rounds:
        return None
    last, ended = ends[-1]
    return (rounds - last) * seconds_a_round(ends, now) - min(now - ended, seconds_a_round(ends, ended))


@dataclass(slots=True)
class SwarmPace:
    """The duration of a round of the swarm, by the rounds whose end this node saw, and when (Unix seconds)."""

    round: int = 0
    """The last that the swarm has finished."""
    ends: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=PACE_ROUNDS_KEPT + 1))
    looked: float | None = None

    def see(self, records: Iterable[PeerRecord], liars: int, now: float) -> None:
        """Take the peers' records now. A round ended when the first honest peer said that it had finished it, as far as
        that can be known: since this node looked last."""
        trains = [record for record in records if may_author(record)]
        finished = common_round((record.round for record in trains), liars)
        if finished > self.round:
            said = min(record.sequence / 1000 for record in trains if record.round >= finished)
            if self.looked is not None:  # what ended before the first look, ended at no time that is known
                self.ends.append((finished, min(max(said, self.looked), now)))
            self.round = finished
        self.looked = now

    def seconds(self, now: float) -> float:
        """Return the seconds from the end of a round to that of the next; 0 where two ends have not been seen. A round
        that lasts longer than others already counts."""
        return seconds_a_round(self.ends, now)
