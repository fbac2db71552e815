"""An operator's node that a peer tells what it does, in a process of its own, with its dashboard open in a third."""

import asyncio
import multiprocessing
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from bootstrap.dashboard.server import dashboard_port, serve_dashboard
from bootstrap.monitor.metrics import render
from bootstrap.monitor.watch import Monitor, MonitorService
from peer.network.contacts import Contacts
from peer.network.reporter import Reporter
from peer.telemetry.status import EventStream
from protocol.identity import PeerId, RunId
from protocol.manifest import Manifest
from protocol.net.channels import Credentials, listen, options
from protocol.schemas import monitor_pb2_grpc
from protocol.trust import certificates
from protocol.trust.keys import Identity, load_or_create

RUN = RunId("ab" * 32)
WAIT_SECONDS = 60.0
A_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class There:
    """Whom to call, and where."""

    peer_id: PeerId
    address: str


@dataclass(frozen=True, slots=True)
class Keys:
    """Of the run's authority, its node, and the peer."""

    operator: Identity
    node: Identity
    peer: Identity

    @staticmethod
    def new(folder: Path) -> "Keys":
        """Keys that did not exist before."""
        return Keys(*(load_or_create(folder / name) for name in ("operator", "node", "peer")))

    def shown(self, who: Identity) -> Credentials:
        """What one of them shows the others."""
        chain = certificates.certify(self.operator, who.key.public_key(), time.time(), A_DAY)
        return Credentials(certificates.private_key(who), chain, certificates.authority(self.operator))


@dataclass(slots=True)
class Node:
    """The process, as its parent sees it."""

    keys: Keys
    at: There
    pipe: Connection

    def spent(self) -> tuple[float, int]:
        """CPU seconds of the node until now, and the inner steps that it knows of."""
        self.pipe.send("spent")
        spent: tuple[float, int] = self.pipe.recv()
        return spent


@contextmanager
def node(manifest: Manifest, folder: Path) -> Iterator[Node]:
    """A node whose dashboard is read by somebody, for as long as the block lasts. To be started before any thread."""
    keys = Keys.new(folder)
    forking = multiprocessing.get_context("fork")
    here, inside = forking.Pipe()
    serving = forking.Process(target=lambda: asyncio.run(_serve(manifest, keys, inside)), daemon=True)
    serving.start()
    address, url = here.recv()
    reading = forking.Process(target=_read, args=(url + "events",), daemon=True)
    reading.start()
    try:
        yield Node(keys, There(keys.node.peer_id, address), here)
    finally:
        for process in (reading, serving):
            process.terminate()
            process.join()


def _read(url: str) -> None:
    """What a browser with the page open receives."""
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as stream:
        while stream.readline():
            pass


async def _serve(manifest: Manifest, keys: Keys, pipe: Connection) -> None:
    monitor, stop = Monitor.of(manifest, RUN), asyncio.Event()
    server = grpc.aio.server(options=options(manifest))
    service = MonitorService(manifest, monitor, lambda peer: "")
    monitor_pb2_grpc.add_MonitorServicer_to_server(service, server)
    port = listen(server, "127.0.0.1:0", keys.shown(keys.node).serving())
    await server.start()

    def answer() -> None:
        pipe.recv()
        known = monitor.fold.peers.get(keys.peer.peer_id)
        pipe.send((time.process_time(), known.batch.tokens // manifest.tokens_per_step if known else 0))

    with dashboard_port("0") as place:
        asyncio.get_running_loop().add_reader(pipe.fileno(), answer)
        pipe.send((f"127.0.0.1:{port}", place.url))
        await serve_dashboard(place, monitor.view, monitor.until_changed, lambda: render(monitor.view()), stop)


@contextmanager
def telling(manifest: Manifest, node: Node, emit: EventStream) -> Iterator[EventStream]:
    """A peer's telling, in a loop and a thread of its own, as a daemon's loop is not the thread that computes."""
    teller, loop = Reporter(emit.status), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> None:
        teller.start(Contacts(manifest, node.keys.shown(node.keys.peer)), lambda: node.at)

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_SECONDS)
        with emit.also(teller):
            yield emit
    finally:
        asyncio.run_coroutine_threadsafe(teller.close(""), loop).result(WAIT_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
