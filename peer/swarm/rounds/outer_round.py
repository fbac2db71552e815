"""The outer rounds of one peer: contribute, wait for the others, settle what counts, agree on what is closed."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from peer.network.discovery import Discovery
from peer.network.gossip import Reconciler
from peer.network.witnesses import LATELY
from peer.store import checkpoint
from peer.store.checkpoint import Checkpoint, PartCheckpoint, PartState
from peer.store.disk import CHECKPOINTS_KEPT
from peer.swarm import waits
from peer.swarm.roles import authors, replicas
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.own_credit import OwnCredit
from peer.swarm.rounds.parts import FollowedParts
from peer.swarm.rounds.round_policy import Noting, Pace, PartSeen, RoundSeen
from peer.swarm.rounds.workload import Workload
from peer.telemetry.decisions import Waiting
from peer.telemetry.events import Contributed, Finished, Listener
from protocol.clock import monotonic
from protocol.codec.contribution import digest as sha256_of
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId
from protocol.manifest import Manifest
from protocol.outer.data_plan import Spans, beginning
from protocol.outer.window import SKEW
from protocol.trust.bequests import Handovers
from protocol.trust.records import PeerRecord

Moved = Mapping[Part, Mapping[str, Tensor]]
"""Δ of each part that a peer authors."""

NOTE_SECONDS = 1.0
"""So often arrivals are looked for; the shortest wait for a slow replica is as long."""

LOST_SECONDS = 10.0
"""A wait that has lasted so long may be one for a state that is lost: whoever comes late has taken it by then."""

LONG_SECONDS = 30.0
"""A wait for contributions that has lasted so long, and longer than a round takes, is worth a line of the log."""


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
    noted: dict[int, Noting] = field(default_factory=dict)
    """The rounds whose contributions are not applied yet."""
    refuted: set[str] = field(default_factory=set)
    """Digests of states that were claimed, and that nobody could show."""
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    """The optimizer's state as it was kept last: in the newest checkpoint, not in memory."""
    handovers: Handovers = field(default_factory=Handovers)
    """What passed between this peer and others that left, or that took its place."""
    credited: OwnCredit = field(default_factory=OwnCredit)
    asked_to_leave: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set when the user asks this peer to leave."""
    ended_before: bool = False
    """This peer had finished the last round before its process began."""
    told_over: bool = False
    """The operator's node says that the run is over: this peer, which has missed its end, trains no more."""
    compared: bool = False
    """This peer has looked, after the last round, whether the others hold what it holds; in an earlier process, too."""
    told_finished: bool = False
    gathering_since: float | None = None
    """When this peer first saw a replica that had formed, in seconds of `monotonic`; None: there was none yet."""
    nobodys: int = 0
    """A round to which nobody can contribute any more (`round_policy.is_nobodys`); 0: there is none."""
    workload: Workload = field(init=False)

    def __post_init__(self) -> None:
        """Decide what this peer's replica does in a round."""
        self.workload = Workload(self.manifest, self.followed, self.discovery, self.emit)

    @property
    def clock(self) -> int:
        """The round this peer works on."""
        return self.discovery.record.round + 1

    @property
    def over(self) -> bool:
        """Whether the last round is finished, here or, as the operator's node says, by the others."""
        return self.finished or self.told_over

    @property
    def leaving(self) -> bool:
        """Whether the user has asked this peer to leave: it ends its inner step, contributes, and says goodbye."""
        return self.asked_to_leave.is_set()

    @property
    def finished(self) -> bool:
        """Whether this peer has finished the last round."""
        return self.clock > self.manifest.outer.rounds

    @property
    def begun(self) -> bool:
        """A run begins when all the replicas of its manifest have formed, or, once it has gathered, with one; who comes
        later finds it under way."""
        formed = len(replicas(self.discovery.peers())) >= (1 if self.gathered else self.manifest.replicas.total)
        contributed = any(each.ledger.accepted for each in self.followed.parts.values())
        return formed or contributed or self.clock > 1 or self.reconciler.witnesses.most_shown() > 0

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
        return self.manifest.outer.rounds if self.told_over else self.reconciler.witnesses.others_at()

    def shown_at(self) -> int:
        """The round that the others have finished, as far as they have signed contributions: a reason to look for
        these."""
        return self.manifest.outer.rounds if self.told_over else self.reconciler.witnesses.shown_at()

    def others(self) -> tuple[PeerRecord, ...]:
        """The peers whose word counts: all others; once the run is over, those of them that have finished it."""
        last = self.manifest.outer.rounds if self.told_over else 0
        return tuple(peer for peer in self.discovery.others() if peer.round >= last)

    def hear_that_it_is_over(self) -> None:
        """Train no more: the operator's node says that the run is over, and this peer has missed its end."""
        self.told_over = True
        self.discovery.news.ring()

    def tell_finished(self) -> None:
        """Say once that the run is over, unless this peer leaves before it has compared its last state with the
        others', or has missed the end."""
        if self.finished and self.compared and not self.told_finished:
            self.told_finished = True
            self.emit(Finished(self.manifest.outer.rounds, self.followed.digests))

    async def contribute(
        self, round: int, steps: int, moved: Moved, optimizer: Mapping[str, Tensor], share: Spans = ()
    ) -> None:
        """Publish this replica's contribution to every part it authors, once it is safe on disk. `steps` of its own are
        behind it, in which it read as many chunks of its `share`.

        If this peer made one for the round already, as a member of another group, or the round is long over, Δ goes
        into the error feedback, and later contributions carry it. Nothing is published once the run is over elsewhere.
        """
        if self.told_over:
            return
        blobs: dict[Part, bytes] = {}
        for part, tensors in moved.items():
            each = self.followed.parts[part]
            late = each.ledger.window.receipts_needed(each.ledger.clock + SKEW, round) > 0
            if not late and round > each.ledger.folded and not each.has_made(round):  # others must be able to take it
                blobs[part] = await self._compose(part, round, steps, tensors)
            else:
                await self.followed.torch_thread.run(each.state.absorb, tensors)
        self.optimizer = optimizer
        self.discovery.tell(contributed=max(round, self.discovery.record.contributed))
        await self.save(blobs)
        if self.told_over:  # while it was saved: the others have gone, and would never hear of it
            return
        for part, blob in blobs.items():
            await self.reconciler.publish(part, round, blob)
        await self.discovery.publish()
        self.emit(Contributed(round, steps, beginning(share, steps)))
        self.credited.withheld(self.emit, round, moved.keys() - blobs.keys(), self.followed.parts)

    async def _compose(self, part: Part, round: int, steps: int, tensors: Mapping[str, Tensor]) -> bytes:
        each, record = self.followed.parts[part], self.discovery.record
        blob, sent = await self.followed.torch_thread.run(
            each.state.contribute, self.discovery.run_id, round, record.peer_id, steps, tensors, record.slot
        )
        each.authored.send(sent.name)
        each.own[round] = sha256_of(blob)
        self.followed.fresh[each.own[round]] = sent
        return blob

    async def save(self, blobs: Mapping[Part, bytes], keep: int = CHECKPOINTS_KEPT) -> None:
        """Keep what this peer alone knows: error feedback, optimizer, and what it has sent. `keep`: so many checkpoints
        stay, this one counted."""
        parts = {}
        for part, each in self.followed.parts.items():
            sent = {str(round): each.own[round] for round in each.authored.sent}
            returned = {str(round): each.own[round] for round in each.authored.returned}
            state = PartState(sent=sent, returned=returned)
            parts[part] = PartCheckpoint(state, each.state.error_feedback, blobs.get(part))
        record = self.discovery.record
        kept = Checkpoint(record.round, record.contributed, parts, self.optimizer, self.handovers)
        thread = self.followed.torch_thread  # training waits, and so the moments are those of the round's end
        self.optimizer = await thread.run(checkpoint.write_checkpoint, self.folder, kept, keep)

    async def restore(self, kept: Checkpoint) -> None:
        """Take up what a checkpoint of this peer's folder has, as `save` has kept it."""
        self.optimizer, self.handovers = kept.optimizer, kept.handovers
        self.discovery.tell(round=kept.round, contributed=kept.contributed)
        for part, each in self.followed.parts.items():
            was = kept.parts.get(part)
            if was is None:
                continue
            for target, rounds in ((each.authored.sent, was.state.sent), (each.authored.returned, was.state.returned)):
                for round, sha256 in rounds.items():
                    target[int(round)] = ContributionName(part, int(round), self.followed.me)
                    each.own[int(round)] = sha256
            if each.state.error_feedback:
                await self.followed.torch_thread.run(each.state.error_feedback.update, was.error_feedback)

    def begin_after(self, round: int) -> None:
        """Go on after a round, the last that this peer had finished before its process began."""
        self.discovery.tell(round=round)
        self.ended_before = self.finished

    async def finish(self, round: int) -> dict[str, int]:
        """Wait for the contributions that are due, settle, and go on to the next round; the number of contributions
        that were due, by part; nothing if the run is over elsewhere, and this round is not finished here."""
        counts: dict[str, int] = dict.fromkeys(self.followed.parts, 0)
        for due in self.manifest.outer.applied(round):
            if not await self.wait_for_others(due):
                return {}
            await self._ask_who_is_ahead(due)
            for part, each in self.followed.parts.items():
                noted, expected = self._noted(due), len(self._awaited(part, due))
                self.pace.remember(noted.started, noted.arrived(part), expected)
                counts[part] += len(each.ledger.chosen(due))
            self.credited.look(self.emit, self.followed.parts, due, self.discovery.record)
        reached = max(round, self.clock - 1)
        self.discovery.tell(round=reached, ending=reached == self.manifest.outer.rounds)
        await self.settle()
        for due in self.manifest.outer.applied(round) if self.workload.looks else ():
            noted, awaited = self._noted(due), self._awaited(EMBEDDING, due)
            self.workload.note(due, monotonic() - noted.started, noted.lasted(EMBEDDING), awaited)
        if self.discovery.record.contributed < round:
            await self.save({})
        self.noted = {due: noted for due, noted in self.noted.items() if due > self.last_settled}
        self._noted(self.clock)
        await self.discovery.publish()
        return counts

    async def settle(self) -> None:
        """Bring every grid to what the ledgers say, and close the rounds that are due."""
        await self.followed.settle(self.clock, self.last_settled)
        self.reconciler.intake.discard_dropped(self.followed.in_grids())
        told = self.clock - 1, self.followed.digests, self.compared
        await asyncio.to_thread(checkpoint.note_settled, self.folder, *told)
        self.tell_claims()

    async def settle_part(self, part: Part) -> None:
        """Bring one part's grid to what its ledger says, and close its rounds that are due."""
        await self.followed.settle_part(part, self.clock, self.last_settled)
        self.tell_claims()

    @property
    def last_settled(self) -> int:
        """The last round whose contributions are in the grids."""
        return self.manifest.outer.last_applied(self.clock - 1)

    def tell_claims(self) -> None:
        """Say in every statement from now on what is closed."""
        self.reconciler.claims = self.reconciler.attested.close({p: at.claims for p, at in self.followed.parts.items()})

    # Waiting

    async def keep_noting(self) -> None:
        """Note when the first replica is there, and arrivals for as long as this peer lives: a slow one is in the midst
        of a step when they come, and would take its end for the time of them all, and stop too late."""
        while True:
            if self.gathering_since is None and replicas(self.discovery.peers()):
                self.gathering_since = monotonic()
            if self.begun:  # the first round does not last from when this peer joined
                self.note_arrivals()
            await asyncio.sleep(NOTE_SECONDS)

    def note_arrivals(self) -> None:
        """Look at what has come since the last time: deadlines follow from when."""
        now = monotonic()
        for round in {*self.noted, self.clock}:
            for part, each in self.followed.parts.items():
                for author in each.ledger.accepted.get(round, {}):
                    self._noted(round).arrivals.setdefault(part, {}).setdefault(author, now)

    async def wait_for_others(
        self,
        round: int,
        interrupted: Callable[[], bool] = lambda: False,
        wait: Callable[[], Waiting] | None = None,
    ) -> bool:
        """Wait until the contributions of all who train are here, the deadline has passed, or the others have gone on.
        Returns False if interrupted before, or if the run is over elsewhere. `wait`: what this peer waits for, where it
        is not the contributions."""
        began = monotonic()
        while self.told_over or not round_policy.is_complete(self._seen_now(round, trains=False)):
            if self.told_over or interrupted():
                return False
            self.note_arrivals()
            seen, now = self._seen_now(round, trains=False), monotonic()
            if seen.passed is None and (round_policy.others_have_gone_on(seen) or not seen.led):
                self._noted(round).passed = now
            left = round_policy.seconds_left(seen, self.pace, now)
            if left is not None and left <= 0:
                furthest = self.reconciler.witnesses.most_shown()
                left = began + round_policy.most_wait_for_those_behind(seen, self.pace, furthest) - now
            if left is not None and left <= 0:
                parts, me = self.followed.parts, self.followed.me
                due = {part: each.awaited - {me} for part, each in zip(parts, seen.parts, strict=True)}
                self.credited.go_on(self.emit, due, parts, round, round_policy.why_go_on(seen, now))
                break
            lost = self.lost_state if now - began >= LOST_SECONDS else None
            self.emit(lost or (wait() if wait is not None else self._wait_of(seen, began, now, left)))
            await self.discovery.news.wait(min(left, 1.0) if left is not None else 1.0)
        self.note_arrivals()
        return True

    def _wait_of(self, seen: RoundSeen, began: float, now: float, left: float | None) -> Waiting:
        """The wait for contributions that `began` then, and lasts for `left` seconds more at most; None: that is not
        known yet. Until the run has begun it is that for its beginning."""
        if not self.begun:
            return waits.for_the_beginning(self.discovery.peers(), self.manifest)
        if self.discovery.record.role == "observer" and not any(part.awaited for part in seen.parts):
            return waits.for_somebody_who_trains(seen.round)
        others = [(part.awaited - {self.followed.me}, part.here) for part in seen.parts]
        awaited = frozenset().union(*(due for due, _ in others))
        missing = frozenset().union(*(due - here for due, here in others))
        most_seconds = None if left is None else float(round(now + left - began))
        brief = now - began < max(LONG_SECONDS, self.pace.usual)
        return waits.for_contributions(seen.round, awaited, missing, seen.least, most_seconds, brief)

    async def _ask_who_is_ahead(self, round: int) -> None:
        """With overlap, who has contributed to the next round may have contributed to this one, or have come since: its
        record tells the last only. If nothing of it is here, it is asked."""
        later = range(round + 1, round + 1 + self.manifest.outer.delay)
        for part, each in self.followed.parts.items():
            lacking = each.ledger.counted_since(round - LATELY) - each.ledger.accepted.get(round, {}).keys()
            for peer in authors(self.discovery.others(), part):
                if peer.contributed in later and peer.peer_id in lacking:
                    await self.reconciler.compare(peer)

    def late(self, round: int, steps: int = 0) -> str:
        """Why a replica that still trains in this round should end its inner loop with the `steps` it has; or empty."""
        if self.told_over:
            return "the run is over"
        self.note_arrivals()
        seen, enough = self._seen_now(round, trains=True), steps >= self.manifest.inner.steps
        done = enough and round_policy.others_are_done(seen, self.followed.me)
        return round_policy.ALL_DONE if done else round_policy.why_stop(seen, self.pace, monotonic())

    def _noted(self, round: int) -> Noting:
        return self.noted.setdefault(round, Noting(monotonic()))

    def _seen_now(self, round: int, trains: bool) -> RoundSeen:
        """What this peer has seen of a round, for the decisions of `peer/swarm/rounds/round_policy.py`. Unless it
        still trains in it (`trains`), its own contribution is here, or does not come."""
        noted, parts = self._noted(round), list[PartSeen]()
        for part, each in self.followed.parts.items():
            here = frozenset(each.ledger.accepted.get(round, ()))
            never = frozenset[PeerId]() if trains else frozenset({self.followed.me}) - here
            parts.append(PartSeen(self._awaited(part, round) - never, here, noted.arrived(part)))
        return RoundSeen(
            round=round,
            parts=parts,
            started=noted.started,
            passed=noted.passed,
            least=0
            if round == self.nobodys
            else round_policy.least_contributions(round, self.clock, self.manifest.replicas.total, self.gathered),
            applied_in=round + self.manifest.outer.delay,
            is_last=round == self.manifest.outer.rounds,
            others_at=self.others_at(),
            led=self._may_be_led(round),
        )

    def _may_be_led(self, round: int) -> bool:
        contributed = frozenset().union(*(each.ledger.accepted.get(round, ()) for each in self.followed.parts.values()))
        applied_in = round + self.manifest.outer.delay
        others, me = self.discovery.others(), self.discovery.record
        return round_policy.may_be_led(others, me, applied_in, contributed)

    def _awaited(self, part: Part, round: int) -> frozenset[PeerId]:
        """All who say that they train begin the run together. From then on who has contributed lately; a newcomer's
        first contribution, and that of one who was away, may come late, and counts all the same."""
        ledger = self.followed.parts[part].ledger
        training = round_policy.awaited(self.discovery.peers(), part, round, ledger.waiting.get(round, {}))
        return training if round == 1 else training & ledger.counted_since(round - LATELY)
