"""Members of a run that leave and come back, in virtual time: the phase table, the progress and the ledgers themselves,
without a network. `python -m tests.simulation.returning --schedules 100000` plays drawn orders, and says which fails.

There are two or three stages; volunteers hold one and the embedding, which the first trains; datacenters hold all. In
each tick something may happen to somebody; then all that are here hear of each other, and each does what its phase lets
it. At the end all folders are started again.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256

from peer.network.witnesses import LATELY
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, parts_authored, stage_part
from protocol.outer.history import Claim, History, outvoted
from protocol.outer.ledger import Entry, Ledger
from protocol.outer.phases import PartView, RunPhase, RunView, lacking_parts, phase_of, stands, target
from protocol.outer.progress import Rewind, RunProgress
from protocol.outer.whereabouts import borne_out, common_round
from protocol.outer.window import SKEW, Window

STAGES = (2, 3)
"""The stages that a schedule's model may have."""

LAST = 10_000
"""The run's last round: nobody comes to it."""

TICKS, QUIET_TICKS = 60, 45
"""The ticks in which things happen, and those after all are back."""

ABSENCES = (1, 1, 2, 3, 5, 8, 20, 100)
"""The ticks for which somebody is away, stands still, or the node is down: mostly a round or two."""

STUCK_TICKS = 15
"""The ticks without training after which the operator acts."""

CUT_SHARE = 0.02
"""The share of a group's contributions that only one of its members lives to make."""

PATIENCE_TICKS = 4
"""The ticks that a peer waits for contributions of others that have gone on."""

CLAIMS_KEPT = 8

REPLICAS = {
    0: ((1, 0), (1, 0), (1, 1), (2, 0), (2, 1), (0, 2)),
    1: ((1, 0), (1, 1), (2, 1), (3, 0), (1, 2), (3, 1), (0, 3)),
}
"""The groups and datacenters that a schedule may begin with, by the liars that its run allows for."""

MOST_MEMBERS = 8

ABREAST = (RunPhase.TRAINING, RunPhase.GATHERING)


@dataclass(slots=True)
class Member:
    """A member, with what is in its folder, and its process if it has one."""

    name: PeerId
    stage: int | None
    ledgers: dict[Part, Ledger]
    finished: int = 0
    contributed: int = 0
    claims: dict[Part, list[Claim]] = field(default_factory=dict)
    known: RunProgress = field(default_factory=RunProgress)
    alive: bool = False
    still: bool = False
    back_at: int = 0
    """The tick in which it is back, or no longer still."""
    present: bool = False
    confirmed: bool = False
    """Whether the node, or somebody who holds the newest state, has told this process how far the run is."""
    phase: RunPhase = RunPhase.CATCHING_UP
    waited: int = 0
    """The ticks for which it has waited for contributions."""

    @property
    def here(self) -> bool:
        """Whether others hear of it."""
        return self.alive and not self.still

    @property
    def authored(self) -> list[Part]:
        """The parts to which it contributes."""
        return list(self.ledgers) if self.stage is None else parts_authored(self.stage)

    @property
    def holds(self) -> bool:
        """Whether it holds the newest state, by its own word."""
        return self.here and self.phase in ABREAST


@dataclass(slots=True)
class Outcome:
    """How a schedule has ended: `objections` is empty if all is well."""

    seed: int
    objections: list[str] = field(default_factory=list)
    rounds: int = 0
    rewinds: int = 0
    few: bool = False
    """Some part was in too few hands in a round for one state to be promised."""


class Swarm:
    """A run, whose schedule a seed draws."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"hetpeer returning {seed}")
        self.outcome = Outcome(seed)
        self.liars = self.chance.choice((0, 1))
        self.window = Window(grace=2, liars=self.liars)
        self.stages = range(self.chance.choice(STAGES))
        self.parts = [EMBEDDING, *map(stage_part, self.stages)]
        self.members: list[Member] = []
        self.node, self.node_back_at, self.now = True, 0, 0
        self.unrest = self.chance.choice((0.1, 0.25, 0.5, 0.9))
        self.node_knows = RunProgress()
        self.made: dict[tuple[Part, int, PeerId], Entry] = {}
        self.finished_with: set[tuple[Part, int, PeerId]] = set()
        """What was in the state of a member as it finished the round."""
        self.unproven = False
        """Whether a folder was lost with a state of which nobody else had heard: who comes back cannot know how far the
        run was."""
        self.first_with: dict[tuple[Part, int], int] = {}
        """The number of contributions to a part in the state of the first member that finished the round."""
        self.stuck = self.joined = self.count = 0
        self.groups, centers = self.chance.choice(REPLICAS[self.liars])
        for _ in range(self.groups):
            for stage in self.stages:
                self.join(stage)
        for _ in range(centers):
            self.join(None)
        for _ in range(self.chance.choice((0, 1, 2)) if self.groups else 0):
            self.join(self.chance.choice(self.stages))

    def join(self, stage: int | None) -> None:
        """Somebody new comes, with an empty folder."""
        name = PeerId(f"{'center' if stage is None else f'stage-{stage}'}-{self.joined}")
        self.joined += 1
        followed = self.parts if stage is None else [EMBEDDING, stage_part(stage)]
        ledgers = {part: Ledger(part, name, self.window) for part in followed}
        self.members.append(Member(name, stage, ledgers, alive=True))

    # What a member sees

    def others(self, me: Member) -> list[Member]:
        return [other for other in self.members if other is not me and other.here]

    def view(self, me: Member) -> RunView:
        """The run as a member sees it, by the rules of the daemon's `OuterLoop.view`."""
        others = self.others(me)
        held = (other.finished for other in others if other.holds)
        run = max(me.known.finished, me.known.believed(held), self.shown_to(me))
        parts = {}
        for part, ledger in me.ledgers.items():
            rounds = [other.finished for other in others if other.holds and part in other.ledgers]
            here = max(rounds, default=None)
            newest = max(me.known.newest(part, run), min(here or 0, run))
            is_complete = ledger.is_complete(me.finished + 1, LATELY)
            arriving = me.finished + 1 in ledger.accepted
            parts[part] = PartView(newest, here, arriving, is_complete, ledger.folded)
        return RunView(LAST, me.finished, run, parts, present=me.present, confirmed=me.confirmed)

    def shown_to(self, me: Member) -> int:
        """The round that others have finished, as far as contributions that a member follows bear it out, by the rules
        of the daemon's `Witnesses`."""
        holders = [other for other in self.others(me) if other.holds]
        shown = {other.name: max(ledger.newest(other.name) for ledger in me.ledgers.values()) for other in holders}
        silent = sum(not shown[other.name] and not me.ledgers.keys().isdisjoint(other.authored) for other in holders)
        finished = borne_out({other.name: other.finished for other in holders}, shown, silent, self.liars)
        last = max(ledger.newest_of_all() for ledger in me.ledgers.values())
        finished += [min(other.finished, last) for other in holders if last and not shown[other.name]]
        return common_round(finished, self.liars)

    def learn(self, me: Member) -> None:
        """Note how far the run is by what is seen, and by what others prove; and by the node, when a process begins or
        does not train."""
        others = self.others(me)
        me.confirmed |= self.node or any(other.holds for other in others)
        for other in others:
            me.known.raise_to(other.known.run, other.known.parts)
            if other.known.rewind is not None:
                me.known.heed(other.known.rewind)
        run = max(me.finished, self.shown_to(me))
        for other in others:
            if other.holds:
                me.known.raise_to(run, {part: min(other.finished, run + 1) for part in other.ledgers})
        me.known.raise_to(run)
        if self.node and (not me.present or me.phase not in ABREAST or self.stuck):
            me.known.raise_to(self.node_knows.run, self.node_knows.parts)
            if self.node_knows.rewind is not None:
                me.known.heed(self.node_knows.rewind)

    # What happens in a tick

    def tick(self, eventful: bool) -> None:
        self.now += 1
        if eventful:
            self.come_back()
            if self.chance.random() < self.unrest:
                self.happen()
        self.see_by_node()
        for member in self.chance.sample(self.members, len(self.members)):
            if member.here:
                self.act(member)
        self.train(eventful)
        self.spread()
        self.rewind_if_stuck()

    def happen(self) -> None:
        """Something happens to somebody, for a while or for good."""
        member, until = self.chance.choice(self.members), self.until()
        what = self.chance.choice(("leave", "leave", "leave", "freeze", "freeze", "node", "new", "wipe"))
        if what == "leave" and member.alive:
            self.leave(member)
        elif what == "freeze" and member.here:
            member.still, member.back_at = True, until
        elif what == "node" and self.node:
            self.node, self.node_back_at = False, until
        elif what == "new" and self.node and len(self.members) < MOST_MEMBERS and self.groups:  # which lets it in
            self.join(self.chance.choice(self.stages))
        elif what == "wipe" and self.chance.random() < 0.2 and len(self.members) > 1:
            self.lose(member)

    def until(self) -> int:
        """The tick at which what happens now is over."""
        return self.now + self.chance.choice(ABSENCES)

    def leave(self, member: Member) -> None:
        """End a member's process; it comes back after a while."""
        member.alive = member.still = member.present = False
        member.back_at = self.until()

    def come_back(self) -> None:
        """Those whose time has come are back."""
        self.node |= self.now >= self.node_back_at
        for member in self.members:
            if member.still and self.now >= member.back_at:
                member.still = False
            elif not member.alive and self.now >= member.back_at:
                self.start(member)

    def start(self, member: Member) -> None:
        """Start a member's process, if anybody is there to join the run through."""
        if not self.node and not self.others(member):
            return
        member.alive, member.still, member.present, member.confirmed, member.waited = True, False, False, False, 0
        member.phase = RunPhase.CATCHING_UP

    def lose(self, member: Member) -> None:
        """A member's folder is lost, and the member does not come back."""
        self.members.remove(member)
        self.unproven |= any(member.finished > self.heard_of(part) for part in member.ledgers)
        self.finished_with = {
            key
            for key in self.finished_with
            if any(other.finished >= key[1] and _has(other, *key) for other in self.members)
        }

    def heard_of(self, part: Part) -> int:
        """The last round after which the node or any member knows that the state of a part was held."""
        holders = [member.finished for member in self.members if part in member.ledgers]
        known = [self.node_knows, *(member.known for member in self.members)]
        return max(*(progress.newest(part) for progress in known), *holders, 0)

    def see_by_node(self) -> None:
        """The node notes the holders that it sees."""
        if not self.node:
            return
        here = [member for member in self.members if member.holds]
        run = common_round((member.finished for member in here), self.liars)
        self.node_knows.raise_to(run)
        for member in here:
            if member.finished <= self.node_knows.run + 1:
                self.node_knows.raise_to(0, dict.fromkeys(member.ledgers, member.finished))

    def act(self, me: Member) -> None:
        """One member does what its phase lets it."""
        self.learn(me)
        view = self.view(me)
        me.phase = phase_of(view)
        if me.phase in ABREAST:
            me.present = True
            self.finish_if_due(me, view)
            self.agree(me)
        else:
            me.present = False
            if me.confirmed and not lacking_parts(view):
                self.catch_up(me, view)

    def catch_up(self, me: Member, view: RunView) -> None:
        """Take states and contributions up to the target from those who hold them."""
        goal = target(view)
        for part in me.ledgers:
            holders = [
                other for other in self.others(me) if other.holds and part in other.ledgers and other.finished >= goal
            ]
            if not holders:
                if not stands(view, view.parts[part]):
                    return
                continue
            holder = max(holders, key=lambda other: other.ledgers[part].folded)
            self.take_state(me, part, holder, goal)
        self.finish(me, goal)
        me.present = True
        self.learn(me)
        me.phase = phase_of(self.view(me))

    def finish_if_due(self, me: Member, view: RunView) -> None:
        """Finish a round when all contributions that are awaited are here, or others have gone on for a while."""
        clock = me.finished + 1
        due = [
            {
                other.name
                for other in self.others(me)
                if part in other.authored and other.holds and other.contributed == clock
            }
            for part in me.ledgers
        ]
        here = [ledger.accepted.get(clock, {}).keys() for ledger in me.ledgers.values()]
        all_here = all(awaited <= arrived for awaited, arrived in zip(due, here, strict=True)) and all(here)
        if all_here or (view.run >= clock and me.waited >= PATIENCE_TICKS):
            self.finish(me, clock)
        elif view.run >= clock:
            me.waited += 1

    def agree(self, me: Member) -> None:
        """Go by the closed state that stands among those who are here, as after a partition."""
        for part, ledger in me.ledgers.items():
            others = [other for other in self.others(me) if other.holds and part in other.ledgers]
            for mine in me.claims.get(part, []):
                told = [
                    claim for other in others for claim in other.claims.get(part, []) if claim.folded == mine.folded
                ]
                if all(claim.digest == mine.digest for claim in told):
                    continue
                spoken = len(told) == sum(other.finished >= me.finished - SKEW for other in others)
                standing = outvoted(mine, told, self.liars, spoken)
                agreed = [o for o in others if standing in [claim.digest for claim in o.claims.get(part, [])]]
                if standing is not None and agreed:
                    ledger.adopt(0, History())
                    self.take_state(me, part, agreed[0], me.finished)
                    self.finish(me, me.finished)
                    break

    def take_state(self, me: Member, part: Part, holder: Member, goal: int) -> None:
        """Take the closed state of a part from a holder if it is newer, and what was contributed up to the goal."""
        ledger, theirs = me.ledgers[part], holder.ledgers[part]
        if theirs.folded > ledger.folded:
            ledger.adopt(theirs.folded, theirs.history.copy())
            me.claims[part] = [*holder.claims.get(part, [])]
        ledger.follow(goal + 1, goal + 1)
        vouched = {entry.sha256 for entry in theirs.all_entries() if entry.name.round <= goal}
        for entry in theirs.all_entries():
            if entry.name.round <= goal:
                ledger.take(_copy(entry), vouched=True)
        ledger.reconsider([(entry.name, entry.sha256) for entry in ledger.all_entries() if entry.sha256 in vouched])

    def finish(self, me: Member, round: int) -> None:
        for part, ledger in me.ledgers.items():
            for due in ledger.advance(round + 1):
                ledger.fold(due)
                past = sha256(repr(ledger.history.to_wire()).encode()).hexdigest()
                claim = Claim(due, past, ledger.history.total(), author=True)
                me.claims[part] = [*me.claims.get(part, []), claim][-CLAIMS_KEPT:]
            self.first_with.setdefault((part, round), len(ledger.chosen(round)))
            for author in ledger.chosen(round):
                self.finished_with.add((part, round, author))
        me.finished, me.waited = max(me.finished, round), 0
        self.outcome.rounds = max(self.outcome.rounds, me.finished)

    def train(self, eventful: bool) -> None:
        """Datacenters contribute; so do volunteers, one of each stage, that are abreast and at the same round. In
        an eventful tick one may be killed while the others contribute."""
        ready = [m for m in self.members if m.here and m.present and m.phase in ABREAST and m.contributed <= m.finished]
        for member in ready:
            if member.stage is None:
                self.contribute(member)
        by_stage = [[m for m in ready if m.stage == stage] for stage in self.stages]
        for first in by_stage[0]:
            free = [[m for m in m_of if m.finished == first.finished >= m.contributed] for m_of in by_stage[1:]]
            if all(free):
                self.contribute(first)
                cut = self.chance.choice(self.stages[1:]) if eventful and self.chance.random() < CUT_SHARE else 0
                for stage, (member, *_) in enumerate(free, start=1):
                    if stage == cut:
                        self.leave(member)
                    else:
                        self.contribute(member)

    def contribute(self, me: Member) -> None:
        round = me.finished + 1
        for part in me.authored:
            if (part, round, me.name) in self.made:
                continue  # before it left
            ledger = me.ledgers[part]
            entry = Entry(ContributionName(part, round, me.name), f"{part} {round} {me.name}", 1)
            self.made[part, round, me.name] = entry
            ledger.take(_copy(entry))
        me.contributed = round

    def spread(self) -> None:
        """All that are here and abreast exchange what they have."""
        here = [member for member in self.members if member.here and member.present]
        for part in self.parts:
            holders = [member for member in here if part in member.ledgers]
            shown = {entry.name: entry for member in holders for entry in member.ledgers[part].all_entries()}
            for member in holders:
                ledger = member.ledgers[part]
                for name, entry in shown.items():
                    if name.round > ledger.folded and not ledger.versions(name):
                        ledger.take(_copy(entry))

    def rewind_if_stuck(self) -> None:
        """The operator rewinds the run when nobody has trained for long though all are here, and no folder has the
        newest state of some part any more."""
        self.stuck = 0 if len(self.made) > self.count else self.stuck + 1
        self.count = len(self.made)
        lost = max((member.finished for member in self.members), default=0)
        awaiting = [member.known for member in self.members if member.phase is RunPhase.AWAITING_STATE]
        for known in (self.node_knows, *awaiting):  # who awaits a state says what it knows
            lost = max(lost, known.run, *known.parts.values())
        held = [max((m.finished for m in self.members if part in m.ledgers), default=lost) for part in self.parts]
        if self.stuck > STUCK_TICKS and self.node and all(m.here for m in self.members) and min(held) < lost:
            self.outcome.rewinds += 1
            self.node_knows.heed(Rewind(min(held), lost, self.outcome.rewinds))
            self.stuck = 0

    # The end

    def play(self) -> Outcome:
        for _ in range(TICKS):
            self.tick(eventful=True)
        self.node = True
        for member in self.members:
            member.still = False
            if not member.alive:
                self.start(member)
        before = len(self.made)
        for _ in range(QUIET_TICKS):
            self.tick(eventful=False)
        self.outcome.objections += self.objections(before)
        return self.outcome

    def objections(self, before: int) -> Iterable[str]:
        """What is wrong at the end."""
        for member in self.members:
            if member.phase not in ABREAST:
                yield f"{member.name} is {member.phase} after round {member.finished}: {self.view(member)}"
        stages = {member.stage for member in self.members}
        if (None in stages or stages >= set(self.stages)) and len(self.made) < before + QUIET_TICKS // 12:
            yield f"the run stands still after round {self.outcome.rounds}"
        for part in self.parts:
            if self.in_few_hands(part):
                self.outcome.few = True
                continue
            holders = [member for member in self.members if part in member.ledgers]
            folded = min((member.ledgers[part].folded for member in holders), default=0)
            pasts = {
                tuple(key for key in sorted(self.made) if key[0] == part and key[1] <= folded and _has(member, *key))
                for member in holders
            }
            if len(pasts) > 1:
                yield f"{part} has {len(pasts)} pasts up to round {folded}"
            if not (self.outcome.rewinds or self.unproven):
                yield from self.lost(part)

    def in_few_hands(self, part: Part) -> bool:
        """Whether a round was finished with no more contributions to a part than members may lie: who comes to it later
        can tell their state from no liar's (`outer.liars`)."""
        counts = [count for (finished, _), count in self.first_with.items() if finished == part]
        fewest = min(counts, default=self.liars + 1)
        return 0 < self.liars >= fewest

    def lost(self, part: Part) -> Iterable[str]:
        """What was in the finished state of a part at somebody who is still there, and is there no longer."""
        holders = [member for member in self.members if part in member.ledgers]
        for _, round, author in sorted(key for key in self.finished_with if key[0] == part):
            without = [member.name for member in holders if not _has(member, part, round, author)]
            returned = len(without) == len(holders) and author in [member.name for member in holders]
            if without and not returned:  # else it is in its author's error feedback
                yield f"{part} of round {round} by {author} was in a finished state, and has left that of {without}"


def _has(member: Member, part: Part, round: int, author: PeerId) -> bool:
    ledger = member.ledgers.get(part)
    return ledger is not None and (ledger.history.has(author, round) or author in ledger.chosen(round))


def _copy(entry: Entry) -> Entry:
    return Entry(entry.name, entry.sha256, entry.size, held=True)


def play(seed: int) -> Outcome:
    """Play the schedule of a seed."""
    return Swarm(seed).play()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.returning", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    began, failed, rounds, rewinds, few = time.perf_counter(), 0, 0, 0, 0
    seeds = range(options.seed, options.seed + options.schedules)
    with ProcessPoolExecutor(options.processes) as pool:
        for outcome in pool.map(play, seeds, chunksize=50):
            rounds, rewinds, few = rounds + outcome.rounds, rewinds + outcome.rewinds, few + outcome.few
            if outcome.objections:
                failed += 1
                print(f"seed {outcome.seed}: {outcome.objections[0]}", flush=True)
    took = time.perf_counter() - began
    counts = f"{len(seeds)} schedules, {few} in few hands, {rounds} rounds, {rewinds} rewinds"
    print(f"{counts} in {took:.0f} s: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
