"""Documents and their tokens."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bootstrap.data.encoding import END_OF_TEXT, END_OF_TEXT_ID, PIECES, tokenize, train_tokenizer

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
