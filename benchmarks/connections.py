"""What strangers' silent connections cost a run, and what the gate of a port costs the bytes that go through it.

**Steps lost** are how much fewer inner steps two volunteers did a second while strangers held silent connections to
every port, than before and afterwards; **while opening** is the same for the seconds in which they were opened, by a
process that took cores from the run itself. Every process of the run may have `--files` open files. **Forwarding**
compares a gRPC server behind a gate with one that is called directly: the time of a call of 4 KiB there and back, the
rate of a stream of pieces of 256 KiB to it and from it, and the CPU time of the server's process.

    python benchmarks/connections.py                      # 5,000 to each port: one address, 200 networks
    python benchmarks/connections.py --connections 1000 --seconds 20
    python benchmarks/connections.py --forwarding 1024              # MiB each way
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

import grpc
import uvloop

from benchmarks.options.small import sized_arguments
from peer.testnet.child import two_free_ports
from protocol.events.activity import RoundDone, Serving, StepDone
from protocol.limits import CHUNK_BYTES
from protocol.net import gate as gates
from protocol.net.channels import Credentials, connect, listen, options
from protocol.net.connection_limits import OF_PEERS
from tests.reference.admitted import credentials, there
from tests.reference.flood import flooded
from tests.reference.forks import is_fork, with_files
from tests.reference.processes import RUN, TEXT, Peer, hetpeer
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
CALLS = 500
PIECE = os.urandom(CHUNK_BYTES)


def pace(peers: Sequence[Peer], seconds: float) -> float:
    """The inner steps a second that peers do within so many seconds."""
    before = [count(peer) for peer in peers]
    time.sleep(seconds)
    return sum(count(peer) - begun for peer, begun in zip(peers, before, strict=True)) / seconds


def count(peer: Peer) -> int:
    """The steps that a peer has done."""
    return sum(isinstance(event, StepDone) for event in [*peer.said])


def flood(folder: Path, connections: int, sites: int, seconds: float, files: int) -> dict[str, float]:
    """Steps a second without and with silent connections."""
    run_toml = RUN.format(datacenters=0, sequences=2) + "steps = 6\n[outer]\nrounds = 5000\n"
    (folder / "run.toml").write_text(run_toml)
    (folder / "text.txt").write_text(TEXT)
    door = two_free_ports()
    ports = [door, door + 1, door + 2]
    with ExitStack() as stack:

        def begin(name: str, *arguments: str) -> Peer:
            own = *arguments, "--dir", str(folder / name)
            return stack.enter_context(Peer(*own, inside=with_files(files), forked=is_fork()))

        where = "--listen", f"127.0.0.1:{door}", "--data", str(folder / "text.txt")
        ticket = begin("node", "bootstrap", str(folder / "run.toml"), *where).wait_for(Serving).ticket
        peers = []
        for stage in (0, 1):
            ports.append(two_free_ports())
            at = "--stage", str(stage), "--listen", f"127.0.0.1:{ports[-1]}"
            peers.append(begin(f"stage {stage}", "join", ticket, *at, "--device", "cpu", "--threads", "1"))
        for peer in peers:
            peer.wait_for(RoundDone, lambda event: event.round >= 5)
        calm, undisturbed = pace(peers, seconds), newcomer(ticket)
        begun, done = time.monotonic(), sum(map(count, peers))
        with ExitStack() as strangers:
            held = sum(strangers.enter_context(flooded(connections, sites, [port])) for port in ports)
            opening = (sum(map(count, peers)) - done) / (time.monotonic() - begun)
            attacked, waited = pace(peers, seconds), newcomer(ticket)
        calm = (calm + pace(peers, seconds)) / 2  # a machine that others use too becomes faster and slower
        for peer in peers:
            peer.leave()
    return {
        "connections": held,
        "steps_per_second": calm,
        "lost_while_opening": 1 - opening / calm,
        "steps_lost": 1 - attacked / calm,
        "newcomer_seconds_before": undisturbed,
        "newcomer_seconds": waited,
    }


def newcomer(ticket: str) -> float:
    """The seconds until somebody who has only the ticket is answered."""
    begun = time.monotonic()
    hetpeer("status", ticket).check_returncode()
    return time.monotonic() - begun


class Pieces(grpc.GenericRpcHandler):
    """Takes pieces, gives pieces, and echoes."""

    def service(self, details: Any) -> Any:
        async def take(pieces: AsyncIterator[bytes], context: Any) -> bytes:
            return str(sum([len(piece) async for piece in pieces])).encode()

        async def give(request: bytes, context: Any) -> AsyncIterator[bytes]:
            for _ in range(int(request)):
                yield PIECE

        async def echo(request: bytes, context: Any) -> bytes:
            return request

        return {
            "/pieces/take": grpc.stream_unary_rpc_method_handler(take),
            "/pieces/give": grpc.unary_stream_rpc_method_handler(give),
            "/pieces/echo": grpc.unary_unary_rpc_method_handler(echo),
        }[details.method]


def serve(gated: bool, shown: Credentials, pipe: Connection) -> None:
    """Serve pieces, with or without a gate, until the pipe is written to. Run in a process of its own."""

    async def run() -> None:
        server = grpc.aio.server(options=options(MANIFEST))
        server.add_generic_rpc_handlers((Pieces(),))
        if gated:
            gate = await gates.bind("127.0.0.1", 0, OF_PEERS, 1.0)
            await gate.serve(server, shown.serving())
            pipe.send(gate.port)
        else:
            port = listen(server, "127.0.0.1:0", shown.serving())
            await server.start()
            pipe.send(port)
        await asyncio.to_thread(pipe.recv)
        os._exit(0)

    uvloop.run(run())


async def measured(port: int, pid: int, mebibytes: int) -> dict[str, float]:
    """The numbers of a server in process `pid`."""

    def cpu() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    pieces, gibibytes = mebibytes * 2**20 // len(PIECE), mebibytes / 1024

    async def sent() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield PIECE

    async with connect(there("server", f"127.0.0.1:{port}"), MANIFEST, credentials("caller")) as channel:
        echo, trips = channel.unary_unary("/pieces/echo"), list[float]()
        for _ in range(CALLS):
            begun = time.perf_counter()
            await echo(PIECE[:4096])
            trips.append(time.perf_counter() - begun)
        before, begun = cpu(), time.perf_counter()
        assert int(await channel.stream_unary("/pieces/take")(sent())) == pieces * len(PIECE)
        middle, turned = cpu(), time.perf_counter()
        async for _ in channel.unary_stream("/pieces/give")(str(pieces).encode()):
            pass
        return {
            "call_ms": sorted(trips)[CALLS // 2] * 1000,
            "to_server_mib_per_s": mebibytes / (turned - begun),
            "to_server_cpu_s_per_gib": (middle - before) / gibibytes,
            "from_server_mib_per_s": mebibytes / (time.perf_counter() - turned),
            "from_server_cpu_s_per_gib": (cpu() - middle) / gibibytes,
        }


def forwarding(mebibytes: int) -> dict[str, dict[str, float]]:
    """The numbers of a server that is called directly, and of one behind a gate."""
    rows = {}
    for name, gated in (("direct", False), ("gate", True)):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(gated, credentials("server"), theirs), daemon=True
        )
        process.start()
        port = ours.recv()
        rows[name] = uvloop.run(measured(port, process.pid or 0, mebibytes))
        ours.send("end")
        process.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=5000, help="to each port")
    parser.add_argument("--sites", type=int, default=200, help="the networks that a half of them come from")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--files", type=int, default=1024)
    parser.add_argument("--forwarding", type=int, metavar="MIB", help="measure what the gate costs instead")
    parser.add_argument("--json", action="store_true", help="as it does anyway: the numbers are JSON")
    given = sized_arguments(parser, connections=50, sites=5, seconds=1.0)
    if given.forwarding:
        print(json.dumps(forwarding(given.forwarding), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        row = flood(Path(folder), given.connections, given.sites, given.seconds, given.files)
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
