"""The events of what a peer decided, judged or waits for, and why: most of them for people who ask afterwards. Pure."""

from protocol.events.event import PRIVATE, SHOWN, Event, PeerState, event
from protocol.events.fields import (
    Nats,
    NatsByPeer,
    PartNames,
    PeerName,
    PeerNames,
    Ratio,
    Seconds,
    ShortName,
    ShortText,
    Whole,
)
from protocol.wording import so_many, tail


@event("Why here: {reason}.", kept=("rounds", "inner_steps"), plain="{words}")
class Placed(Event):
    """This peer's slot in a run of so many rounds of so many inner steps, and why it has that one."""

    stage: Whole
    rounds: Whole
    inner_steps: Whole
    reason: ShortText


@event(state=PeerState.LEAVING)
class Left(Event):
    """This peer goes in order; `replica`: whose group it was in, or empty."""

    replica: PeerName
    reason: ShortText

    @property
    def words(self) -> str:
        return f"Leaving {f'the group of {tail(self.replica)}' if self.replica else 'the swarm'}: {self.reason}."


@event(level="warning")
class Avoided(Event):
    """This peer has hung up on another and does not talk to it for so many seconds; None: for good."""

    peer: PeerName
    seconds: Seconds | None
    reason: ShortText

    @property
    def words(self) -> str:
        how_long = "for good" if self.seconds is None else f"for {self.seconds:.0f} s"
        return f"Peer {tail(self.peer)} is avoided {how_long}: {self.reason}"


@event(
    "From round {round} on {steps:#inner step} a round: {cause}.",
    cause="of the other replicas the slowest takes {ratio:.1f} times as long for a step",
    sinks=SHOWN,
)
class GoalChanged(Event):
    """This peer's replica means to take so many inner steps in a round from now on: the slowest other replica takes
    `ratio` times as long for one."""

    round: Whole
    steps: Whole
    ratio: Ratio


@event("Ended round {round} early, after {steps:#inner step}: {reason}.", level="warning", sinks=SHOWN, plain="")
class EndedEarly(Event):
    """This peer's replica contributes fewer inner steps to a round than the run has."""

    round: Whole
    steps: Whole
    reason: ShortText


@event("Waiting no longer in round {round} for {without!t}: {reason}.", level="warning", plain="")
class WentOn(Event):
    """This peer waits no longer for what others (`without`) should have contributed to a round. It may still count."""

    round: Whole
    without: PeerNames
    reason: ShortText


IDLE = "it did no inner step of its own in it, as a spare does none; until it does one, this is not said again"
"""The reason for which nothing of a peer counts that had nothing to do."""


@event("Nothing of this peer counts in round {round} ({parts!l}): {reason}.", level="warning", sinks=SHOWN)
class NotCounted(Event):
    """This peer's contribution to these parts in a round, if there is one, does not count."""

    round: Whole
    parts: PartNames
    reason: ShortText

    @property
    def plain(self) -> str | None:
        return None if self.reason == IDLE else self.words  # the line on its wait has said that it is a spare


@event("This peer's contribution to round {round} counts after all ({parts!l}).")
class Counted(Event):
    """A contribution that did not count does count after all."""

    round: Whole
    parts: PartNames


@event("Caught up with the others: took from them what counted up to round {round}.")
class CaughtUp(Event):
    """This peer was behind, and has taken from others, by their word, what counted up to a round."""

    round: Whole


@event()
class Adopted(Event):
    """This peer was not there, and began with the state after a round that so many others hold: `attested` by the
    operator's observer, which has taken others' word up to round `since` itself; or by their word alone."""

    round: Whole
    peers: Whole
    attested: bool
    since: Whole = 0

    @property
    def words(self) -> str:
        if self.attested:
            seen = f" (it has seen the run itself from round {self.since + 1} on)" if self.since else ""
            return f"Began with the state after round {self.round}, which the operator's observer attests{seen}."
        alike = f"which {self.peers} peers hold alike" if self.peers > 1 else "which one peer holds"
        return f"Began with the state after round {self.round}, {alike}; no observer of the operator's attests it."


@event(sinks=PRIVATE, plain="{words}")
class Recalled(Event):
    """The work before this start that receipts in this peer's folder prove: tokens in so many `rounds`; of the recent
    ones, to which more may come, (round, tokens) each, and of all older ones together."""

    rounds: int
    older: int
    recent: list[tuple[int, int]]

    @property
    def words(self) -> str:
        tokens = self.older + sum(tokens for _, tokens in self.recent)
        return f"Credit until now: {tokens:,} tokens in {so_many(self.rounds, 'round')}."


@event(level="warning", sinks=SHOWN)
class Resynchronised(Event):
    """This peer had another state than most, or than the operator's observer attests (`attested`), and took that;
    `returned` of its contributions count nowhere else and went back into its error feedback."""

    part: ShortName
    round: Whole
    returned: Whole
    attested: bool = False

    @property
    def words(self) -> str:
        own = f" {self.returned} of our contributions went back into the error feedback." if self.returned else ""
        whose = "the one that the operator attests; took that" if self.attested else "that of most peers; took theirs"
        return f"WARNING: our state of {self.part} was not {whose}, of round {self.round}.{own}"

    @property
    def cause(self) -> str:
        who = "the operator attests" if self.attested else "most peers had"
        return f"{who} another state of {self.part}"


@event()
class Audited(Event):
    """The effect of contributions to a round, by author: how much higher the held-out loss would be, in nats per token,
    had the author sent zeros instead."""

    round: Whole
    gains: NatsByPeer

    @property
    def words(self) -> str:
        worst_first = sorted(self.gains.items(), key=lambda item: item[1])
        gains = ", ".join(f"{tail(peer)} {gain:+.4f}" for peer, gain in worst_first)
        return f"Audit of round {self.round}, gains in nats: {gains}"


@event()
class SpotChecked(Event):
    """This observer has computed `passes` microbatches of a round again for stages that asked. `least`: how like that
    the least like of the payloads was that they had received, -1 to 1."""

    round: Whole
    passes: Whole
    least: Ratio

    @property
    def words(self) -> str:
        done = f"{self.passes} of what stages had received, the least of it {self.least:.2f} like what was computed"
        return f"Spot checks in round {self.round}: {done}"


@event(sinks=SHOWN, cause="{objection}")
class Tried(Event):
    """An audit has looked at what a peer on trial contributed to a round: what it would have gained, in nats per token,
    and what is wrong with it; empty: nothing, and it may count from now on."""

    round: Whole
    peer: PeerName
    gain: Nats
    objection: ShortText = ""

    @property
    def words(self) -> str:
        verdict = f"not yet: {self.objection}" if self.objection else "they count from now on"
        would = f"round {self.round} would gain {self.gain:+.4f} nats"
        return f"Trial of peer {tail(self.peer)}'s contributions: {would}; {verdict}"


@event("WARNING: peer {peer!t} is suspected: {reason}", level="warning", sinks=SHOWN)
class Suspected(Event):
    """An audit suspects a peer. `since`: the first round whose contribution did harm; 0 where no harm was measured, as
    with copies, of which nobody can tell who made the first."""

    peer: PeerName
    reason: ShortText
    since: Whole = 0


@event(plain="{words}")
class OnlyHolder(Event):
    """The finding that nobody else here holds the newest state of `what`, parts in words; empty: others hold all."""

    what: ShortText

    @property
    def words(self) -> str:
        if not self.what:
            return "Others hold the newest state of all that this peer holds, too."
        without = "should it leave, the run waits for it"
        return f"Only this peer holds the newest state of {self.what}, usual while a stage has one peer: {without}."
