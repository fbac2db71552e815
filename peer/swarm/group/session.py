"""A stage's session in its groups, as a table: its states, the events that end them, and what the stage does then.

`peer/swarm/group/stage_runner.py` does the work of each state, and takes the event that ends it to the session. Every
state has a rule: who ends it, how long it lasts at most, and what the owner is told meanwhile. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import HetpeerError
from protocol.patience import (
    AGREEMENT_TIMEOUT_SECONDS,
    BEHIND_ROUNDS,
    BEHIND_SECONDS,
    FILL_SECONDS,
    FURTHER_STAGE_SECONDS,
    LONG_STEP_SECONDS,
    LONG_WAIT_SECONDS,
    SHORTEST_STEP_BOUND_SECONDS,
    STEP_PATIENCE,
)


class IllegalEventError(HetpeerError):
    """An event that the session's state does not have: a fault of this program."""


class GroupState(StrEnum):
    """The state of a stage in its groups."""

    FREE = "free"
    SEATED = "seated"
    WHOLE = "whole"
    LOADING = "loading"
    ASKING = "asking"
    COMPARING = "comparing"
    READY = "ready"
    TRAINING = "training"
    ENDING = "ending"
    LEFT = "left"


class GroupEvent(StrEnum):
    """An event that ends the work of a state."""

    CALLED = "called"
    """A stage before this one calls it; the first stage calls itself."""
    FILLED = "filled"
    """Every stage behind this one has a volunteer."""
    OFFERED = "offered"
    """The stage before offers a round; the first stage begins one."""
    LOADED = "loaded"
    """This stage has loaded the offered round."""
    LACKING = "lacking"
    """This stage, or one behind it, does not hold what the offered round needs, or is past it."""
    AGREED = "agreed"
    """All stages behind this one have loaded the offered round."""
    DIFFERS = "differs"
    """A stage behind this one holds another state, or is past the offered round."""
    RETRIED = "retried"
    """The first stage offers the round anew, with what it has taken from the stage behind it."""
    OVERTAKEN = "overtaken"
    """The first stage ends the round with the inner steps that it has: a member cannot go on in it."""
    STARTED = "started"
    """The first stage has all stages start at the same inner step."""
    STEPS_DONE = "steps done"
    """The last inner step of the round is taken."""
    ROUND_OVER = "round over"
    """The round's contributions are in, or its deadline has passed."""
    REGROUPED = "regrouped"
    """The round is over, and this stage is in another group from now on."""
    LOST = "lost"
    """A neighbour is gone, silent or slow, or broke the protocol."""
    LEAVING = "leaving"
    """This peer leaves, or the run is over."""


class GroupAction(StrEnum):
    """The act of a stage between two states."""

    NOTHING = "nothing"
    TAKE_SEAT = "take its seat"
    ANNOUNCE = "announce that the group is whole"
    REFUSE = "answer what it holds"
    RETRY = "pause, after failures"
    START = "start, and tell that the group has formed"
    CLOSE_LOOP = "close the inner loop"
    SWITCH = "leave its seat for the other group"
    PART = "leave its seat; what was said goes out"
    HANG_UP = "hang up on both neighbours, roll the inner step back, leave its seat"
    LEAVE = "contribute, and take no more calls"


@dataclass(frozen=True, slots=True)
class StateRule:
    """The rule of one state: who or what ends it, how long it lasts at most, and what the owner is told meanwhile."""

    ended_by: str
    bound: str
    shown: str


S, E, A = GroupState, GroupEvent, GroupAction

RULES: dict[GroupState, StateRule] = {
    S.FREE: StateRule(
        ended_by="a stage before it, by a call; a first stage at once",
        bound="none for a spare: it follows the rounds meanwhile",
        shown="that it is a spare, and which stage is short",
    ),
    S.SEATED: StateRule(
        ended_by="free volunteers of the stages behind, by taking their seats",
        bound=f"{FILL_SECONDS:.0f} s for each stage behind, if another volunteer of this stage is free; all follow the "
        "rounds meanwhile",
        shown="which stages have nobody",
    ),
    S.WHOLE: StateRule(
        ended_by="the stage before, by an offer; a first stage once the run has begun",
        bound=f"{2 * BEHIND_SECONDS:.0f} s, or {2 * BEHIND_ROUNDS} usual rounds, and {FURTHER_STAGE_SECONDS:.0f} s for "
        "each stage before",
        shown="whose offer it waits for",
    ),
    S.LOADING: StateRule(
        ended_by="this peer, when it has finished the rounds before and loaded this one",
        bound="the deadlines of the rounds before",
        shown="whose contributions it waits for",
    ),
    S.ASKING: StateRule(
        ended_by="the stage behind, by an answer",
        bound=f"{AGREEMENT_TIMEOUT_SECONDS:.0f} s, and {FURTHER_STAGE_SECONDS:.0f} s for each stage behind",
        shown=f"after {LONG_WAIT_SECONDS:.0f} s, whose answer it waits for",
    ),
    S.COMPARING: StateRule(
        ended_by="the stage behind, by what it holds and this one does not",
        bound="the timeout of a comparison, and of each fetch",
        shown="what it fetches",
    ),
    S.READY: StateRule(
        ended_by="the stage before, by a start; a first stage at once",
        bound=f"{AGREEMENT_TIMEOUT_SECONDS:.0f} s, and {FURTHER_STAGE_SECONDS:.0f} s for each stage before",
        shown=f"after {LONG_WAIT_SECONDS:.0f} s, whose start it waits for",
    ),
    S.TRAINING: StateRule(
        ended_by="the first stage, which says in each inner step whether it is the last",
        bound=f"the round's inner steps, each {STEP_PATIENCE:.0f} times a usual one, and at least "
        f"{SHORTEST_STEP_BOUND_SECONDS:.0f} s",
        shown=f"each step; after {LONG_STEP_SECONDS:.0f} s, whose frames it waits for",
    ),
    S.ENDING: StateRule(
        ended_by="the others, by their contributions",
        bound="the round's deadline",
        shown="whose contributions it waits for",
    ),
    S.LEFT: StateRule(ended_by="nobody", bound="for good", shown="the outcome"),
}
"""The rule of each state."""

TRANSITIONS: dict[tuple[GroupState, GroupEvent], tuple[GroupState, GroupAction]] = {
    (S.FREE, E.CALLED): (S.SEATED, A.TAKE_SEAT),
    (S.SEATED, E.FILLED): (S.WHOLE, A.ANNOUNCE),
    (S.WHOLE, E.OFFERED): (S.LOADING, A.NOTHING),
    (S.LOADING, E.LOADED): (S.ASKING, A.NOTHING),
    (S.LOADING, E.LACKING): (S.WHOLE, A.REFUSE),
    (S.ASKING, E.AGREED): (S.READY, A.NOTHING),
    (S.ASKING, E.DIFFERS): (S.COMPARING, A.NOTHING),
    (S.COMPARING, E.LACKING): (S.WHOLE, A.REFUSE),
    (S.COMPARING, E.RETRIED): (S.WHOLE, A.RETRY),
    (S.COMPARING, E.OVERTAKEN): (S.ENDING, A.NOTHING),
    (S.READY, E.STARTED): (S.TRAINING, A.START),
    (S.TRAINING, E.STEPS_DONE): (S.ENDING, A.CLOSE_LOOP),
    (S.ENDING, E.ROUND_OVER): (S.WHOLE, A.NOTHING),
    (S.ENDING, E.REGROUPED): (S.FREE, A.SWITCH),
    **{(state, E.LOST): (S.FREE, A.PART) for state in S if state not in (S.READY, S.TRAINING, S.LEFT)},
    **{(state, E.LOST): (S.FREE, A.HANG_UP) for state in (S.READY, S.TRAINING)},
    **{(state, E.LEAVING): (S.LEFT, A.LEAVE) for state in S if state is not S.LEFT},
}
"""The state that follows, and the act of the stage, by a state and the event that ends it. No other pair is legal."""


class GroupSession:
    """The session of one stage, from its first group to its last."""

    def __init__(self, state: GroupState = GroupState.FREE) -> None:
        self._state = state

    @property
    def state(self) -> GroupState:
        """The state that the session is in."""
        return self._state

    def take(self, event: GroupEvent) -> GroupAction:
        """Take the event that has ended the state. Returns what the stage does before the next state's work.

        Raises:
            IllegalEventError: the state does not have this event; it stays.
        """
        if (self._state, event) not in TRANSITIONS:
            legal = ", ".join(other for state, other in TRANSITIONS if state is self._state) or "nothing"
            raise IllegalEventError(f"a stage that is {self._state} cannot take '{event}', only: {legal}")
        self._state, action = TRANSITIONS[self._state, event]
        return action
