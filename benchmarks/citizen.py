"""Does a peer keep to its own limits? Bytes counted at its network interface, packet headers and all.

Two hosts, each a network namespace, on a link of 100 Mb/s each way with 20 ms (`shaped/`). At home a peer with
`--max-up` or `--max-down`; away another one without. What crosses the link is what peers send most of: blobs
(contributions and states, several at once) and a pipeline's frames, over the daemon's own services, with TLS. Each row
is one limit and one kind of traffic; the other side always has more to send than the limit lets through.

And without limits: what an exchange adds to the way of a frame. Over a link of 10 Mb/s a frame of 40 kB goes out every
172 ms (the paper's case, scaled as in `utilization.py`), while the other side fetches blobs all the time, seven at
once; where bulk gives way as it does while inner steps run, at the one who sends it or at the one who fetches it from a
sender that does not train, where it does not, and with no blobs at all.
"""

import argparse
import asyncio
import contextlib
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc

import grpc
import numpy as np
import uvloop
from group.processes import Processes, hear, say, started
from options.small import sized_arguments
from shaped.hosts import Hosts, hosts, missing
from tls import shown

from peer.network.contacts import Contacts
from peer.network.group import Link, PipelineService, call, make_link
from protocol.errors import HetpeerError
from protocol.identity import Endpoint, ReplicaId
from protocol.limits import CHUNK_BYTES
from protocol.manifest import Manifest, check_manifest
from protocol.net.bandwidth import Bandwidth
from protocol.net.blobs import BlobService, fetch
from protocol.net.channels import listen, options
from protocol.net.guard import Guard
from protocol.net.lenient import AnyBytes
from protocol.schemas import blobs_pb2_grpc, pipeline_pb2_grpc
from protocol.schemas import pipeline_pb2 as pb
from protocol.trust.keys import load_or_create

LINK_MEGABITS, LATENCY = 100.0, 0.02
LIMITS = (2.0, 5.0, 20.0)
SECONDS, SETTLING = 20.0, 8.0
"""A measurement, and what goes before it: TCP finds its rate, and what senders may have on its way is on its way."""

FETCHES = 2
AHEAD = 4
"""Frames' pieces that wait to be sent: always some."""

FREE: dict[str, float | None] = {"max_up": None, "max_down": None}
BLOB_BYTES = 4 << 20
HOME, AWAY = 0, 1

DELAY_MEGABITS, DELAY_BYTES, DELAY_SECONDS, DELAY_FETCHES = 10.0, 40_000, 0.172, 7
MODES = ("no blobs", "at once", "giving way", "fetching slowly")

Kind = Literal["blobs", "frames", "both"]
KINDS: tuple[Kind, ...] = ("blobs", "frames", "both")


@dataclass(frozen=True, slots=True)
class Row:
    """One limit. `share` is what was measured of it; `frames` the part of the messages' bytes that were frames'."""

    flag: str
    mbps: float
    traffic: Kind
    measured_mbps: float
    share: float
    frames: float


@dataclass(frozen=True, slots=True)
class Delay:
    """How long frames were on their way, in milliseconds, and what blobs had of the link meanwhile."""

    mode: str
    median_ms: float
    tenth_ms: float
    """A tenth of them took at least so long."""
    blobs_mbps: float


@dataclass(frozen=True, slots=True)
class Spans:
    """Seconds before a measurement, and of it."""

    settling: float
    measured: float


# A peer: a process of its own


async def serve(index: int, folder: Path, address: str) -> None:
    """One of the two: what to do comes on standard input, as JSON."""
    manifest = check_manifest({"model": {"preset": "nano"}, "replicas": {"stages": 2}})
    me, authority = load_or_create(folder / str(index)), load_or_create(folder / "operator")
    blob = np.random.default_rng(index).bytes(BLOB_BYTES)
    told = await hear()
    bandwidth = Bandwidth.of(told["max_up"], told["max_down"])
    contacts = Contacts(manifest, shown(me, authority), bandwidth=bandwidth)
    server = grpc.aio.server(options=options(manifest, bandwidth.window), interceptors=[Guard(), AnyBytes()])
    pipeline = PipelineService(manifest)
    pipeline_pb2_grpc.add_PipelineServicer_to_server(pipeline, server)
    service = BlobService(manifest, lambda _: blob, bandwidth)
    blobs_pb2_grpc.add_BlobsServicer_to_server(service, server)
    port = listen(server, f"{address}:0", contacts.credentials.serving())
    await server.start()
    say({"peer_id": me.peer_id, "address": f"{address}:{port}", "sha256": sha256(blob).hexdigest()})
    other = (await hear())[1 - index]
    there = Endpoint(other["peer_id"], other["address"])
    neighbour = make_link(manifest, there.peer_id, "the other", bandwidth)
    delays: list[float] = []
    pipeline.answer_calls(lambda peer, replica: neighbour)
    say("ready")
    task = await hear()
    try:
        async with asyncio.TaskGroup() as tasks:
            if task["carry"]:
                if index == HOME:
                    tasks.create_task(call(there, contacts, ReplicaId("benchmark"), neighbour))
                send = send_regularly if task.get("regularly") else send_frames
                tasks.create_task(send(neighbour) if task["send"] else take_frames(neighbour, delays))
            if task.get("step"):
                bandwidth.begin_steps()
            for _ in range(task["fetch"]):
                tasks.create_task(take_blobs(contacts, manifest, there, other["sha256"]))
            while await hear() is not None:
                say(
                    {
                        "blobs": service.bytes_sent,
                        "frames": neighbour.bytes_sent - CHUNK_BYTES * neighbour.unsent,
                        "delays": delays,
                    }
                )
            raise asyncio.CancelledError
    finally:
        await contacts.close()
        await server.stop(None)


async def send_frames(neighbour: Link) -> None:
    """As many as go."""
    while not neighbour.ended:
        while neighbour.unsent < AHEAD:
            neighbour.send(pb.Frame(rest=bytes(CHUNK_BYTES)))
        await asyncio.sleep(0.005)


async def send_regularly(neighbour: Link) -> None:
    """One frame for each microbatch, with the time at which it was sent."""
    while not neighbour.ended:
        neighbour.send(pb.Frame(rest=struct.pack("<d", time.monotonic()) + bytes(DELAY_BYTES)))
        await asyncio.sleep(DELAY_SECONDS)


async def take_frames(neighbour: Link, delays: list[float]) -> None:
    """As they come."""
    with contextlib.suppress(HetpeerError):
        while True:
            frame = await neighbour.receive()
            delays.append(time.monotonic() - struct.unpack_from("<d", frame.rest)[0])


async def take_blobs(contacts: Contacts, manifest: Manifest, there: Endpoint, sha256: str) -> None:
    """One after the other."""
    while True:
        async with contacts.to(there) as channel:
            await fetch(channel, manifest, sha256, BLOB_BYTES, contacts.bandwidth)


# The one who measures


@contextlib.contextmanager
def pair(on: Hosts, folder: Path, *limits: dict[str, float | None]) -> Iterator[Processes]:
    """Both peers, each with its limits and ready for its task, for as long as the block lasts."""
    load_or_create(folder / "operator")
    own = [sys.executable, __file__, "--folder", str(folder)]
    commands = [
        [*on.enter(index), *own, "--serve", str(index), "--address", on.address(index)] for index in (HOME, AWAY)
    ]
    with started(commands) as peers:
        peers.order(limits)
        peers.tell(peers.answers())
        yield peers


def measure(on: Hosts, folder: Path, up: bool, mbps: float, kind: Kind, spans: Spans) -> Row:
    """One row."""
    limits = {"max_up": mbps if up else None, "max_down": None if up else mbps}
    with pair(on, folder, limits, FREE) as peers:
        sender = HOME if up else AWAY
        carry, blobs = kind != "blobs", kind != "frames"
        tasks = [
            {"carry": carry, "send": n == sender, "fetch": FETCHES * (blobs and n != sender)} for n in (HOME, AWAY)
        ]
        peers.order(tasks)
        time.sleep(spans.settling)
        way = "tx" if up else "rx"
        began, before = time.monotonic(), on.bytes_of(HOME)[way]
        first = peers.tell({})[sender]
        time.sleep(spans.measured)
        after, took = on.bytes_of(HOME)[way], time.monotonic() - began
        last = peers.tell({})[sender]
        measured = 8 * (after - before) / took / 1e6
        frames, others = last["frames"] - first["frames"], last["blobs"] - first["blobs"]
        part = frames / max(1, frames + others)
    return Row("--max-up" if up else "--max-down", mbps, kind, measured, measured / mbps, part)


def delay(on: Hosts, folder: Path, mode: str, spans: Spans) -> Delay:
    """One way of treating blobs beside frames."""
    with pair(on, folder, FREE, FREE) as peers:
        home = {"carry": True, "send": True, "regularly": True, "fetch": 0, "step": mode == "giving way"}
        away = {
            "carry": True,
            "send": False,
            "fetch": 0 if mode == "no blobs" else DELAY_FETCHES,
            "step": mode == "fetching slowly",
        }
        peers.order((home, away))
        time.sleep(spans.settling)
        first = peers.tell({})
        time.sleep(spans.measured)
        last = peers.tell({})
    delays = sorted(last[AWAY]["delays"][len(first[AWAY]["delays"]) :])
    blobs = 8 * (last[HOME]["blobs"] - first[HOME]["blobs"]) / spans.measured / 1e6
    return Delay(mode, *(1000 * delays[int(len(delays) * part)] for part in (0.5, 0.9)), blobs)


def delay_table(rows: list[Delay]) -> str:
    """Lines of text."""
    return "\n".join(
        f"frames beside blobs, {each.mode:15}: median {each.median_ms:5.0f} ms, a tenth over {each.tenth_ms:5.0f} ms; "
        f"blobs {each.blobs_mbps:5.2f} Mb/s"
        for each in rows
    )


def table(rows: list[Row]) -> str:
    """Lines of text."""
    return "\n".join(
        f"{each.flag:10} {each.mbps:5.1f} Mb/s  {each.traffic:6}  measured {each.measured_mbps:6.2f} Mb/s, "
        f"{each.share:6.1%} of it; frames {each.frames:4.0%}"
        for each in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--limits", type=float, nargs="*", default=list(LIMITS), metavar="MBIT/S")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES), help="of blobs beside frames")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    parser.add_argument("--settling", type=float, default=SETTLING, metavar="SECONDS", help="before each measurement")
    for hidden in ("--serve", "--folder", "--address"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = sized_arguments(parser, limits=[5.0], kinds=["both"], modes=["giving way"], seconds=1.0, settling=1.0)
    if given.serve is not None:
        with contextlib.suppress(asyncio.CancelledError):
            uvloop.run(serve(int(given.serve), Path(given.folder), given.address))
        return 0
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 1
    rows, delays, spans = [], [], Spans(given.settling, given.seconds)
    with tempfile.TemporaryDirectory() as folder, hosts(2, LATENCY) as on:
        on.limit(LINK_MEGABITS, 2)
        for up in (True, False):
            for mbps in given.limits:
                for kind in given.kinds:
                    rows.append(measure(on, Path(folder), up, mbps, kind, spans))
                    print(table(rows[-1:]), file=sys.stderr, flush=True)
        on.limit(DELAY_MEGABITS, 2)
        for mode in given.modes:
            delays.append(delay(on, Path(folder), mode, spans))
            print(delay_table(delays[-1:]), file=sys.stderr, flush=True)
    found = {"limits": [asdict(each) for each in rows], "delays": [asdict(each) for each in delays]}
    print(json.dumps(found, indent=1) if given.json else f"{table(rows)}\n{delay_table(delays)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
