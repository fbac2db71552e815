"""What a way to a peer that nobody can dial costs, beside a connection that was dialled: throughput, and a small call.

Five hosts, each a network namespace: an operator's node that relays, two public peers, and two peers behind routers of
their own, which translate addresses and let nobody in. All are as the daemon has them: libp2p, the DHT, certificates of
one authority, the guard. A peer fetches blobs from another, whose server is the daemon's:

- dialled: a peer behind a router from a public one, by TCP and TLS;
- over its own connection: a public one from a peer behind a router, over the connection of libp2p's that that one
  dialled;
- by a relay: one behind a router from one behind the other.

Links have no rate and no delay: what is measured is what the ways cost this machine's cores, all ends of them together.
The three take turns, and medians count. Needs root.
"""

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
sys.path.insert(0, str(Path(__file__).parents[1]))

import grpc
import numpy as np
import uvloop
from tls import shown

from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.reach.reach import Reach
from peer.network.reach.relayed import Ways
from peer.network.reach.routes import Routes
from protocol.addresses import join
from protocol.errors import HetpeerError
from protocol.identity import RunId
from protocol.manifest import check_manifest
from protocol.net import dht as dhts
from protocol.net.blobs import BlobService, fetch
from protocol.net.channels import listen, options
from protocol.net.guard import Guard
from protocol.net.lenient import AnyBytes
from protocol.schemas import blobs_pb2_grpc
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.records import PeerRecord, Register
from tests.chaos import namespaces
from tests.chaos.namespaces import Namespaces, opened

RUN = RunId("ab" * 32)
MANIFEST = check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 2}})

WAYS = {
    "dialled": ("hidden", "public"),
    "over its own connection": ("other public", "hidden"),
    "by a relay": ("other hidden", "hidden"),
}
"""Who fetches, and from whom."""

SMALL_CALLS = 200
SMALL = b"small" * 100


@dataclass(frozen=True, slots=True)
class Row:
    """One way: medians over the turns. Megabytes are 10⁶ bytes; `share` is of the throughput of what was dialled."""

    way: str
    mb_per_s: float
    share: float
    small_call_ms: float


# One peer: a process of its own


@asynccontextmanager
async def peer(folder: Path, name: str, host: str, bootstraps: list[str]) -> AsyncIterator[tuple[Discovery, Contacts]]:
    """A peer as the daemon sets one up, without a place in a group. Who is called after `hidden` cannot be dialled, and
    who is called `relay` relays."""
    operator, me = load_or_create(folder / "relay"), load_or_create(folder / name)
    by, credentials = Authority(RUN, operator.peer_id), shown(me, operator)
    hidden = "hidden" in name
    blobs = {hashlib.sha256(each).hexdigest(): each for each in (SMALL, large())}
    async with AsyncExitStack() as stack:
        server = grpc.aio.server(options=options(MANIFEST), interceptors=[Guard(), AnyBytes()])
        blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(MANIFEST, blobs.get), server)
        port = listen(server, join(host, 0), credentials.serving())
        dht = await dhts.start(me, host, 0, Register(by, MANIFEST), bootstraps, hidden)
        stack.push_async_callback(dht.stop)
        stack.push_async_callback(server.stop, None)
        record = PeerRecord(
            peer_id=me.peer_id,
            address=join(host, port),
            libp2p="" if hidden else dht.addresses[0],
            role="observer",
            stage=0,
            slot=0,
            relays=name == "relay",
        )
        signer = Signer(me, by, issue(operator, RUN, Card(me.peer_id, "observer", 0, 0)))
        discovery = Discovery(dht, signer, MANIFEST, record)
        contacts = Contacts(MANIFEST, credentials, routes=Routes(dht.streams, signer, discovery.relays_of))
        stack.push_async_callback(contacts.close)
        reach = Reach(host, port, (host, None), "behind a router" if hidden else "")
        reached = Ways(
            partial(asyncio.open_connection, host, port),
            dht.streams,
            discovery,
            contacts.bandwidth,
            bootstraps,
            lambda event: None,
            relays=record.relays,
        )
        await server.start()
        await reached.open(reach)
        await discovery.publish()
        keeping = [asyncio.create_task(each()) for each in (discovery.keep_publishing, reached.keep)]
        yield discovery, contacts
        for task in keeping:
            task.cancel()


def large() -> bytes:
    """The blob that is fetched: as many megabytes as the environment says, which nothing can make shorter."""
    return np.random.default_rng(0).bytes(int(float(os.environ["HETPEER_REACH_MEGABYTES"]) * 1e6))


async def live(folder: Path, name: str, host: str, bootstraps: list[str]) -> None:
    """Be a peer until standard input ends. Each line of it names a peer to fetch from; the answer is one, too."""
    async with peer(folder, name, host, bootstraps) as (discovery, contacts):
        print(json.dumps(discovery.record.libp2p), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await measured(discovery, contacts, json.loads(line))), flush=True)


async def measured(discovery: Discovery, contacts: Contacts, whom: str) -> tuple[float, float]:
    """Seconds of fetching the blob, and milliseconds of a small call, which has gone before."""
    while whom not in discovery.records:
        await discovery.read()
    there, blob = discovery.records[whom], large()  # type: ignore[index]

    async def get(data: bytes) -> None:
        async with contacts.to(there) as channel:
            await fetch(channel, MANIFEST, hashlib.sha256(data).hexdigest(), len(data))

    await eventually(lambda: get(SMALL))
    calls = []
    for _ in range(SMALL_CALLS):
        began = time.perf_counter()
        await get(SMALL)
        calls.append(time.perf_counter() - began)
    began = time.perf_counter()
    await get(blob)
    return time.perf_counter() - began, 1e3 * statistics.median(calls)


async def eventually(act: Callable[[], Awaitable[None]]) -> None:
    """The first time, until the peers have met."""
    for _ in range(20):
        with suppress(HetpeerError):
            await act()
            return
        await asyncio.sleep(0.5)
    await act()


# All of them


@dataclass(slots=True)
class Process:
    """A peer's."""

    name: str
    process: asyncio.subprocess.Process

    async def hears(self) -> Any:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended")
        return json.loads(line)

    async def asked(self, what: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        return await self.hears()

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


async def started(network: Namespaces, folder: Path, name: str, bootstraps: list[str]) -> tuple[Process, str]:
    """A peer on a host of its own, and its libp2p address."""
    host = await (network.add_behind_router if "hidden" in name else network.add)(name)
    words = [sys.executable, __file__, "--live", str(folder), name, host, json.dumps(bootstraps)]
    process = await asyncio.create_subprocess_exec(
        *await network.enter(name), *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    made = Process(name, process)
    return made, await made.hears()


async def compare(turns: int) -> list[Row]:
    """All ways, in turns."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        async with opened() as network, AsyncExitStack() as stack:
            relay, address = await started(network, folder, "relay", [])
            stack.push_async_callback(relay.end)
            processes = {}
            for name in ("public", "other public", "hidden", "other hidden"):
                processes[name], _ = await started(network, folder, name, [address])
                stack.push_async_callback(processes[name].end)
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for turn in range(1 + turns):
                for way, (whose, whom) in WAYS.items():
                    numbers = await processes[whose].asked(load_or_create(folder / whom).peer_id)
                    if turn:  # the first opens the connections
                        found[way].append(numbers)
    megabytes = float(os.environ["HETPEER_REACH_MEGABYTES"])
    speeds = {way: megabytes / statistics.median(seconds for seconds, _ in found[way]) for way in WAYS}
    return [
        Row(way, speeds[way], speeds[way] / speeds["dialled"], statistics.median(small for _, small in found[way]))
        for way in WAYS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=64.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=5, help="of each way; the median counts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--live", nargs=4, metavar=("FOLDER", "NAME", "HOST", "BOOTSTRAPS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.live:
        folder, name, host, bootstraps = given.live
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(live(Path(folder), name, host, json.loads(bootstraps)))
        return
    if lacking := namespaces.missing():
        print(f"skipped: this needs {lacking}", file=sys.stderr)
        return
    root = str(Path(__file__).resolve().parent.parent)
    os.environ |= {"HETPEER_REACH_MEGABYTES": str(given.megabytes), "PYTHONPATH": root}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(compare(given.turns))
    if given.json:
        print(json.dumps({"megabytes": given.megabytes, "ways": [asdict(each) for each in rows]}))
        return
    print(f"{'way':<26} {'MB/s':>8} {'of dialled':>11} {'a small call, ms':>17}")
    for each in rows:
        print(f"{each.way:<26} {each.mb_per_s:8.0f} {each.share:11.0%} {each.small_call_ms:17.2f}")


if __name__ == "__main__":
    main()
