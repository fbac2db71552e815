"""A world in the place of the real one: its clocks, network, directory, disks and chance, where the product looks for
those of the machine."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

import bootstrap.admission.front
import peer.network.admission
import peer.network.copies
import peer.swarm.work
from peer.compute.trainer import StageTrainer
from peer.network.reach.reach import Reach
from peer.swarm.group import likenesses
from protocol import clock
from protocol.net import dht
from protocol.net.tls_probe import TlsProbe
from tests.world.certificates import Calling, Shown, dynamic, serving
from tests.world.loop import HOST, VirtualLoop
from tests.world.world import EPOCH, STEP_SECONDS, World


class Clocks:
    """The clocks of the machine on which code runs."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop

    def monotonic(self) -> float:
        return self.loop.now

    def time(self) -> float:
        host = HOST.get()
        return EPOCH + self.loop.now + (host.machine.skew if host is not None else 0.0)


@contextmanager
def standing(world: World) -> Iterator[None]:
    """Put a world in the place of the real one in the block."""

    async def probe(address: str, seconds: float) -> TlsProbe:
        host = HOST.get()
        machine, server = world.network.listener(address)
        if machine is None or not world.network.reachable(host.machine, machine):
            await asyncio.sleep(seconds)
            raise TimeoutError("timed out")
        trip = 2 * world.network.latency(host.machine, machine)
        await asyncio.sleep(2 * trip)
        if server is None:
            raise ConnectionRefusedError(111, "Connection refused")
        leaf = x509.load_pem_x509_certificate(server.credentials.chain())
        return TlsProbe(leaf.public_bytes(Encoding.DER), trip, trip)

    @asynccontextmanager
    async def opened(front: Any, host: str, port: int) -> AsyncIterator[int]:
        machine = HOST.get().machine
        machine.listeners[port] = machine.listeners[front.port]
        try:
            yield port
        finally:
            machine.listeners.pop(port, None)

    async def find(wish: Any, ticket: Any, identity: Any, folder: Path, asks: bool = True) -> Reach:
        host = HOST.get().machine.address
        return Reach(host, 0, (host, None))

    def measure(trainer: StageTrainer) -> float:
        inner = trainer.manifest.inner
        return inner.microbatch * trainer.manifest.model.context / (STEP_SECONDS * HOST.get().machine.speed)

    with ExitStack() as stack:
        put = stack.enter_context
        put(clock.read_from(Clocks(world.loop)))
        put(mock.patch.object(grpc.aio, "server", world.grid.server))
        put(mock.patch.object(grpc.aio, "secure_channel", world.grid.channel))
        put(mock.patch.object(grpc, "ssl_channel_credentials", Calling))
        put(mock.patch.object(grpc, "ssl_server_credentials", serving))
        put(mock.patch.object(grpc, "dynamic_ssl_server_credentials", dynamic))
        put(mock.patch.object(grpc, "ssl_server_certificate_configuration", Shown))
        put(mock.patch.object(dht, "start", world.directory.start))
        put(mock.patch.object(peer.network.admission, "probe", probe))
        put(mock.patch.object(peer.network.copies, "probe", probe))
        put(mock.patch.object(bootstrap.admission.front.Front, "listening", opened))
        put(mock.patch("peer.network.reach.reach.find", find))
        put(mock.patch.object(os, "fsync", world.disk.sync))
        put(mock.patch.object(os, "write", world.disk.write))
        put(world.evidence.watching())
        put(mock.patch.object(peer.swarm.work, "tokens_per_second", measure))
        put(mock.patch.object(likenesses, "CHECKS_SHARE", 1.0))  # rounds have few microbatches here
        put(drawn_keys(world.random))
        state = random.getstate()
        random.seed(world.seed)
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def drawn_keys(chance: random.Random) -> Iterator[None]:
    """Draw new keys and the numbers of certificates from `chance` in the block."""

    def key(curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
        return ec.derive_private_key(chance.getrandbits(250) + 1, curve)

    def number() -> int:
        return chance.getrandbits(150) | 1 << 150

    with (
        mock.patch.object(ec, "generate_private_key", key),
        mock.patch.object(x509, "random_serial_number", number),
    ):
        yield
