"""Documents out of files, folders and Hugging Face datasets: one after the other, none held whole without need, for
`hetpeer data prepare`."""

import codecs
import gzip
import importlib.util
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bootstrap.data.formats import (
    FORMAT_BYTES,
    LINES,
    NUL_CHARACTERS,
    PARQUET,
    TABLES,
    TEXT,
    escaped,
    is_compressed,
    passed_over,
    reading_suffix,
    recognized,
)
from protocol.errors import ResourceError, UserError

HUGGING_FACE = "hf:"

BAD_NAMED = 5
"""The most unreadable records that an error names; so many are always read on for, to name them all at once."""

BAD_LISTED = 10_000
"""The most skipped records that are listed beside the prepared text."""

FIRST_RECORDS = 10_000
"""The records over which the share of unreadable ones is taken at least, while more may follow."""

READ_CHARACTERS = 2**20
"""The characters of a text file that are read at once."""

ROWS = 64
"""The rows of a Parquet file that are read at once."""

LONGEST_PIECE = 2**26
"""The longest piece of a text without a line break; it is cut there."""

REWRITE = 'write each record as {"text": …}, a string with the whole text of it'
"""The cure for records whose text is not in a string of one of their own fields."""

BREAK = re.compile(r"\n(?=\S)")
"""A line break before which the byte-level pre-tokenizer cuts tokens, so text may be cut there, too."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a document's text; `ends` if it is the last of it."""

    text: str
    ends: bool


@dataclass(slots=True)
class Meter:
    """The progress of reading, in bytes of the files; `total` is 0 where nobody knows. Of the records that are read,
    the share `most_bad` may be unreadable: these are skipped, counted and listed."""

    total: int = 0
    done: int = 0
    before: int = field(default=0)
    """The bytes of the files that have been read."""
    most_bad: float = 0.0
    records: int = 0
    skipped: int = 0
    bad: list[str] = field(default_factory=list)
    """The first records that were skipped, each with the reason."""

    def skip(self, record: str) -> None:
        """Skip a record that cannot be read.

        Raises:
            ResourceError: there are far too many of them: the rest is not worth reading.
        """
        self.records += 1
        self.skipped += 1
        if len(self.bad) < BAD_LISTED:
            self.bad.append(escaped(record))
        most = self.most_bad * max(self.records, FIRST_RECORDS)
        if self.skipped == self.records and self.most_bad < 1:  # another field is meant, say
            most = 0.0
        if self.skipped > max(BAD_NAMED, most):
            raise self._too_many()

    def require_few_bad(self) -> None:
        """Check the share of all records that were skipped, once everything has been read.

        Raises:
            ResourceError: it is larger than the user allows.
        """
        if self.skipped > self.most_bad * self.records:
            raise self._too_many()

    def _too_many(self) -> ResourceError:
        named = "; ".join(self.bad[:BAD_NAMED])
        if self.skipped == self.records:
            return ResourceError(
                f"{self.skipped} of {self.records} records read so far cannot be used: {named}. Mend them; if others "
                "can be used, --skip-bad 100% goes on to them"
            )
        share = 100 * self.skipped / max(1, self.records)
        return ResourceError(
            f"{self.skipped} of {self.records} records read so far cannot be used: {named}. Mend them, or leave such "
            f"records out with --skip-bad {math.ceil(10 * share) / 10:g}%"
        )


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A source that the user named, by a word that changes with it: how many bytes there are to read (0: nobody knows),
    and pieces of its documents."""

    stamp: str
    size: int
    pieces: Callable[[Meter], Iterator[Piece]]


def find(named: Iterable[str], text_field: str, tell: Callable[[str], object] = bool) -> list[DocumentSource]:
    """The sources that a user named: files, folders, and `hf:NAME[:CONFIG[:SPLIT]]`. `tell` is called with a sentence
    about the files of a folder that are not read.

    Raises:
        ResourceError: there is no text in one, or a library that it takes is not installed.
        UserError: it is no name of a dataset.
    """
    sources: list[DocumentSource] = []
    for name in named:
        if name.startswith(HUGGING_FACE):
            sources.append(_hugging_face(name, text_field))
        else:
            sources += [_file(path, text_field) for path in _files(Path(name), tell)]
    return sources


def after(pieces: Iterable[Piece], documents: int) -> Iterator[Piece]:
    """Skip so many documents; those without text are not counted."""
    text = False
    for piece in pieces:
        if documents > 0:
            text = text or bool(piece.text.strip())
            if piece.ends:
                documents, text = documents - text, False
        else:
            yield piece


def _files(path: Path, tell: Callable[[str], object]) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ResourceError(f"there is nothing at {path}: give files, folders, or hf:NAME")
    inside = sorted(path.rglob("*"))
    files = [file for file in inside if reading_suffix(file) not in ("", ".json") and file.is_file()]
    others = passed_over(path, inside)
    if not files:
        kinds = ", ".join(kind for kind in (*TEXT, *LINES, *PARQUET) if kind != ".json")
        others = f"; {others}" if others else ""
        raise ResourceError(f"there is no text in {path}: no file in it ends with {kinds} (or these and .gz){others}")
    if others:
        tell(others)
    return files


def _file(path: Path, text_field: str) -> DocumentSource:
    kind = reading_suffix(path)
    if kind in PARQUET and is_compressed(path):
        raise ResourceError(f"{path} is Parquet in gzip, which is not read: decompress it with `gunzip`")
    if path.suffix.lower() in TABLES:
        raise ResourceError(f"{path} is a table: write it as JSON lines or Parquet, or name it .txt to be one text")
    if kind in PARQUET:
        _require("pyarrow", path, "parquet")
    read = _of_parquet if kind in PARQUET else _of_lines if kind in LINES else _of_text

    def pieces(meter: Meter) -> Iterator[Piece]:
        try:
            yield from read(path, text_field, meter)
            meter.before = meter.done = meter.before + path.stat().st_size
        except EOFError:
            raise ResourceError(f"{path} ends too early: it is damaged; fetch it again") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ResourceError(
                f"cannot read {path}: it is no gzip file, or damaged ({error}): fetch it again, or take .gz off "
                "its name"
            ) from None
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ResourceError(f"{path} has changed while it was read: prepare it when nobody writes it") from None

    stat = path.stat()
    return DocumentSource(f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns}", stat.st_size, pieces)


def _require(library: str, what: object, extra: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise ResourceError(f"{what} takes the library {library}: pip install 'hetpeer[{extra}]'")


def _of_text(path: Path, text_field: str, meter: Meter) -> Iterator[Piece]:
    """A file is one document. It is decoded once before any of it counts: half a document would be worse than none."""
    if wrong := _why_no_text(path):
        meter.skip(f"{path} {wrong}")
        return
    meter.records += 1
    rest = ""
    with path.open("rb") as raw, _decoded(path, raw) as decoded:
        while some := decoded.read(READ_CHARACTERS):
            rest += some
            meter.done = meter.before + raw.tell()
            breaks = [line_break.start() for line_break in BREAK.finditer(rest)]
            cut = breaks[-1] if breaks else len(rest) if len(rest) > LONGEST_PIECE else 0
            if cut:
                yield Piece(rest[:cut], False)
                rest = rest[cut:]
    yield Piece(rest, True)


def _why_no_text(path: Path) -> str:
    """Say what is wrong with a file of text, with the cure; empty if nothing is."""
    with path.open("rb") as raw, _unpacked(path, raw) as data:
        if wrong := recognized(data.read(FORMAT_BYTES)):
            return wrong
    try:
        with path.open("rb") as raw, _decoded(path, raw) as decoded:
            while some := decoded.read(READ_CHARACTERS):
                if "\0" in some:
                    return NUL_CHARACTERS
    except UnicodeDecodeError as error:
        return f"is not text in UTF-8 ({error.reason})"
    return ""


def _of_lines(path: Path, text_field: str, meter: Meter) -> Iterator[Piece]:
    """A line of JSON is a document. A file that is one list has a document in each of its items."""
    with path.open("rb") as raw, _unpacked(path, raw) as lines:
        if wrong := recognized(lines.peek(FORMAT_BYTES)[:FORMAT_BYTES]):
            meter.skip(f"{path} {wrong}")
            return
        for number, line in enumerate(lines, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if number == 1 and line.lstrip().startswith(b"["):
                yield from _of_list(path, line + lines.read(), text_field, meter)
            elif line.strip():
                yield from _of_line(line, f"{path}, line {number}", text_field, meter)
            meter.done = meter.before + raw.tell()


def _of_list(path: Path, data: bytes, text_field: str, meter: Meter) -> Iterator[Piece]:
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ResourceError(f"{path} begins as a JSON list, and is none: {error}") from None
    for number, row in enumerate(rows, start=1):
        yield from _of_row(row, f"{path}, item {number}", text_field, meter)


def _of_line(line: bytes, where: str, text_field: str, meter: Meter) -> Iterator[Piece]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        meter.skip(f"{where}: is no JSON of one line, as `jq -c` writes it: {error}")
    else:
        yield from _of_row(row, where, text_field, meter)


def _of_row(row: object, where: str, text_field: str, meter: Meter) -> Iterator[Piece]:
    """The document of one record; none where it cannot be used, which is noted."""
    try:
        text = _text_of(row, text_field)
    except ValueError as error:
        meter.skip(f"{where}: {error}")
    else:
        meter.records += 1
        yield Piece(text, True)


def _unpacked(path: Path, raw: Any) -> Any:
    """The bytes of a file, decompressed where its name says so."""
    return gzip.GzipFile(fileobj=raw) if is_compressed(path) else raw


def _decoded(path: Path, raw: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(_unpacked(path, raw), encoding="utf-8-sig")


def _text_of(row: Any, text_field: str) -> str:
    """Raises ValueError, in words for a user."""
    if not isinstance(row, dict):
        raise ValueError(f"is no object with a field {text_field!r}")
    if text_field not in row:
        fields = ", ".join(map(str, row))[:200]
        if row and not any(isinstance(value, str) for value in row.values()):
            raise ValueError(f"has no field {text_field!r}, but {fields}, none of them text: {REWRITE}")
        raise ValueError(f"has no field {text_field!r}, but {fields}: name the one with the text by --field")
    text = row[text_field]
    if not isinstance(text, str):
        cure = f": {REWRITE}" if isinstance(text, dict | list | bytes) else ""
        kind = "null" if text is None else type(text).__name__
        raise ValueError(f"field {text_field!r} is no text but {kind}{cure}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"field {text_field!r} has half of a surrogate pair, which is no character") from None
    return text


def _of_parquet(path: Path, text_field: str, meter: Meter) -> Iterator[Piece]:
    """A row is a document."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        if text_field not in names:
            raise ResourceError(
                f"{path} has no column {text_field!r}, but {', '.join(names)}: name the one with the text by --field"
            )
        rows, size = max(1, file.metadata.num_rows), path.stat().st_size
        read = 0
        for some in file.iter_batches(batch_size=ROWS, columns=[text_field]):
            for number, text in enumerate(map(_cell, some.column(0)), start=read + 1):
                yield from _of_row({text_field: text}, f"{path}, row {number}", text_field, meter)
            read += some.num_rows
            meter.done = meter.before + size * read // rows
    except pyarrow.ArrowException as error:
        raise ResourceError(f"{path} is no Parquet file, or damaged: {error}: fetch it again") from None


def _cell(scalar: Any) -> object:
    """The value of a cell of a Parquet file; bytes, where what should be text is not in UTF-8."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return b""


def _hugging_face(name: str, text_field: str) -> DocumentSource:
    """A dataset of the Hugging Face hub, streamed: nothing of it is kept."""
    parts = name.removeprefix(HUGGING_FACE).split(":")
    if not parts[0] or len(parts) > 3:
        raise UserError(f"{name!r} names no dataset: write hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT")
    _require("datasets", name, "hf")
    path, config, split = (*parts, "", "")[:3]

    def pieces(meter: Meter) -> Iterator[Piece]:
        import datasets

        try:
            rows = datasets.load_dataset(path, config or None, split=split or "train", streaming=True)
            for number, row in enumerate(rows, start=1):
                yield from _of_row(row, f"{name}, row {number}", text_field, meter)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise ResourceError(f"cannot read {name}: {(str(error).splitlines() or [repr(error)])[0]}") from None

    return DocumentSource(name, 0, pieces)
