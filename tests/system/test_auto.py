"""k by link: a group on links that change finds, each time, the largest k whose frames hide behind its passes."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.shaped.hosts import hosts, missing
from protocol.events.activity import RoundDone
from protocol.events.group_decisions import CompressionChosen
from tests.reference.processes import Peer, serving

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
stages = 2
datacenters = 0
compression = "auto"
[inner]
steps = 4
sequences = 32
microbatch = 2
[outer]
rounds = 1000
"""

ONE_WAY = 0.005
SLOW, QUICK = 2.0, 500.0
"""Mb/s. Over the slow links a frame of d/2 takes several times what its passes do, on any machine; over the quick ones
a hundredth. What a step sends at d/2 is less than sockets take at once: no sender is ever held up."""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_group_takes_a_smaller_k_when_its_links_get_slow_and_a_larger_one_when_they_are_quick_again(tmp_path: Path):
    with ExitStack() as stack:
        on = stack.enter_context(hosts(3, ONE_WAY))
        ticket = stack.enter_context(serving(RUN, tmp_path / "run", f"{on.address(0)}:7700", on.enter(0)))
        peers = []
        for stage in range(2):
            own = ["--dir", str(tmp_path / f"peer{stage}"), "--device", "cpu", "--threads", "1"]
            command = Peer("join", str(ticket), "--stage", str(stage), *own, inside=on.enter(stage + 1))
            peers.append(stack.enter_context(command))
        leader = peers[0]

        def chooses(compressions: range) -> CompressionChosen:
            """The next choice of one of these."""
            past = len(leader.said)
            return leader.wait_for(
                CompressionChosen,
                lambda event: event.compression in compressions and any(event is new for new in leader.said[past:]),
            )

        assert chooses(range(1, 3)).compression == 2  # on links without a limit
        on.limit(SLOW, 3)
        assert "times its passes" in chooses(range(8, 129)).why
        on.limit(QUICK, 3)
        assert chooses(range(1, 3)).compression == 2
        done = [event for event in leader.said if isinstance(event, RoundDone)]
        assert [event.round for event in done] == list(range(1, len(done) + 1))  # none was missed on the way
