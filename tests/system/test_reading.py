"""Real processes that are killed, come back and join late: what counts has read every sequence of every epoch once."""

import signal
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bootstrap.genesis import load_run
from peer.data.batches import sequence_ids, sequences_in
from peer.data.text import open_tokens
from peer.telemetry.events import Contributed, Finished, Joined, StepDone
from protocol.codec.snapshot import Header, parse_header
from protocol.identity import EMBEDDING, PeerId
from protocol.manifest import Manifest
from protocol.run.run_files import TRAIN
from tests.reference.processes import RUN, Peer, serving

SHAPE = RUN.format(datacenters=1, sequences=4) + "steps = 6\n[outer]\nrounds = 30\ngrace = 2\nliars = 0\n"

Author = tuple[str, int]
"""A peer's id, and a round."""


def last_state(folder: Path, manifest: Manifest) -> Header:
    """The last state of the embedding that a peer has closed."""
    newest = max((folder / "snapshots").glob(f"{EMBEDDING}-*.header"))
    return parse_header(newest.read_bytes(), manifest)


def behind(peers: list[Peer]) -> dict[Author, list[int]]:
    """The chunks behind each contribution, as its author said."""
    said: dict[Author, list[int]] = {}
    for peer in peers:
        me = peer.wait_for(Joined).peer_id
        for event in [event for event in peer.said if isinstance(event, Contributed) and event.chunks]:
            assert (me, event.round) not in said
            said[me, event.round] = [chunk for first, end in event.chunks for chunk in range(first, end)]
    return said


def test_every_sequence_of_an_epoch_is_read_once_though_two_are_killed_and_another_comes_late(tmp_path: Path):
    with ExitStack() as stack:
        ticket = stack.enter_context(serving(SHAPE, tmp_path / "run"))

        def start(command: str, name: str) -> Peer:
            where = ["--dir", str(tmp_path / name), "--device", "cpu", "--threads", "1"]
            return stack.enter_context(Peer(*command.split(), str(ticket), *where))

        def killed_and_back(peer: Peer, round: int, command: str, name: str) -> Peer:
            peer.wait_for(StepDone, lambda done: done.round >= round and done.step == 1)
            peer.end(signal.SIGKILL)
            return start(command, name)

        leader, member = start("join --stage 0", "leader"), start("join --stage 1", "member")
        datacenter = start("replica", "datacenter")
        datacenter_again = killed_and_back(datacenter, 3, "replica", "datacenter")
        late = start("replica", "late")
        all_train = max(peer.wait_for(Contributed).round for peer in (datacenter_again, late))
        leader_again = killed_and_back(leader, all_train + 2, "join --stage 0", "leader")
        for peer in (leader_again, member, datacenter_again, late):
            peer.wait_for(Finished)
        peers = [leader, leader_again, datacenter, datacenter_again, late]
        run = load_run(tmp_path / "run" / "b").manifest
        states = [last_state(tmp_path / name, run) for name in ("leader", "member", "datacenter", "late")]
        tokens = open_tokens(tmp_path / "run" / "b" / TRAIN, run.model.vocabulary)
    assert len({header.digest for header in states}) == 1
    header, said = states[0], behind(peers)
    counted = {(who, round): chunks for (who, round), chunks in said.items() if header.history.has(PeerId(who), round)}
    assert len(counted) == header.history.total()
    assert {who for who, _ in counted} == {peer.wait_for(Joined).peer_id for peer in peers}
    read = [chunk for chunks in counted.values() for chunk in chunks]
    assert len(read) == len({*read})
    whole = next(chunk for chunk in count() if chunk not in {*read})  # before it nothing is left out
    sequences = sequences_in(tokens, run)
    epochs = whole * run.inner.sequences // sequences
    assert epochs >= 1
    ids = [each for chunk in range(whole) for each in sequence_ids(run, sequences, chunk).tolist()]
    for epoch in range(epochs):
        assert sorted(ids[epoch * sequences : (epoch + 1) * sequences]) == list(range(sequences))
