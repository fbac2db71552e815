"""The class of all events, and the events of what a peer decided, judged or waits for, and why: most of them for people
who ask afterwards. `peer/telemetry/events.py` has the others. Pure."""

from dataclasses import dataclass, replace
from typing import Literal

from protocol.wording import so_many, tail, tails

Level = Literal["debug", "info", "warning", "error"]
"""The importance of an event to whoever looks after a daemon. No log keeps `debug`."""


@dataclass(frozen=True, slots=True)
class EventBase:
    """An event without fields. A class of events overrides what differs from these defaults."""

    @property
    def name(self) -> str:
        """The event's name in JSON."""
        return type(self).__name__

    @property
    def level(self) -> Level:
        """The importance of the event."""
        return "info"

    @property
    def words(self) -> str | None:
        """The event as a line worth keeping; None for what only passes by."""
        return None

    @property
    def passing(self) -> str | None:
        """The event as a line that the next one replaces; None: it is no such line."""
        return None

    @property
    def cause(self) -> str:
        """The reason of the event, as far as its fields have it; empty if they have none."""
        return str(getattr(self, "reason", ""))


@dataclass(frozen=True, slots=True)
class Placed(EventBase):
    """This peer's slot in a run of so many rounds of so many inner steps, and why it has that one."""

    stage: int
    rounds: int
    inner_steps: int
    reason: str

    @property
    def words(self) -> str:
        return f"Why here: {self.reason}."


@dataclass(frozen=True, slots=True)
class Left(EventBase):
    """This peer goes in order; `replica`: whose group it was in, or empty."""

    replica: str
    reason: str

    @property
    def words(self) -> str:
        return f"Leaving {f'the group of {tail(self.replica)}' if self.replica else 'the swarm'}: {self.reason}."


@dataclass(frozen=True, slots=True)
class Avoided(EventBase):
    """This peer has hung up on another and does not talk to it for so many seconds; None: for good."""

    peer: str
    seconds: float | None
    reason: str

    level = "warning"

    @property
    def words(self) -> str:
        how_long = "for good" if self.seconds is None else f"for {self.seconds:.0f} s"
        return f"Peer {tail(self.peer)} is avoided {how_long}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GoalChanged(EventBase):
    """This peer's replica means to take so many inner steps in a round from now on: the slowest other replica takes
    `ratio` times as long for one."""

    round: int
    steps: int
    ratio: float

    @property
    def cause(self) -> str:
        """The speed of the others, in words."""
        return f"of the other replicas the slowest takes {self.ratio:.1f} times as long for a step"

    @property
    def words(self) -> str:
        return f"From round {self.round} on {so_many(self.steps, 'inner step')} a round: {self.cause}."


@dataclass(frozen=True, slots=True)
class EndedEarly(EventBase):
    """This peer's replica contributes fewer inner steps to a round than the run has."""

    round: int
    steps: int
    reason: str

    level = "warning"

    @property
    def words(self) -> str:
        return f"Ended round {self.round} early, after {so_many(self.steps, 'inner step')}: {self.reason}."


@dataclass(frozen=True, slots=True)
class WentOn(EventBase):
    """This peer waits no longer for what others (`without`) should have contributed to a round. It may still count."""

    round: int
    without: list[str]
    reason: str

    level = "warning"

    @property
    def words(self) -> str:
        return f"Waiting no longer in round {self.round} for {tails(self.without)}: {self.reason}."


@dataclass(frozen=True, slots=True)
class NotCounted(EventBase):
    """This peer's contribution to these parts in a round, if there is one, does not count."""

    round: int
    parts: list[str]
    reason: str

    level = "warning"

    @property
    def words(self) -> str:
        return f"Nothing of this peer counts in round {self.round} ({', '.join(self.parts)}): {self.reason}."


@dataclass(frozen=True, slots=True)
class Counted(EventBase):
    """A contribution that did not count does count after all."""

    round: int
    parts: list[str]

    @property
    def words(self) -> str:
        return f"This peer's contribution to round {self.round} counts after all ({', '.join(self.parts)})."


@dataclass(frozen=True, slots=True)
class CaughtUp(EventBase):
    """This peer was behind, and has taken from others, by their word, what counted up to a round."""

    round: int

    @property
    def words(self) -> str:
        return f"Caught up with the others: took from them what counted up to round {self.round}."


@dataclass(frozen=True, slots=True)
class Adopted(EventBase):
    """This peer was not there, and began with the state after a round that so many others hold: `attested` by the
    operator's observer, which has taken others' word up to round `since` itself; or by their word alone."""

    round: int
    peers: int
    attested: bool
    since: int = 0

    @property
    def level(self) -> Level:
        return "info" if self.attested else "warning"

    @property
    def words(self) -> str:
        if self.attested:
            seen = f" (it has seen the run itself from round {self.since + 1} on)" if self.since else ""
            return f"Began with the state after round {self.round}, which the operator's observer attests{seen}."
        past = "Nobody whom the operator trusts has seen this run's past"
        return f"{past}: the state after round {self.round} is the word of {so_many(self.peers, 'peer')}."


@dataclass(frozen=True, slots=True)
class Recalled(EventBase):
    """The work before this start that receipts in this peer's folder prove: tokens in so many `rounds`; of the recent
    ones, to which more may come, (round, tokens) each, and of all older ones together."""

    rounds: int
    older: int
    recent: list[tuple[int, int]]

    @property
    def words(self) -> str:
        tokens = self.older + sum(tokens for _, tokens in self.recent)
        return f"Credit until now: {tokens:,} tokens in {so_many(self.rounds, 'round')}."


@dataclass(frozen=True, slots=True)
class Resynchronised(EventBase):
    """This peer had another state than most, or than the operator's observer attests (`attested`), and took that;
    `returned` of its contributions count nowhere else and went back into its error feedback."""

    part: str
    round: int
    returned: int
    attested: bool = False

    level = "warning"

    @property
    def words(self) -> str:
        own = f" {self.returned} of our contributions went back into the error feedback." if self.returned else ""
        whose = "the one that the operator attests; took that" if self.attested else "that of most peers; took theirs"
        return f"WARNING: our state of {self.part} was not {whose}, of round {self.round}.{own}"

    @property
    def cause(self) -> str:
        who = "the operator attests" if self.attested else "most peers had"
        return f"{who} another state of {self.part}"


@dataclass(frozen=True, slots=True)
class Audited(EventBase):
    """The effect of contributions to a round, by author: how much higher the held-out loss would be, in nats per token,
    had the author sent zeros instead."""

    round: int
    gains: dict[str, float]

    @property
    def words(self) -> str:
        worst_first = sorted(self.gains.items(), key=lambda item: item[1])
        gains = ", ".join(f"{tail(peer)} {gain:+.4f}" for peer, gain in worst_first)
        return f"Audit of round {self.round}, gains in nats: {gains}"


@dataclass(frozen=True, slots=True)
class SpotChecked(EventBase):
    """This observer has computed `passes` microbatches of a round again for stages that asked. `least`: how like that
    the least like of the payloads was that they had received, -1 to 1."""

    round: int
    passes: int
    least: float

    @property
    def words(self) -> str:
        done = f"{self.passes} of what stages had received, the least of it {self.least:.2f} like what was computed"
        return f"Spot checks in round {self.round}: {done}"


@dataclass(frozen=True, slots=True)
class Tried(EventBase):
    """An audit has looked at what a peer on trial contributed to a round: what it would have gained, in nats per token,
    and what is wrong with it; empty: nothing, and it may count from now on."""

    round: int
    peer: str
    gain: float
    objection: str = ""

    @property
    def words(self) -> str:
        verdict = f"not yet: {self.objection}" if self.objection else "they count from now on"
        would = f"round {self.round} would gain {self.gain:+.4f} nats"
        return f"Trial of peer {tail(self.peer)}'s contributions: {would}; {verdict}"

    @property
    def cause(self) -> str:
        return self.objection


@dataclass(frozen=True, slots=True)
class Suspected(EventBase):
    """An audit suspects a peer. `since`: the first round whose contribution did harm; 0 where no harm was measured, as
    with copies, of which nobody can tell who made the first."""

    peer: str
    reason: str
    since: int = 0

    level = "warning"

    @property
    def words(self) -> str:
        return f"WARNING: peer {tail(self.peer)} is suspected: {self.reason}"


@dataclass(frozen=True, slots=True)
class Waiting(EventBase):
    """This peer waits from now on for `what` it cannot do itself. `until`: what ends the wait, in words. So many are
    `here` of those `needed`; 0 and 0: they are not counted. It lasts `most_seconds`; None: as long as the swarm lacks
    them. `round`: the one whose end ends the wait; 0: none does. `brief`: it belongs to every round, and has not lasted
    long: no log keeps it."""

    what: str
    until: str = ""
    here: int = 0
    needed: int = 0
    most_seconds: float | None = None
    round: int = 0
    brief: bool = False

    @property
    def waits_for(self) -> str:
        """The wait, and what ends it: the words without the verb."""
        return f"{self.what}: {self.until}" if self.until else self.what

    @property
    def level(self) -> Level:
        return "debug" if self.brief else "info"

    @property
    def words(self) -> str | None:
        return None if self.brief else f"Waits for {self.waits_for}"

    @property
    def passing(self) -> str | None:
        return f"waits for {self.waits_for}" if self.brief else None

    @property
    def cause(self) -> str:
        return self.until

    def goes_on(self, before: "Waiting | None") -> bool:
        """Whether it is the wait `before`, perhaps with other numbers: with the same end, or for the same."""
        return (
            before is not None
            and before.round == self.round
            and (before.until == self.until or before.what == self.what)
        )


@dataclass(frozen=True, slots=True)
class OnlyHolder(EventBase):
    """The finding that nobody else here holds the newest state of `what`, parts in words; empty: others hold all."""

    what: str

    @property
    def words(self) -> str:
        if not self.what:
            return "Others hold the newest state of all that this peer holds, too."
        without = "if it leaves, the run stands still until it is back"
        return f"Only this peer holds the newest state of {self.what}: {without}."


@dataclass(frozen=True, slots=True)
class Pulse(EventBase):
    """A report every few seconds: the bytes over this peer's line since it joined, of the pipeline's frames and of all
    else that is large; how many other peers it knows, and how many of these do not answer."""

    frames_sent: int
    bulk_sent: int
    frames_received: int
    bulk_received: int
    peers: int
    lost: int

    level = "debug"

    def since(self, before: "Pulse | None") -> "Pulse":
        """This pulse, with the bytes of the time since the one `before`; None: since the peer joined."""
        if before is None:
            return self
        names = ("frames_sent", "bulk_sent", "frames_received", "bulk_received")
        return replace(self, **{name: max(0, getattr(self, name) - getattr(before, name)) for name in names})


Decision = (
    Placed
    | Left
    | Avoided
    | GoalChanged
    | EndedEarly
    | WentOn
    | NotCounted
    | Counted
    | CaughtUp
    | Adopted
    | Recalled
    | Resynchronised
    | Audited
    | SpotChecked
    | Tried
    | Suspected
    | OnlyHolder
)
