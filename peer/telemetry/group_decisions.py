"""What a stage decides of its group: who sits beside it, and in how many numbers the frames are."""

from dataclasses import dataclass

from peer.telemetry.decisions import EventBase
from protocol.wording import tail

LIKE_SPEED = "the groups are quicker if volunteers of like speed are together"
"""Why groups exchange members."""


@dataclass(frozen=True, slots=True)
class Dismissed(EventBase):
    """This peer has hung up on a neighbour of its group that broke the protocol or held the group up, and avoids it."""

    peer: str
    round: int
    step: int
    reason: str

    level = "warning"

    @property
    def words(self) -> str:
        when = f", at step {self.step + 1} of round {self.round}" if self.round else ""
        return f"Dismissed peer {tail(self.peer)} from this group{when}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MemberChanged(EventBase):
    """Between two rounds, whom this peer has behind it changes from `member` to `peer`: with those of like speed
    together, the groups are quicker."""

    member: str
    peer: str
    stage: int
    round: int

    @property
    def cause(self) -> str:
        """What it is good for."""
        return LIKE_SPEED

    @property
    def words(self) -> str:
        return f"Stage {self.stage} goes from peer {tail(self.member)} to peer {tail(self.peer)}: {self.cause}."


@dataclass(frozen=True, slots=True)
class Released(EventBase):
    """This peer has left its group between two rounds, and is free for one that it suits better."""

    replica: str

    @property
    def cause(self) -> str:
        """What it is good for."""
        return LIKE_SPEED

    @property
    def words(self) -> str:
        return f"Out of the group of {tail(self.replica)}, and free for another: {self.cause}."


@dataclass(frozen=True, slots=True)
class CompressionChosen(EventBase):
    """This peer is the first stage of a group that chooses its own k: d / `compression` from now on, and why."""

    compression: int
    why: str

    @property
    def words(self) -> str:
        return f"{self.why[0].upper()}{self.why[1:]}."

    @property
    def cause(self) -> str:
        return self.why


GroupDecision = Dismissed | MemberChanged | Released | CompressionChosen
"""Those of this module."""
