"""The receipts that a peer keeps in its folder: a line each, appended as they come.

    <folder>/<first round>.receipts    those of SEGMENT_ROUNDS rounds

A kill leaves half a line at a file's end at worst, which the next reader passes over and the next writer cuts off. Of
what later receipts have replaced, a file is rid when it has grown large, and when the next one begins.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import FormatError, ResourceError
from protocol.files import open_regular, sync_folder, write_atomically
from protocol.trust.membership_card import Authority
from protocol.trust.receipts import MOST_LINE, Work, read_receipt, receipt_from_line, receipt_to_line, standing

RECEIPTS = "credit"
"""The folder, in the peer's."""

SUFFIX = ".receipts"

SEGMENT_ROUNDS = 256
"""Two receipts a round, of 0.7 KiB as a line: 0.35 MiB."""

LARGE_BYTES = 2**20
"""A file that has grown so much is rid of what is replaced: in a long round receipts come again and again."""


@dataclass(slots=True)
class KeptReceipts:
    """One writer at a time: the peer whose folder it is. `sizes` are in bytes, by file, after they were tidied last."""

    folder: Path
    authority: Authority
    sizes: dict[Path, int] = field(default_factory=dict)

    def append(self, round: int, signed: Iterable[bytes]) -> None:
        """Keep receipts of a round; when this returns, they outlive a power cut.

        Raises:
            ResourceError: they cannot be written, as on a full disk.
        """
        first = round - round % SEGMENT_ROUNDS
        path = self.folder / f"{first:08d}{SUFFIX}"
        try:
            if path not in self.sizes:
                self._begin(path)
            with open(path, "ab", opener=open_regular) as file:
                file.write(b"".join(map(receipt_to_line, signed)))
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            if size - self.sizes[path] > LARGE_BYTES:
                self._tidy(path)
        except OSError as error:
            raise ResourceError(f"cannot keep receipts in {path}: {error.strerror}") from None

    def _begin(self, path: Path) -> None:
        """Prepare a file that this process writes to first: cut off what was half written, and tidy those before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with open(path, "r+b", opener=open_regular) as file:
                file.truncate(file.read().rfind(b"\n") + 1)
            self._tidy(path)
            return
        for earlier in list(self.sizes):
            self._tidy(earlier)
        path.touch()
        sync_folder(self.folder)
        self.sizes = {path: 0}

    def _tidy(self, path: Path) -> None:
        """Write a file anew with the receipts that no later one has replaced."""
        found: dict[Work, bytes] = {}
        for line in lines(path):
            try:
                data = receipt_from_line(line)
                found[read_receipt(data, self.authority)] = data
            except FormatError:
                continue
        write_atomically(path, b"".join(receipt_to_line(found[receipt]) for receipt in standing(found)))
        self.sizes[path] = path.stat().st_size

    def read(self) -> Iterator[Work]:
        """The receipts that hold, in the order in which they came. Changes nothing: another process may write here."""
        for path in files(self.folder):
            for line in lines(path):
                try:
                    yield read_receipt(receipt_from_line(line), self.authority)
                except FormatError:
                    continue


def files(folder: Path) -> list[Path]:
    """The files of receipts in a folder, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def lines(path: Path, whole: bool = False) -> Iterator[bytes]:
    """The lines of a file, none longer than a little more than `MOST_LINE`. Half a line at the end is passed over, but
    not if the file is to be `whole`.

    Raises:
        ResourceError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            while line := file.readline(MOST_LINE + 1):
                if line.endswith(b"\n") or len(line) > MOST_LINE or whole:
                    yield line
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from None
