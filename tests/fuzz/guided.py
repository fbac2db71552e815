"""Fuzzing guided by coverage, for as long as one likes: `make fuzz TIME=600`, or `READER=card` for one reader alone.

A process a reader, one after another, so that each begins with valid inputs and none disturbs another. What a reader
raises that it may not ends its process; the input is kept in a file, and the table says how to run it again.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from tests.fuzz.reader import Reader

FINDINGS = Path("fuzz-findings")
MOST_BYTES = 4096
RSS_MIB = 2048
COMPILED = [
    "protocol.codec.bitstream",
    "protocol.codec.quantize",
    "protocol.codec.rice",
    "peer.optim.kernels",
]
"""Numba reads their bytecode, to which nothing may be added."""


def readers() -> dict[str, Reader]:
    """All of them, their modules instrumented, and what is compiled compiled."""
    import atheris

    with atheris.instrument_imports(include=["protocol", "peer", "bootstrap"], exclude=COMPILED):
        from tests.fuzz.readers import READERS
    for reader in READERS.values():
        reader.read_examples()
    return READERS


def fuzz(reader: Reader, seconds: int, corpus: Path) -> NoReturn:
    """Try inputs on one reader in this process, which ends with it."""
    import atheris

    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    longest = max(MOST_BYTES, *(2 * len(seed) for seed in reader.seeds))
    flags = [f"-max_total_time={seconds}", f"-max_len={longest}", f"-rss_limit_mb={RSS_MIB}", "-print_final_stats=1"]
    place = f"-artifact_prefix={FINDINGS}/{_slug(reader.name)}-"
    atheris.Setup([sys.argv[0], *flags, place, str(corpus)], reader.attempt)
    atheris.Fuzz()
    os._exit(0)


def in_a_process(reader: Reader, seconds: int, corpus: Path) -> tuple[int, str]:
    """How a copy of this process, since importing takes long, ended that tried inputs on a reader; and what it said."""
    with tempfile.TemporaryFile() as said:
        process = os.fork()
        if process == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            fuzz(reader, seconds, corpus)
        _, status = os.waitpid(process, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode(errors="replace")


def fuzz_all(chosen: list[Reader], seconds: int) -> int:
    """Share the time among readers; how many findings there are."""
    FINDINGS.mkdir(exist_ok=True)
    total, found = 0, 0
    print(f"{'reader':<24} {'inputs':>10} {'a second':>10}  findings")
    with tempfile.TemporaryDirectory(prefix="hetpeer-fuzz-") as corpora:
        for reader in chosen:
            before, began = set(FINDINGS.iterdir()), time.monotonic()
            code, said = in_a_process(reader, max(1, seconds // len(chosen)), Path(corpora, _slug(reader.name)))
            files = sorted(set(FINDINGS.iterdir()) - before)
            tried = _inputs(said)
            rate = tried / max(1e-9, time.monotonic() - began)
            total, found = total + tried, found + max(len(files), code != 0)
            print(f"{reader.name:<24} {tried:>10} {rate:>10.0f}  {max(len(files), code != 0)}", flush=True)
            if files or code:
                print(f"    {_raised(said)}")
            for file in files:
                print(f"    again: make fuzz READER='{reader.name}' AGAIN={file}")
    print(f"{'together':<24} {total:>10} {'':>10}  {found}")
    return found


def _inputs(said: str) -> int:
    """Where it ended early, the last line of progress tells how many."""
    numbers = re.findall(r"number_of_executed_units: (\d+)|^#(\d+)\s", said, re.MULTILINE)
    return max((int(one or other) for one, other in numbers), default=0)


def _raised(said: str) -> str:
    lines = [line for line in said.splitlines() if re.match(r"[\w.]+(Error|Exception|Warning|Interrupt)\b", line)]
    return (lines or said.splitlines()[-1:] or ["it said nothing"])[0][:200]


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--time", type=int, default=600, help="seconds, shared among all readers")
    asked.add_argument("--reader", default="", help="one alone")
    asked.add_argument("--again", type=Path, help="run this input again, and show what it raises")
    given = asked.parse_args()
    all_readers = readers()
    if given.reader and given.reader not in all_readers:
        sys.exit(f"there is no reader {given.reader!r}; there are {', '.join(all_readers)}")
    chosen = [all_readers[given.reader]] if given.reader else list(all_readers.values())
    if given.again:
        print(repr(chosen[0].attempt(given.again.read_bytes())))
    else:
        sys.exit(bool(fuzz_all(chosen, given.time)))


if __name__ == "__main__":
    main()
