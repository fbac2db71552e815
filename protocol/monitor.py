"""The public view of a run: the telemetry that peers send to the operator's nodes, and the view of the run that a node
makes of it. Nothing in the run follows from either, but for its end; and nothing in them is secret: a peer that lies
here misleads people, and no other peer.

A batch of telemetry is one message of JSON: the peer's state now, and what has happened since the last batch. It names
no sender, since the stream it comes on has one, and no time by the peer's clock: `ago` is seconds before it was sent.

The view is what the dashboard, `hetpeer status` and the node's metrics show. The node makes it of the telemetry and of
the records that peers sign (`bootstrap/monitor`).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, ValidationError

from protocol.errors import FormatError
from protocol.wording import printable

# Telemetry

BATCH_BYTES = 64 * 1024
"""The size of a batch: 64 things that happened, each with its words and a reason, of 300 characters each at most."""

EVENTS_REPORTED = 64
"""The things that happened in one batch. A peer that has more to tell says how many it left out."""

MOST_AGO_SECONDS = 3600.0
"""The largest `ago`: what happened longer ago is told as of an hour ago."""

MOST_WORDS = 300

_MOST = 2**53
"""The largest whole number that every reader of JSON keeps exactly."""

PeerName = Annotated[str, StringConstraints(max_length=64, pattern=r"^[1-9A-HJ-NP-Za-km-z]*$")]
"""A peer id, or empty where there is none."""

ShortText = Annotated[str, StringConstraints(max_length=MOST_WORDS), AfterValidator(printable)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
RoundNumber = Annotated[int, Field(ge=0, lt=2**31)]
Steps = Annotated[int, Field(ge=0, lt=2**31)]
Loss = Annotated[FiniteFloat, Field(ge=0, le=1e6)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]


class Strict(BaseModel):
    """The base of all messages of telemetry: frozen, of known fields, of exact types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PeerEvent(Strict):
    """An event of a peer. `name` is the event's, as in `protocol/events/`; `words` are for the log, and empty
    where the event is not worth a line there."""

    ago: FiniteFloat = Field(0.0, ge=0, le=MOST_AGO_SECONDS)
    name: str = Field(max_length=32, pattern=r"^[A-Za-z]*$")
    words: ShortText = ""
    round: RoundNumber = 0


class RoundEnded(PeerEvent):
    """The peer has ended an outer round: contributions by part, and bytes that it has sent since it ended the last."""

    kind: Literal["round"] = "round"
    seconds: Seconds
    tokens: Count
    contributions: dict[Annotated[str, StringConstraints(max_length=16)], Count] = Field(max_length=130)
    pipeline_bytes: Count
    outer_bytes: Count


class LossFound(PeerEvent):
    """The peer has measured the held-out loss after a round, in nats per token: through the boundaries, and plain."""

    kind: Literal["loss"] = "loss"
    loss: Loss
    loss_plain: Loss


class GroupJoined(PeerEvent):
    """The peer is a member of a complete replica of these members, by stage."""

    kind: Literal["group"] = "group"
    replica: PeerName
    members: list[PeerName] = Field(max_length=128)


class GroupLost(PeerEvent):
    """A member of the peer's group is gone, and the inner step in flight is rolled back."""

    kind: Literal["broken"] = "broken"
    replica: PeerName
    why: ShortText


class ContributionOut(PeerEvent):
    """The peer has contributed to a round, with so many inner steps behind it."""

    kind: Literal["contributed"] = "contributed"
    steps: Steps


class EndedShort(PeerEvent):
    """The peer's replica contributes fewer inner steps to a round than the run has."""

    kind: Literal["short"] = "short"
    steps: Steps
    why: ShortText


class NotAwaited(PeerEvent):
    """The peer waits no longer for what others should have contributed to a round."""

    kind: Literal["without"] = "without"
    peers: list[PeerName] = Field(max_length=16)
    why: ShortText


class PeerDeparture(PeerEvent):
    """The peer is going: for a while, or for good."""

    kind: Literal["going"] = "going"
    how: Literal["leaving", "paused", "gone"]
    why: ShortText


class LoggedEvent(PeerEvent):
    """Anything else that is worth a line: a refusal, a suspicion, a decision. `peer` is the peer that it is about."""

    kind: Literal["noted"] = "noted"
    peer: PeerName = ""


ReportedEvent = Annotated[
    RoundEnded
    | LossFound
    | GroupJoined
    | GroupLost
    | ContributionOut
    | EndedShort
    | NotAwaited
    | PeerDeparture
    | LoggedEvent,
    Field(discriminator="kind"),
]


class StepReport(Strict):
    """The state of a peer now: its round, how many inner steps of it are done, and the last step's loss; and since it
    joined, the tokens of its replica's steps, the seconds, and the bytes that went over its line."""

    version: str = Field("", max_length=32, pattern=r"^[0-9A-Za-z.+-]*$")
    round: RoundNumber = 0
    step: Steps = 0
    loss: Loss | None = None
    tokens: Count = 0
    seconds: Seconds = 0.0
    up: Count = 0
    down: Count = 0
    compression: int = Field(0, ge=0, le=65536, description="d / k that its group has chosen; 0: the run's own")
    credit: Count = Field(0, description="tokens of work that receipts show")
    waits: ShortText = Field("", description="what it waits for, and what ends the wait; empty: it waits for nothing")
    slow: ShortText = Field("", description="the member of its group that is slow, and by how much; empty: nobody is")
    happened: list[ReportedEvent] = Field(default_factory=list, max_length=EVENTS_REPORTED)
    left_out: Count = Field(0, description="so many things that happened are not told")


def pack_report(batch: StepReport) -> bytes:
    """Encode a batch as it is sent."""
    return batch.model_dump_json().encode()


def unpack_report(data: bytes) -> StepReport:
    """Check a batch that a peer sent.

    Raises:
        FormatError: it is too long, or is none.
    """
    if len(data) > BATCH_BYTES:
        raise FormatError(f"a batch of {len(data)} bytes, where {BATCH_BYTES} are allowed")
    try:
        return StepReport.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = printable(".".join(map(str, first["loc"])))
        raise FormatError(f"what is told is malformed: {where}: {printable(first['msg'])}"[:200]) from None
    except ValueError:
        raise FormatError("what is told is malformed") from None


# The view


MOST_LINES = 200
"""The lines of the log that a view has, the newest."""

PeerState = Literal["training", "waiting", "catching up", "on trial", "paused", "leaving", "gone", "lost"]
"""The states of a peer. A peer that is `gone` has said goodbye; of one that is `lost` nothing has been heard for too
long."""

RunState = Literal["gathering", "training", "stalled", "finished"]
"""The states of a run. One that is `gathering` waits for its first peers; one that is `stalled` had
begun, and stands still."""


class ViewModel(BaseModel):
    """The base of all views: frozen; unknown fields, of a later version, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PeerView(ViewModel):
    """One peer of the run. `replica` is the peer id of its group's first stage, or empty; rates are bytes and tokens a
    second."""

    id: str
    role: Literal["volunteer", "datacenter", "observer"]
    stage: int = 0
    slot: int = 0
    replica: str = ""
    state: PeerState = "waiting"
    why: str = Field("", description="why it is in this state, in words, where that is known")
    round: int = Field(0, description="the round it works on")
    step: int = Field(0, description="inner steps it has done in it")
    loss: float | None = None
    tokens_per_second: float = 0.0
    up: float = 0.0
    down: float = 0.0
    sent: int = Field(0, description="bytes since its process began")
    address: str = ""
    relayed: bool = Field(False, description="it cannot be dialled: others reach it through a relay")
    joined: float = Field(0.0, description="Unix seconds")
    heard: float = Field(0.0, description="Unix seconds of its last sign of life")
    credit: int = Field(0, description="tokens of work that receipts show")
    version: str = Field("", description="of its program")


class GroupView(ViewModel):
    """A replica of several volunteers: its members' peer ids by stage; empty where one is missing."""

    replica: str
    slot: int
    members: list[str]
    compression: int = Field(1, description="d / k")
    broken: str = Field("", description="why it does not train now, if it does not")
    slow: str = Field(
        "", description="the member that is slow, and by how much, as one beside it says; empty: nobody is"
    )


class RoundView(ViewModel):
    """An outer round. For peers that are `late` or `left` it tells why, by peer id. Bytes are of the whole swarm."""

    round: int
    began: float = Field(description="Unix seconds")
    ended: float | None = None
    loss: float | None = Field(None, description="held-out, through the boundaries, in nats per token")
    loss_plain: float | None = None
    evaluated_by: str = Field("", description="the peer id of who said so")
    tokens: int = 0
    contributions: dict[str, int] = Field(default_factory=dict, description="peer id → inner steps")
    late: dict[str, str] = Field(default_factory=dict)
    left: dict[str, str] = Field(default_factory=dict)
    pipeline_bytes: int = 0
    outer_bytes: int = 0
    uncompressed_bytes: int = Field(0, description="what both would be without any compression")


class LineView(ViewModel):
    """A line of the log: something that was decided or happened, and why."""

    at: float = Field(description="Unix seconds")
    kind: str = Field(description="the event's name, as in `protocol/events/`")
    words: str
    peer: str = ""
    round: int = 0


class View(ViewModel):
    """The whole run, now."""

    run_id: str
    now: float
    started: float
    stages: int
    replicas: int
    rounds: int
    round: int
    inner_steps: int
    compression: int
    tokens: int
    tokens_per_second: float
    peers: list[PeerView]
    groups: list[GroupView]
    short: str = Field("", description="which stages have too few volunteers for another group, in words")
    history: list[RoundView]
    log: list[LineView]
    state: RunState | Literal[""] = Field("", description="empty: the node is too old to tell")
    state_why: str = Field("", description="what is missing, in words, where something is")
    state_since: float = Field(0.0, description="Unix seconds")


# What a node says of the run to whoever asks at its registration port


@dataclass(frozen=True, slots=True)
class NodeWord:
    """A node's word on how far its run is.

    `finished` is the run's last round, if the run is over, else 0. `taking`: the node is about to take the last state,
    and its holders should stay until then. `run` is the last round that the run has finished. `holders` are signed
    records, not checked yet, of peers that held the newest states. `rewind` is the operator's newest rewind, signed and
    not checked yet. `keeps`: the node takes states over from last holders.
    """

    finished: int = 0
    taking: bool = False
    run: int = 0
    holders: tuple[bytes, ...] = ()
    rewind: bytes = b""
    keeps: bool = False
