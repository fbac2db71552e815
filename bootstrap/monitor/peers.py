"""The knowledge of one peer: its signed record, its last report, and the state that follows from both. Pure."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.monitor import GroupView, PeerDeparture, PeerState, PeerView, RunState, StepReport
from protocol.patience import (
    AT_WORK_SECONDS,
    CUT_STREAM_SECONDS,
    LOST_PEER_SECONDS,
    SILENT_LEADER_SECONDS,
)
from protocol.trust.records import PeerRecord
from protocol.wording import numbers_named, so_many

RATE_SECONDS = 20.0
"""The seconds over which rates are means."""

MOST_RATE = 1e12
"""The largest rate that is shown, in tokens or bytes a second: nobody does more."""

AWAY_STATES: frozenset[PeerState] = frozenset({"gone", "lost", "paused"})

IDLE_SECONDS = 120.0
"""The seconds of waiting after which a peer that does nothing else is not at work: the peer it waits for may never
come."""

Sample = tuple[float, int, int, int]
"""A time in Unix seconds, and the tokens, bytes up and bytes down of a peer since it joined."""


@dataclass(slots=True)
class Peer:
    """The knowledge of one peer. Times are Unix seconds by the node's clock; `last_seen` is its last sign of life, and
    `batch` its last report."""

    id: PeerId
    joined: float
    last_seen: float
    record: PeerRecord | None = None
    batch: StepReport = field(default_factory=StepReport)
    streams: int = 0
    """The number of streams on which it reports; a new one may be there before the old one is known to be broken."""
    cut: float | None = None
    """The time at which the last stream broke."""
    going: PeerDeparture | None = None
    """The departure that it has reported, at the time `going_at`; None: it is not going."""
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
    state: PeerState = "waiting"
    why: str = ""
    idle_since: float | None = None
    """The time since which it has reported a wait and no progress; None: it does not wait."""
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=64))

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

    def apply_report(self, batch: StepReport, now: float) -> None:
        """Take the state in the peer's report; `fold.py` takes its events."""
        if batch.seconds < self.batch.seconds or batch.tokens < self.batch.tokens:
            self.samples.clear()  # a new process
        if batch.waits and (batch.tokens, batch.round) == (self.batch.tokens, self.batch.round):
            self.idle_since = now if self.idle_since is None else self.idle_since
        else:
            self.idle_since = None
        self.batch, self.last_seen = batch, now
        self.samples.append((now, batch.tokens, batch.up, batch.down))

    def is_at_work(self, now: float) -> bool:
        """Whether it gives signs of life, and has not been idle for `IDLE_SECONDS`."""
        return now - self.last_seen <= AT_WORK_SECONDS and (
            self.idle_since is None or now - self.idle_since < IDLE_SECONDS
        )

    def rates(self, now: float) -> tuple[float, float, float]:
        """Tokens a second, and bytes a second up and down: means over the last `RATE_SECONDS`. Drops older samples."""
        while len(self.samples) > 1 and self.samples[1][0] <= now - RATE_SECONDS:
            self.samples.popleft()
        if not self.samples:
            return 0.0, 0.0, 0.0
        first, last = self.samples[0], self.samples[-1]
        seconds = max(now - first[0], 1.0)
        tokens, up, down = (min(MOST_RATE, max(0, last[column] - first[column]) / seconds) for column in (1, 2, 3))
        return tokens, up, down

    def judge(self, now: float, finished: int, delay: int) -> tuple[PeerState, str]:
        """Its state now, and the reason. `finished` is the last round that the swarm has finished; `delay`, the number
        of rounds by which contributions count later (`outer.delay`), excuses a peer that is behind."""
        record, going = self.record, self.going
        if going is not None and going.how == "paused":
            return "paused", going.why
        goodbye = record is not None and record.gone and not self.streams  # who is back tells before its record is read
        if goodbye or (going is not None and going.how == "gone"):
            return "gone", going.why if going is not None else "it has said goodbye"
        if self.cut is not None and not self.streams and self.last_seen <= self.cut < now - CUT_STREAM_SECONDS:
            return "lost", "its connection broke without a goodbye, and it has said nothing since"
        if now - self.last_seen > LOST_PEER_SECONDS:
            return "lost", f"nothing was heard of it for {LOST_PEER_SECONDS:.0f} s"
        if going is not None:
            return "leaving", going.why
        return self._at_work(finished, delay)

    def _at_work(self, finished: int, delay: int) -> tuple[PeerState, str]:
        """The state of a peer that is neither away nor leaving, and the reason."""
        record = self.record
        if record is not None and record.on_trial:
            return "on trial", "what it contributes does not count before an audit has found nothing wrong with it"
        if record is not None and record.role == "observer":
            return "waiting", "it follows the run, and contributes nothing"
        if self.batch.waits:  # in its own words, which its owner reads
            return "waiting", self.batch.waits
        if self.finished < finished - 1 - delay:
            return "catching up", f"it has finished round {self.finished}, and most others round {finished}"
        if self.broken:
            return "waiting", self.broken
        if max(self.contributed, record.contributed if record else 0) > finished:
            return "waiting", f"it has contributed to round {finished + 1}, and waits for the others"
        if self.group or (self.batch.round > finished and self.batch.step):
            return "training", ""
        return "waiting", "it has no group yet"

    def view(self, now: float) -> PeerView | None:
        """Return the peer as people see it; None as long as nothing shows what it is in the run."""
        record = self.record
        if record is None:
            return None
        tokens, up, down = (0.0, 0.0, 0.0) if self.state in AWAY_STATES else self.rates(now)
        return PeerView(
            id=self.id,
            role=record.role,
            stage=record.stage,
            slot=record.slot,
            replica=self.group,
            state=self.state,
            why=self.why,
            round=max(self.batch.round, self.finished),
            step=self.batch.step if self.batch.round > self.finished else 0,
            loss=self.batch.loss,
            tokens_per_second=tokens,
            up=up,
            down=down,
            sent=self.batch.up,
            address=record.address,
            relayed=bool(record.via),
            joined=self.joined,
            heard=self.last_seen,
            credit=self.batch.credit,
            version=self.batch.version,
        )


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
    if now - peer.last_seen <= bound and peer.state != "lost":
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
    """The groups that volunteers say they are in, and those that broke, with the members that they had, until these are
    in others. Of two volunteers that claim one stage of a group, the one that its first stage names has it. `state` is
    the run's: while it gathers, an empty stage is no reason why a group does not train; when it is finished, no reason
    is given at all. `compression` is d / k of the group of a first stage."""
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
                members_known = [(member, peers.get(PeerId(member))) for member in peer.members]
                seated = [
                    member if member_peer and member_peer.group in ("", replica) else ""
                    for member, member_peer in members_known
                ]
                members[replica] = [*seated, *[""] * stages][:stages]
                broken[replica] = peer.broken
    return sorted(
        (
            _view(peers[PeerId(replica)], seats, broken.get(replica, ""), _slow(peers, seats), compression, now, state)
            for replica, seats in members.items()
        ),
        key=lambda group: (group.slot, group.replica),
    )


def stages_short(peers: Iterable[Peer], stages: int) -> str:
    """Say at which of the `stages` volunteers are lacking for another group; empty: all stages have as many."""
    records = (peer.record for peer in peers if peer.record is not None and peer.state not in AWAY_STATES)
    counts = Counter(record.stage for record in records if record.role == "volunteer")
    fewest = min(counts[stage] for stage in range(stages))
    short = [stage for stage in range(stages) if counts[stage] == fewest]
    if len(short) == stages:
        return ""
    have = so_many(fewest, "volunteer")
    if len(short) == 1:
        return f"stage {short[0]} is short: it has {have}, each other stage more; one more there makes another group"
    lacking = f"stages {numbers_named(short)} are short: they have {have} each, the others more"
    return f"{lacking}; one more at each makes another group"


def _slow(peers: Mapping[PeerId, Peer], seats: list[str]) -> str:
    """The slow member of a group, by the report of the last stage that names one. Stages before a slow one wait as
    well, and each takes the stage behind it for the slow one."""
    reports = (peers[PeerId(seat)].batch.slow for seat in reversed(seats) if PeerId(seat) in peers)
    return next(filter(None, reports), "")


def _view(
    leader: Peer,
    seats: list[str],
    broken: str,
    slow: str,
    compression: Callable[[Peer], int],
    now: float,
    state: RunState,
) -> GroupView:
    missing = [str(stage) for stage, peer in enumerate(seats) if not peer]
    silence = silent_leader(leader, now, AT_WORK_SECONDS if missing and leader.batch.step else SILENT_LEADER_SECONDS)
    empty = f"nobody is at stage {', '.join(missing)}" if missing and state != "gathering" else ""
    broken = "" if state == "finished" else silence or broken or leader.broken or empty
    return GroupView(
        replica=leader.id,
        slot=leader.record.slot if leader.record is not None else 0,
        members=seats,
        compression=compression(leader),
        broken=broken,
        slow="" if broken or state == "finished" else slow,
    )
