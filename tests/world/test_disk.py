"""A loss of power, and what has to outlive it."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.files import write_atomically
from protocol.trust.keys import load_or_create
from tests.world.disk import Disk

LOSSES = 20


@pytest.fixture
def lose_power(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Path, int], None]:
    """A function that takes the power away from a folder below `tmp_path`, as the chance of a seed has it."""
    disk = Disk(random.Random(0))
    monkeypatch.setattr(os, "fsync", disk.sync)

    def lose(folder: Path, seed: int) -> None:
        disk.chance = random.Random(seed)
        disk.lose_power(folder)

    return lose


def test_what_was_not_synced_is_there_up_to_any_byte_or_not_at_all(tmp_path: Path, lose_power: Callable[..., None]):
    left = set()
    for seed in range(LOSSES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "file").write_bytes(b"12345")
        lose_power(folder, seed)
        left.add((folder / "file").read_bytes() if (folder / "file").exists() else None)
    assert {None, b"12345"} < left
    assert all(each is None or b"12345".startswith(each) for each in left)


def test_what_was_written_atomically_is_whole_the_old_one_or_the_new(tmp_path: Path, lose_power: Callable[..., None]):
    for seed in range(LOSSES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        write_atomically(folder / "file", b"old")
        lose_power(folder, seed)
        assert (folder / "file").read_bytes() == b"old"
        (folder / ".file.partial").write_bytes(b"new, and not sync")
        lose_power(folder, seed)
        assert (folder / "file").read_bytes() == b"old"
        write_atomically(folder / "file", b"new")
        lose_power(folder, seed)
        assert (folder / "file").read_bytes() == b"new"


def test_a_key_outlives_a_loss_of_power(tmp_path: Path, lose_power: Callable[..., None]):
    for seed in range(LOSSES):
        made = load_or_create(tmp_path / str(seed))
        lose_power(tmp_path / str(seed), seed)
        assert load_or_create(tmp_path / str(seed)).peer_id == made.peer_id
