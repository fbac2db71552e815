"""The decisions of a stage on its group: its neighbours, and the number of values in a frame."""

from protocol.events.event import SHOWN, Event, event
from protocol.events.fields import PeerName, Seconds, ShortText, Whole
from protocol.wording import tail

LIKE_SPEED = "the groups are quicker if volunteers of like speed are together"
"""The reason for which groups exchange members."""


@event(level="warning", sinks=SHOWN)
class Dismissed(Event):
    """This peer has hung up on a neighbour of its group that broke the protocol or held the group up, and avoids it."""

    peer: PeerName
    round: Whole
    step: Whole
    reason: ShortText

    @property
    def words(self) -> str:
        when = f", at step {self.step + 1} of round {self.round}" if self.round else ""
        return f"Dismissed peer {tail(self.peer)} from this group{when}: {self.reason}"


@event("Stage {stage} goes from peer {member!t} to peer {peer!t}: {cause}.", sinks=SHOWN, cause=LIKE_SPEED)
class MemberChanged(Event):
    """The member behind this peer changes from `member` to `peer` between two rounds: with members of like speed
    together, the groups are quicker."""

    member: PeerName
    peer: PeerName
    stage: Whole
    round: Whole


NOBODY_FREE = "no other volunteer of its stage is free"
"""The reason why a slow member keeps its seat."""

THIS_PEER = "that is this peer: its machine or its line is busy with something else, or hot"
"""The reason that the owner of a slow member reads."""


def how_slow(seconds: float, usual: float, promised: float) -> str:
    """Describe how slow a stage is, in words to follow its name: with it the group's steps take so many `seconds`, and
    took the `usual` ones before; its own passes of a step take the `promised` seconds by what it has said (0: it has
    not)."""
    says = f", and it says that it could in {promised:.2g} s" if promised else ""
    return f"takes {seconds:.3g} s a step; its group took {usual:.2g} s before{says}"


@event("{finding!c}; {reason}.", level="warning", sinks=SHOWN)
class SlowMember(Event):
    """A member of this peer's group, or this peer itself, has become slow, and keeps its seat. `or_further`: it may be
    one behind it."""

    peer: PeerName
    stage: Whole
    seconds: Seconds
    usual: Seconds
    promised: Seconds
    reason: ShortText
    or_further: bool = False

    @property
    def plain(self) -> str | None:
        if self.reason != THIS_PEER:
            return None  # its own owner reads it
        return (
            f"This machine is slower than before: a step takes {self.seconds:.2g} s, and took {self.usual:.2g} s. It "
            "or its line is busy with something else, or it is hot."
        )

    @property
    def finding(self) -> str:
        """The slow member, and by how much it is slow, in words."""
        further = ", or one behind it," if self.or_further else ""
        return (
            f"stage {self.stage} (peer {tail(self.peer)}){further} {how_slow(self.seconds, self.usual, self.promised)}"
        )


@event("Stage {stage} (peer {peer!t}) is as quick as before.")
class MemberRecovered(Event):
    """A member of this peer's group that was slow is as quick as before."""

    peer: PeerName
    stage: Whole


@event("{reason!c}.", level="warning", sinks=SHOWN, plain="")
class MemberReplaced(Event):
    """This peer lets a slow neighbour go, to try a free volunteer of its stage. Nobody avoids the slow one for it."""

    peer: PeerName
    stage: Whole
    seconds: Seconds
    usual: Seconds
    promised: Seconds

    @property
    def reason(self) -> str:
        """The reason why it is replaced, in words."""
        slow = how_slow(self.seconds, self.usual, self.promised)
        return f"stage {self.stage} (peer {tail(self.peer)}) {slow}: another volunteer of its stage is tried"


@event("Out of the group of {replica!t}, and free for another: {cause}.", cause=LIKE_SPEED)
class Released(Event):
    """This peer has left its group between two rounds, and is free for one that it suits better."""

    replica: PeerName


@event("{why!c}.", sinks=SHOWN, cause="{why}", kept=("compression",))
class CompressionChosen(Event):
    """This peer is the first stage of a group that chooses its own k: d / `compression` from now on, and why."""

    compression: Whole
    why: ShortText
