"""A run on prepared text: what must fit, what is pinned, and what the node hands out."""

import shutil
from pathlib import Path

import pytest

from bootstrap.data.published_text import lookup
from bootstrap.genesis import create_run, load_run
from protocol.errors import ManifestError, ResourceError, UserError
from protocol.manifest import check_manifest
from protocol.net.blobs import Slice
from protocol.run.dataset import BLOCKS, DATA, check_block
from protocol.run.hugging_face import open_checkpoint
from protocol.run.prepared import linked, open_folder
from tests.reference.checkpoints import by_transformers
from tests.reference.prepared import small_prepared, write_texts
from tests.reference.small_manifest import small_manifest


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_prepared(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    create_run(small_manifest(), directory, prepared)
    return directory


def test_a_run_pins_the_manifest_and_the_digests_and_copies_no_token(run: Path, prepared: Path) -> None:
    descriptor = load_run(run)
    assert descriptor.prepared
    for name in (DATA, BLOCKS, "tokenizer.json"):
        assert (run / name).read_bytes() == (prepared / name).read_bytes()
    assert not list(run.glob("*.bin"))
    assert linked(run) == prepared


def test_a_restart_finds_the_folder_where_it_was_or_is_told_where_it_is_now(
    run: Path, prepared: Path, tmp_path: Path
) -> None:
    first, again = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(run, first)
    shutil.copytree(prepared, again)
    assert create_run(small_manifest(), first) == load_run(run)
    assert linked(first) == prepared
    create_run(small_manifest(), first, again)
    assert linked(first) == again
    shutil.rmtree(again)
    assert linked(first) is None


def test_a_run_on_other_text_is_refused(run: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(run, directory)
    with pytest.raises(ResourceError, match="holds other text than the run's"):
        create_run(small_manifest(), directory, small_prepared(tmp_path, seed=9))


def test_a_run_on_a_plain_text_takes_no_prepared_one(prepared: Path, tmp_path: Path) -> None:
    create_run(small_manifest(), tmp_path / "run", write_texts(tmp_path / "texts"))
    with pytest.raises(ResourceError, match="leave --data"):
        create_run(small_manifest(), tmp_path / "run", prepared)


def test_a_vocabulary_that_is_too_small_is_refused_with_the_one_it_takes(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"model\.vocabulary = 280, but .* set it to 300"):
        create_run(small_manifest(model={"vocabulary": 280}), tmp_path / "run", prepared)
    assert create_run(small_manifest(model={"vocabulary": 512}), tmp_path / "run", prepared).prepared


def test_another_token_at_the_end_of_texts_is_refused_with_the_one_it_takes(prepared: Path, tmp_path: Path) -> None:
    ends = open_folder(prepared).manifest.end_of_text
    with pytest.raises(ManifestError, match=f"is token {ends}: set it to that"):
        create_run(small_manifest(model={"end_of_text": ends + 1}), tmp_path / "run", prepared)


def test_a_checkpoint_with_another_tokenizer_is_refused(prepared: Path, tmp_path: Path) -> None:
    """And one with the text's begins a run."""
    weights = by_transformers(tmp_path / "weights")
    model = open_checkpoint(weights).model.model_dump() | {"context": 8}
    manifest = check_manifest({"model": model, "replicas": {"stages": 2, "compression": 2}})
    with pytest.raises(UserError, match="another tokenizer than the checkpoint's: prepare it again with --tokenizer"):
        create_run(manifest, tmp_path / "run", prepared, weights=weights)
    shutil.copy(prepared / "tokenizer.json", weights)
    ends = open_folder(prepared).manifest.end_of_text
    fitting = check_manifest({"model": model | {"end_of_text": ends}, "replicas": {"stages": 2, "compression": 2}})
    assert create_run(fitting, tmp_path / "run", prepared, weights=weights).prepared


def test_text_that_is_shorter_than_a_sequence_is_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"too little text: .* to hold out"):
        create_run(small_manifest(model={"context": 4096}), tmp_path / "run", prepared)


def broken(prepared: Path, tmp_path: Path, name: str, data: bytes) -> Path:
    shutil.copytree(prepared, tmp_path / "broken")
    (tmp_path / "broken" / name).write_bytes(data)
    return tmp_path / "broken"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("tokenizer.json", b"{}", "is not the tokenizer that the text was prepared with"),
        (DATA, b"{}", "not prepared text"),
        (BLOCKS, b"x" * 64, r"blocks\.sha256 is not the one"),
    ],
)
def test_a_damaged_folder_is_refused_before_there_is_a_run(
    prepared: Path, tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    with pytest.raises(ResourceError, match=words):
        create_run(small_manifest(), tmp_path / "run", broken(prepared, tmp_path, name, data))
    with pytest.raises(ResourceError, match="no run"):
        load_run(tmp_path / "run")


def test_the_node_hands_out_files_and_blocks_by_their_digests(run: Path, prepared: Path, tmp_path: Path) -> None:
    descriptor, dataset = load_run(run), open_folder(prepared)
    find = lookup(descriptor, run)
    assert find(descriptor.file(DATA).sha256) == run / DATA
    for number in range(dataset.blocks):
        block = dataset.block(number)
        found = find(block.sha256.hex())
        assert isinstance(found, Slice)
        check_block(block, found.path.read_bytes()[found.offset : found.offset + found.size])
    assert [find(unknown) for unknown in ("", "zz" * 32, "ab" * 32, "é")] == [None] * 4
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "data.path").unlink()
    assert lookup(descriptor, tmp_path / "run")(dataset.block(0).sha256.hex()) is None, "its text is elsewhere"
