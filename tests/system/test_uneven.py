"""Volunteers as they are: bad links, and one machine much slower than the others."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.shaped.hosts import hosts, missing
from protocol.events.activity import Contributed, Finished, Joined, Refused
from tests.reference.processes import Peer, serving
from tests.reference.slowness import slowed

ROUNDS, STEPS = 3, 12

RUN = f"""
[model]
preset = "nano"
layers = 2
[replicas]
groups = 2
datacenters = 0
[inner]
steps = {STEPS}
sequences = 8
microbatch = 2
[outer]
rounds = {ROUNDS}
patience = 0.2
"""
"""Rounds end soon after the quick group is done: what the slow one does in that time has to do."""

ONE_WAY, JITTER, LOSS = 0.03, 0.01, 0.01
PLACES = [0, 1, 0, 1]
"""The volunteers' stages."""

SLOW = 1
"""Of the places."""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_with_loss_jitter_and_a_volunteer_at_a_tenth_of_the_speed_all_rounds_end_with_one_state(tmp_path: Path):
    """Each on a host of its own, with reno; 60 ms to everybody and back, ± 20, and a packet of a hundred lost each way.
    The slow one is slow from its joining on: that its imports take a minute concerns nobody."""
    with ExitStack() as stack:
        on = stack.enter_context(hosts(1 + len(PLACES), ONE_WAY, JITTER, LOSS, seed=7))
        listen = f"{on.address(0)}:7700"
        ticket = stack.enter_context(serving(RUN, tmp_path / "run", listen, on.enter(0)))
        peers = []
        for number, stage in enumerate(PLACES):
            own = ["--dir", str(tmp_path / f"peer{number}"), "--device", "cpu", "--threads", "1"]
            peer = Peer("join", str(ticket), "--stage", str(stage), *own, inside=on.enter(number + 1))
            peers.append(stack.enter_context(peer))
        for peer in peers:
            peer.wait_for(Joined)
        stack.enter_context(slowed(peers[SLOW].process.pid, 0.1))
        ends = [peer.wait_for(Finished) for peer in peers]

    digests: dict[str, set[str]] = {}
    for end in ends:
        assert end.rounds == ROUNDS
        for part, digest in end.digests.items():
            digests.setdefault(part, set()).add(digest)
    assert all(len(found) == 1 for found in digests.values())
    steps = [sum(event.steps for event in peer.said if isinstance(event, Contributed)) for peer in peers]
    assert 0 < steps[SLOW] < max(steps) <= ROUNDS * STEPS
    assert not [event for peer in peers for event in peer.said if isinstance(event, Refused)]  # all were honest
