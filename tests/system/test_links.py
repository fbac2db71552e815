"""What a volunteer holds open does not grow with the rounds: a run of months has thousands of them."""

from itertools import pairwise
from pathlib import Path

import psutil

from peer.events import RoundDone
from tests.reference.processes import events, finish, serving, start

ROUNDS = 8

RUN = f"""
[model]
preset = "nano"
[replicas]
groups = 1
stages = 2
datacenters = 0
compression = 4
[inner]
steps = 1
sequences = 2
microbatch = 1
[outer]
rounds = {ROUNDS}
"""


def test_connections_and_bytes_are_of_the_rounds_and_not_of_their_number(tmp_path: Path):
    with serving(RUN, tmp_path / "run") as ticket:

        def peer(stage: int):
            where = ["--dir", str(tmp_path / str(stage)), "--device", "cpu", "--threads", "1"]
            return start("join", "--stage", str(stage), str(ticket), *where)

        first, second = peer(0), peer(1)
        watched = psutil.Process(first.pid)
        connections: list[int] = []
        sent: list[int] = []
        for event in events(first):
            if isinstance(event, RoundDone):
                established = [each for each in watched.net_connections("tcp") if each.status == "ESTABLISHED"]
                connections.append(len(established))
                sent.append(event.pipeline_sent)
        finish([second])
        first.communicate()
    assert len(sent) == ROUNDS
    assert max(connections[ROUNDS // 2 :]) <= max(connections[: ROUNDS // 2]) + 1
    assert [later - earlier for earlier, later in pairwise(sent)] == [sent[0]] * (ROUNDS - 1)
