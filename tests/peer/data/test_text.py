"""A file of tokens is checked before it is read, and prepared text reads as if it were one array."""

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.data import text
from peer.data.batches import Ahead, batch, held_out_batch, positions, sequence_ids, sequences_in, together
from peer.data.text import BlockedTokens, local_blocks, open_tokens
from protocol.errors import FormatError, ResourceError
from protocol.manifest import Manifest
from protocol.run.dataset import Dataset
from protocol.run.prepared import open_folder
from tests.reference.prepared import BLOCK_TOKENS, small_prepared
from tests.reference.small_manifest import small_manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_prepared(tmp_path_factory.mktemp("text"), shard_blocks=7)


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return open_folder(folder)


def opened(dataset: Dataset, folder: Path) -> BlockedTokens:
    return BlockedTokens(dataset.train, local_blocks(dataset, folder))


def flat(dataset: Dataset, folder: Path) -> np.ndarray:
    """All tokens to train on, joined by hand."""
    parts = [np.fromfile(folder / shard.name, "<u2") for shard in dataset.manifest.shards]
    return np.concatenate([parts[0], *(part[1:] for part in parts[1:])])


@given(st.data(), st.integers(2, 3 * BLOCK_TOKENS))
@settings(max_examples=60, deadline=None)
def test_rows_of_any_length_are_those_of_the_array(
    folder: Path, dataset: Dataset, data: st.DataObject, length: int
) -> None:
    tokens, expected = opened(dataset, folder), flat(dataset, folder)
    assert len(tokens) == len(expected)
    starts = data.draw(st.lists(st.integers(0, len(expected) - length), min_size=1, max_size=5))
    where = np.array(starts)[:, None] + np.arange(length)
    np.testing.assert_array_equal(tokens[where], expected[where])


@pytest.mark.parametrize("context", [2, 8, 32, BLOCK_TOKENS])
def test_a_sequence_whose_length_divides_a_block_takes_one_block(folder: Path, dataset: Dataset, context: int) -> None:
    manifest = small_manifest(model={"context": context}, inner={"sequences": 1, "microbatch": 1})
    tokens = opened(dataset, folder)
    for chunk in range(40):
        assert len(tokens.needed(positions(tokens, manifest, chunk))) == 1


def run_on(**tables: dict) -> Manifest:
    return small_manifest(**tables)


@pytest.mark.parametrize("context", [8, 10, 64, 100])
def test_an_epoch_reads_every_sequence_once_and_each_batch_what_its_place_says(
    folder: Path, dataset: Dataset, context: int
) -> None:
    manifest = run_on(model={"context": context})
    tokens, expected = opened(dataset, folder), flat(dataset, folder)
    available = sequences_in(tokens, manifest)
    read: list[int] = []
    for chunk in count():
        ids = sequence_ids(manifest, available, chunk, together(tokens, manifest))
        np.testing.assert_array_equal(
            batch(tokens, manifest, chunk), expected[ids[:, None] * context + np.arange(context + 1)]
        )
        read += ids.tolist()
        if len(read) >= available:
            break
    assert sorted(read[:available]) == list(range(available))


def test_held_out_sequences_are_the_first_of_their_stream(folder: Path, dataset: Dataset) -> None:
    tokens = BlockedTokens(dataset.held_out, local_blocks(dataset, folder))
    expected = np.fromfile(folder / "heldout.bin", "<u2").astype(np.int64)
    np.testing.assert_array_equal(held_out_batch(tokens, small_manifest()), held_out_batch(expected, small_manifest()))


def test_neighbouring_steps_take_few_blocks(folder: Path, dataset: Dataset) -> None:
    """Else each sequence would cost a round trip."""
    manifest = small_manifest(inner={"steps": 10, "sequences": 4, "microbatch": 2})
    tokens = opened(dataset, folder)
    blocks = [set(tokens.needed(positions(tokens, manifest, chunk))) for chunk in range(10)]
    assert len(set.union(*blocks)) <= 40 * 8 // BLOCK_TOKENS + 1


def test_what_comes_next_is_known_before(folder: Path, dataset: Dataset) -> None:
    manifest = small_manifest()
    tokens = opened(dataset, folder)
    ahead = Ahead(tokens, manifest)
    chunks = [*range(3, 9), 40, 41]
    foreseen: set[int] = set()
    for place, chunk in enumerate(chunks):
        needed, later = ahead.plan(chunks[place:])
        assert needed == tokens.needed(positions(tokens, manifest, chunk))
        assert place == 0 or foreseen.issuperset(needed)
        assert not set(needed) & set(later)
        foreseen |= set(later)
    assert ahead.plan(chunks[-1:])[1] == [], "after the last chunk there is nothing"
    assert ahead.plan([]) == ([], [])


def test_the_next_steps_blocks_are_known_however_many_a_step_takes(folder: Path, dataset: Dataset) -> None:
    manifest = small_manifest(model={"context": BLOCK_TOKENS}, inner={"sequences": 30, "microbatch": 1})
    tokens = opened(dataset, folder)
    needed, later = Ahead(tokens, manifest).plan(count())
    assert len(needed) == 30
    assert set(later) >= set(tokens.needed(positions(tokens, manifest, 1))) - set(needed)


def test_whoever_goes_elsewhere_is_not_confused(folder: Path, dataset: Dataset) -> None:
    manifest = small_manifest()
    tokens = opened(dataset, folder)
    ahead = Ahead(tokens, manifest)
    for chunk in (1, 40, 7):
        assert ahead.plan(count(chunk))[0] == tokens.needed(positions(tokens, manifest, chunk))


def damage(folder: Path, tmp_path: Path, name: str, data: bytes) -> Path:
    """A copy of the folder in which one file is another."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("harm", ["a bit", "cut short", "gone"])
def test_a_damaged_shard_is_an_error_that_names_it(folder: Path, dataset: Dataset, tmp_path: Path, harm: str) -> None:
    shard = folder / dataset.manifest.shards[1].name
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    copy = damage(folder, tmp_path, shard.name, bytes(data if harm == "a bit" else shard.read_bytes()[:50]))
    if harm == "gone":
        (copy / shard.name).unlink()
    open_block = local_blocks(dataset, copy)
    first = next(each for each in range(dataset.blocks) if dataset.block(each).shard == shard.name)
    open_block(first - 1)
    with pytest.raises((FormatError, ResourceError), match=shard.name):
        open_block(first)


def test_an_id_outside_the_vocabulary_is_an_error_that_names_the_shard(folder: Path, dataset: Dataset) -> None:
    block = dataset.block(3)
    data = np.zeros(block.size // 2, "<u2")
    data[5] = 300
    with pytest.raises(FormatError, match=rf"{block.shard}: token 300 at place {3 * BLOCK_TOKENS + 5}"):
        dataset.tokens_of(block, data.tobytes())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.bin"


@pytest.mark.parametrize(("vocabulary", "dtype"), [(300, "<u2"), (2**16, "<u2"), (2**16 + 1, "<u4")])
def test_tokens_are_mapped_read_only(path: Path, vocabulary: int, dtype: str) -> None:
    np.array([0, 1, vocabulary - 1], dtype).tofile(path)
    opened = open_tokens(path, vocabulary)
    assert opened.tolist() == [0, 1, vocabulary - 1]
    assert not opened.flags.writeable


@pytest.mark.parametrize("contents", [b"", b"\0", b"\0\0\0"])
def test_a_file_that_ends_within_a_token_is_refused(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    with pytest.raises(FormatError, match="bytes"):
        open_tokens(path, 300)


@pytest.mark.parametrize("place", range(7))
def test_a_token_outside_the_vocabulary_is_found_anywhere(
    path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CHUNK_TOKENS", 3)
    ids = np.zeros(7, "<u2")
    ids[place] = 300
    ids.tofile(path)
    with pytest.raises(FormatError, match="token 300"):
        open_tokens(path, 300)


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(ResourceError, match=r"train\.bin"):
        open_tokens(path, 300)
