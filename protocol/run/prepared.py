"""Prepared text on this machine's disk: a folder with `data.json`, and where a run's own folder says that it is."""

from pathlib import Path
from typing import TypeGuard

from protocol.errors import FormatError, ResourceError
from protocol.files import write_atomically
from protocol.run.dataset import BLOCKS, DATA, Block, Dataset, check_block, parse_data_manifest
from protocol.run.run_files import TOKENIZER, Descriptor, measure_file

LINK = "data.path"
"""The file in a run's folder that has the path of the prepared folder, a line. Shards may be larger than any disk has
room for twice."""


def is_prepared(path: Path | None) -> TypeGuard[Path]:
    """Whether a folder holds prepared text."""
    return path is not None and (path / DATA).is_file()


def open_folder(folder: Path) -> Dataset:
    """Open a prepared folder. No shard is read.

    Raises:
        FormatError: its `data.json` or `blocks.sha256` is damaged.
        ResourceError: one cannot be read.
    """
    try:
        return Dataset.of(parse_data_manifest((folder / DATA).read_bytes()), (folder / BLOCKS).read_bytes())
    except OSError as error:
        raise ResourceError(f"there is no prepared text in {folder}: {error.filename}: {error.strerror}") from None
    except FormatError as error:
        raise FormatError(f"{folder}: {error}") from None


def check_tokenizer(folder: Path, dataset: Dataset) -> None:
    """Check that a prepared folder's tokenizer is the one that its tokens are of.

    Raises:
        ResourceError: it is not, or cannot be read.
    """
    if measure_file(folder / TOKENIZER).sha256 != dataset.manifest.tokenizer:
        raise ResourceError(f"{folder / TOKENIZER} is not the tokenizer that the text was prepared with")


def read_block(folder: Path, block: Block) -> bytes:
    """Read a block from a prepared folder, and check it.

    Raises:
        FormatError: the shard is damaged or too short.
        ResourceError: it cannot be read.
    """
    path = folder / block.shard
    try:
        with path.open("rb") as file:
            file.seek(block.offset)
            data = file.read(block.size)
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    try:
        check_block(block, data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    return data


def require_same(descriptor: Descriptor, folder: Path) -> None:
    """Check that a prepared folder is the text of a run.

    Raises:
        ResourceError: it is not, or is no prepared folder.
    """
    if not is_prepared(folder):
        raise ResourceError(f"there is no prepared text in {folder}: it has no {DATA}")
    if not descriptor.prepared:
        raise ResourceError(f"this run's text is a file of its own, not prepared text: leave --data {folder} out")
    if measure_file(folder / DATA).sha256 != descriptor.file(DATA).sha256:
        raise ResourceError(f"{folder} holds other text than the run's: its {DATA} is another one")


def note_prepared_text(directory: Path, folder: Path) -> None:
    """Note in a run's folder where its prepared text is on this machine."""
    write_atomically(directory / LINK, f"{folder.resolve()}\n".encode())


def linked(directory: Path) -> Path | None:
    """The prepared folder that was noted, if it is still there."""
    try:
        folder = Path((directory / LINK).read_text(encoding="utf-8").rstrip("\n"))
    except (OSError, ValueError):
        return None
    return folder if is_prepared(folder) else None
