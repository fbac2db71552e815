"""What a group decides, or its leader: who is in it, and in how many numbers its frames are."""

from dataclasses import dataclass

from peer.telemetry.decisions import EventBase
from protocol.wording import tail

LIKE_SPEED = "the groups are quicker if volunteers of like speed are together"
"""Why groups exchange members."""


@dataclass(frozen=True, slots=True)
class Dismissed(EventBase):
    """This peer leads a group and has put a member out of it: while it is avoided it is not invited again."""

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
    """This peer leads a group, and between two rounds it exchanges a member for `peer`: with those of like speed
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
    """This peer is free: the leader of its group has let it go, for a group that it suits better."""

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
    """This peer leads a group that chooses its own k: d / `compression` from now on, and why."""

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
