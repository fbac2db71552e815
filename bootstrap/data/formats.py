"""Formats of files, by their names and their first bytes, in words for a user whose file is not what it seems."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from protocol.files import GIT_LFS

TEXT, LINES, PARQUET = (".txt", ".md"), (".jsonl", ".ndjson", ".json"), (".parquet",)
"""The suffixes of files that are read, in small letters; `.gz` may follow those of the first two."""

TABLES = (".csv", ".tsv")

FORMAT_BYTES = 512
"""The first bytes of a file, by which its format is recognized: a tar archive has its mark at 257."""

CONVERT = "convert it, as with `iconv -f UTF-{bits} -t UTF-8`"

SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (
        0,
        GIT_LFS,
        "is a pointer of Git LFS to a file: fetch that with `git lfs pull`",
    ),
    (0, b"\xff\xfe\0\0", f"is text in UTF-32, not UTF-8: {CONVERT.format(bits=32)}"),
    (0, b"\0\0\xfe\xff", f"is text in UTF-32, not UTF-8: {CONVERT.format(bits=32)}"),
    (0, b"\xff\xfe", f"is text in UTF-16, not UTF-8: {CONVERT.format(bits=16)}"),
    (0, b"\xfe\xff", f"is text in UTF-16, not UTF-8: {CONVERT.format(bits=16)}"),
    (0, b"\x1f\x8b", "is compressed by gzip: let its name end with .gz"),
    (0, b"\x28\xb5\x2f\xfd", "is compressed by zstd: decompress it with `zstd -d`"),
    (4, b"1AY&SY", "is compressed by bzip2: decompress it with `bunzip2`"),
    (0, b"\xfd7zXZ\0", "is compressed by xz: decompress it with `unxz`"),
    (0, b"PK\x03\x04", "is a ZIP archive, or a document in one: unpack it, and give its text"),
    (257, b"ustar", "is a tar archive: unpack it, and give the folder"),
    (0, b"%PDF-", "is a PDF: convert it to text, as with `pdftotext`"),
    (0, b"PAR1\x15", "is a Parquet file: let its name end with .parquet"),
    (0, b"ARROW1", "is an Arrow file: write it as Parquet"),
)
"""Marks of formats that are no text: the offset, the bytes, and what the file is, with the cure."""

NUL_CHARACTERS = "has NUL characters, which no text has: if it is in UTF-16, convert it to UTF-8; else fetch it again"


def reading_suffix(path: Path) -> str:
    """The suffix that says how to read a file, in small letters and without .gz; empty if it is none of ours. The
    files that macOS keeps beside others (`._name`) are none, whatever their names end with."""
    suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
    suffix = suffix.lower()
    return suffix if suffix in (*TEXT, *LINES, *PARQUET) and not path.name.startswith("._") else ""


def is_compressed(path: Path) -> bool:
    """Whether a file's name says that gzip compressed it."""
    return path.suffix.lower() == ".gz"


def recognized(head: bytes) -> str:
    """Say what a file is that begins so, with the cure; empty if it may be text."""
    return next((words for at, mark, words in SIGNATURES if head[at:].startswith(mark)), "")


def passed_over(folder: Path, paths: Iterable[Path]) -> str:
    """A sentence about the files of a folder that are not read, by what their names end with; empty if there are none.
    Hidden files are left out."""
    endings: Counter[str] = Counter()
    for path in paths:
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.is_symlink() and path.is_dir():
            endings["linked folders (give them as sources)"] += 1
        elif path.is_file() and (reading_suffix(path) == ".json" or not reading_suffix(path)):
            endings[
                (path.suffix.lower() or "no ending") + (" (name them as sources)" * (reading_suffix(path) == ".json"))
            ] += 1
    if not endings:
        return ""
    counted = ", ".join(f"{count:,} × {ending}" for ending, count in endings.most_common(8))
    return escaped(f"not read in {folder}: {counted}")


def escaped(text: str) -> str:
    """A text that fits in a line of any terminal: what no terminal shows is escaped, as a line break in a file's name
    is, or a byte of it that is no UTF-8."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
