"""What a peer decided, and why: events (`peer/telemetry/events.py`) for people who ask afterwards. Nothing follows from
them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """Why this peer has the place that it has, in a run of so many rounds of so many inner steps."""

    stage: int
    rounds: int
    inner_steps: int
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """This peer goes in order; `replica`: whose group it was in, or empty."""

    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class Avoided:
    """This peer has hung up on another and does not talk to it for so many seconds; None: for good."""

    peer: str
    seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Dismissed:
    """This peer leads a group and has put a member out of it: while it is avoided it is not invited again."""

    peer: str
    round: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """This peer's replica contributes fewer inner steps to a round than the run has."""

    round: int
    steps: int
    reason: str


@dataclass(frozen=True, slots=True)
class WentOn:
    """This peer waits no longer for what others (`without`) should have contributed to a round. It may still count."""

    round: int
    without: list[str]
    reason: str


@dataclass(frozen=True, slots=True)
class NotCounted:
    """What this peer contributed to these parts in a round, if anything, does not count."""

    round: int
    parts: list[str]
    reason: str


@dataclass(frozen=True, slots=True)
class Counted:
    """It counts after all."""

    round: int
    parts: list[str]


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """This peer was behind, and has taken from others, by their word, what counted up to a round."""

    round: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """This peer was not there, and began with the state after a round that so many others hold: `attested` by the
    operator's observer, which has taken others' word up to round `since` itself; or by their word alone."""

    round: int
    peers: int
    attested: bool
    since: int = 0


@dataclass(frozen=True, slots=True)
class Recalled:
    """What receipts in this peer's folder show of its work before it was started: tokens in so many `rounds`; of the
    recent ones, to which more may come, (round, tokens) each, and of all older ones together."""

    rounds: int
    older: int
    recent: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Pulse:
    """How it goes, every few seconds: bytes that have gone over this peer's line since it joined, of the pipeline's
    frames and of all else that is large; how many other peers it knows, and how many of these do not answer."""

    frames_sent: int
    bulk_sent: int
    frames_received: int
    bulk_received: int
    peers: int
    lost: int


Decision = (
    Placed | Left | Avoided | Dismissed | EndedEarly | WentOn | NotCounted | Counted | CaughtUp | Adopted | Recalled
)
