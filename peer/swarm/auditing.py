"""Audits and trials, as a datacenter or an observer holds them. After each round it measures what contributions did to
the held-out loss, and what those of newcomers on trial would do before any of them counts. In the midst of a round an
observer does spot checks for stages of groups."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from peer.compute.audit import Sets, gain, held_out_loss, overlap, trial_gain
from peer.compute.evaluation import Evaluates, Evaluator
from peer.compute.recomputation import Recomputation
from peer.network.spot_check_service import SpotCheckService
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import FollowedParts
from peer.swarm.verdicts import Pair, Verdicts, trial_objection
from protocol.codec.contribution import Contribution, decode
from protocol.codec.spot_check import Likeness, ReceivedPass
from protocol.events.decisions import Audited, Tried
from protocol.identity import Part, PeerId, contributes_to
from protocol.trust.records import Peers
from protocol.wording import tails

AUDITS_A_ROUND = 8
"""The number of authors that are audited after a round, drawn at random so that nobody knows when it is watched: each
costs one evaluation more, and an observer that takes longer than a round falls behind. A small swarm is audited
whole."""

AuditKey = tuple[int, PeerId]
"""The contributions of one author to one round."""

TrialBlobs = dict[Part, bytes]
"""The bytes that one author on trial sent in one round."""


@dataclass(slots=True)
class Auditor:
    """One peer's audits. `looked_at` are the contributions to open rounds that had their chance to be drawn."""

    evaluator: Evaluates
    verdicts: Verdicts = field(default_factory=Verdicts)
    looked_at: set[tuple[Part, int, PeerId]] = field(default_factory=set)

    async def audit(self, outer: OuterLoop) -> None:
        """Measure what has come into θ since the last time, late contributions too, and tell what it did; and what
        newcomers on trial would do."""
        await self._audit_what_counts(outer)
        await hold_trials(self.evaluator, outer)

    async def _audit_what_counts(self, outer: OuterLoop) -> None:
        followed, run = outer.followed, outer.followed.torch_thread.run
        drawn = self.draw(self.unseen(followed))
        if not drawn or outer.leaving:
            return
        grids = followed.grids
        loss = await run(held_out_loss, self.evaluator, grids)
        for round in sorted({round for round, _ in drawn}):
            sets = {
                part: await followed.read_all(followed_part.settled[round])
                for part, followed_part in followed.parts.items()
                if round in followed_part.settled
            }
            gains: dict[PeerId, float] = {}
            alike: dict[Pair, float] = {}
            for author in sorted(author for at, author in drawn if at == round):
                if outer.leaving:
                    return
                own_sets = {part: sets[part] for part in drawn[round, author]}
                gains[author] = await run(gain, self.evaluator, grids, own_sets, author, loss)
                alike |= await run(overlaps, own_sets, author, self.evaluator)
            outer.emit(Audited(round, {str(author): gain for author, gain in gains.items()}))
            for finding in (*self.verdicts.add_gains(round, gains), *self.verdicts.add_overlaps(round, alike)):
                or_else = or_was_misled(outer.discovery.peers(), PeerId(finding.peer)) if finding.since else ""
                outer.emit(replace(finding, reason=finding.reason + or_else))
        await outer.discovery.publish(scores=self.verdicts.scores())

    def unseen(self, followed: FollowedParts) -> dict[AuditKey, list[Part]]:
        """The parts in the grids that were not there the last time: round and author → parts. An author's parts are
        matched by its name alone: each stage of a group is another peer."""
        accepted_here = {
            (part, round, author)
            for part, followed_part in followed.parts.items()
            for round, chosen in followed_part.settled.items()
            for author in chosen
        }
        fresh: dict[AuditKey, list[Part]] = {}
        for part, round, author in sorted(accepted_here - self.looked_at):
            fresh.setdefault((round, author), []).append(part)
        self.looked_at = accepted_here
        return fresh

    def draw(self, fresh: Mapping[AuditKey, list[Part]]) -> dict[AuditKey, list[Part]]:
        """A random few of them: first of those who did harm when they were last audited."""
        shuffled = random.sample(sorted(fresh), len(fresh))
        shuffled.sort(key=lambda work: not self.verdicts.under_watch(work[1]))
        return {work: fresh[work] for work in shuffled[:AUDITS_A_ROUND]}


def or_was_misled(peers: Peers, suspect: PeerId) -> str:
    """Say who may have had a volunteer do harm: it learns from the gradients that the stage behind it sends. That is
    who sits there now, and may have come since. Empty: nobody does."""
    mine = [(peer.replica, peer.stage + 1) for peer in peers if peer.peer_id == suspect and peer.role == "volunteer"]
    behind = [peer.peer_id for peer in peers if peer.replica and (peer.replica, peer.stage) in mine]
    return f"; false gradients of peer {tails(behind)}, the stage behind it, would do the same" if behind else ""


def overlaps(sets: Sets, author: PeerId, evaluator: Evaluates) -> dict[Pair, float]:
    """The share of places, beyond chance, that an author has in common with each other one, in the part in which it is
    largest. It looks at each contribution of the sets once, as F does."""
    found: dict[Pair, float] = {}
    for contributions in sets.values():
        mine = [contribution for contribution in contributions if contribution.name.author == author]
        others = [contribution for contribution in contributions if contribution.name.author != author]
        for one, other in product(mine, others):
            pair = (min(author, other.name.author), max(author, other.name.author))
            found[pair] = max(found.get(pair, 0.0), overlap(one, other, evaluator.manifest).beyond_chance)
    return found


def do_spot_checks(evaluator: Evaluator, outer: OuterLoop, service: SpotCheckService) -> None:
    """Compute again from now on, for stages of groups that ask, what they received in the present round."""
    recomputation, followed = Recomputation(evaluator), outer.followed

    async def check(asked: ReceivedPass) -> Likeness:
        return await followed.torch_thread.run(recomputation.likeness, followed.grids, followed.digests, asked)

    service.answer_with(check, lambda: outer.clock)


async def hold_trials(evaluator: Evaluates, outer: OuterLoop) -> None:
    """Measure what has come from peers on trial, and tell what it would do: of each author once all its parts have come
    and their round is settled here. Of some parts only, the harmless one might be all there is."""
    followed, run = outer.followed, outer.followed.torch_thread.run
    for (round, author), work in sorted(due(outer).items()):
        if outer.leaving:
            return
        tried = {part: await run(decode, blob, outer.manifest) for part, blob in work.items()}
        settled = {part: followed.parts[part].settled.get(round, {}) for part in tried}
        sets = {part: await followed.read_all(chosen) for part, chosen in settled.items()}
        gain = await run(trial_gain, evaluator, followed.grids, sets, tried)
        alike = await run(_most_alike, tried, sets, evaluator)
        outer.emit(Tried(round, author, gain, trial_objection(gain, alike)))


def due(outer: OuterLoop) -> dict[tuple[int, PeerId], TrialBlobs]:
    """Return the contributions that can be audited now: round and author → its contributions. Each is returned once."""
    trials, records = outer.reconciler.intake.trials or {}, outer.discovery.records
    works: dict[tuple[int, PeerId], TrialBlobs] = {}
    for (author, part), (round, blob) in trials.items():
        if round <= outer.last_settled:
            works.setdefault((round, author), {})[part] = blob
    whole = {
        (round, author): work
        for (round, author), work in works.items()
        if (record := records.get(author)) is not None
        and all(part in work for part in outer.followed.parts if contributes_to(record.role, record.stage, part))
    }
    for (_, author), work in whole.items():
        for part in work:
            del trials[author, part]
    return whole


def _most_alike(tried: Mapping[Part, Contribution], sets: Sets, evaluator: Evaluates) -> float:
    """The largest share of places, beyond chance, that one of them has in common with another's."""
    shares = (
        overlap(mine, other, evaluator.manifest).beyond_chance for part, mine in tried.items() for other in sets[part]
    )
    return max(shares, default=0.0)
