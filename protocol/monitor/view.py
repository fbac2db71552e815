"""A run as an operator's node sees it: what the dashboard, `hetpeer status` and the node's metrics show.

It is made of the records that peers sign and of what they say of themselves (`bootstrap/monitor`). Nothing in it is
secret, and nothing in the run follows from it: a peer that lies here misleads people, and no other peer.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_LINES = 200
"""The lines of the log that a view has, the newest."""

PeerState = Literal["training", "waiting", "catching up", "on trial", "paused", "leaving", "gone", "lost"]
"""The states of a peer. A peer that is `gone` has said goodbye; of one that is `lost` nothing has been heard for too
long."""


class ViewModel(BaseModel):
    """The base of all views: frozen; unknown fields, of a later version, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PeerView(ViewModel):
    """One peer of the run. `replica` is the peer id of its group's leader, or empty; rates are bytes and tokens a
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
    kind: str = Field(description="the event's name, as in `peer/telemetry/events.py`")
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
    history: list[RoundView]
    log: list[LineView]
