"""The libp2p addresses at which others were last, one a line, in a folder's file `peers`. A peer that was away finds
the run again by them."""

from collections.abc import Sequence
from pathlib import Path

from protocol.files import write_atomically

PEERS = "peers"

KEPT = 32
"""The number of addresses kept: one that still answers is enough."""


def remember(folder: Path, addresses: Sequence[str]) -> None:
    """Write down where others are now, instead of what was there."""
    write_atomically(folder / PEERS, "".join(f"{address}\n" for address in addresses[:KEPT]).encode())


def recall(folder: Path) -> tuple[str, ...]:
    """Read the addresses; none, if the file is not there or no text. Nothing is promised of the addresses."""
    try:
        return tuple((folder / PEERS).read_text(encoding="ascii").split()[:KEPT])
    except (OSError, ValueError):
        return ()
