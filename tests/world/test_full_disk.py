"""A disk that is full in mid-round and has room again: what peers print of open rounds, and hold in the end."""

import pytest

from protocol.events.activity import RoundDone, StepDone
from tests.world import test_cases
from tests.world.test_cases import MakeWorld, all_end_well, join, told

world = test_cases.world

Printed = dict[tuple[int, str], dict[str, set[int]]]
"""(round, part) → digest → the numbers of contributions with which it was printed."""


@pytest.mark.parametrize("after", [0.0, 1.13])
def test_digests_printed_of_open_rounds_differ_only_with_the_contributions_applied_and_the_last_ones_not_at_all(
    world: MakeWorld, after: float
):
    """Peers wait for so short a time that some go on without what others have. All of it counts in the end."""
    run = world(replicas={"groups": 1, "datacenters": 2}, outer={"rounds": 9, "grace": 2, "liars": 0, "patience": 1.0})
    stages = [join(run, f"stage-{each}", "volunteer", each) for each in range(2)]
    quick, slow = (join(run, f"dc-{each}", "datacenter", speed=1 + 2 * each, latency=0.3) for each in range(2))
    assert run.run_until(lambda: bool(told(quick, StepDone, lambda each: each.round >= 3)), 200)
    run.run_for(after)
    run.fill(quick)
    run.run_for(60)
    assert quick.process is None
    run.disk.full.discard(quick.folder)
    run.start(quick)
    all_end_well(run, *stages, quick, slow)
    printed: Printed = {}
    for peer in (*stages, quick, slow):
        for event in told(peer, RoundDone):
            for part, digest in event.digests.items():
                counts = printed.setdefault((event.round, part), {})
                counts.setdefault(digest, set()).add(event.contributions[part])
    differing = {key: counts for key, counts in printed.items() if len(counts) > 1}
    assert differing  # and so it was on a real disk: 4 of 30
    for counts in differing.values():
        assert len(set.union(*counts.values())) == sum(map(len, counts.values()))
    assert max(printed) == (9, "stage-1")
    assert not {key for key in differing if key[0] == 9}
