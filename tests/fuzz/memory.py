"""Inputs that ask for much memory, tried on every reader in a process that can have only a little more than it has.

Prints a line of JSON for each reader: how many bombs, those that broke out, and by how much the process has grown.
"""

import json
import resource
import sys
from pathlib import Path

from tests.fuzz.mutations import bombs
from tests.fuzz.reader import Reader
from tests.fuzz.readers import READERS


def mapped() -> int:
    """Bytes of address space that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def resident() -> int:
    """Bytes of memory that this process has ever held at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def explode(reader: Reader) -> dict[str, object]:
    """Try all bombs; what they did."""
    before, tried, broke = resident(), 0, []
    for bomb in bombs(reader):
        tried += 1
        try:
            reader.attempt(bomb)
        except Exception as error:
            broke.append(f"{type(error).__name__}: {str(error)[:100]}, by {len(bomb)} bytes {bomb[:40]!r}")
    return {"reader": reader.name, "bombs": tried, "broke": broke[:3], "grown": resident() - before}


def main() -> None:
    for reader in READERS.values():
        reader.read_examples()  # imports what is imported late, and compiles what is compiled
    for reader in READERS.values():
        resource.setrlimit(resource.RLIMIT_AS, (mapped() + reader.room, resource.RLIM_INFINITY))
        print(json.dumps(explode(reader)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
