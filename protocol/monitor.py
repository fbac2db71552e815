"""The view of a run that an operator's node makes of what peers report (`protocol/events/peer_report.py`) and of the
records that they sign (`bootstrap/monitor`): the dashboard, `hetpeer status` and the node's metrics show it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.events.event import PeerState
from protocol.events.peer_report import ReportedStatus

MOST_LINES = 200
"""The lines of the log that a view has, the newest."""

PeerRole = Literal["volunteer", "datacenter", "observer"]

RunState = Literal["gathering", "training", "stalled", "finished"]
"""The states of a run. One that is `gathering` waits for its first peers; one that is `stalled` had
begun, and stands still."""


class ViewModel(BaseModel):
    """The base of all views: frozen; unknown fields, of a later version, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


@dataclass(slots=True, kw_only=True)
class PeerView(ReportedStatus):
    """One peer of the run: its status as it reports it, but for what the node knows better. `replica` is the peer id of
    its group's first stage, or empty; times are Unix seconds."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    id: str
    role: PeerRole
    stage: int = 0
    slot: int = 0
    replica: str = ""
    state: PeerState = PeerState.WAITING
    why: str = ""
    """The reason for its state, in words, where that is known."""
    address: str = ""
    relayed: bool = False
    """Whether others reach it through a relay, since it cannot be dialled."""
    joined: float = 0.0
    heard: float = 0.0
    """Its last sign of life."""


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
    seconds_left: float | None = Field(None, description="to the run's end, at the pace of its last rounds")
    name: str = Field("", description="the run's name; empty: the node is too old to tell")
    made_up: bool = Field(False, description="whether this run is made up, to look at, and no peer of it exists")


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
