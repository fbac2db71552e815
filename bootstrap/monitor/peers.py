"""The knowledge of one peer: its signed record, its last report, and the state that follows from both. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.events.event import PeerState
from protocol.events.fields import MOST_PER_SECOND
from protocol.events.peer_report import STATUS_FIELDS, ReportedStatus
from protocol.identity import PeerId
from protocol.monitor import GroupView, PeerView, RunState
from protocol.patience import (
    AT_WORK_SECONDS,
    CUT_STREAM_SECONDS,
    LOST_PEER_SECONDS,
    SILENT_LEADER_SECONDS,
)
from protocol.trust.records import PeerRecord, Peers

RATE_SECONDS = 20.0
"""The seconds over which tokens a second are a mean, and for which a peer's rates are shown when nothing more is heard
of it."""

AWAY_STATES: frozenset[PeerState] = frozenset({PeerState.GONE, PeerState.LOST, PeerState.PAUSED})

REVOKED_WHY = "the operator has revoked it"
"""The reason why a revoked peer is gone. Clients of earlier versions know no state of its own for it."""

IDLE_SECONDS = 120.0
"""The seconds of waiting after which a peer that does nothing else is not at work: the peer it waits for may never
come."""


@dataclass(slots=True)
class Peer:
    """The knowledge of one peer. Times are Unix seconds by the node's clock; `last_seen` is its last sign of life, and
    `status` its last report."""

    id: PeerId
    joined: float
    last_seen: float
    record: PeerRecord | None = None
    status: ReportedStatus = field(default_factory=ReportedStatus)
    sent_before: tuple[int, int] = (0, 0)
    """The bytes that it had sent in the pipeline and in contributions at the end of the last round that it has told."""
    streams: int = 0
    """The number of streams on which it reports; a new one may be there before the old one is known to be broken."""
    cut: float | None = None
    """The time at which the last stream broke."""
    going: PeerState | None = None
    """The departure that it has reported, at the time `going_at`: it leaves, pauses, or is gone. None: it is not
    going."""
    going_why: str = ""
    going_at: float = 0.0
    replica: str | None = None
    """Its group by its reports; None: as its record says."""
    members: list[str] = field(default_factory=list)
    """The members of the group that it is in, or was in last, by stage."""
    broken: str = ""
    """The reason why its last group broke; empty: it has not."""
    first: int = 0
    """The last round that it had finished when this node first saw it."""
    done: int = 0
    """The last round that it has finished by its reports; its record may be older or newer."""
    contributed: int = 0
    """The last round to which it has contributed by its reports."""
    counted: int = 0
    """The last round whose tokens, by its reports, are in the run's total."""
    revoked: bool = False
    """Whether the operator has revoked it: nothing that it says or does counts any more."""
    state: PeerState = PeerState.WAITING
    why: str = ""
    idle_since: float | None = None
    """The time since which it has reported a wait and no progress; None: it does not wait."""
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))
    """The times of its last reports, and the tokens that it had trained by then."""

    @property
    def trains(self) -> bool:
        """Whether rounds wait for it."""
        return self.record is not None and self.record.role != "observer" and not self.record.on_trial

    @property
    def counts_tokens(self) -> bool:
        """Whether its tokens are its replica's: members of a group would count them again."""
        return self.record is not None and (self.record.role == "datacenter" or self.record.stage == 0)

    @property
    def has_worked(self) -> bool:
        """Whether it has contributed, or its record names its replica. A peer without one may stay a spare for ever."""
        record = self.record
        return self.contributed > 0 or (record is not None and (record.contributed > 0 or bool(record.replica)))

    @property
    def finished(self) -> int:
        """The last round that it has finished, by its reports or its record."""
        return max(self.done, self.record.round if self.record else 0)

    @property
    def group(self) -> str:
        """Its replica, by its reports or else by its record; empty: none."""
        recorded = self.record.replica if self.record else ""
        return recorded if self.replica is None else self.replica

    def see(self, record: PeerRecord, now: float) -> None:
        """Take a record from the DHT if it is newer than the last one. Its `sequence` is the time at which it was made,
        in milliseconds by the peer's clock."""
        if self.record is not None and record.sequence <= self.record.sequence:
            return
        if self.record is None:
            self.first = record.round
        at = min(record.sequence / 1000, now)
        self.record, self.last_seen = record, max(self.last_seen, at)
        if self.going is not None and not record.gone and at > self.going_at + CUT_STREAM_SECONDS:
            self.going = None  # it is back, and reports to another node
        if not self.streams:
            self.replica = None

    def apply_report(self, status: ReportedStatus, now: float) -> None:
        """Take the status that the peer reports; `fold.py` takes its events."""
        if status.waits_for and (status.tokens, status.round) == (self.status.tokens, self.status.round):
            self.idle_since = now if self.idle_since is None else self.idle_since
        else:
            self.idle_since = None
        if status.tokens < self.status.tokens:
            self.samples.clear()  # it has joined anew
        self.status, self.last_seen = status, now
        self.samples.append((now, status.tokens))
        if status.state in (PeerState.PAUSED, PeerState.GONE):
            self.depart(status.state, status.doing, now)

    def depart(self, state: PeerState, why: str, now: float) -> None:
        """The peer says that it goes: for a while, or for good."""
        self.going, self.going_why, self.going_at = state, why, now

    def tokens_per_second(self, now: float) -> float:
        """Its tokens a second: the mean over the last `RATE_SECONDS`, which a round's end belongs to. Drops older
        samples."""
        while len(self.samples) > 1 and self.samples[1][0] <= now - RATE_SECONDS:
            self.samples.popleft()
        if not self.samples:
            return 0.0
        (began, first), (_, last) = self.samples[0], self.samples[-1]
        return min(max(0, last - first) / max(now - began, 1.0), MOST_PER_SECOND)  # a liar tells any number of tokens

    def is_at_work(self, now: float) -> bool:
        """Whether it gives signs of life, and has not been idle for `IDLE_SECONDS`."""
        return now - self.last_seen <= AT_WORK_SECONDS and (
            self.idle_since is None or now - self.idle_since < IDLE_SECONDS
        )

    def judge(self, now: float, finished: int, delay: int) -> tuple[PeerState, str]:
        """Its state now, and the reason. `finished` is the last round that the swarm has finished; `delay`, the number
        of rounds by which contributions count later (`outer.delay`), excuses a peer that is behind."""
        record, going = self.record, self.going
        if self.revoked:
            return PeerState.GONE, REVOKED_WHY
        if going is PeerState.PAUSED:
            return going, self.going_why
        goodbye = record is not None and record.gone and not self.streams  # who is back tells before its record is read
        if goodbye or going is PeerState.GONE:
            return PeerState.GONE, self.going_why if going is not None else "it has said goodbye"
        if self.cut is not None and not self.streams and self.last_seen <= self.cut < now - CUT_STREAM_SECONDS:
            return PeerState.LOST, "its connection broke without a goodbye, and it has said nothing since"
        if now - self.last_seen > LOST_PEER_SECONDS:
            return PeerState.LOST, f"nothing was heard of it for {LOST_PEER_SECONDS:.0f} s"
        if going is not None:
            return PeerState.LEAVING, self.going_why
        return self._at_work(finished, delay)

    def _at_work(self, finished: int, delay: int) -> tuple[PeerState, str]:
        """The state of a peer that is neither away nor leaving, and the reason."""
        record = self.record
        if record is not None and record.on_trial:
            why = "what it contributes does not count before an audit has found nothing wrong with it"
            return PeerState.ON_TRIAL, why
        if record is not None and record.role == "observer":
            return PeerState.WAITING, "it follows the run, and contributes nothing"
        if self.status.waits_for:  # in its own words, which its owner reads
            return PeerState.WAITING, self.status.waits_for
        if self.finished < finished - 1 - delay:
            return PeerState.CATCHING_UP, f"it has finished round {self.finished}, and most others round {finished}"
        if self.broken:
            return PeerState.WAITING, self.broken
        if max(self.contributed, record.contributed if record else 0) > finished:
            return PeerState.WAITING, f"it has contributed to round {finished + 1}, and waits for the others"
        if self.group or (self.status.round > finished and self.status.step):
            return PeerState.TRAINING, ""
        return PeerState.WAITING, "it has no group yet"

    def view(self, now: float) -> PeerView | None:
        """Return the peer as people see it; None as long as nothing shows what it is in the run."""
        record = self.record
        if record is None:
            return None
        shown: dict[str, Any] = {name: getattr(self.status, name) for name in STATUS_FIELDS}
        is_away = self.state in AWAY_STATES or now - self.last_seen > RATE_SECONDS
        shown |= {"up": 0.0, "down": 0.0} if is_away else {}
        shown["tokens_per_second"] = 0.0 if is_away else self.tokens_per_second(now)
        shown |= {
            "id": self.id,
            "role": record.role,
            "stage": record.stage,
            "slot": record.slot,
            "replica": self.group,
            "state": self.state,
            "why": self.why,
            "round": max(self.status.round, self.finished),
            "step": self.status.step if self.status.round > self.finished else 0,
            "address": record.address,
            "relayed": bool(record.via),
            "joined": self.joined,
            "heard": self.last_seen,
        }
        return PeerView(**shown)


def present(peers: Iterable[Peer]) -> Peers:
    """The records of the peers that are not away."""
    return tuple(peer.record for peer in peers if peer.record is not None and peer.state not in AWAY_STATES)


def is_over(peers: Iterable[Peer], rounds: int, now: float) -> bool:
    """Whether the run of so many `rounds` is over: this node has watched a training peer finish the last round, and
    nobody is at work who has worked in the run and not finished it. So a claim to have finished does not end a run in
    which others are at work."""
    trainers = [peer for peer in peers if peer.trains]
    late = [peer for peer in trainers if peer.finished < rounds and peer.has_worked and peer.state not in AWAY_STATES]
    at_work = any(peer.is_at_work(now) for peer in late)
    return not at_work and any(peer.first < rounds <= peer.finished for peer in trainers)


def silent(peer: Peer, now: float, bound: float) -> str:
    """Say that a peer is silent, in words to follow its name; empty: it is not lost, and was heard of within `bound`
    seconds."""
    if now - peer.last_seen <= bound and peer.state is not PeerState.LOST:
        return ""
    minutes, seconds = divmod(int(peer.last_seen) % 86400, 60)
    return f"has given no sign of life since {minutes // 60:02}:{minutes % 60:02}:{seconds:02} UTC"


def silent_leader(leader: Peer, now: float, bound: float = SILENT_LEADER_SECONDS) -> str:
    """Say that the first stage of a group is silent; empty: it is not lost, and was heard of within `bound` seconds."""
    silence = silent(leader, now, bound)
    return f"its first stage, peer {leader.id[-8:]}, {silence}" if silence else ""


def group_views(
    peers: Mapping[PeerId, Peer],
    stages: int,
    compression: Callable[[Peer], int],
    now: float,
    state: RunState = "training",
) -> list[GroupView]:
    """The groups that volunteers say they are in, and those that broke, with the members that they had, until one of
    these is in another. Of two volunteers that claim one stage of a group, the one that its first stage names has it.
    `state` is the run's: while it gathers, an empty stage is no reason why a group does not train; when it is finished,
    no reason is given at all. `compression` is d / k of the group of a first stage."""
    members: dict[str, list[str]] = {}
    for peer in peers.values():
        record = peer.record
        if record is None or record.role != "volunteer" or not peer.group or peer.state in AWAY_STATES:
            continue
        if record.stage < stages and PeerId(peer.group) in peers:
            seats = members.setdefault(peer.group, [""] * stages)
            named = peers[PeerId(peer.group)].members
            if not seats[record.stage] or peer.id in named:
                seats[record.stage] = peer.id
    broken: dict[str, str] = {}
    for peer in peers.values():
        if peer.broken and peer.members and not peer.group and peer.state not in AWAY_STATES:
            replica = peer.members[0]
            if PeerId(replica) in peers and replica not in members:
                seated = [peers.get(PeerId(member)) for member in peer.members]
                if any(member and member.group not in ("", replica) for member in seated):
                    continue  # who was in it is in another: it is over, and its leader waits as others do
                members[replica] = [*(member.id if member else "" for member in seated), *[""] * stages][:stages]
                broken[replica] = peer.broken
    groups = []
    for replica, seats in members.items():
        leader = peers[PeerId(replica)]
        missing = [str(stage) for stage, peer in enumerate(seats) if not peer]
        bound = AT_WORK_SECONDS if missing and leader.status.step else SILENT_LEADER_SECONDS
        empty = f"nobody is at stage {', '.join(missing)}" if missing and state != "gathering" else ""
        why = silent_leader(leader, now, bound) or broken.get(replica) or leader.broken or empty
        why = "" if state == "finished" else why
        groups.append(
            GroupView(
                replica=leader.id,
                slot=leader.record.slot if leader.record is not None else 0,
                members=seats,
                compression=compression(leader),
                broken=why,
                slow="" if why or state == "finished" else _slow(peers, seats),
            )
        )
    return sorted(groups, key=lambda group: (group.slot, group.replica))


def _slow(peers: Mapping[PeerId, Peer], seats: list[str]) -> str:
    """The slow member of a group, by the report of the last stage that names one. Stages before a slow one wait as
    well, and each takes the stage behind it for the slow one."""
    reports = (peers[PeerId(seat)].status.slow for seat in reversed(seats) if PeerId(seat) in peers)
    return next(filter(None, reports), "")
