"""A round as a peer sees it now, for the decisions of `peer/swarm/rounds/round_policy.py`."""

from collections import ChainMap

from peer.network.witnesses import LATELY
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.round_policy import PartSeen, RoundSeen
from protocol.clock import monotonic
from protocol.identity import Part, PeerId


def why_end_steps(outer: OuterLoop, round: int, steps: int = 0) -> str:
    """Return why a replica should end its inner loop with the `steps` it has; empty: it should not."""
    if outer.missed_end:
        return "the run is over"
    outer.record_arrivals()
    seen, enough = see_round(outer, round, trains=True), steps >= outer.manifest.inner.steps
    done = enough and round_policy.others_are_done(seen, outer.followed.me)
    return round_policy.ALL_DONE if done else round_policy.why_stop(seen, outer.pace, monotonic())


def see_round(outer: OuterLoop, round: int, trains: bool) -> RoundSeen:
    """Return a round as this peer has seen it. Unless it still trains in it (`trains`), or looks for a group to go on
    in it, its own contribution is here, or does not come."""
    arrivals, parts = outer.arrivals_of(round), list[PartSeen]()
    for part, followed in outer.followed.parts.items():
        authors = frozenset(followed.ledger.accepted.get(round, ()))
        never = frozenset[PeerId]() if trains else frozenset({outer.followed.me}) - authors
        expected = awaited_authors(outer, part, round)
        awaited = (expected - never) | _returning_authors(outer, part, round, expected, authors)
        parts.append(PartSeen(awaited, authors, arrivals.arrived(part)))
    least = round_policy.least_contributions(round, outer.clock, outer.manifest.replicas.total, outer.gathered)
    return RoundSeen(
        round=round,
        parts=parts,
        started=arrivals.started,
        passed=arrivals.passed,
        least=0 if round == outer.abandoned_round else least,
        applied_in=round + outer.manifest.outer.delay,
        is_last=round == outer.manifest.outer.rounds,
        others_at=outer.others_at(),
        led=_may_be_led(outer, round),
    )


def _may_be_led(outer: OuterLoop, round: int) -> bool:
    ledgers = [followed.ledger for followed in outer.followed.parts.values()]
    contributed = frozenset().union(*(ledger.accepted.get(round, ()) for ledger in ledgers))
    others, me = outer.discovery.others(), outer.discovery.record
    return round_policy.may_be_led(others, me, round + outer.manifest.outer.delay, contributed)


def awaited_authors(outer: OuterLoop, part: Part, round: int) -> frozenset[PeerId]:
    """The authors whose contributions a round waits for: in the first, all who say that they train; later, those of
    them that have contributed lately. A newcomer's first contribution, and that of one who was away, may come late,
    and counts all the same."""
    ledger = outer.followed.parts[part].ledger
    training = round_policy.awaited(outer.discovery.peers(), part, round, ledger.waiting.get(round, {}))
    return training if round == 1 else training & ledger.counted_since(round - LATELY)


def _returning_authors(
    outer: OuterLoop, part: Part, round: int, expected: frozenset[PeerId], here: frozenset[PeerId]
) -> frozenset[PeerId]:
    """The authors of the round before that are out of their replica, and for which this round is kept open for a while:
    a group whose first stage is killed and started again keeps its steps."""
    records = ChainMap({outer.followed.me: outer.discovery.record}, outer.discovery.records)
    last = outer.followed.parts[part].ledger.accepted.get(round - 1, {}).keys()
    may_return = round_policy.may_return(last, expected | here, records, part, round)
    allowed = {peer for peer in may_return if not outer.discovery.objection(peer)}
    now, most = monotonic(), outer.pace.return_seconds
    absent = outer.arrivals_of(round).note_absent(part, allowed, now)
    return frozenset(peer for peer, since in absent.items() if now < since + most)
