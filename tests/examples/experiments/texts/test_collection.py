"""A folder of texts: what comes in, what is kept once, and when it is fetched again."""

import hashlib
import re
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.data.corpus import read_corpus
from examples.experiments.texts import collection
from examples.experiments.texts.collection import (
    LONG_DOCUMENT,
    LONG_PARAGRAPH,
    PART,
    SUMS,
    cut,
    new_paragraphs,
    prepare_collection,
)
from examples.experiments.texts.decoders import plain
from examples.experiments.texts.sources import COLLECTIONS, Debian, Package, PyPI, TextPackage
from protocol.errors import ResourceError

LONG = "We hold these truths to be self-evident, that all men are created equal, that they are endowed with rights. "
OTHER = "When in the course of human events it becomes necessary for one people to dissolve the political bands. "


def source(package: Package) -> TextPackage:
    return TextPackage(package, re.compile(r"(.*)\.txt", re.DOTALL), plain, "Words", "free")


class Shop:
    """Offers packages of the given files instead of PyPI and Debian, and notes what is fetched."""

    def __init__(self, packages: dict[str, dict[str, str]]) -> None:
        self.packages = packages
        self.fetched: list[str] = []

    def fetch(self, package: Package, into: Path) -> Path:
        self.fetched.append(package.name)
        path = into / "archive.tar"
        with tarfile.open(path, "w") as archive:
            for name, text in self.packages[package.name].items():
                member = tarfile.TarInfo(name)
                member.size = len(text.encode())
                archive.addfile(member, BytesIO(text.encode()))
        return path


FIRST = source(PyPI("first", "1", ""))
SECOND = source(PyPI("second", "1", ""))
THIRD = source(Debian("third"))


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = Shop(
        {
            "first": {"b.txt": f"B\n\n{LONG}1\n", "a.txt": f"A\n\n{LONG}2\n\n\nB"},
            "second": {"deep/c.txt": f"C\n\n{LONG} 1\n\n{OTHER}", "d.txt": f"D\n\n{LONG}2"},
            "third": {"e.txt": OTHER + "!"},
        }
    )
    offer(monkeypatch, [FIRST, SECOND], [FIRST, SECOND, THIRD])
    monkeypatch.setattr(collection, "fetch", shop.fetch)
    monkeypatch.setattr(collection, "check_apt", lambda: None)
    return shop


def offer(monkeypatch: pytest.MonkeyPatch, speeches: Sequence[TextPackage], prose: Sequence[TextPackage]) -> None:
    monkeypatch.setitem(COLLECTIONS, "speeches", tuple(speeches))
    monkeypatch.setitem(COLLECTIONS, "prose", tuple(prose))


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_each_document_is_a_file_and_a_long_paragraph_comes_once(tmp_path: Path, shop: Shop) -> None:
    prepare_collection(tmp_path / "new", "speeches")
    texts = {name: text for name, text in contents(tmp_path / "new").items() if name.endswith(".txt")}
    assert texts == {
        "first/a.txt": f"A\n\n{LONG}2\n\nB\n",
        "first/b.txt": f"B\n\n{LONG}1\n",
        "second/deep.c.txt": f"C\n\n{OTHER}".rstrip() + "\n",
    }
    assert read_corpus(tmp_path / "new").documents == tuple(texts[name] for name in sorted(texts))


def test_the_folder_says_what_is_in_it_under_which_licence(tmp_path: Path, shop: Shop) -> None:
    prepare_collection(tmp_path, "speeches")
    about = (tmp_path / "README").read_text()
    assert "first: 2 documents" in about
    assert "Licence: free." in about
    assert hashlib.sha256((tmp_path / "second" / SUMS).read_bytes()).hexdigest() in about


def test_what_is_there_is_not_fetched_again(tmp_path: Path, shop: Shop) -> None:
    prepare_collection(tmp_path, "speeches")
    before = contents(tmp_path)
    prepare_collection(tmp_path, "speeches")
    assert shop.fetched == ["first", "second"]
    assert contents(tmp_path) == before


def test_a_smaller_collection_grows_into_what_the_larger_one_would_be(tmp_path: Path, shop: Shop) -> None:
    prepare_collection(tmp_path / "grown", "speeches")
    prepare_collection(tmp_path / "grown", "prose")
    assert shop.fetched == ["first", "second", "third"]
    prepare_collection(tmp_path / "whole", "prose")
    assert contents(tmp_path / "grown") == contents(tmp_path / "whole")


def test_a_source_cut_short_is_fetched_anew_and_what_was_before_it_stays(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_collection(tmp_path / "whole", "speeches")

    class PowerCut(Exception):
        pass

    def cut_power(path: Path, data: bytes) -> None:
        raise PowerCut

    with monkeypatch.context() as broken:
        prepare_collection(tmp_path / "cut", "speeches")
        partial = tmp_path / "cut" / ".second.partial"
        (tmp_path / "cut" / "second").rename(partial)  # killed just before the last step
        (partial / "old.txt").write_text("of another time")
        broken.setattr(collection, "write_atomically", cut_power)
        with pytest.raises(PowerCut):
            prepare_collection(tmp_path / "cut", "speeches")
    assert not (tmp_path / "cut" / "second").exists()
    shop.fetched.clear()
    prepare_collection(tmp_path / "cut", "speeches")
    assert shop.fetched == ["second"]
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_texts_that_are_not_those_known_are_an_error_that_names_both_hashes(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_collection(tmp_path / "known", "speeches")
    known = hashlib.sha256((tmp_path / "known" / "second" / SUMS).read_bytes()).hexdigest()
    pinned = replace(SECOND, sums_sha256=known)
    offer(monkeypatch, [FIRST, pinned], [FIRST, pinned])
    prepare_collection(tmp_path / "same", "speeches")
    shop.packages["second"]["deep/c.txt"] += "?"
    with pytest.raises(
        ResourceError, match=f"second 1 from PyPI are not those .* expected {known}, found [0-9a-f]{{64}}"
    ):
        prepare_collection(tmp_path / "other", "speeches")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["first"]


def test_a_folder_of_another_version_is_not_taken_for_this_ones(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_collection(tmp_path, "speeches")
    pinned = replace(SECOND, sums_sha256="0" * 64)
    offer(monkeypatch, [FIRST, pinned], [FIRST, pinned])
    with pytest.raises(ResourceError, match="second holds other texts than this version"):
        prepare_collection(tmp_path, "speeches")


@pytest.mark.parametrize("damage", ["changed", "missing", "added", "no sums"])
def test_a_damaged_source_is_named_and_never_deleted(tmp_path: Path, shop: Shop, damage: str) -> None:
    prepare_collection(tmp_path, "speeches")
    folder = tmp_path / "first"
    match damage:
        case "changed":
            (folder / "a.txt").write_text("changed")
        case "missing":
            (folder / "a.txt").unlink()
        case "added":
            (folder / "a.md").write_text("my own")
        case "no sums":
            (folder / SUMS).unlink()
    before = contents(tmp_path)
    with pytest.raises(ResourceError, match=r"delete the folder .*first to fetch it again"):
        prepare_collection(tmp_path, "speeches")
    assert contents(tmp_path) == before
    assert shop.fetched == ["first", "second"]


@pytest.mark.parametrize("name", ["mine.txt", "mine/notes.md", "third/e.txt"])
def test_a_folder_with_other_texts_is_refused_before_anything_is_fetched(tmp_path: Path, shop: Shop, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("my own")
    with pytest.raises(ResourceError, match="give another folder"):
        prepare_collection(tmp_path, "speeches")
    assert shop.fetched == []


def test_without_apt_nothing_is_fetched_unless_all_of_debian_is_there(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_apt() -> None:
        raise ResourceError("no apt")

    prepare_collection(tmp_path / "whole", "prose")
    shop.fetched.clear()
    monkeypatch.setattr(collection, "check_apt", no_apt)
    prepare_collection(tmp_path / "whole", "prose")
    with pytest.raises(ResourceError, match="no apt"):
        prepare_collection(tmp_path / "new", "prose")
    assert shop.fetched == []


def test_names_in_a_package_are_only_names(tmp_path: Path, shop: Shop) -> None:
    names = ["../../up.txt", "/etc/root.txt", "...txt", "A.txt", "a.txt", "é\n" + "x" * 300 + ".txt"]
    shop.packages["first"] = {name: f"{LONG}{number}" for number, name in enumerate(names)}
    prepare_collection(tmp_path / "in", "speeches")
    written = sorted(file.name for file in (tmp_path / "in" / "first").glob("*.txt"))
    assert written == ["a.txt", "a_.txt", "etc.root.txt", "text.txt", "up.txt", "x" * 200 + ".txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    prepare_collection(tmp_path / "in", "speeches")


def test_what_cannot_be_decoded_is_an_error_that_names_the_package(tmp_path: Path, shop: Shop) -> None:
    shop.packages["first"] = {"code.py": ""}
    with pytest.raises(ResourceError, match="first 1 from PyPI: the archive has no file"):
        prepare_collection(tmp_path, "speeches")


def test_more_text_than_the_limit_is_refused(tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "MAX_TEXT", 100)
    with pytest.raises(ResourceError, match="longer than 100 characters"):
        prepare_collection(tmp_path, "speeches")


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path, shop: Shop) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot prepare texts in"):
        prepare_collection(tmp_path / "file" / "folder", "speeches")


def test_progress_tells_what_is_fetched_and_how_much_it_was(tmp_path: Path, shop: Shop) -> None:
    told: list[str] = []
    prepare_collection(tmp_path, "prose", told.append)
    assert told[0] == "Fetching first 1 from PyPI."
    assert told[1].startswith("first: 2 documents, 229 B")
    assert "Fetching third from this system's apt." in told


def test_white_space_makes_no_new_paragraph_and_short_ones_may_come_again() -> None:
    seen: set[bytes] = set()
    assert new_paragraphs(f"Title\n \n  {LONG}\n\n\n\nTitle", seen) == ["Title", f"  {LONG}".rstrip(), "Title"]
    assert new_paragraphs(f"Title\n\n{LONG.replace(' ', chr(10))}", seen) == []
    assert new_paragraphs(f"Title\n\n{LONG.replace(' ', '  ')}\n\n{OTHER}", seen) == ["Title", OTHER.rstrip()]


@given(st.lists(st.sampled_from(["a" * LONG_PARAGRAPH, "b" * 200, "c" * 99, "d"]), max_size=30))
def test_no_long_paragraph_is_kept_twice_and_none_is_lost(paragraphs: list[str]) -> None:
    seen: set[bytes] = set()
    halves = paragraphs[: len(paragraphs) // 2], paragraphs[len(paragraphs) // 2 :]
    kept = [paragraph for half in halves for paragraph in new_paragraphs("\n\n".join(half), seen)]
    long = [paragraph for paragraph in kept if len(paragraph) >= LONG_PARAGRAPH]
    assert sorted(long) == sorted({paragraph for paragraph in paragraphs if len(paragraph) >= LONG_PARAGRAPH})


@given(st.lists(st.integers(1, 60_000) | st.just(500_000), max_size=30))
def test_a_long_document_is_cut_into_about_equal_parts_between_paragraphs(lengths: list[int]) -> None:
    paragraphs = [chr(97 + number % 26) * length for number, length in enumerate(lengths)]
    parts = cut(paragraphs)
    assert [paragraph for part in parts for paragraph in part.rstrip("\n").split("\n\n") if paragraph] == paragraphs
    if sum(lengths) <= LONG_DOCUMENT:
        assert len(parts) <= 1
    else:
        assert all(len(part) < PART * 1.25 + max(lengths) + 200 for part in parts)
        assert len(parts) <= round(sum(lengths) / PART), "a huge paragraph leaves no crumbs"
