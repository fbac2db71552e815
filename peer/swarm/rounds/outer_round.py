"""The outer rounds of one peer: contribute, wait for the others, settle what counts, agree on what is closed."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from peer.network.discovery import Discovery
from peer.network.gossip import Reconciler
from peer.network.run_progress import KnownProgress
from peer.network.witnesses import LATELY
from peer.store import checkpoint
from peer.store.checkpoint import Checkpoint, PartCheckpoint, PartState
from peer.store.disk import CHECKPOINTS_KEPT
from peer.swarm import waits
from peer.swarm.roles import replicas
from peer.swarm.rounds.own_credit import OwnCredit
from peer.swarm.rounds.parts import FollowedParts, contribute_from
from peer.swarm.rounds.round_policy import Pace, RoundArrivals
from peer.swarm.rounds.workload import Workload
from protocol.clock import monotonic
from protocol.codec.contribution import contribution_digest as sha256_of
from protocol.events.activity import Contributed, Finished
from protocol.events.event import Listener
from protocol.events.waiting import Waiting
from protocol.identity import ContributionName, Part
from protocol.manifest import Manifest
from protocol.outer.data_plan import Spans, first_chunks
from protocol.outer.phases import PartView, RunPhase, RunView, is_abreast, phase_of
from protocol.outer.window import SKEW
from protocol.trust.handovers import Handovers
from protocol.trust.records import PeerRecord, holds_newest, may_author

Moved = Mapping[Part, Mapping[str, Tensor]]
"""Δ of each part that a peer authors."""

ARRIVALS_POLL_SECONDS = 1.0
"""The interval at which arriving contributions are recorded, in seconds. No deadline is shorter."""


@dataclass(slots=True)
class OuterLoop:
    """The outer rounds as one peer goes through them."""

    manifest: Manifest
    folder: Path
    followed: FollowedParts
    discovery: Discovery
    reconciler: Reconciler
    emit: Listener
    pace: Pace
    arrivals: dict[int, RoundArrivals] = field(default_factory=dict)
    """The rounds whose contributions are not applied yet."""
    refuted: set[str] = field(default_factory=set)
    """Digests of states that were claimed, and that nobody could show."""
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    """The inner optimizer's state as it was kept last: in the newest checkpoint, not in memory."""
    handovers: Handovers = field(default_factory=Handovers)
    """The handovers between this peer and others that left, or that took its place."""
    asked_to_leave: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set when the user asks this peer to leave."""
    ended_before: bool = False
    """This peer had finished the last round before its process began."""
    missed_end: bool = False
    """The operator's node says that the run is over: this peer, which has missed its end, trains no more."""
    compared: bool = False
    """This peer has looked, after the last round, whether the others hold what it holds; in an earlier process, too."""
    finish_announced: bool = False
    gathering_since: float | None = None
    """The time at which this peer first saw a formed replica, in seconds of `monotonic`; None: there was none yet."""
    abandoned_round: int = 0
    """A round to which nobody can contribute any more (`round_policy.is_abandoned`); 0: there is none."""
    present: bool = False
    """This peer has followed the rounds without a gap since it was last abreast of the run."""
    settling: int = 0
    """A round that this peer has finished, and tells others of once its state is on disk."""
    workload: Workload = field(init=False)
    credited: OwnCredit = field(init=False)

    def __post_init__(self) -> None:
        """Decide what this peer's replica does in a round, and tell what of it counts."""
        self.credited = OwnCredit(self.emit, self.followed.parts)
        self.workload = Workload(self.manifest, self.followed, self.discovery, self.emit)

    @property
    def clock(self) -> int:
        """The round this peer works on."""
        return max(self.discovery.record.round, self.settling) + 1

    @property
    def over(self) -> bool:
        """Whether the last round is finished, here or, as the operator's node says, by the others."""
        return self.finished or self.missed_end

    @property
    def leaving(self) -> bool:
        """Whether the user has asked this peer to leave: it ends its inner step, contributes, and says goodbye."""
        return self.asked_to_leave.is_set()

    @property
    def finished(self) -> bool:
        """Whether the run has ended for this peer: it has finished the last round."""
        return self.clock > self.manifest.outer.rounds

    @property
    def begun(self) -> bool:
        """Whether the run has begun: all the replicas of its manifest have formed, or one, once it has gathered."""
        formed = len(replicas(self.discovery.peers())) >= (1 if self.gathered else self.manifest.replicas.total)
        contributed = any(followed.ledger.accepted for followed in self.followed.parts.values())
        return formed or contributed or self.clock > 1 or max(self._run(), self.reconciler.witnesses.most_shown()) > 0

    @property
    def gathered(self) -> bool:
        """Whether the first replica came so long ago that the run waits for those that are missing no more."""
        since = self.gathering_since
        return since is not None and monotonic() - since >= self.manifest.run.gather

    @property
    def contributed(self) -> bool:
        """Whether this peer has made its contribution to the round: before a crash, or in another group."""
        return self.discovery.record.contributed >= self.clock

    @property
    def lost_state(self) -> Waiting | None:
        """The wait for the state of a stage that nobody holds any more; None: there is none such."""
        return waits.for_a_lost_state(self.discovery.peers(), self.manifest)

    def others_at(self) -> int:
        """The round that the others have finished, as far as their contributions bear them out."""
        return self.manifest.outer.rounds if self.missed_end else self.reconciler.witnesses.others_at()

    def shown_at(self) -> int:
        """The round that the others have finished, by what they have signed: a reason to fetch that."""
        return self.manifest.outer.rounds if self.missed_end else self.reconciler.witnesses.shown_at()

    # Where this peer is in the run

    @property
    def progress(self) -> KnownProgress:
        """The run's progress as this peer knows it: it trains from no older state."""
        return self.reconciler.progress

    def _run(self) -> int:
        """The last round that the run has finished, by proof or by what others show now."""
        held = (peer.round for peer in self.others() if may_author(peer) and holds_newest(peer))
        return max(self.progress.finished, self.progress.believed(held), self.shown_at())

    @property
    def is_behind(self) -> bool:
        """Whether the run is further ahead of this peer than messages take, or what it misses does not come: it closes
        no round, and catches up."""
        ahead = 0 if self.over else self._run() - self.clock + 1
        return ahead > SKEW or (ahead == SKEW and not is_abreast(replace(self.view(), present=True)))

    @property
    def phase(self) -> RunPhase:
        """The phase that this peer is in."""
        return phase_of(self.view())

    def view(self) -> RunView:
        """The run as this peer sees it now: its phase follows from this."""
        run = self._run()
        return RunView(
            last=self.manifest.outer.rounds,
            finished=self.clock - 1,
            run=run,
            parts={part: self._part_view(part, run) for part in self.followed.parts},
            present=self.present,
            confirmed=self.progress.confirmed,
            begun=self.begun,
            is_over=self.missed_end,
            compared=self.compared,
        )

    def _part_view(self, part: Part, run: int) -> PartView:
        held = max((peer.round for peer in self.holders(part)), default=None)
        newest = max(self.progress.newest(part, run), min(held or 0, run))
        newest = self.manifest.outer.rounds if self.missed_end else newest
        ledger, clock = self.followed.parts[part].ledger, self.clock
        return PartView(newest, held, clock in ledger.accepted, ledger.is_complete(clock, LATELY), ledger.folded)

    def holders(self, part: Part) -> list[PeerRecord]:
        """The others here that hold the newest state of a part: they say so, and no attestation denies it."""
        others = self.others()
        following = [peer for peer in self.reconciler.followers(part) if peer in others and holds_newest(peer)]
        return [peer for peer in following if self.reconciler.attested.believes(peer.peer_id, part)]

    def learn_progress(self) -> None:
        """Note how far the run is by what this peer and others have done: it never falls behind that again."""
        run = max(self.reconciler.witnesses.others_at(), self.reconciler.attested.round, self.clock - 1)
        authors_of = {part: filter(may_author, self.holders(part)) for part in self.followed.parts}
        held = {part: max((peer.round for peer in holders), default=0) for part, holders in authors_of.items()}
        self.progress.raise_to(run, {part: min(round, run + 1) for part, round in held.items() if round})

    def enter(self, phase: RunPhase) -> None:
        """Tell the others where this peer is in the run, if that has changed."""
        announced = phase if phase in (RunPhase.CATCHING_UP, RunPhase.AWAITING_STATE) else ""
        awaits = self.progress.furthest if phase is RunPhase.AWAITING_STATE else 0
        self.present = phase in (RunPhase.TRAINING, RunPhase.GATHERING)
        if (self.discovery.record.phase, self.discovery.record.awaits) != (announced, awaits):
            self.discovery.update_record(phase=announced, awaits=awaits)

    def others(self) -> tuple[PeerRecord, ...]:
        """The peers whose word counts: all others; once the run is over, those of them that have finished it."""
        last = self.manifest.outer.rounds if self.missed_end else 0
        return tuple(peer for peer in self.discovery.others() if peer.round >= last)

    def mark_present(self) -> None:
        """Note that this peer is abreast of the run, and follows its rounds from now on."""
        self.present = True

    def mark_compared(self, compared: bool = True) -> None:
        """Note whether this peer has looked, after the last round, whether the others hold what it holds."""
        self.compared = compared

    def keep_optimizer(self, optimizer: Mapping[str, Tensor]) -> None:
        """Keep this state of the inner optimizer with the next checkpoint."""
        self.optimizer = optimizer

    def mark_run_over(self) -> None:
        """Train no more: the operator's node says that the run is over, and this peer has missed its end."""
        self.missed_end = True
        self.discovery.news.ring()

    def announce_finish(self) -> None:
        """Say once that the run is over, unless this peer leaves before it has compared its last state with the
        others', or has missed the end."""
        if self.finished and self.compared and not self.finish_announced:
            self.finish_announced = True
            self.emit(Finished(self.manifest.outer.rounds, self.followed.digests))

    async def contribute(
        self, round: int, steps: int, moved: Moved, optimizer: Mapping[str, Tensor], share: Spans = ()
    ) -> None:
        """Publish this replica's contribution to every part it authors, once it is safe on disk. `steps` of its own are
        behind it, in which it read as many chunks of its `share`.

        If this peer made one for the round already, as a member of another group, or the round is long over, Δ goes
        into the error feedback, and later contributions carry it. Nothing is published once the run is over elsewhere.
        """
        if self.missed_end:
            return
        blobs: dict[Part, bytes] = {}
        for part, tensors in moved.items():
            followed = self.followed.parts[part]
            ledger = followed.ledger
            late = ledger.window.receipts_needed(ledger.clock + SKEW, round) > 0
            if not late and round > ledger.folded and not followed.has_made(round):  # others must be able to take it
                blobs[part] = await self._compose(part, round, steps, tensors)
            else:
                await self.followed.torch_thread.run(followed.state.absorb, tensors)
        self.optimizer = optimizer
        self.discovery.update_record(contributed=max(round, self.discovery.record.contributed))
        await self.save(blobs)
        if self.missed_end:  # while it was saved: the others have gone, and would never hear of it
            return
        for part, blob in blobs.items():
            await self.reconciler.publish(part, round, blob)
        await self.discovery.publish()
        self.emit(Contributed(round, steps, first_chunks(share, steps)))
        self.credited.withheld(round, moved.keys() - blobs.keys())

    async def _compose(self, part: Part, round: int, steps: int, tensors: Mapping[str, Tensor]) -> bytes:
        followed, record = self.followed.parts[part], self.discovery.record
        blob, sent = await self.followed.torch_thread.run(
            contribute_from, followed.state, self.discovery.run_id, round, record.peer_id, steps, tensors, record.slot
        )
        followed.authored.send(sent.name)
        followed.own[round] = sha256_of(blob)
        self.followed.fresh[followed.own[round]] = sent
        return blob

    async def save(self, blobs: Mapping[Part, bytes], keep: int = CHECKPOINTS_KEPT) -> None:
        """Keep what this peer alone knows: error feedback, optimizer, and what it has sent. `keep`: so many checkpoints
        stay, this one counted."""
        parts = {}
        for part, followed in self.followed.parts.items():
            sent = {str(round): followed.own[round] for round in followed.authored.sent}
            returned = {str(round): followed.own[round] for round in followed.authored.returned}
            state = PartState(sent=sent, returned=returned)
            parts[part] = PartCheckpoint(state, followed.state.error_feedback, blobs.get(part))
        record = self.discovery.record
        saved = Checkpoint(record.round, record.contributed, parts, self.optimizer, self.handovers)
        thread = self.followed.torch_thread  # training waits, and so the moments are those of the round's end
        self.optimizer = await thread.run(checkpoint.write_checkpoint, self.folder, saved, keep)

    async def restore(self, kept: Checkpoint) -> None:
        """Take up what a checkpoint of this peer's folder has, as `save` has kept it."""
        self.optimizer, self.handovers = kept.optimizer, kept.handovers
        self.discovery.update_record(round=kept.round, contributed=kept.contributed)
        for part, followed in self.followed.parts.items():
            was = kept.parts.get(part)
            if was is None:
                continue
            authored = followed.authored
            for target, rounds in ((authored.sent, was.state.sent), (authored.returned, was.state.returned)):
                for round, sha256 in rounds.items():
                    target[int(round)] = ContributionName(part, int(round), self.followed.me)
                    followed.own[int(round)] = sha256
            if followed.state.error_feedback:
                await self.followed.torch_thread.run(followed.state.error_feedback.update, was.error_feedback)

    def begin_after(self, round: int) -> None:
        """Go on after a round, the last that this peer had finished before its process began."""
        self.discovery.update_record(round=round)
        self.ended_before = self.finished

    async def finish(self, round: int, took_part: bool = True) -> None:
        """Go on to the next round, and tell others once the state is on disk: from then on they rely on it. A peer that
        `took_part` in the last one still takes what others bring of it."""
        self.settling = round
        await self.settle()
        ending = self.discovery.record.ending or (took_part and round == self.manifest.outer.rounds)
        self.discovery.update_record(round=round, ending=ending)

    async def settle(self) -> None:
        """Bring every grid to what the ledgers say, and close the rounds that are due."""
        await self.followed.settle(self.clock, self.last_settled)
        self.reconciler.intake.discard_dropped(self.followed.in_grids())
        self.learn_progress()
        settled = self.clock - 1, self.followed.digests, self.compared, self.progress.run, dict(self.progress.parts)
        await asyncio.to_thread(checkpoint.note_settled, self.folder, *settled)
        self.publish_claims()

    async def settle_part(self, part: Part) -> None:
        """Bring one part's grid to what its ledger says, and close its rounds that are due."""
        await self.followed.settle_part(part, self.clock, self.last_settled)
        self.publish_claims()

    @property
    def last_settled(self) -> int:
        """The last round whose contributions are in the grids."""
        return self.manifest.outer.last_applied(self.clock - 1)

    def publish_claims(self) -> None:
        """Say in every statement from now on what is closed."""
        self.reconciler.claim({part: followed.claims for part, followed in self.followed.parts.items()})

    def abandon_round(self, round: int) -> None:
        """Note that nobody can contribute to a round any more."""
        self.abandoned_round = round

    # Arrivals

    async def watch_arrivals(self) -> None:
        """Note when the first replica is there, and arrivals for as long as this peer lives: a slow one is in the midst
        of a step when they come, and would take its end for the time of them all, and stop too late."""
        while True:
            if self.gathering_since is None and replicas(self.discovery.peers()):
                self.gathering_since = monotonic()
            if self.begun:  # the first round does not last from when this peer joined
                self.record_arrivals()
            await asyncio.sleep(ARRIVALS_POLL_SECONDS)

    def record_arrivals(self) -> None:
        """Look at what has come since the last time: deadlines follow from when."""
        now = monotonic()
        for round in {*self.arrivals, self.clock}:
            for part, followed in self.followed.parts.items():
                for author in followed.ledger.accepted.get(round, {}):
                    self.arrivals_of(round).arrivals.setdefault(part, {}).setdefault(author, now)

    def forget_arrivals(self) -> None:
        """Forget when contributions of rounds came that are applied; the next round begins now."""
        absent = self.arrivals_of(max(self.arrivals, default=self.clock)).absent
        self.arrivals = {round: came for round, came in self.arrivals.items() if round > self.last_settled}
        self.arrivals.setdefault(self.clock, RoundArrivals(monotonic(), absent=absent))

    def arrivals_of(self, round: int) -> RoundArrivals:
        """The arrivals of a round, which begins now if nothing has come of it."""
        return self.arrivals.setdefault(round, RoundArrivals(monotonic()))
