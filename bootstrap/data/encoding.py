"""Text into token ids, by a tokenizer that is given or trained, on all cores (its own threads)."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bootstrap.data.documents import DocumentSource, Meter, Piece
from protocol.errors import ResourceError, UserError
from protocol.run.run_files import token_dtype

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0

ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<｜end▁of▁sentence｜>", "[SEP]")
"""The tokens that tokenizers use for the end of a text; otherwise the user names it."""

PIECES = re.compile(r".{1,4096}.*?(?=\n\S|(?<=\S) \S|\Z)", re.DOTALL)
"""Pieces of a text of some 4096 characters, cut before a line break that a visible character follows, or before a space
between two visible ones.

The byte-level pre-tokenizer separates there too, so the pieces' tokens are the whole text's tokens.
"""

PIECES_AT_ONCE = 256
"""A MiB of text: enough to share among threads, little enough that the encodings are small."""

SAMPLE_CHARACTERS = 2**26
"""The characters of the text that a tokenizer is trained on: 64 million are English enough, and take twenty seconds on
two cores."""

BATCH_CHARACTERS, BATCH_TEXTS = 2**21, 1024
"""Encoded at once: enough to share among threads, little enough that the encodings are small."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer, its file, and what it is to the tokens. `in_pieces`: a text cut at `PIECES` has the same ones."""

    tokenizer: Tokenizer
    file: bytes
    vocabulary: int
    end_of_text: int
    in_pieces: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.file).hexdigest()


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
        pieces = PIECES.findall(text) if _cuts_before_lines(tokenizer) else [text]
        for first in range(0, len(pieces), PIECES_AT_ONCE):
            some = pieces[first : first + PIECES_AT_ONCE]
            encoded = tokenizer.encode_batch_fast(some, add_special_tokens=False)
            tokens += (np.array(encoding.ids, dtype) for encoding in encoded)
        tokens.append(end)
    return np.concatenate(tokens)


def read_encoder(path: Path, end_of_text: str | None) -> Encoder:
    """A tokenizer in Hugging Face's format; `end_of_text` names the token that ends a document (None: a usual one).

    Raises:
        ResourceError: it cannot be read.
        UserError: it has no such token.
    """
    try:
        file = path.read_bytes()
        tokenizer = Tokenizer.from_str(file.decode())
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # the library raises nothing narrower
        raise ResourceError(f"{path} is no tokenizer.json: {str(error)[:200]}") from None
    return _encoder(tokenizer, file, end_of_text, str(path))


def train_encoder(
    sources: Iterable[DocumentSource], vocabulary: int, most_bad: float, note: Callable[[int], object] = bool
) -> Encoder:
    """Byte-level BPE of at most so many ids. Of large text it sees a part: something of each of its files. The share
    `most_bad` of the records may be unreadable. `note` is called with the characters of each text that is read."""

    def noted() -> Iterator[str]:
        for text in _sample(list(sources), most_bad):
            note(len(text))
            yield text

    tokenizer = train_tokenizer(noted(), vocabulary)
    return _encoder(tokenizer, tokenizer.to_str().encode(), None, "the trained tokenizer")


def _sample(sources: list[DocumentSource], most_bad: float) -> Iterator[str]:
    """The beginnings of the sources, each as long as its share of the whole, `SAMPLE_CHARACTERS` in all."""
    total = sum(source.size for source in sources)
    for source in sources:
        share = source.size / total if source.size else 1 / len(sources)
        left = max(1, round(share * SAMPLE_CHARACTERS))
        for piece in source.pieces(Meter(most_bad=most_bad)):
            yield piece.text[:left]
            left -= len(piece.text)
            if left <= 0:
                break


def _encoder(tokenizer: Tokenizer, file: bytes, named: str | None, whose: str) -> Encoder:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a document that contains "<|endoftext|>" does not end there
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    end = next((token for token in ((named,) if named else ENDS_OF_TEXT) if token in vocabulary), None)
    if end is None:
        what = f"no token {named!r}" if named else f"none of {' '.join(ENDS_OF_TEXT)}"
        raise UserError(f"{whose} has {what}: name its token that ends a text with --end-of-text")
    return Encoder(tokenizer, file, max(vocabulary.values()) + 1, vocabulary[end], _cuts_before_lines(tokenizer))


def _cuts_before_lines(tokenizer: Tokenizer) -> bool:
    """Whether a text cut at `PIECES` has the same tokens as the whole. That is known of byte-level tokenizers with
    GPT-2's pattern alone, where nothing is changed before."""
    before = tokenizer.pre_tokenizer
    own = isinstance(before, pre_tokenizers.ByteLevel) and before.use_regex and not before.add_prefix_space
    return own and tokenizer.normalizer is None


def encode(encoder: Encoder, pieces: Iterable[Piece]) -> Iterator[tuple[NDArray[np.unsignedinteger], bool]]:
    """The ids of each piece, in order, and whether its document ends with it. Documents without text are left out."""
    for some in _batches(_cut(pieces) if encoder.in_pieces else _joined(pieces)):
        encodings = encoder.tokenizer.encode_batch_fast([piece.text for piece in some], add_special_tokens=False)
        for piece, encoding in zip(some, encodings, strict=True):
            yield np.array(encoding.ids, np.uint32), piece.ends


def _cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
    has_begun, blank = False, ""
    for piece in pieces:
        text = piece.text if has_begun else blank + piece.text
        has_begun = has_begun or bool(text.strip())
        blank = "" if has_begun else text
        if has_begun:
            yield from (Piece(some, False) for some in PIECES.findall(text))
        if piece.ends:
            if has_begun:
                yield Piece("", True)
            has_begun, blank = False, ""


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    texts: list[str] = []
    for piece in pieces:
        texts.append(piece.text)
        if piece.ends:
            text = "".join(texts)
            texts.clear()
            if text.strip():
                yield Piece(text, True)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """The pieces in lists of `BATCH_TEXTS` at most, each ended early once it has `BATCH_CHARACTERS` or more."""
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_TEXTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
