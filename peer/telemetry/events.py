"""The events of a daemon, as values: screen, reports and the testnet read these, never log text. Each has words, a
level and a reason. On standard output with `--json` each is one line: {"event": "RoundDone", …}."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, get_args

from peer.telemetry.decisions import Decision, EventBase, Level, Pulse, Waiting
from peer.telemetry.group_decisions import GroupDecision
from protocol.wording import size, so_many, tail, tails


@dataclass(frozen=True, slots=True)
class Serving(EventBase):
    """The bootstrap node is up, and its dashboard, if it has one, at this URL."""

    ticket: str
    run_id: str
    dashboard: str = ""

    @property
    def words(self) -> str:
        seen = f"The dashboard: {self.dashboard}\n" if self.dashboard else ""
        return (
            f"Serving run {self.run_id[:12]}. The ticket, one line, for everybody who joins:\n\n{self.ticket}\n\n"
            f"{seen}Ctrl-C stops this node."
        )


@dataclass(frozen=True, slots=True)
class Progress(EventBase):
    """A long operation goes on: fetching, tokenizing, computing."""

    doing: str
    done: int = 0
    total: int = 0

    @property
    def level(self) -> Level:
        return "debug" if self.total else "info"

    @property
    def words(self) -> str | None:
        return None if self.done or self.total else self.doing[:1].upper() + self.doing[1:]

    @property
    def passing(self) -> str | None:
        return f"{self.doing}: {size(self.done)} of {size(self.total)}" if self.total else None


@dataclass(frozen=True, slots=True)
class Warned(Progress):
    """A line of progress that this peer's owner should look at. In JSON it is a `Progress`, and its text begins with
    `WARNING`."""

    name = "Progress"
    level = "warning"


@dataclass(frozen=True, slots=True)
class Joined(EventBase):
    """This peer has a place in the run."""

    peer_id: str
    role: str
    stage: int
    slot: int
    address: str

    @property
    def words(self) -> str | None:
        if self.role == "lab":
            return None  # there is nobody to join
        where = f" of stage {self.stage}" if self.role == "volunteer" else ""
        return f"Joined as {self.role}{where} (slot {self.slot}): peer {tail(self.peer_id)} at {self.address}"


@dataclass(frozen=True, slots=True)
class Reached(EventBase):
    """This peer cannot be dialled: the relays by which others reach it now (peer ids)."""

    relays: list[str]

    @property
    def level(self) -> Level:
        return "info" if self.relays else "warning"

    @property
    def words(self) -> str:
        if not self.relays:
            return "WARNING: no relay holds this peer, and it cannot be dialled: others cannot call it."
        return f"Others reach this peer by {len(self.relays)} relay(s): {tails(self.relays)}"


@dataclass(frozen=True, slots=True)
class GroupFormed(EventBase):
    """This peer is a member of a complete replica."""

    replica: str
    slot: int
    members: list[str]
    reason: str = ""

    @property
    def words(self) -> str:
        why = f"; {self.reason}" if self.reason else ""
        return f"In the group of {tail(self.replica)}, {len(self.members)} stages: {tails(self.members)}{why}"


@dataclass(frozen=True, slots=True)
class StepDone(EventBase):
    """One inner step. `loss` is the mean over the replica's microbatches, where this peer knows it."""

    round: int
    step: int
    loss: float | None
    tokens: int

    level = "debug"

    @property
    def passing(self) -> str:
        loss = f", loss {self.loss:.3f}" if self.loss is not None else ""
        return f"round {self.round}, step {self.step + 1}{loss}"


@dataclass(frozen=True, slots=True)
class RoundDone(EventBase):
    """The end of one outer round. `contributions` counts those it has applied (part → number), and `digests` tell the
    state that the next inner loop starts from (part → hex), with open rounds as far as they have come: a peer that has
    another contribution prints another digest. Bytes are those that this process has sent so far."""

    round: int
    seconds: float
    tokens: int
    contributions: dict[str, int]
    digests: dict[str, str]
    pipeline_sent: int
    outer_sent: int

    @property
    def words(self) -> str:
        sets = ", ".join(f"{part} {count}" for part, count in self.contributions.items())
        sent = f"{size(self.pipeline_sent)} in the pipeline, {size(self.outer_sent)} in contributions"
        return f"Round {self.round} done in {self.seconds:.1f} s; contributions: {sets}; sent so far: {sent}"


@dataclass(frozen=True, slots=True)
class Evaluated(EventBase):
    """Held-out loss in nats per token after a round: through the boundaries, and plain."""

    round: int
    loss: float
    loss_plain: float

    @property
    def words(self) -> str:
        losses = f"{self.loss:.3f} through the boundaries, {self.loss_plain:.3f} plain"
        return f"Held-out loss after round {self.round}: {losses}"


@dataclass(frozen=True, slots=True)
class GroupBroken(EventBase):
    """A member of this peer's group, often a neighbour, has died or left. The inner step in flight, `step` of `round`,
    is rolled back."""

    replica: str
    round: int
    step: int
    reason: str

    level = "warning"

    @property
    def words(self) -> str:
        rolled_back = f"Step {self.step + 1} of round {self.round} is rolled back"
        lost = rolled_back if self.round else "No step was in flight"
        return f"{self.reason[:1].upper()}{self.reason[1:]}. {lost}; the group forms anew."


@dataclass(frozen=True, slots=True)
class Contributed(EventBase):
    """This peer's contribution of a round is out; `steps` inner steps of its own are behind it. Who reads tokens says
    which: `chunks` are ranges of what `protocol/outer/data_plan.py` gives out, from the first up to the second, without
    it."""

    round: int
    steps: int
    chunks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Credited(EventBase):
    """Others, `signers`, have signed what this peer did in a round, with all that such events of it before had."""

    round: int
    tokens: int
    signers: list[str]

    @property
    def words(self) -> str:
        by = so_many(len(self.signers), "peer")
        return f"Credit for round {self.round}: {self.tokens:,} tokens, signed by {by}."


@dataclass(frozen=True, slots=True)
class Resumed(EventBase):
    """This peer took up its work where its folder had it: after outer round `round`."""

    round: int

    @property
    def words(self) -> str:
        return f"Resumed after round {self.round}, from this peer's own folder."


@dataclass(frozen=True, slots=True)
class Paused(EventBase):
    """This peer has left its group and the swarm, and computes and serves nothing."""

    reason: str

    @property
    def words(self) -> str:
        return f"Paused {self.reason}."


@dataclass(frozen=True, slots=True)
class PauseEnded(EventBase):
    """A paused peer goes on, from its folder."""

    words = "The pause is over: going on."


@dataclass(frozen=True, slots=True)
class HandedOver(EventBase):
    """This peer leaves, and another of its stage has taken over its error feedback and the optimizer's state."""

    heir: str

    cause = "this peer leaves, and another of its stage takes its place"

    @property
    def words(self) -> str:
        return f"Handed over to peer {tail(self.heir)}: error feedback and optimizer."


@dataclass(frozen=True, slots=True)
class Inherited(EventBase):
    """This peer has taken over the error feedback of one that leaves; and the optimizer's state, if `optimizer`."""

    giver: str
    optimizer: bool

    cause = "a peer of this stage leaves"

    @property
    def words(self) -> str:
        return f"Took over from peer {tail(self.giver)}: error feedback{' and optimizer' if self.optimizer else ''}."


@dataclass(frozen=True, slots=True)
class CertificateRenewed(EventBase):
    """The others know this peer until `ends`, in seconds since 1970."""

    ends: float

    @property
    def words(self) -> str:
        until = f"{datetime.fromtimestamp(self.ends):%Y-%m-%d %H:%M}"
        return f"This peer's certificate was renewed; it lasts until {until}."


@dataclass(frozen=True, slots=True)
class Refused(EventBase):
    """Another peer has sent something that is not valid. Nothing of it is used."""

    peer: str
    reason: str

    level = "warning"

    @property
    def words(self) -> str:
        return f"Refused what peer {tail(self.peer)} sent: {self.reason}"


@dataclass(frozen=True, slots=True)
class Finished(EventBase):
    """The run is over for this peer, and `digests` are those of the final state (part → hex)."""

    rounds: int
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return f"Finished: {self.rounds} rounds."


@dataclass(frozen=True, slots=True)
class Failed(EventBase):
    """This process ends with an error."""

    message: str
    exit_code: int

    level = "error"

    @property
    def words(self) -> str:
        return f"hetpeer: {self.message}"

    @property
    def cause(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Injected(EventBase):
    """A testnet broke something on purpose: `action` ("killed", "paused", "resumed", …) to `processes`, as a part of
    its fault `number`, in its own notation `fault`. `begins` is false where the fault ends or comes to nothing."""

    number: int
    fault: str
    action: str
    processes: list[str]
    begins: bool
    reason: str = ""

    @property
    def words(self) -> str:
        if self.begins and self.reason:
            return f"{self.action} {self.reason}"
        return f"{self.action} {'; '.join(self.processes)}".rstrip() + (f": {self.reason}" if self.reason else "")


Event = (
    Serving
    | Progress
    | Waiting
    | Joined
    | Reached
    | GroupFormed
    | GroupBroken
    | StepDone
    | Contributed
    | RoundDone
    | Credited
    | Resumed
    | Paused
    | PauseEnded
    | HandedOver
    | Inherited
    | CertificateRenewed
    | Refused
    | Evaluated
    | Finished
    | Failed
    | Injected
    | Decision
    | GroupDecision
    | Pulse
)
Listener = Callable[[Event], None]

EVENT_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def to_line(event: Event) -> str:
    """One line of JSON."""
    return json.dumps({"event": event.name} | asdict(event))


def from_line(line: str) -> Event:
    """Read what `to_line` wrote. Raises ValueError for anything else."""
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError(f"not an event: {line[:80]!r}") from None
    kind = fields.pop("event", None) if isinstance(fields, dict) else None
    try:
        event: Event = EVENT_TYPES[str(kind)](**fields)
    except (KeyError, TypeError):
        raise ValueError(f"not an event: {line[:80]!r}") from None
    return event
