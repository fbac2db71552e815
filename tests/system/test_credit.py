"""A real group of two stages: what each did is signed by the other, and a third party checks it without asking."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from protocol.events.activity import Credited, Finished, Joined, StepDone
from tests.reference.processes import Peer, hetpeer, serving

RUN = """
[model]
preset = "pico"
layers = 2
[replicas]
groups = 1
datacenters = 0
[inner]
steps = 3
sequences = 4
microbatch = 2
[outer]
rounds = 3
"""


def credit(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `hetpeer credit --json`, and what it said."""
    done = hetpeer("credit", *arguments, "--json")
    return done.returncode, json.loads(done.stdout)


def test_all_tokens_of_a_volunteer_are_signed_by_its_neighbour_and_a_forged_file_does_not_verify(tmp_path: Path):
    with ExitStack() as stack:
        ticket = stack.enter_context(serving(RUN, tmp_path / "run"))

        def join(stage: int) -> Peer:
            where = ["--stage", str(stage), "--dir", str(tmp_path / str(stage)), "--device", "cpu", "--threads", "1"]
            return stack.enter_context(Peer("join", str(ticket), *where))

        peers = [join(0), join(1)]
        ids = [peer.wait_for(Joined).peer_id for peer in peers]
        for peer in peers:
            peer.wait_for(Finished)
    for stage, peer in enumerate(peers):
        code, shown = credit(str(tmp_path / str(stage)))
        trained = sum(event.tokens for event in peer.said if isinstance(event, StepDone))
        assert code == 0
        assert shown["refused"] == []
        assert shown["tokens"] == trained > 0
        assert [each["round"] for each in shown["rounds"]] == [1, 2, 3]
        assert shown["peer"] == ids[stage]
        assert {signer for each in shown["rounds"] for signer in each["neighbours"]} == {ids[1 - stage]}
        told = {event.round: event.tokens for event in peer.said if isinstance(event, Credited)}
        assert sum(told.values()) == trained

    forged = tmp_path / "forged.receipts"
    code, shown = credit(str(tmp_path / "1"), "--out", str(forged))
    assert code == 0
    code, shown = credit(str(tmp_path / "0"), "--verify", str(forged))  # by the other, who needs no key of anybody
    assert code == 0
    assert shown["tokens"] == trained
    data = bytearray(forged.read_bytes())
    data[len(data) // 2] ^= 1
    forged.write_bytes(data)
    code, shown = credit(str(tmp_path / "0"), "--verify", str(forged))
    assert code == 7
    assert shown["refused"]
    assert shown["tokens"] < trained
