"""The events of what a daemon does: screen, reports and the testnet read these, never log text. On standard output with
`--json` each is one line: {"event": "RoundDone", …}. Pure."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from pydantic import ConfigDict

from protocol.events.event import CHECKED, PRIVATE, SHOWN, Event, Level, PeerState, Sink, event
from protocol.events.fields import (
    Celsius,
    ChunkSpans,
    Count,
    CountByPart,
    DigestByPart,
    Loss,
    PeerName,
    PeerNames,
    Percent,
    Seconds,
    ShortName,
    ShortText,
    UnixTime,
    Whole,
)
from protocol.wording import size, tail, tails


@event(sinks=PRIVATE | Sink.TESTNET)
class Serving(Event):
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


@event(sinks=PRIVATE)
class Progress(Event):
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


@event(sinks=PRIVATE)
class Warned(Progress):
    """A line of progress that this peer's owner should look at. In JSON it is a `Progress`, and its text begins with
    `WARNING`."""

    name = "Progress"
    level = "warning"


@event(sinks=PRIVATE, plain="{words}")
class Notice(Progress):
    """A line of progress for everybody, also without `--verbose`. In JSON it is a `Progress`."""

    name = "Progress"


@event(sinks=SHOWN, state=PeerState.WAITING, kept=("peer_id", "role", "stage", "slot"))
class Joined(Event):
    """This peer has a place in the run."""

    peer_id: PeerName
    role: ShortName
    stage: Whole
    slot: Whole
    address: ShortText

    @property
    def words(self) -> str | None:
        if self.role == "lab":
            return None  # there is nobody to join
        where = f" of stage {self.stage}" if self.role == "volunteer" else ""
        return f"Joined as {self.role}{where} (slot {self.slot}): peer {tail(self.peer_id)} at {self.address}"

    @property
    def plain(self) -> str:
        return f"Joined the run{f' at stage {self.stage}' if self.role == 'volunteer' else ''}."


@event()
class Reached(Event):
    """This peer cannot be dialled: the relays by which others reach it now (peer ids)."""

    relays: PeerNames

    @property
    def level(self) -> Level:
        return "info" if self.relays else "warning"

    @property
    def words(self) -> str:
        if not self.relays:
            return "WARNING: no relay holds this peer, and it cannot be dialled: others cannot call it."
        return f"Others reach this peer by {len(self.relays)} relay(s): {tails(self.relays)}"


@event(sinks=SHOWN, kept=("replica", "members"))
class GroupFormed(Event):
    """This peer is a member of a complete replica."""

    replica: PeerName
    slot: Whole
    members: PeerNames
    reason: ShortText = ""

    @property
    def words(self) -> str:
        why = f"; {self.reason}" if self.reason else ""
        return f"In the group of {tail(self.replica)}, {len(self.members)} stages: {tails(self.members)}{why}"


@event(level="debug", sinks=Sink.TERMINAL, state=PeerState.TRAINING)
class StepDone(Event):
    """One inner step. `loss` is the mean over the replica's microbatches, where this peer knows it."""

    round: int
    step: int
    loss: float | None
    tokens: int

    @property
    def passing(self) -> str:
        loss = f", loss {self.loss:.3f}" if self.loss is not None else ""
        return f"round {self.round}, step {self.step + 1}{loss}"


@event()
class RoundDone(Event):
    """The end of one outer round. `contributions` counts those it has applied (part → number), and `digests` tell the
    state that the next inner loop starts from (part → hex), with open rounds as far as they have come: a peer that has
    another contribution prints another digest. Bytes are those that this process has sent so far."""

    round: Whole
    seconds: Seconds
    tokens: Count
    contributions: CountByPart
    digests: DigestByPart
    pipeline_sent: Count
    outer_sent: Count

    @property
    def words(self) -> str:
        sets = ", ".join(f"{part} {count}" for part, count in self.contributions.items())
        done = f"Round {self.round} done in {self.seconds:.1f} s; contributions: {sets}"
        pipeline = f"{size(self.pipeline_sent)} in the pipeline" if self.pipeline_sent else ""
        outer = f"{size(self.outer_sent)} in contributions" if self.outer_sent else ""
        sent = ", ".join(filter(None, (pipeline, outer)))  # an observer sends nothing, the lab neither
        return f"{done}; sent so far: {sent}" if sent else done


@event("Held-out loss after round {round}: {loss:.3f} through the boundaries, {loss_plain:.3f} plain", sinks=SHOWN)
class Evaluated(Event):
    """Held-out loss in nats per token after a round: through the boundaries, and plain."""

    round: Whole
    loss: Loss
    loss_plain: Loss


@event(level="warning", sinks=SHOWN)
class GroupBroken(Event):
    """A member of this peer's group, often a neighbour, has died or left. The inner step in flight, `step` of `round`,
    is rolled back."""

    replica: PeerName
    round: Whole
    step: Whole
    reason: ShortText

    @property
    def words(self) -> str:
        rolled_back = f"Step {self.step + 1} of round {self.round} is rolled back"
        lost = rolled_back if self.round else "No step was in flight"
        return f"{self.reason[:1].upper()}{self.reason[1:]}. {lost}; the group forms anew."


@event()
class Contributed(Event):
    """This peer's contribution of a round is out; `steps` inner steps of its own are behind it. Who reads tokens says
    which: `chunks` are ranges of what `protocol/outer/data_plan.py` gives out, from the first up to the second, without
    it."""

    round: Whole
    steps: Whole
    chunks: ChunkSpans = ()


@event(sinks=Sink.TERMINAL, kept=("traffic_used", "traffic_limit"))
class TrafficCounted(Event):
    """The bytes that this peer has moved, both ways, in the month or day of `traffic_limit`, which is in its owner's
    words, such as 200GB/month."""

    traffic_used: Count
    traffic_limit: ShortText


@event("Credit for round {round}: {tokens:,} tokens, signed by {signers:#peer}.", sinks=PRIVATE)
class Credited(Event):
    """Others, `signers`, have signed what this peer did in a round, with all that such events of it before had."""

    round: int
    tokens: int
    signers: list[str]


@event(
    "Resumed after round {round}, from this peer's own folder.",
    sinks=SHOWN,
    plain="Going on after round {round}, where this machine stopped.",
)
class Resumed(Event):
    """This peer took up its work where its folder had it: after outer round `round`."""

    round: Whole


@event("Paused {reason}.", sinks=SHOWN, state=PeerState.PAUSED, plain="{words}")
class Paused(Event):
    """This peer has left its group and the swarm, and computes and serves nothing."""

    reason: ShortText


@event("The pause is over: going on.", sinks=SHOWN, state=PeerState.STARTING, plain="{words}")
class PauseEnded(Event):
    """A paused peer goes on, from its folder."""


@event(
    "Handed over to peer {heir!t}: error feedback and optimizer.",
    sinks=SHOWN,
    cause="this peer leaves, and another of its stage takes its place",
)
class HandedOver(Event):
    """This peer leaves, and another of its stage has taken over its error feedback and the optimizer's state."""

    heir: PeerName


@event(sinks=SHOWN, cause="a peer of this stage leaves")
class Inherited(Event):
    """This peer has taken over the error feedback of one that leaves; and the optimizer's state, if `optimizer`."""

    giver: PeerName
    optimizer: bool

    @property
    def words(self) -> str:
        return f"Took over from peer {tail(self.giver)}: error feedback{' and optimizer' if self.optimizer else ''}."


@event(sinks=SHOWN)
class CertificateRenewed(Event):
    """The others know this peer until `ends`, in seconds since 1970."""

    ends: UnixTime

    @property
    def words(self) -> str:
        until = f"{datetime.fromtimestamp(self.ends):%Y-%m-%d %H:%M}"
        return f"This peer's certificate was renewed; it lasts until {until}."


@event("Refused what peer {peer!t} sent: {reason}", level="warning", sinks=SHOWN)
class Refused(Event):
    """Another peer has sent something that is not valid. Nothing of it is used."""

    peer: PeerName
    reason: ShortText


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """The readings of the sensors of a peer's machine, in degrees Celsius and percent; None: not known. Each field is
    sent, checked and part of the view without further code."""

    __pydantic_config__: ClassVar[ConfigDict] = CHECKED

    temperature: Celsius | None = None
    battery: Percent | None = None


NO_READINGS = DeviceReadings()


@event(level="debug", sinks=Sink(0), kept=("peers", "lost", "device"))
class Pulse(Event):
    """A report every few seconds: the bytes over this peer's line since it joined, of the pipeline's frames and of all
    else that is large; how many other peers it knows, how many of these do not answer, and what its sensors show."""

    frames_sent: int
    bulk_sent: int
    frames_received: int
    bulk_received: int
    peers: int
    lost: int
    device: DeviceReadings = NO_READINGS

    def since(self, before: "Pulse | None") -> "Pulse":
        """This pulse, with the bytes of the time since the one `before`; None: since the peer joined."""
        if before is None:
            return self
        names = ("frames_sent", "bulk_sent", "frames_received", "bulk_received")
        return replace(self, **{name: max(0, getattr(self, name) - getattr(before, name)) for name in names})


@event("Finished: {rounds} rounds.", state=PeerState.FINISHED, plain="{words}")
class Finished(Event):
    """The run is over for this peer, and `digests` are those of the final state (part → hex)."""

    rounds: Whole
    digests: DigestByPart = field(default_factory=dict)


@event("hetpeer: {message}", level="error", sinks=SHOWN, cause="{message}", state=PeerState.FAILED)
class Failed(Event):
    """This process ends with an error."""

    message: ShortText
    exit_code: Whole


@event(sinks=PRIVATE)
class Injected(Event):
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
