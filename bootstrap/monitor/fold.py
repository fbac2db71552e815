"""Records and what peers tell, folded into one view of the run. Pure: the clock is an argument.

Nobody is believed more than people need: what a peer tells is put under its own name, within what the run's manifest
allows, and a round ends when more peers say so than may lie. A peer that lies misleads people, and no other peer.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import BaseModel

from bootstrap.monitor.peers import AWAY_STATES, Peer, group_views, is_over, present, silent, silent_leader
from bootstrap.monitor.rounds import (
    JUDGE_SECONDS,
    MOST_CLAIMS,
    Round,
    outer_ratio,
    pipeline_ratio,
    recalled,
    time_left,
)
from bootstrap.monitor.run_state import LastState, RunStatus, has_replica, lost_state, run_state
from protocol.events.activity import Contributed, Evaluated, GroupBroken, GroupFormed, RoundDone
from protocol.events.decisions import EndedEarly, Left, WentOn
from protocol.events.event import Event, PeerState
from protocol.events.fields import MOST_TEXT
from protocol.events.peer_report import PeerReport
from protocol.identity import PeerId, RunId
from protocol.manifest import Manifest
from protocol.monitor import MOST_LINES, LineView, RoundView, RunState, View
from protocol.net.allowances import RateLimit
from protocol.outer.whereabouts import common_round
from protocol.patience import AT_WORK_SECONDS
from protocol.staffing import stages_short
from protocol.trust.records import PeerRecord, may_author

MOST_PEERS = 2048
"""The largest number of peers that are kept: twice as many as a large run has."""

MOST_ROUNDS = 512
"""The number of rounds that are kept, the newest."""

FORGET_SECONDS = 3600.0
"""The seconds after which an absent peer is no longer shown."""

PEER_CHECK_SECONDS = 0.5
"""The interval at which all peers are checked, in seconds, however many reports come in."""

LINES_BURST, LINES_SECONDS = 20, 3.0
"""Lines of the log that one peer may fill: at once, then one every so often."""

MOST_ROUNDS_AHEAD = 2
"""A quick peer may be so many rounds ahead of the swarm."""


class KeptMonitor(BaseModel):
    """The part of the view that outlives the node: the rounds, and the events. Peers report anew."""

    run_id: str
    started: float
    tokens: int
    history: list[RoundView]
    log: list[LineView]
    over: bool = False
    state: RunState = "gathering"
    state_why: str = ""
    state_since: float = 0.0
    firsts: dict[str, int] = {}
    """The peers whose arrival at the run's end the node will know, by `Fold.firsts`."""


@dataclass(slots=True)
class Fold:
    """All that this node has seen of the run. Times are Unix seconds by its own clock."""

    manifest: Manifest
    run_id: RunId
    started: float
    peers: OrderedDict[PeerId, Peer] = field(default_factory=OrderedDict)
    """The one that told longest ago first."""
    rounds: OrderedDict[int, Round] = field(default_factory=OrderedDict)
    log: deque[LineView] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    finished: int = 0
    """The last round that the swarm has finished."""
    over: bool = False
    """Whether the run is, once for all."""
    last_state: LastState = ""
    """Whether this node holds the last state."""
    tokens: int = 0
    """The tokens of all rounds, also of those that are no longer in the history."""
    unknown_events: int = 0
    """The events of kinds that this node does not know: those of newer peers."""
    lines: RateLimit = field(default_factory=lambda: RateLimit(LINES_BURST, LINES_SECONDS, MOST_PEERS))
    looked: float = 0.0
    awake: float = 0.0
    """Since when it has looked without standing still: it hears nobody meanwhile."""
    firsts: dict[PeerId, int] = field(default_factory=dict)
    """The last round that each peer which trains had ended when this node saw it first, also before a restart."""
    seen: bool = False
    """Whether anybody has: what was finished before that, was finished at no time that is known."""

    state: RunStatus = field(init=False)
    alone: float | None = None
    """Since when no replica is complete."""
    lost: float | None = None
    """Since when nobody holds the state of a stage that somebody serves."""

    def __post_init__(self) -> None:
        self.state = RunStatus("gathering", "", self.started)

    # What comes in

    def see_records(self, records: Iterable[PeerRecord], now: float) -> None:
        """Take the peers' records from the DHT, checked and signed."""
        for record in records:
            if (peer := self._peer(record.peer_id, now, known=True)) is not None:
                peer.see(record, now)
                if peer.id in self.firsts or (peer.trains and len(self.firsts) < MOST_PEERS):
                    peer.first = self.firsts.setdefault(peer.id, peer.first)
        self.look(now)
        self.seen = self.seen or any(peer.trains for peer in self.peers.values())

    def apply_report(self, peer_id: PeerId, report: PeerReport, now: float) -> None:
        """Take the report of a peer, whose certificate proves that it is this one."""
        self.unknown_events += report.unknown
        peer = self._peer(peer_id, now, known=False)
        if peer is None:
            return
        self.peers.move_to_end(peer_id)
        status, peer.sent_before = report.status, report.sent_before
        peer.apply_report(status, now)
        if peer.trains and status.step and (entry := self._round(status.round, now)) is not None:
            entry.stepped[peer_id] = max(entry.stepped.get(peer_id, 0), status.step)
        for ago, event in report.events:
            self._take(peer, event, max(self.started, now - ago), now)
        if now - self.looked >= PEER_CHECK_SECONDS:
            self.look(now)

    def begin(self, peer_id: PeerId, now: float) -> None:
        """A peer begins to tell, on a stream of its own."""
        if (peer := self._peer(peer_id, now, known=False)) is not None:
            peer.streams += 1
            peer.last_seen, peer.cut, peer.going = now, None, None

    def end(self, peer_id: PeerId, now: float) -> None:
        """A stream has ended: who has not said before that it goes, may be lost."""
        if (peer := self.peers.get(peer_id)) is not None:
            peer.streams = max(0, peer.streams - 1)
            if not peer.streams and peer.going is None:
                peer.cut = now

    def _peer(self, peer_id: PeerId, now: float, known: bool) -> Peer | None:
        """Return the entry of a peer; None: there are too many. A peer whose record is `known` takes the room of one
        without."""
        peer = self.peers.get(peer_id)
        if peer is None:
            if len(self.peers) >= MOST_PEERS:
                strange = next(
                    (stranger for stranger in self.peers.values() if known and stranger.record is None), None
                )
                if strange is None:
                    return None
                del self.peers[strange.id]
            peer = self.peers[peer_id] = Peer(peer_id, joined=now, last_seen=now)
        return peer

    def _round(self, number: int, now: float) -> Round | None:
        """A round that may be told of now; None: it is too old, or nobody can be in it yet."""
        if number in self.rounds:
            return self.rounds[number]
        if not (
            self.seen and self.finished < number <= min(self.finished + MOST_ROUNDS_AHEAD, self.manifest.outer.rounds)
        ):
            return None
        entry = self.rounds[number] = Round(number, now)
        while len(self.rounds) > MOST_ROUNDS:
            self.rounds.popitem(last=False)
        return entry

    # What happened

    def _take(self, peer: Peer, event: Event, at: float, now: float) -> None:
        number = getattr(event, "round", 0)
        entry = self._round(number, now) if peer.record is not None else None
        match event:
            case RoundDone():
                peer.done = max(peer.done, min(number, self.manifest.outer.rounds))
                self._take_round_end(peer, event, entry, at)
                return
            case Evaluated(_, loss, loss_plain):
                if peer.record is None or peer.record.role == "volunteer":
                    return
                if entry is not None and len(entry.claims) < MOST_CLAIMS:
                    entry.claims.setdefault(peer.id, (loss, loss_plain))
            case Contributed(_, steps):
                peer.contributed = max(peer.contributed, min(number, self.manifest.outer.rounds))
                if entry is not None and peer.trains:
                    entry.contributed.setdefault(peer.id, (min(steps, self.manifest.inner.steps_at_most), at))
            case EndedEarly(_, steps, reason):
                if entry is not None and peer.trains:
                    entry.late[peer.id] = f"it ended the round after {steps} inner steps: {reason}"
            case WentOn(_, without, reason):
                for other in map(PeerId, without):
                    if entry is not None and other in self.peers:
                        entry.missed.setdefault(other, f"{reason}, says peer {peer.id[-8:]}")
            case GroupFormed(replica, _, members):
                peer.replica, peer.members, peer.broken = replica, members, ""
            case GroupBroken(reason=reason):
                peer.replica, peer.broken = "", reason or "its group has lost a member"
            case Left(_, reason) if peer.status.state not in AWAY_STATES:  # its status is newer than its events
                peer.depart(PeerState.LEAVING, reason, now)
            case _:
                pass
        if event.words and not self.lines.wait_seconds(peer.id, now):
            words = event.words[:MOST_TEXT]
            self.log.append(LineView(at=at, kind=event.name, words=words, peer=peer.id, round=number))

    def _take_round_end(self, peer: Peer, event: RoundDone, entry: Round | None, at: float) -> None:
        """Count what a peer has sent since its last round, and its tokens, in the round that it has finished."""
        before, peer.sent_before = peer.sent_before, (event.pipeline_sent, event.outer_sent)
        manifest, tokens = self.manifest, 0
        if peer.trains and peer.counts_tokens and peer.counted < event.round <= manifest.outer.rounds:
            tokens = min(event.tokens, manifest.tokens_per_step * manifest.inner.steps_at_most)
            peer.counted, self.tokens = event.round, self.tokens + tokens  # also of a round too quick to be seen here
        if entry is None or peer.id in entry.done:
            return
        entry.done[peer.id] = at
        ratio = pipeline_ratio(manifest, self._compression(peer))
        pipeline_bytes, outer_bytes = (max(0, now - then) for now, then in zip(peer.sent_before, before, strict=True))
        entry.pipeline_bytes += pipeline_bytes
        entry.outer_bytes += outer_bytes
        entry.uncompressed_bytes += int(pipeline_bytes * ratio + outer_bytes * outer_ratio(manifest))
        if peer.counts_tokens:
            entry.tokens[peer.id] = tokens

    def _compression(self, peer: Peer) -> int:
        """d / k of a peer's group: what its first stage tells, if the manifest has it."""
        leader = self.peers.get(PeerId(peer.group), peer)
        chosen = leader.status.compression
        return chosen if chosen in self.manifest.compressions else self.manifest.compressions[0]

    # What follows

    def look(self, now: float) -> None:
        """See who has come and gone, and which rounds have ended."""
        self.awake = now if now - self.looked > AT_WORK_SECONDS else self.awake
        self.looked = now
        rounds_finished = [
            peer.finished for peer in self.peers.values() if peer.trains and peer.state not in AWAY_STATES
        ]
        finished = min(common_round(rounds_finished, self.manifest.outer.liars), self.manifest.outer.rounds)
        if self.seen:
            for number in range(max(self.finished, finished - MOST_ROUNDS_AHEAD) + 1, finished + 1):
                self.rounds.setdefault(number, Round(number, now))
        self.finished = max(self.finished, finished)
        for entry in self.rounds.values():
            if entry.ended is None and entry.round <= self.finished:
                entry.end(now)
            if entry.ended is not None and not entry.judged and now >= entry.ended + JUDGE_SECONDS:
                self._judge(entry)
        self._look_at_peers(now)
        last = self.rounds.get(self.finished)
        if (
            last is not None
            and last.ended is not None
            and (next_round := self._round(self.finished + 1, now)) is not None
        ):
            next_round.began = min(next_round.began, last.ended)  # a round begins when the one before it has ended
        if now - self.awake > AT_WORK_SECONDS:
            self.over = self.over or is_over(self.peers.values(), self.manifest.outer.rounds, now)
        self._look_at_run(now)

    def _look_at_run(self, now: float) -> None:
        """Judge the run's state anew, and note where it has changed. A node that has just begun to look sees too little
        to say that a run which trained stands still."""
        manifest, peers, before = self.manifest, self.peers.values(), self.state
        groups = group_views(self.peers, manifest.replicas.stages, self._compression, now)
        awake = now - self.awake > AT_WORK_SECONDS
        complete = has_replica(peers, groups)
        self.alone = None if complete or not awake else self.alone if self.alone is not None else now
        lost = awake and bool(lost_state(manifest, peers))
        self.lost = None if not lost else self.lost if self.lost is not None else now
        over = self.over or self.finished >= manifest.outer.rounds
        if awake or over or before.state == "gathering":
            rounds = [entry for _, entry in sorted(self.rounds.items())]
            seen_before = before, self.alone, over, now, self.last_state, self.lost, self.awake
            self.state = run_state(manifest, peers, groups, rounds, *seen_before)
        if self.state.state != before.state:
            round = min(self.finished + 1, manifest.outer.rounds)
            self.log.append(LineView(at=now, kind="RunState", words=self.state.words, round=round))
        for peer in peers:
            leader = self.peers.get(PeerId(peer.group)) if peer.group else None
            if peer.state is PeerState.TRAINING and self.state.state == "gathering":
                peer.state, peer.why = PeerState.WAITING, peer.status.waits_for or self.state.why
            elif peer.state is PeerState.TRAINING and peer.streams and (silence := silent(peer, now, AT_WORK_SECONDS)):
                peer.state, peer.why = PeerState.WAITING, f"it {silence}"
            elif peer.state is PeerState.TRAINING and leader is not None and (silence := silent_leader(leader, now)):
                peer.state, peer.why = PeerState.WAITING, silence

    def _judge(self, entry: Round) -> None:
        """Let a round say who was late for it, of the peers that train and were here when it began."""
        there = [peer for peer in self.peers.values() if peer.trains and peer.joined <= entry.began + JUDGE_SECONDS]
        awaited = {peer.id for peer in there if peer.id in entry.stepped}
        known = {peer.id for peer in there if peer.record is not None and peer.record.contributed >= entry.round}
        entry.judge(awaited, known, self.manifest.inner.steps)

    def _look_at_peers(self, now: float) -> None:
        """Judge each peer's state anew; note who has gone away, and forget who has been away for long."""
        for peer in list(self.peers.values()):
            before = peer.state
            peer.state, peer.why = peer.judge(now, self.finished, self.manifest.outer.delay)
            # One that is new here has been away before.
            if (
                peer.state in AWAY_STATES
                and before not in AWAY_STATES
                and peer.joined < now
                and peer.record is not None
            ):
                entry = self._round(self.finished + 1, now)
                if entry is not None and peer.trains:
                    entry.left[peer.id] = f"{peer.state}: {peer.why}"
                words = f"Peer {peer.id[-8:]} is {peer.state}: {peer.why}"
                number = entry.round if entry is not None else 0
                if not self.lines.wait_seconds(peer.id, now):
                    kind = peer.state.capitalize()
                    self.log.append(LineView(at=now, kind=kind, words=words, peer=peer.id, round=number))
            if peer.state in (PeerState.GONE, PeerState.LOST) and now - peer.last_seen > FORGET_SECONDS:
                del self.peers[peer.id]

    # What people see

    def view(self, now: float) -> View:
        """All of it, now."""
        self.look(now)
        shown = [(viewed, view) for viewed in self.peers.values() if (view := viewed.view(now)) is not None]
        peers = sorted(
            (view for _, view in shown), key=lambda viewed: (viewed.role != "volunteer", viewed.slot, viewed.stage)
        )
        short = stages_short(present(self.peers.values()), self.manifest.replicas.stages)
        counting = (view.tokens_per_second for peer, view in shown if peer.counts_tokens)
        manifest = self.manifest
        return View(
            run_id=self.run_id,
            name=manifest.run.name,
            now=now,
            started=self.started,
            stages=manifest.replicas.stages,
            replicas=manifest.replicas.total,
            rounds=manifest.outer.rounds,
            round=min(self.finished + 1, manifest.outer.rounds),
            inner_steps=manifest.inner.steps,
            compression=manifest.compressions[0],
            tokens=self.tokens + self._tokens_in_progress(),
            tokens_per_second=sum(counting),
            peers=peers,
            groups=group_views(self.peers, manifest.replicas.stages, self._compression, now, self.state.state),
            short="" if self.state.state == "finished" else short,
            history=[entry.view() for _, entry in sorted(self.rounds.items())],
            log=list(self.log),
            state=self.state.state,
            state_why=self.state.why,
            state_since=self.state.since,
            seconds_left=None
            if self.state.state == "stalled" or not any(may_author(record) for record in present(self.peers.values()))
            else time_left(self.rounds.values(), self.finished, manifest.outer.rounds, now),
        )

    def _tokens_in_progress(self) -> int:
        """The tokens of rounds whose end has not been reported."""
        return self.manifest.tokens_per_step * sum(
            min(steps, self.manifest.inner.steps_at_most)
            for entry in self.rounds.values()
            if entry.round > self.finished
            for peer, steps in entry.stepped.items()
            if peer not in entry.tokens and peer in self.peers and self.peers[peer].counts_tokens
        )

    def to_keep(self, now: float) -> KeptMonitor:
        """Return what outlives the node, as of now."""
        kept = {"tokens": self.tokens, "over": self.over, "firsts": {**self.firsts}}
        return KeptMonitor.model_validate(dict(self.view(now)) | kept)

    def recall(self, kept: KeptMonitor) -> None:
        """Go on from what was kept when this node stopped."""
        self.started, self.tokens = min(self.started, kept.started), kept.tokens
        self.over = kept.over
        self.state = RunStatus(kept.state, kept.state_why, kept.state_since or kept.started)
        self.firsts = {PeerId(peer): first for peer, first in [*kept.firsts.items()][:MOST_PEERS]}
        for entry in kept.history[-MOST_ROUNDS:]:
            if entry.ended is not None and 0 < entry.round <= self.manifest.outer.rounds:
                self.rounds[entry.round] = recalled(entry)
                self.finished = max(self.finished, entry.round)
        self.log.extend(kept.log)
