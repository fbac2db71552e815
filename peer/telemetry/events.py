"""What happened in a daemon, as values: screen, reports and the testnet read these, never log text. On standard output
with `--json` each is one line: {"event": "RoundDone", …}."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from peer.telemetry.decisions import Decision, Pulse


@dataclass(frozen=True, slots=True)
class Serving:
    """The bootstrap node is up, and its dashboard, if it has one, at this URL."""

    ticket: str
    run_id: str
    dashboard: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A long operation goes on: fetching, tokenizing, waiting for others."""

    doing: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """This peer has a place in the run."""

    peer_id: str
    role: str
    stage: int
    slot: int
    address: str


@dataclass(frozen=True, slots=True)
class Reached:
    """This peer cannot be dialled: the relays by which others reach it now (peer ids)."""

    relays: list[str]


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """This peer is a member of a complete replica."""

    replica: str
    slot: int
    members: list[str]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepDone:
    """One inner step. `loss` is the mean over the replica's microbatches, where this peer knows it."""

    round: int
    step: int
    loss: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The end of one outer round. `contributions` counts those it has applied (part → number), and `digests` tell the
    state that the next inner loop starts from (part → hex). Bytes are those that this process has sent so far."""

    round: int
    seconds: float
    tokens: int
    contributions: dict[str, int]
    digests: dict[str, str]
    pipeline_sent: int
    outer_sent: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Held-out loss in nats per token after a round: through the boundaries, and plain."""

    round: int
    loss: float
    loss_plain: float


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """A member of this peer's group is gone. The inner step in flight, `step` of `round`, is rolled back."""

    replica: str
    round: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CompressionChosen:
    """This peer leads a group that chooses its own k: d / `compression` from now on, and why."""

    compression: int
    why: str


@dataclass(frozen=True, slots=True)
class Contributed:
    """This peer's contribution of a round is out; `steps` inner steps of its own are behind it. Who reads tokens says
    which: `chunks` are ranges of what `protocol/outer/data_plan.py` gives out, from the first up to the second, without
    it."""

    round: int
    steps: int
    chunks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Credited:
    """Others, `signers`, have signed what this peer did in a round, with all that such events of it before had."""

    round: int
    tokens: int
    signers: list[str]
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """This peer took up its work where its folder had it: after outer round `round`."""

    round: int


@dataclass(frozen=True, slots=True)
class Paused:
    """This peer has left its group and the swarm, and computes and serves nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class PauseEnded:
    """It goes on, from its folder."""


@dataclass(frozen=True, slots=True)
class Resynchronised:
    """This peer had another state than most, or than the operator's observer attests (`attested`), and took that;
    `returned` of its contributions count nowhere else and went back into its error feedback."""

    part: str
    round: int
    returned: int
    attested: bool = False


@dataclass(frozen=True, slots=True)
class HandedOver:
    """This peer leaves, and another of its stage has taken over its error feedback and AdamW's state."""

    heir: str


@dataclass(frozen=True, slots=True)
class Inherited:
    """This peer has taken over the error feedback of one that leaves; and AdamW's state, if `optimizer`."""

    giver: str
    optimizer: bool


@dataclass(frozen=True, slots=True)
class CertificateRenewed:
    """The others know this peer until `ends`, in seconds since 1970."""

    ends: float


@dataclass(frozen=True, slots=True)
class Refused:
    """What another peer sent is not valid. Nothing of it is acted on."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Audited:
    """What contributions to a round did, by author: how much higher the held-out loss would be, in nats per token, had
    it sent zeros instead."""

    round: int
    gains: dict[str, float]


@dataclass(frozen=True, slots=True)
class Tried:
    """An audit has looked at what a peer on trial contributed to a round: what it would have gained, in nats per token,
    and what is wrong with it; empty: nothing, and it may count from now on."""

    round: int
    peer: str
    gain: float
    objection: str = ""


@dataclass(frozen=True, slots=True)
class Suspected:
    """An audit suspects a peer. `since`: the first round whose contribution did harm; 0 where no harm was measured, as
    with copies, of which nobody can tell who made the first."""

    peer: str
    reason: str
    since: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over for this peer, and `digests` are those of the final state (part → hex)."""

    rounds: int
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """This process ends with an error."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Injected:
    """A testnet broke something on purpose: `action` ("killed", "paused", "resumed", …) to `processes`, as a part of
    its fault `number`, in its own notation `fault`. `begins` is false where the fault ends or comes to nothing."""

    number: int
    fault: str
    action: str
    processes: list[str]
    begins: bool
    reason: str = ""


Event = (
    Serving
    | Progress
    | Joined
    | Reached
    | GroupFormed
    | GroupBroken
    | StepDone
    | CompressionChosen
    | Contributed
    | RoundDone
    | Credited
    | Resumed
    | Paused
    | PauseEnded
    | Resynchronised
    | HandedOver
    | Inherited
    | CertificateRenewed
    | Refused
    | Evaluated
    | Audited
    | Suspected
    | Tried
    | Finished
    | Failed
    | Injected
    | Decision
    | Pulse
)
Listener = Callable[[Event], None]

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def to_line(event: Event) -> str:
    """One line of JSON."""
    return json.dumps({"event": type(event).__name__} | asdict(event))


def from_line(line: str) -> Event:
    """Read what `to_line` wrote. Raises ValueError for anything else."""
    try:
        fields = json.loads(line)
    except RecursionError:
        raise ValueError(f"not an event: {line[:80]!r}") from None
    kind = fields.pop("event", None) if isinstance(fields, dict) else None
    try:
        event: Event = KINDS[str(kind)](**fields)
    except (KeyError, TypeError):
        raise ValueError(f"not an event: {line[:80]!r}") from None
    return event
