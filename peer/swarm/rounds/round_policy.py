"""When an outer round is over for a peer, decided from what it has seen of the round, and the time. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from peer.swarm.roles import authors
from peer.swarm.rounds.deadline import Pace
from protocol.identity import Part, PeerId
from protocol.trust.records import Peers


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
    """When the round began here."""
    passed: float | None
    """When this peer, still waiting, saw that the others had gone on; None: they have not."""
    least: int
    """So many contributions to each part there must be."""
    applied_in: int
    """The round at whose end the contributions are applied: a later one where the exchange overlaps with training."""
    is_last: bool
    others_at: int
    """The round that the others have finished, as far as their contributions bear them out."""


def others_have_gone_on(seen: RoundSeen) -> bool:
    """Whether the others have applied the round's contributions: nobody works on it any more."""
    return seen.others_at >= seen.applied_in


def is_complete(seen: RoundSeen) -> bool:
    """Whether a peer need not wait any longer for contributions: all that it awaits are here, or the others are a round
    further than this one can come late in."""
    return seen.others_at > seen.applied_in or all(
        part.awaited <= part.here and len(part.here) >= seen.least for part in seen.parts
    )


def is_ahead(seen: RoundSeen, furthest: int) -> bool:
    """Whether all others are rounds behind: then a peer waits for them, or its window would close before theirs.
    `furthest` is the round that at least one of them has finished, as far as it has signed contributions; 0: none."""
    return 0 < furthest < seen.applied_in - 1


def seconds_left(seen: RoundSeen, pace: Pace, now: float) -> float | None:
    """Until a peer goes on without the contributions that are missing; None: nothing says so yet."""
    waits = [pace.wait(seen.started, part.arrivals, len(part.awaited), seen.is_last) for part in seen.parts]
    if None not in waits:
        return max(wait for wait in waits if wait is not None) - now
    if others_have_gone_on(seen):  # what exists of the round comes soon
        return (now if seen.passed is None else seen.passed) + pace.grace - now
    return None


def why_go_on(seen: RoundSeen, now: float) -> str:
    """Why a peer goes on without the contributions that are missing, in words."""
    why = "most contributions are here" if seen.passed is None else "the others have gone on"
    return f"{why}, and the round has lasted {now - seen.started:.0f} s"


def why_stop(seen: RoundSeen, pace: Pace, now: float) -> str:
    """Why a replica that still trains in the round should end its inner loop with the steps it has; empty: it should
    not."""
    if others_have_gone_on(seen):
        return "the others have gone on to the next one"
    stops = [pace.stop(seen.started, part.arrivals, len(part.awaited)) for part in seen.parts]
    if any(stop is not None and now > stop for stop in stops):
        return f"the others are done, and do not wait much longer than {now - seen.started:.0f} s"
    return ""


def awaited(peers: Peers, part: Part, round: int, told: Collection[PeerId] = ()) -> frozenset[PeerId]:
    """Whose contribution to a part and round there is, or is to come: of all who train, those who are at it, those who
    say that it is out, and those of whom it was `told`, though they may be out with the next one already."""
    return frozenset(
        peer.peer_id
        for peer in authors(peers, part)
        if peer.contributed == round or peer.round < round or peer.peer_id in told
    )


def least_contributions(round: int, clock: int, replicas: int) -> int:
    """How many contributions to each part there must be for a peer that works on round `clock` of a run of so many
    `replicas`. The first round is of all who began the run together, seen already or not; the present one is not of
    nobody. One that is over may be: after a power cut, all go on from where one of them was."""
    return replicas if round == 1 else int(round >= clock)
