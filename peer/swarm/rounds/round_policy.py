"""The deadline of an outer round for a peer: how long slow replicas are waited for, and when the round ends. Both are
decided from the arrivals of this round and of past ones, and from the time. Pure."""

import math
from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from peer.swarm.roles import authors, may_lead
from protocol.identity import Part, PeerId, contributes_to
from protocol.patience import (
    BEHIND_ROUNDS,
    BEHIND_SECONDS,
    CREDIT_SHARE,
    EARLY_SHARE,
    LAST_ROUND_RATIO,
    RETURN_SECONDS,
    RETURN_SHARE,
    SHORTEST_DELAY_SHARE,
    SHORTEST_WAIT_SECONDS,
)
from protocol.trust.records import PeerRecord, Peers

PACE_ROUNDS = 8

ROUNDS_NEEDED, COMPLETE_REMEMBERED = 4, 32
"""The numbers of rounds, at least and at most, each with all contributions in time, whose median delay is taken."""

LEAST_CREDIT, MOST_CREDIT = 0.125, 0.25
"""The credit that is used at all, and that of a peer that has waited for nobody for long, in usual rounds. The latter
is at least the usual wait on a machine whose processes rest for seconds (`SHORTEST_WAIT_SECONDS`)."""

ALL_DONE = "all others are done"


@dataclass(slots=True)
class Pace:
    """The times of past rounds: seconds until half of the contributions were here, and from there to the last.

    Once rounds have shown what the last contribution usually takes, a round waits for that, and for more only on
    credit. Each second of waiting beyond the usual uses up credit, and each round gives some back. So a replica that
    becomes slow, however it goes about it, makes rounds longer by `CREDIT_SHARE` in the long run, and no more; and a
    steady one is waited for as ever.
    """

    patience: float
    halves: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_ROUNDS))
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_ROUNDS))
    complete: deque[float] = field(default_factory=lambda: deque(maxlen=COMPLETE_REMEMBERED))
    """The delays of the last rounds of as many replicas as now in which all contributions came in time."""
    usual_delays: dict[int, float] = field(default_factory=dict)
    """The median of `complete`, the lowest so far, by the number of replicas."""
    replicas: int = 0
    """The number of replicas in the last round."""
    used: float = 0.0
    """The credit that is used up, in seconds."""
    measured: float | None = None
    """The beginning of the round that was measured last: it has several parts, and the slowest counts."""
    charged: float = 0.0
    """The seconds that this round was charged."""

    @property
    def usual(self) -> float:
        """Seconds until half of a round's contributions are here, as a rule; 0 before the first round."""
        return median(self.halves) if self.halves else 0.0

    @property
    def return_seconds(self) -> float:
        """Seconds for which a round is kept open for those who may return to it, within its deadline."""
        return max(RETURN_SECONDS, RETURN_SHARE * self.usual)

    @property
    def grace(self) -> float:
        """Seconds that a slow replica is waited for, where the length of the round says nothing."""
        return self.patience * max(median(self.delays) if self.delays else 0.0, SHORTEST_WAIT_SECONDS)

    def wait(self, started: float, arrivals: Sequence[float], expected: int, last: bool = False) -> float | None:
        """Return the deadline: the time until which to wait for the rest of `expected` contributions; None while fewer
        than half are in. After the run's `last` round none can make up for what is missed.

        `started` is when this round began, `arrivals` when each contribution came, in seconds of one clock.
        """
        half = self._half(started, arrivals, expected)
        return None if half is None else self._deadline(half, started, expected, last)

    def _deadline(self, half: float, started: float, expected: int, last: bool = False) -> float:
        """Return the time until which a round waits of which half of the contributions were in at `half`."""
        length = max(0.0, half - started)
        most, usual = self._most(length, expected), self._known(expected)
        if last or usual is None:
            return half + (LAST_ROUND_RATIO if last else 1) * most
        credit = self._most_credit(length + usual) - self.used
        if credit < LEAST_CREDIT * (length + usual):  # saved, until it is enough for a replica that is behind
            return half + usual
        return half + usual + min(credit, max(0.0, most - usual))

    def stop(self, started: float, arrivals: Sequence[float], expected: int) -> float | None:
        """Return the time at which a replica that is not done yet ends its inner loop."""
        half = self._half(started, arrivals, expected)
        return None if half is None else half + EARLY_SHARE * (self._deadline(half, started, expected) - half)

    def remember(self, started: float, arrivals: Sequence[float], expected: int) -> None:
        """A round has ended. What came after `stop` tells nothing of how long to wait: it was cut short, and came when
        the wait let it. Counted, each wait would make the next one longer, until all wait for the slowest replica."""
        half, stop = halfway(arrivals, expected), self.stop(started, arrivals, expected)
        if half is None or stop is None:
            return
        in_time = [arrival for arrival in arrivals if arrival <= max(half, stop)]
        delay, is_whole = max(in_time) - half, len(in_time) >= expected
        if (usual := self._known(expected)) is not None:
            self._charge(started, max(half, self._usual_half(started)), arrivals, expected, usual)
        if half - started >= self.usual / 2:  # else this peer catches up, and finds all there
            was_cut = stop < half + (usual or 0.0)  # a replica that is as quick as usual
            self._measure(started, delay, is_whole and not was_cut, expected)
        self.measured = started
        self.halves.append(half - started)
        self.delays.append(delay)

    def _known(self, expected: int) -> float | None:
        """The seconds that the last of so many contributions usually takes after half of them; None: not known. With
        one more replica they are no more: half come later."""
        fewer = [replicas for replicas in self.usual_delays if replicas <= expected]
        return self.usual_delays[max(fewer)] if fewer else None

    def _most(self, length: float, expected: int) -> float:
        """The seconds that a round of this length waits at most after half of its contributions."""
        known = self._known(expected)
        usual = known if known is not None else median(self.delays) if self.delays else length
        return self.patience * max(usual, SHORTEST_DELAY_SHARE * length, SHORTEST_WAIT_SECONDS)

    def _measure(self, started: float, delay: float, is_complete: bool, expected: int) -> None:
        """Note the delay of a part of a round, `is_complete` if all contributions to it came in time, and none had to
        be cut short for that."""
        if expected != self.replicas:
            self.complete.clear()
            self.replicas = expected
        if not is_complete:
            if expected in self.usual_delays:  # else the median would become that of the short rounds alone
                self.complete.clear()
            return
        if started == self.measured and self.complete:
            delay = max(delay, self.complete.pop())
        self.complete.append(delay)
        if len(self.complete) >= ROUNDS_NEEDED:
            usual = median(self.complete)
            self.usual_delays[expected] = min(self.usual_delays.get(expected, usual), usual)

    def _charge(self, started: float, half: float, arrivals: Sequence[float], expected: int, usual: float) -> None:
        """Charge a part of a round that has ended for what it has waited beyond the usual delay."""
        until, length = self._deadline(half, started, expected), max(0.0, half - started)
        ended = min(until, max(half, *arrivals)) if len(arrivals) >= expected else until
        charge = ended - half - usual - CREDIT_SHARE * (length + usual)
        if started == self.measured:
            charge, more = max(charge, self.charged), max(0.0, charge - self.charged)
        else:
            more = charge
        self.charged = charge
        self.used = min(max(0.0, self.used + more), self._most_credit(length + usual))

    def _most_credit(self, usual: float) -> float:
        """The credit in seconds of a peer that has waited for nobody for long, where a round usually lasts `usual`
        seconds. Rounds may be shorter than a pause of an honest machine that does something else."""
        return max(MOST_CREDIT * usual, self.patience * SHORTEST_WAIT_SECONDS)

    def _half(self, started: float, arrivals: Sequence[float], expected: int) -> float | None:
        """Return the time at which half of the contributions were in, but not before they usually are: the steps of a
        broken group come early."""
        half = halfway(arrivals, expected)
        return None if half is None else max(half, self._usual_half(started))

    def _usual_half(self, started: float) -> float:
        """Return the time at which half of the contributions to a round usually are in; before any: not known."""
        return started + median(self.halves) if self.halves else -math.inf


def halfway(arrivals: Sequence[float], expected: int) -> float | None:
    """Return the time at which half of the expected contributions were in."""
    needed = max(1, (expected + 1) // 2)
    return sorted(arrivals)[needed - 1] if len(arrivals) >= needed else None


@dataclass(slots=True)
class RoundArrivals:
    """The times at which a round began at this peer, each contribution arrived, and this peer saw that the others had
    gone on, in seconds of one clock."""

    started: float
    arrivals: dict[Part, dict[PeerId, float]] = field(default_factory=dict)
    passed: float | None = None
    absent: dict[Part, dict[PeerId, float]] = field(default_factory=dict)
    """The authors of the round before that are out of their replica, and since when: it may be that of an earlier
    round, so that who does not come back is waited for once."""

    def note_absent(self, part: Part, peers: Collection[PeerId], now: float) -> dict[PeerId, float]:
        """Note who may come back to contribute to a part. Returns since when each has been absent."""
        before = self.absent.get(part, {})
        self.absent[part] = {peer: before.get(peer, now) for peer in peers}
        return self.absent[part]

    def missed(self, part: Part) -> set[PeerId]:
        """The authors of the round before that were missed in this one, and for which it was kept open."""
        return {peer for peer, since in self.absent.get(part, {}).items() if since >= self.started}

    def last_missed(self, peers: Collection[PeerId]) -> float | None:
        """The time at which the last of these was missed; None: there are none, or some of them are not absent."""
        times = [at for absent in self.absent.values() for peer, at in absent.items() if peer in peers]
        everybody = frozenset().union(*self.absent.values()) >= frozenset(peers)
        return max(times) if times and everybody else None

    def mark_passed(self, now: float) -> None:
        """Note that the others have gone on."""
        self.passed = now

    def lasted(self, part: Part) -> dict[PeerId, float]:
        """The seconds from the round's beginning to the arrival of each contribution to a part."""
        return {author: at - self.started for author, at in self.arrivals.get(part, {}).items()}

    def arrived(self, part: Part) -> list[float]:
        """The times at which the contributions to a part arrived."""
        return list(self.arrivals.get(part, {}).values())


@dataclass(frozen=True, slots=True)
class PartSeen:
    """The contributions to one part of the model in a round: whose are awaited, whose are here, and when these came, in
    seconds of one clock."""

    awaited: frozenset[PeerId]
    here: frozenset[PeerId]
    arrivals: Sequence[float]


@dataclass(frozen=True, slots=True)
class RoundSeen:
    """An outer round as one peer sees it now. Seconds are of the clock of `arrivals`."""

    round: int
    parts: Sequence[PartSeen]
    started: float
    """The time at which the round began here."""
    passed: float | None
    """The time at which this peer, still waiting, saw that the others had gone on; None: they have not."""
    least: int
    """The least number of contributions to each part."""
    applied_in: int
    """The round at whose end the contributions are applied: a later one where the exchange overlaps with training."""
    is_last: bool
    others_at: int
    """The round that the others have finished, as far as their contributions bear them out."""
    led: bool = True
    """Whether somebody who could lead a replica through the round may still be in it (`may_be_led`)."""


def others_have_gone_on(seen: RoundSeen) -> bool:
    """Whether the others have applied the round's contributions: nobody works on it any more."""
    return seen.others_at >= seen.applied_in


def is_complete(seen: RoundSeen) -> bool:
    """Whether a peer need not wait any longer for contributions: all that it awaits are here, or the others are a round
    further than this one can come late in, and something of each part has come."""
    gone_on = seen.others_at > seen.applied_in and all(part.here for part in seen.parts)
    return gone_on or all(part.awaited <= part.here and len(part.here) >= seen.least for part in seen.parts)


def others_are_done(seen: RoundSeen, me: PeerId) -> bool:
    """Whether nobody but this peer still trains in the round."""
    return all(part.awaited - {me} <= part.here for part in seen.parts)


def patience_with_those_behind(pace: Pace) -> float:
    """The seconds for which peers that are rounds behind are waited for."""
    return max(BEHIND_ROUNDS * pace.usual, BEHIND_SECONDS)


def most_wait_for_those_behind(seen: RoundSeen, pace: Pace, furthest: int) -> float:
    """The longest wait, in seconds, by which a round's end is put off for others that are all rounds behind: a window
    would close here before it closes there; 0: they are not. `furthest` is the round that at least one of them has
    finished, as far as it has signed contributions; 0: none."""
    behind = 0 < furthest < seen.applied_in - 1
    return patience_with_those_behind(pace) if behind else 0.0


def seconds_left(seen: RoundSeen, pace: Pace, now: float) -> float | None:
    """Return the seconds until a peer goes on without the contributions that are missing; None: nothing says so yet."""
    waits = [pace.wait(seen.started, part.arrivals, len(part.awaited), seen.is_last) for part in seen.parts]
    if None not in waits:
        return max(wait for wait in waits if wait is not None) - now
    if others_have_gone_on(seen) or not seen.led:  # what exists of the round comes soon
        return (now if seen.passed is None else seen.passed) + pace.grace - now
    return None


def why_go_on(seen: RoundSeen, now: float) -> str:
    """Return why a peer goes on without the contributions that are missing, in words."""
    why = "most contributions are here" if seen.passed is None else "the others have gone on"
    return f"{why}, and the round has lasted {now - seen.started:.0f} s"


def why_stop(seen: RoundSeen, pace: Pace, now: float) -> str:
    """Return why a replica that still trains in the round should end its inner loop with the steps it has; empty: it
    should not."""
    if others_have_gone_on(seen):
        return "the others have gone on to the next one"
    stops = [pace.stop(seen.started, part.arrivals, len(part.awaited)) for part in seen.parts]
    if any(stop is not None and now > stop for stop in stops):
        return f"the others are done, and do not wait much longer than {now - seen.started:.0f} s"
    return ""


def awaited(peers: Peers, part: Part, round: int, told: Collection[PeerId] = ()) -> frozenset[PeerId]:
    """The peers expected to contribute to `part` in `round`: of all that train, those that work on the round, those
    that say that their contribution is out, and those in `told`, whose contribution was announced, though they may be
    out with the next one already."""
    return frozenset(
        peer.peer_id
        for peer in authors(peers, part)
        if peer.contributed == round or peer.round < round or peer.peer_id in told
    )


def may_return(
    last: Collection[PeerId], expected: Collection[PeerId], records: Mapping[PeerId, PeerRecord], part: Part, round: int
) -> frozenset[PeerId]:
    """The authors of the `last` round that may yet contribute to `part` in this `round`, though they are in no replica
    now: they look for a group, or do not answer and have not said goodbye. None, where as many others are `expected`.
    A peer that has come anew may not have heard of them yet."""
    if len(expected) >= len(last):
        return frozenset()
    return frozenset(peer for peer in last if peer not in expected and _may_return(records.get(peer), part, round))


def _may_return(record: PeerRecord | None, part: Part, round: int) -> bool:
    if record is None:
        return True
    return not record.gone and record.round < round and contributes_to(record.role, record.stage, part)


def may_be_led(others: Peers, me: PeerRecord, applied_in: int, contributed: Container[PeerId]) -> bool:
    """Whether anybody who is here could still lead a replica through a round, to which some have `contributed`, and
    whose contributions are applied at the end of `applied_in`.

    Nobody can if all who lead say that they are past that, and the contribution of one of them is here. A stage whose
    members were all lost in the round's last step has nothing to it then, and would wait for ever. One honest leader
    that is still in the round says so; and what comes late all the same counts as ever.
    """
    if may_lead(me):
        return True
    leaders = [peer for peer in others if may_lead(peer)]
    past = all(peer.round >= applied_in for peer in leaders)
    return not (past and any(peer.peer_id in contributed for peer in leaders))


def is_abandoned(me: PeerRecord, members_at: Collection[int], others: Peers) -> bool:
    """Whether nobody can contribute any more to the round that the leader `me` is at, of whose members some say that
    they are at these other rounds: they have gone on without it, since it failed before its own contribution, and
    nobody else leads, or is further.

    It has contributed to the round before, so it holds the state that its stage went on from. A newcomer to a stage
    whose state nobody holds does not, and waits.
    """
    clock = me.round + 1
    alone = not any(may_lead(peer) and (peer.replica or peer.round >= clock) for peer in others)
    return alone and set(members_at) == {clock + 1} and 0 < me.contributed == clock - 1


def least_contributions(round: int, clock: int, replicas: int, gathered: bool) -> int:
    """Return how many contributions each part must have for a peer that works on round `clock` of a run of so many
    `replicas`. While these are still waited for (not `gathered`), the first round needs all of them, seen already or
    not; the present one needs at least one. A round that is over may have none: after a power cut, all go on from the
    round of one of them."""
    return replicas if round == 1 and not gathered else int(round >= clock)
