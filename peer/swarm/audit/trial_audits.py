"""Trials, as an auditor holds them: what newcomers contribute is measured before any of it counts."""

from collections.abc import Mapping

from peer.compute.audit import Sets, overlap, trial_gain
from peer.compute.evaluation import Evaluates
from peer.swarm.audit.verdicts import objection
from peer.swarm.node import Node
from peer.swarm.rounds.outer_round import OuterLoop
from peer.telemetry.decisions import Tried
from protocol.codec.contribution import Contribution, decode
from protocol.identity import Part, PeerId, contributes_to

TrialBlobs = dict[Part, bytes]
"""What one author on trial sent in one round."""


async def hold_trials(node: Node, evaluator: Evaluates, outer: OuterLoop) -> None:
    """Measure what has come from peers on trial, and tell what it would do: of each author once all its parts have come
    and their round is settled here. Of some parts only, the harmless one might be all there is."""
    followed, run = outer.followed, node.torch_thread.run
    for (round, author), work in sorted(due(outer).items()):
        if node.leaving:
            return
        tried = {part: await run(decode, blob, outer.manifest) for part, blob in work.items()}
        settled = {part: followed.parts[part].settled.get(round, {}) for part in tried}
        sets = {part: await followed.read_all(chosen) for part, chosen in settled.items()}
        gain = await run(trial_gain, evaluator, followed.grids, sets, tried)
        alike = await run(_most_alike, tried, sets, evaluator)
        node.emit(Tried(round, author, gain, objection(gain, alike)))


def due(outer: OuterLoop) -> dict[tuple[int, PeerId], TrialBlobs]:
    """What can be looked at now: round and author → its contributions. It is given out once."""
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
