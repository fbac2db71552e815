"""The phases of a peer in a run, as a table: which follow each other, who ends each, and what its owner is told.

The phase follows from facts alone (`phase_of`). Joining, catching up, waiting, leaving and the operator's node all ask
it. The rule behind it: a peer that knows of a round that the run has finished never closes that round by itself, never
trains from an older state, and never takes the run for one that begins. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from protocol.identity import Part
from protocol.outer.window import SKEW


class RunPhase(StrEnum):
    """The phase of a peer in its run."""

    GATHERING = "gathering"
    TRAINING = "training"
    CATCHING_UP = "catching up"
    AWAITING_STATE = "awaiting a state"
    MISSED_END = "missed the end"
    SETTLING = "settling"
    LINGERING = "lingering"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one phase: who or what ends it, how long it lasts at most, what the owner is told meanwhile, and the
    phases that may follow."""

    ended_by: str
    bound: str
    shown: str
    next: frozenset[RunPhase]


P = RunPhase

PHASES: dict[RunPhase, Rule] = {
    P.GATHERING: Rule(
        ended_by="the replicas of the manifest, when all have formed, or `run.gather` seconds after the first",
        bound="until a replica has formed; `run.gather` from then on",
        shown="who is missing, of how many",
        next=frozenset({P.TRAINING, P.CATCHING_UP, P.AWAITING_STATE, P.MISSED_END, P.DONE}),
    ),
    P.TRAINING: Rule(
        ended_by="the run, when its last round is finished, or when it is rounds ahead of this peer",
        bound="the run's rounds, each with its deadline",
        shown="its steps and rounds, or whom it waits for",
        next=frozenset({P.CATCHING_UP, P.AWAITING_STATE, P.MISSED_END, P.SETTLING, P.DONE}),
    ),
    P.CATCHING_UP: Rule(
        ended_by="peers that hold the newest state, by giving it; where this peer may hold it itself, the operator's "
        "node or such a peer, by an answer",
        bound="the time that the state takes over this link; who does not answer is asked again each second",
        shown="which state it fetches, and how much of it is here; or whose answer it waits for",
        next=frozenset({P.TRAINING, P.GATHERING, P.AWAITING_STATE, P.MISSED_END, P.SETTLING, P.DONE}),
    ),
    P.AWAITING_STATE: Rule(
        ended_by="a peer that brings the state back, or the operator, who rewinds the run or ends it",
        bound="none: the decision is the operator's, who is told as well",
        shown="which state it is, and what ends the wait",
        next=frozenset({P.TRAINING, P.GATHERING, P.CATCHING_UP, P.MISSED_END, P.SETTLING, P.DONE}),
    ),
    P.MISSED_END: Rule(
        ended_by="a peer that holds the last state, by giving it",
        bound="5 s where this peer does not stay to hold the model",
        shown="that the run is over, and whether the last state is here",
        next=frozenset({P.SETTLING, P.LINGERING, P.DONE}),
    ),
    P.SETTLING: Rule(
        ended_by="the others, when all have finished the last round and hold the same",
        bound="60 s, or the usual length of a round; 15 s for each peer that does not answer",
        shown="who has not finished yet",
        next=frozenset({P.LINGERING, P.DONE}),
    ),
    P.LINGERING: Rule(
        ended_by="the operator's node, when it knows of the end and holds the last state; with `--stay`, the owner",
        bound="120 s, or 30 s while the node does not answer; with `--stay`, none",
        shown="what the node is waited for",
        next=frozenset({P.SETTLING, P.DONE}),
    ),
    P.DONE: Rule(ended_by="nobody", bound="for good", shown="the outcome", next=frozenset()),
}
"""The table of phases. Any phase becomes DONE when the owner stops the peer."""


@dataclass(frozen=True, slots=True)
class PartView:
    """A part that a peer follows. `newest` is the last round after which its state is known to have been held by
    another, `held` the last one after which a peer that is here holds it (None: none is here). `arriving`: something of
    this peer's next round is here; `complete`: the contributions of all who contributed lately are. `closed` is the
    last round that this peer's own state has closed: it may have taken over a state that is ahead of its rounds."""

    newest: int
    held: int | None
    arriving: bool = False
    complete: bool = False
    closed: int = 0


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as one peer sees it now. `finished` is the last round that this peer has finished, `run` the last one that
    the run has, `last` the run's last one. `present`: this peer has followed the rounds without a gap since it was last
    abreast. `confirmed`: the operator's node, or a peer that holds the newest state, has said to this process how far
    the run is. `is_over`: the operator's node says that the run is; `compared`: this peer's last state was compared
    with the others'; `left`: it is asked to leave, or nobody needs it any more."""

    last: int
    finished: int
    run: int
    parts: Mapping[Part, PartView]
    present: bool = False
    confirmed: bool = True
    begun: bool = True
    is_over: bool = False
    compared: bool = False
    left: bool = False


def phase_of(view: RunView) -> RunPhase:
    """The phase that follows from the facts."""
    if view.left:
        return RunPhase.DONE
    if view.finished >= view.last:
        return RunPhase.LINGERING if view.compared else RunPhase.SETTLING
    if view.is_over:
        return RunPhase.MISSED_END
    if is_abreast(view):
        return RunPhase.TRAINING if view.begun else RunPhase.GATHERING
    return RunPhase.AWAITING_STATE if lacking_parts(view) else RunPhase.CATCHING_UP


def is_abreast(view: RunView) -> bool:
    """Whether a peer may train from its own state. A peer that is present may be behind by as many rounds as messages
    take, if what it misses still comes. One that has just come must hold all that is known to have been held, and that
    is not for its folder alone to say. Nobody trains in a round that its own state has closed."""
    if any(part.closed > view.finished for part in view.parts.values()):
        return False
    if view.present:
        cut_off = any(_is_cut_off(view, part) for part in view.parts.values())
        return view.run <= view.finished + 1 or (view.run <= view.finished + SKEW and not cut_off)
    return view.confirmed and view.run <= view.finished + 1 and all(stands(view, part) for part in view.parts.values())


def _is_cut_off(view: RunView, part: PartView) -> bool:
    """Whether nobody here holds a part as it was after this peer's next round, and nothing of that round has come."""
    return part.newest > view.finished and not part.arriving and (part.held is None or part.held <= view.finished)


def stands(view: RunView, part: PartView) -> bool:
    """Whether a peer holds the newest state of a part, or needs only to finish the round after which that was held: the
    round's contributions are here, or it is not over and a peer that has finished it is here, which has them."""
    being_finished = view.run <= view.finished and part.held is not None and part.held >= part.newest
    return view.finished >= part.newest or (view.finished + 1 == part.newest and (part.complete or being_finished))


def lacking_parts(view: RunView) -> list[Part]:
    """The parts that a peer needs from others, and that nobody here holds as they are known to have been held. A holder
    may be as many rounds behind as messages take."""
    return [
        name
        for name, part in view.parts.items()
        if not stands(view, part) and (part.held is None or part.held + SKEW < part.newest or _is_cut_off(view, part))
    ]


def target(view: RunView) -> int:
    """The round to catch up with: the last that the run has finished and those who are here can give, and none that
    this peer's own state has closed before."""
    held = [part.held for part in view.parts.values() if part.held is not None and not stands(view, part)]
    return max(view.finished, min([view.run, *held]), *(part.closed for part in view.parts.values()))
