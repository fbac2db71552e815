"""A tokenizer that somebody else made, as Hugging Face's `tokenizers` writes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from protocol.errors import ResourceError
from protocol.run.run_files import tokenizer_bytes
from protocol.toml_tables import MOST_CHARACTERS


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Read one whose tokens are all below `vocabulary`; it neither cuts texts off nor fills them up.

    Raises:
        ResourceError: there is none, it cannot be read, is larger than one of this vocabulary, or has tokens beyond it.
    """
    most = tokenizer_bytes(vocabulary)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ResourceError(f"cannot read the tokenizer {path}: {error.strerror}") from None
    if len(data) > most:
        raise ResourceError(f"{path} has more than {most} bytes, too many for a vocabulary of {vocabulary}")
    with _told(f"{path} is no tokenizer"):
        tokenizer = Tokenizer.from_str(data.decode())
    last = max(tokenizer.get_vocab().values(), default=0)
    if last >= vocabulary:
        raise ResourceError(f"{path} has a token {last}, and the vocabulary of the model is {vocabulary}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text, with those that the tokenizer puts around each.

    Raises:
        ResourceError: the tokenizer cannot take it, as one whose regular expression explodes.
    """
    with _told("the tokenizer cannot take this text"):
        ids: list[int] = tokenizer.encode(text).ids
        return ids


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Raise as ours what the library raises: Exception, and where Rust panics something that is none."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | GeneratorExit):
            raise
        said = " ".join(str(error).split())  # it may quote the file
        raise ResourceError(f"{what}: {said}"[:MOST_CHARACTERS]) from None
