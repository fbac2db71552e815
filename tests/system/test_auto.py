"""A group that chooses its own k follows its links: fewer coordinates when they become slow, more when they recover."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.shaped.hosts import hosts, missing
from peer.events import CompressionChosen, Joined
from tests.reference.processes import Peer, serving

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = 0
stages = 2
compression = "auto"
[inner]
steps = 2
sequences = 32
microbatch = 2
[outer]
rounds = 200
"""

ONE_WAY = 0.005
SLOW_MEGABITS, QUICK_MEGABITS = 2, 500
"""A step of d/2 has sixteen frames of 33 kB: two seconds, where it computes for half of one; and ten milliseconds."""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_k_is_halved_when_the_links_become_slow_and_doubled_when_they_recover(tmp_path: Path):
    with ExitStack() as stack:
        on = stack.enter_context(hosts(3, ONE_WAY))
        ticket = stack.enter_context(serving(RUN, tmp_path / "run", f"{on.address(0)}:7700", on.enter(0)))
        peers = []
        for stage in (0, 1):
            own = ["--dir", str(tmp_path / f"peer{stage}"), "--device", "cpu", "--threads", "1"]
            peers.append(
                stack.enter_context(Peer("join", str(ticket), "--stage", str(stage), *own, inside=on.enter(stage + 1)))
            )
        for peer in peers:
            peer.wait_for(Joined)
        leader = peers[0]

        leader.wait_for(CompressionChosen, lambda event: event.compression == 2)
        on.limit(SLOW_MEGABITS, 3)
        fewer = leader.wait_for(CompressionChosen, lambda event: "link was busy 9" in event.why or "100%" in event.why)
        on.limit(QUICK_MEGABITS, 3)
        known = list(leader.said)
        more = leader.wait_for(
            CompressionChosen, lambda event: event not in known and event.compression < fewer.compression
        )
        assert fewer.compression > 2
        assert "link was busy" in more.why
