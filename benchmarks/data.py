"""How fast a peer reads prepared text: from its own disk, and over HTTP from a mirror far away while it trains.

The text is random tokens, written, hashed and read by the daemon's own code. "Training" takes a batch as soon as the
one before is done, each for as long as its tokens take at that speed; it *stalls* where a block of the next batch is
not here by then. The way to the mirror is two network namespaces with a delay, and a rate, between them (root).
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from shaped import hosts as shaped

from bootstrap.data.shards import SHARD_BLOCKS, ShardWriter, measure
from peer.store.membership import MEMBERSHIP, KeptMembership
from peer.swarm.text_reader import BlockReader, TextSources, block_reader
from peer.telemetry.events import Event
from peer.torch_thread import TorchThread
from protocol.manifest import Manifest, check_manifest
from protocol.net.bandwidth import Bandwidth
from protocol.run.dataset import BLOCK_TOKENS, BLOCKS, DATA, DataManifest

PORT = 7790
VOCABULARY = 32000
STALL_SECONDS = 0.001
"""Waiting for a block that is here takes microseconds."""


@dataclass(frozen=True)
class Trained:
    """At `wanted` tokens a second (0: as fast as it goes): what it came to, the first batch apart."""

    wanted: float
    tokens_per_second: float
    first_seconds: float
    stalls: int
    stalled_share: float
    steps: int


def manifest_of(steps: int) -> Manifest:
    """32 sequences of 1024 tokens a step, as the paper's smaller models have."""
    model = {"preset": "nano", "context": 1024, "vocabulary": VOCABULARY}
    inner = {"steps": 50, "sequences": 32, "microbatch": 4}
    return check_manifest({"model": model, "inner": inner, "outer": {"rounds": max(1, steps // 50 + 1)}})


def write_text(folder: Path, tokens: int) -> None:
    """A prepared folder of random tokens."""
    dtype = np.dtype("<u2")
    chance = np.random.default_rng(1)
    train = ShardWriter(lambda number: folder / f"train-{number:05d}.bin", dtype, SHARD_BLOCKS * BLOCK_TOKENS)
    held_out = ShardWriter(lambda number: folder / "heldout.bin", dtype, BLOCK_TOKENS)
    for _ in range(-(-tokens // BLOCK_TOKENS)):
        train.write(chance.integers(0, VOCABULARY, BLOCK_TOKENS, np.uint16))
    held_out.write(chance.integers(0, VOCABULARY, BLOCK_TOKENS, np.uint16))
    train.close()
    held_out.close()
    measured = [measure(path, dtype, 0, BLOCK_TOKENS) for path in (*train.paths, *held_out.paths)]
    digests = b"".join(each.digests for each in measured)
    manifest = DataManifest(
        dtype="uint16",
        vocabulary=VOCABULARY,
        tokenizer="00" * 32,
        end_of_text=0,
        documents=1,
        shards=tuple(each.shard for each in measured[:-1]),
        held_out_documents=1,
        held_out=measured[-1].shard,
        blocks=hashlib.sha256(digests).hexdigest(),
    )
    (folder / BLOCKS).write_bytes(digests)
    (folder / DATA).write_bytes(manifest.canonical())


@contextlib.asynccontextmanager
async def reading(text: Path, directory: Path, own: Path | None, steps: int) -> AsyncIterator[BlockReader]:
    """A peer's reader, with the files of the run in `directory`."""
    for name in (DATA, BLOCKS):
        (directory / name).write_bytes((text / name).read_bytes())
    nothing: Any = None
    sources = TextSources(own, 10**9, "00" * 32, nothing, Bandwidth(), private_mirrors=True)
    torch_thread = TorchThread(1)

    def hear(event: Event) -> None:
        print(event, file=sys.stderr)

    try:
        await torch_thread.run(int)  # imports torch
        async with block_reader(sources, manifest_of(steps), directory, torch_thread, hear) as reader:
            yield reader
    finally:
        torch_thread.stop()


async def train(reader: BlockReader, wanted: float, steps: int) -> Trained:
    """So many steps at a speed. A step's time is a sleep: what is computed in it is not the reader's."""
    begun = time.monotonic()
    await reader.batch(count())
    first = time.monotonic() - begun
    tokens = reader.manifest.tokens_per_step
    stalls, stalled, begun = 0, 0.0, time.monotonic()
    for step in range(1, steps + 1):
        if wanted:
            await asyncio.sleep(max(0.0, tokens / wanted))
        before = reader.waited
        await reader.batch(count(step))
        late = reader.waited - before
        stalls += late > STALL_SECONDS
        stalled += late if late > STALL_SECONDS else 0.0
    seconds = time.monotonic() - begun
    return Trained(wanted, tokens * steps / seconds, first, stalls, stalled / seconds, steps)


def from_disk(text: Path, steps: int) -> Trained:
    """As fast as it goes, from an own copy: every block is hashed and every id is looked at."""

    async def run(directory: Path) -> Trained:
        async with reading(text, directory, text, steps) as reader:
            return await train(reader, 0.0, steps)

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(run(Path(directory)))


def from_mirror(text: Path, url: str, wanted: float, steps: int) -> Trained:
    """At a speed, from a mirror alone."""

    async def run(directory: Path) -> Trained:
        (directory / MEMBERSHIP).write_text(KeptMembership(mirrors=(url,)).model_dump_json())
        async with reading(text, directory, None, steps) as reader:
            return await train(reader, wanted, steps)

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(run(Path(directory)))


async def serve(folder: Path, host: str) -> None:
    """A mirror: HTTP/1.1 with ranges, and nothing else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                name = head[0].split()[1].rsplit("/", 1)[1]
                asked = next(line for line in head if line.lower().startswith("range:"))
                first, last = map(int, asked.split("=")[1].split("-"))
                with (folder / name).open("rb") as file:
                    file.seek(first)
                    body = file.read(last + 1 - first)
                size = (folder / name).stat().st_size
                lines = ("HTTP/1.1 206 Partial Content", f"Content-Range: bytes {first}-{last}/{size}")
                writer.write("\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, PORT)
    print("ready", flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until its parent closes it


@contextlib.contextmanager
def far_mirror(folder: Path, round_trip: float, megabits: float) -> Iterator[tuple[list[str], str]]:
    """A mirror on another host: what goes before a command for it to run on the peer's, and the mirror's URL."""
    with shaped.hosts(2, round_trip / 2) as made:
        made.limit(megabits, 2)
        command = [*made.enter(0), sys.executable, __file__, "--serve", str(folder), made.address(0)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield made.enter(1), f"http://{made.address(0)}:{PORT}/text"
            server.communicate(timeout=10)


def over_http(text: Path, options: argparse.Namespace) -> list[Trained]:
    """Each speed in a process of its own on the peer's host."""
    found = []
    with far_mirror(text, options.round_trip / 1e3, options.megabits) as (inside, url):
        for wanted in (*options.speeds, 0.0):
            steps = options.steps if not wanted else max(8, round(options.seconds * wanted / 32768))
            command = [*inside, sys.executable, __file__, "--train", str(text), url, str(wanted), str(steps)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(Trained(**json.loads(done.stdout)))
            if not options.json:
                print(row(f"over HTTP, {options.round_trip:g} ms, {options.megabits:g} Mb/s", found[-1]), flush=True)
    return found


HEAD = f"{'':34}{'training at':>14}{'read, tokens/s':>16}{'first batch':>13}{'stalls':>8}{'of the time':>13}"


def row(name: str, each: Trained) -> str:
    speed = f"{each.wanted:,.0f}" if each.wanted else "any speed"
    return (
        f"{name:34}{speed:>14}{each.tokens_per_second:>16,.0f}{each.first_seconds:>11.2f} s"
        f"{f'{each.stalls}/{each.steps}':>8}{each.stalled_share:>12.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=64 * 2**20, help="of the text")
    parser.add_argument("--steps", type=int, default=1000, help="of 32,768 tokens, as fast as they go")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each speed of training")
    parser.add_argument("--speeds", type=float, nargs="+", default=[50e3, 500e3, 2e6], help="tokens a second")
    parser.add_argument("--round-trip", type=float, default=100.0, help="ms to the mirror and back")
    parser.add_argument("--megabits", type=float, default=80.0, help="of the link, each way")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(Path(options.serve[0]), options.serve[1]))
    elif options.train:
        text, url, wanted, steps = options.train
        print(json.dumps(asdict(from_mirror(Path(text), url, float(wanted), int(steps)))))
    else:
        measure_all(options)


def measure_all(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder)
        write_text(text, options.tokens)
        disk = from_disk(text, options.steps)
        if not options.json:
            print(HEAD + "\n" + row("from its own disk", disk), flush=True)
        reason = shaped.missing()
        http = [] if reason else over_http(text, options)
    if options.json:
        print(json.dumps({"disk": asdict(disk), "http": [asdict(each) for each in http], "http_missing": reason}))
    elif reason:
        print(f"over HTTP: not measured, {reason}")


if __name__ == "__main__":
    main()
