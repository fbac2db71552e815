"""Real processes that are killed, come back and join late: what counts has read every sequence of an epoch once."""

import signal
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bootstrap.genesis import load_run
from peer.data.batches import sequence_ids, sequences_in
from peer.data.tokens import open_tokens
from peer.events import Contributed, Finished, Joined, StepDone
from protocol.identity import EMBEDDING, PeerId
from protocol.manifest import Manifest
from protocol.run_files import TRAIN
from protocol.snapshot import Header, parse
from tests.reference.processes import Peer, serving

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = 1
[inner]
steps = 8
sequences = 4
microbatch = 4
[outer]
rounds = 20
grace = 2
liars = 0
"""

Author = tuple[str, int]
"""A peer's id, and a round."""


def last_state(folder: Path, manifest: Manifest) -> Header:
    """The last state of the embedding that a peer has closed."""
    newest = max((folder / "snapshots").glob(f"{EMBEDDING}-*.header"))
    return parse(newest.read_bytes(), manifest)


def behind(peers: list[Peer]) -> dict[Author, list[int]]:
    """The chunks behind each contribution, as its author said."""
    said: dict[Author, list[int]] = {}
    for peer in peers:
        me = peer.wait_for(Joined).peer_id
        for event in [event for event in peer.said if isinstance(event, Contributed) and event.chunks]:
            assert (me, event.round) not in said
            said[me, event.round] = [chunk for first, end in event.chunks for chunk in range(first, end)]
    return said


def test_every_sequence_of_an_epoch_is_read_once_though_one_is_killed_and_another_comes_late(tmp_path: Path):
    with ExitStack() as stack:
        ticket = stack.enter_context(serving(RUN, tmp_path / "run"))

        def start(command: str, name: str) -> Peer:
            where = ["--dir", str(tmp_path / name), "--device", "cpu", "--threads", "1"]
            return stack.enter_context(Peer(*command.split(), str(ticket), *where))

        leader, member = start("join --stage 0", "leader"), start("join --stage 1", "member")
        killed = start("replica", "datacenter")
        killed.wait_for(StepDone, lambda step: step.round == 3)
        killed.end(signal.SIGKILL)
        back, late = start("replica", "datacenter"), start("replica", "late")
        peers = [leader, member, killed, back, late]
        for peer in (leader, member, back, late):
            peer.wait_for(Finished)
        run = load_run(tmp_path / "run" / "b").manifest
        states = [last_state(tmp_path / name, run) for name in ("leader", "member", "datacenter", "late")]
        tokens = open_tokens(tmp_path / "run" / "b" / TRAIN, run.model.vocabulary)
    assert len({header.digest for header in states}) == 1
    header, said = states[0], behind(peers)
    counted = {(who, round): chunks for (who, round), chunks in said.items() if header.history.has(PeerId(who), round)}
    assert len(counted) == header.history.total()
    assert {who for who, _ in counted} == {peer.wait_for(Joined).peer_id for peer in (leader, back, late)}
    read = [chunk for chunks in counted.values() for chunk in chunks]
    assert len(read) == len({*read})
    whole = next(chunk for chunk in count() if chunk not in {*read})  # up to here nothing is left out
    sequences = sequences_in(tokens, run)
    assert whole * run.inner.sequences >= sequences
    ids = [each for chunk in sorted(read) for each in sequence_ids(run, sequences, chunk).tolist()]
    assert sorted(ids[:sequences]) == list(range(sequences))
