"""A checkpoint is there whole, or not at all."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peer.store.checkpoint import (
    Checkpoint,
    PartCheckpoint,
    PartState,
    candidates,
    last_settled,
    leave_stage,
    note_settled,
    write_checkpoint,
)
from peer.store.disk import CHECKPOINTS_KEPT
from protocol.errors import ResourceError
from protocol.identity import EMBEDDING, PeerId, stage_part
from protocol.trust.handovers import Handovers


def checkpoint(round: int, size: int = 64) -> Checkpoint:
    generator = torch.Generator().manual_seed(round)
    error = {"w": torch.randint(-100, 100, (size, size), generator=generator, dtype=torch.int32)}
    state = PartState(sent={str(round): "ab" * 32}, returned={})
    parts = {
        stage_part(1): PartCheckpoint(state, error, b"bytes of round %d" % round),
        EMBEDDING: PartCheckpoint(PartState(sent={}, returned={})),
    }
    return Checkpoint(round - 1, round, parts, {"1.0.exp_avg": torch.rand(size, generator=generator)})


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return (
        (one.round, one.contributed, one.parts.keys(), one.optimizer.keys())
        == (other.round, other.contributed, other.parts.keys(), other.optimizer.keys())
        and all(torch.equal(one.optimizer[name], tensor) for name, tensor in other.optimizer.items())
        and all(one.parts[part].state == each.state for part, each in other.parts.items())
        and all(one.parts[part].contribution == each.contribution for part, each in other.parts.items())
        and all(
            torch.equal(one.parts[part].error_feedback[name], tensor)
            for part, each in other.parts.items()
            for name, tensor in each.error_feedback.items()
        )
    )


def test_what_was_written_is_read(tmp_path: Path):
    write_checkpoint(tmp_path, checkpoint(7))
    assert same(candidates(tmp_path)[0], checkpoint(7))


def test_the_last_two_are_kept_the_newest_first(tmp_path: Path):
    for round in (1, 2, 3, 4):
        write_checkpoint(tmp_path, checkpoint(round))
    assert [each.contributed for each in candidates(tmp_path)] == [4, 3]
    assert len(list(tmp_path.iterdir())) == CHECKPOINTS_KEPT


def test_what_was_given_and_taken_is_kept(tmp_path: Path):
    handovers = Handovers(given=2, successor=PeerId("successor"), blob=b"bytes", taken={PeerId("giver"): 3})
    write_checkpoint(tmp_path, replace(checkpoint(1), handovers=handovers))
    assert candidates(tmp_path)[0].handovers == handovers


def test_the_newest_is_the_one_written_last_and_may_be_the_only_one_left(tmp_path: Path):
    write_checkpoint(tmp_path, checkpoint(5))
    write_checkpoint(tmp_path, checkpoint(5, 8))  # of the same round
    assert [each.parts[stage_part(1)].error_feedback["w"].shape[0] for each in candidates(tmp_path)] == [8, 64]
    write_checkpoint(tmp_path, checkpoint(4), keep=1)
    assert [each.contributed for each in candidates(tmp_path)] == [4]


def test_a_damaged_one_is_passed_over_whatever_bit_it_is(tmp_path: Path):
    write_checkpoint(tmp_path, checkpoint(1))
    write_checkpoint(tmp_path, checkpoint(2))
    files = sorted(max(tmp_path.iterdir()).iterdir())
    chance = random.Random(1)
    for path in [file for file in files if file.name != "state.json"] * 10:
        whole = path.read_bytes()
        bit = chance.randrange(8 * len(whole))
        path.write_bytes(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
        assert [each.contributed for each in candidates(tmp_path)] == [1]
        path.write_bytes(whole[: chance.randrange(len(whole))])
        assert [each.contributed for each in candidates(tmp_path)] == [1]
        path.write_bytes(whole)
    assert [each.contributed for each in candidates(tmp_path)] == [2, 1]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1, "round": "no"}'])
def test_a_state_that_says_nothing_is_passed_over(tmp_path: Path, text: str):
    write_checkpoint(tmp_path, checkpoint(2))
    (max(tmp_path.iterdir()) / "state.json").write_text(text)
    assert candidates(tmp_path) == []


def nothing_left(round: int, handovers: Handovers) -> Checkpoint:
    """A checkpoint of a peer whose error feedback somebody else has."""
    made = checkpoint(round)
    part = made.parts[stage_part(1)]
    zero = replace(part, error_feedback={name: torch.zeros_like(each) for name, each in part.error_feedback.items()})
    return replace(made, parts={**made.parts, stage_part(1): zero}, handovers=handovers)


def in_use(folder: Path) -> set[str]:
    """What lies in a folder beside checkpoints."""
    return {
        str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file() and "checkpoint" not in str(each)
    }


def test_who_leaves_its_stage_keeps_the_numbers_of_what_it_has_passed_on_and_nothing_else_of_it(tmp_path: Path):
    given = Handovers(given=2, taken={PeerId("giver"): 3})
    write_checkpoint(tmp_path, checkpoint(1))
    write_checkpoint(tmp_path, nothing_left(2, given))
    note_settled(tmp_path, 2, {"stage-1": "ab" * 32}, False, 3, {stage_part(1): 2})
    for name in (
        "snapshots/stage-1-00000002.grid",
        "contributions/stage-1/00000002-ab",
        "contributions/revocations/ab",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"bytes")
    (tmp_path / "identity.key").write_bytes(b"key")
    leave_stage(tmp_path)
    (kept,) = candidates(tmp_path)
    assert same(kept, Checkpoint(0, 2, {}, {}))
    assert kept.handovers == given
    assert in_use(tmp_path) == {"identity.key", "contributions/revocations/ab"}
    leave_stage(tmp_path)
    assert candidates(tmp_path)[0].handovers == given


@pytest.mark.parametrize(
    "kept",
    [
        checkpoint(2),
        nothing_left(2, Handovers(given=1, successor=PeerId("successor"), blob=b"bytes")),
    ],
    ids=["error feedback", "set aside for a successor"],
)
def test_who_has_what_nobody_else_has_does_not_leave_its_stage(tmp_path: Path, kept: Checkpoint):
    write_checkpoint(tmp_path, kept)
    note_settled(tmp_path, 2, {"stage-1": "ab" * 32}, False, 3, {stage_part(1): 2})
    with pytest.raises(ResourceError, match="nobody has taken over"):
        leave_stage(tmp_path)
    assert same(candidates(tmp_path)[0], kept)
    assert last_settled(tmp_path) is not None


def test_who_has_never_written_anything_leaves_its_stage(tmp_path: Path):
    leave_stage(tmp_path)
    assert same(candidates(tmp_path)[0], Checkpoint(0, 0, {}, {}))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match="cannot write the checkpoint"):
        write_checkpoint(tmp_path / "file", checkpoint(1))


WRITER = """
import os, sys
from itertools import count
from pathlib import Path
from peer.store.checkpoint import write_checkpoint
from tests.peer.store.test_checkpoint import checkpoint
for folder in sys.argv[1:]:
    if os.fork() == 0:
        for round in count(1):
            write_checkpoint(Path(folder), checkpoint(round, 700))
            print(os.getpid(), round, flush=True)
    os.wait()
"""
"""One after the other, writes checkpoints into each folder until it is killed: in processes of their own, which need
not import everything again."""


def test_kill_9_at_any_moment_leaves_a_whole_one(tmp_path: Path):
    """The last that was said to be written, or the one after it."""
    chance = random.Random(2)
    folders = [tmp_path / str(number) for number in range(12)]
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-c", WRITER, *map(str, folders)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said: dict[int, list[int]] = {}
        for line in process.stdout:
            writer, round = map(int, line.split())
            said.setdefault(writer, []).append(round)
            if round == 2:
                time.sleep(
                    chance.uniform(0, 0.03)
                )  # where the kill falls is the test's chance, not its synchronisation
                os.kill(writer, signal.SIGKILL)
    assert process.returncode == 0
    for folder, rounds in zip(folders, said.values(), strict=True):
        found = candidates(folder)[0]
        assert found.contributed in (rounds[-1], rounds[-1] + 1)
        assert same(found, checkpoint(found.contributed, 700))
