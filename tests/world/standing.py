"""A world in the place of the real one: its clocks, network, directory, disks and chance, where the product looks for
those of the machine."""

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

import peer.network.admission
import peer.network.copies
import peer.swarm.work
from peer.compute.trainer import StageTrainer
from peer.network.reach.reach import MachineAddresses, Reach
from peer.swarm import presence
from peer.swarm.group import likenesses
from protocol import clock
from protocol.errors import ResourceError
from protocol.events.activity import DeviceReadings
from protocol.net import dht, gate, tls_probe
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


@dataclass(slots=True)
class WorldGate:
    """A port of a machine in the world, where nobody counts connections."""

    machine: Any
    host: str
    port: int
    server: Any = None

    async def serve(self, server: Any, credentials: Any) -> None:
        self.server = server
        server.add_secure_port(f"{self.host}:{self.port}", credentials)
        await server.start()

    def caller(self, name: str) -> str:
        return name

    def authenticate(self, name: str, peer: str) -> None:
        """Nothing is kept of it."""

    async def connect(self) -> Any:
        raise OSError("nobody is behind a router in the world")

    async def move(self, hosts: Sequence[str]) -> None:
        self.host = hosts[0]
        for connection in [*self.server.grid.network.connections]:
            if connection.far.owner is self.server:
                connection.far.broken("the gate hangs up")
                connection.close(connection.far, "Socket closed")

    async def close(self, grace: float) -> None:
        if self.server is not None:
            await self.server.stop(grace)


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

    async def bind(host: str, port: int, *limits: Any) -> WorldGate:
        machine = HOST.get().machine
        if port in machine.listeners:
            raise ResourceError(f"cannot listen on {host}:{port}: the port is taken")
        return WorldGate(machine, host, port or next(machine.ports))

    def machine_addresses(ticket: Any) -> MachineAddresses:
        here = HOST.get().machine.address
        return MachineAddresses(frozenset({here}), here)

    async def find(wish: Any, ticket: Any, identity: Any, folder: Path, asks: bool = True) -> Reach:
        host = HOST.get().machine.address
        return Reach(host, 0, (host, None))

    def measure(trainer: StageTrainer) -> float:
        inner = trainer.manifest.inner
        return inner.microbatch * trainer.manifest.model.context / (STEP_SECONDS * HOST.get().machine.speed)

    async def try_out(wish: Any, reach: Reach, port: int, ticket: Any, peer: Any) -> Reach:
        return reach

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
        put(mock.patch.object(tls_probe, "probe", probe))
        put(mock.patch.object(presence, "device_readings", DeviceReadings))
        put(mock.patch.object(peer.network.admission, "probe", probe))
        put(mock.patch.object(peer.network.copies, "probe", probe))
        put(mock.patch.object(gate, "bind", bind))
        put(mock.patch("peer.network.reach.reach.find_reach", find))
        put(mock.patch("peer.network.reach.reach.try_out", try_out))
        put(mock.patch("peer.network.address_changes.machine_addresses", machine_addresses))
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
