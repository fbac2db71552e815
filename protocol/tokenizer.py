"""A tokenizer that somebody else made, as Hugging Face's `tokenizers` writes it."""

from pathlib import Path

from tokenizers import Tokenizer

from protocol.errors import ResourceError
from protocol.tables import MOST_CHARACTERS


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Read one whose tokens are all below `vocabulary`; it neither cuts texts off nor fills them up.

    Raises:
        ResourceError: there is none, it cannot be read, or it has tokens beyond the vocabulary.
    """
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResourceError(f"cannot read the tokenizer {path}: {error.strerror}") from None
    except BaseException as error:  # the library raises Exception, and where Rust panics something that is none
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        said = " ".join(str(error).split())  # it may quote the file
        raise ResourceError(f"{path} is no tokenizer: {said}"[:MOST_CHARACTERS]) from None
    last = max(tokenizer.get_vocab().values(), default=0)
    if last >= vocabulary:
        raise ResourceError(f"{path} has a token {last}, and the vocabulary of the model is {vocabulary}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
