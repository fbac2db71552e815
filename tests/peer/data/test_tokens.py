"""A file of tokens from another peer is checked before it is read."""

from pathlib import Path

import numpy as np
import pytest

from peer.data import tokens
from peer.data.tokens import open_tokens
from protocol.errors import FormatError, ResourceError


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
    monkeypatch.setattr(tokens, "CHUNK_TOKENS", 3)
    ids = np.zeros(7, "<u2")
    ids[place] = 300
    ids.tofile(path)
    with pytest.raises(FormatError, match="token 300"):
        open_tokens(path, 300)


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(ResourceError, match=r"train\.bin"):
        open_tokens(path, 300)
