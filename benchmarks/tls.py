"""What mutual TLS costs: the stream between two stages with it and without, a first connection, and joining.

Two neighbouring stages, each a process, on loopback. One sends forward frames as 1F1B lets it, as many ahead as the run
has stages; the other checks each and answers with a backward frame, which is checked, too. Nobody computes, so TLS has
its largest share here. Over TLS all is as the daemon has it: certificates of one authority, the guard, the caller's id.
The stream without it goes to the one port of this repository that is not TLS: on loopback, and in this file alone. Both
take turns, and medians count.

A first connection is a channel that is opened, and one pair of the smallest frames. Joining is all that a newcomer says
at a door, which is in the same process: what the run is, then a place in it with a certificate.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc

import grpc
import numpy as np
import uvloop
from group.processes import begin
from options.small import sized_arguments

from bootstrap.admission.admission_policy import AdmissionPolicy
from bootstrap.admission.places import Admission
from bootstrap.admission.registration import RegistrationService
from bootstrap.node import as_operator
from bootstrap.rate_limit import Rates
from peer.network import admission
from peer.network.group import Link, make_link
from protocol.codec.frames import (
    BackwardFrame,
    ForwardFrame,
    FramePosition,
    FrameRules,
    pack_frame,
    unpack_backward,
    unpack_forward,
)
from protocol.errors import LostMemberError
from protocol.identity import PeerId
from protocol.manifest import Manifest, check_manifest
from protocol.net.allowances import RateLimit
from protocol.net.channels import Credentials, channel_to, handshake, listen, options, require_manifest, speaks
from protocol.net.guard import Guard
from protocol.run.run_files import Descriptor, RunFile, descriptor_of, file_names
from protocol.schemas import pipeline_pb2_grpc, run_pb2_grpc
from protocol.trust import certificates
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.records import Register
from protocol.trust.ticket import Ticket

Side = Literal["tls", "plain"]
SIDES: tuple[Side, Side] = ("tls", "plain")

COMPRESSIONS = (8, 1)
EMBEDDING = "00" * 32
A_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Row:
    """One size of frames: medians over the turns. Megabytes are 10⁶ bytes, both ways together. `share` is the part of
    the throughput that TLS costs, `milliseconds` what it adds to a microbatch, forward and backward."""

    compression: int
    frame_bytes: int
    tls_mb_per_s: float
    plain_mb_per_s: float
    share: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class There:
    """The stage behind."""

    peer_id: PeerId
    address: str


def manifest_of(preset: str, compression: int) -> Manifest:
    """Two stages; the smallest frames are those of `nano`."""
    return check_manifest({"model": {"preset": preset}, "replicas": {"stages": 2, "compression": compression}})


def shown(peer: Identity, authority: Identity) -> Credentials:
    """What a peer shows that this authority has certified."""
    chain = certificates.certify(authority, peer.key.public_key(), time.time(), A_DAY)
    return Credentials(certificates.private_key(peer), chain, certificates.authority(authority))


def identities(folder: Path) -> tuple[Identity, Identity, Identity]:
    """The operator, the stage that calls, and the one that answers."""
    authority, calls, answers = (load_or_create(folder / name) for name in ("operator", "calls", "answers"))
    return authority, calls, answers


# The stage that answers: a process of its own


class Answers(pipeline_pb2_grpc.PipelineServicer):
    """Answers each forward frame; over TLS, of `caller` alone."""

    def __init__(self, manifest: Manifest, caller: PeerId | None) -> None:
        self.manifest = manifest
        self.caller = caller
        self.rules = FrameRules.of(manifest)

    async def Exchange(self, request_iterator: Any, context: Any) -> None:
        await require_manifest(context, self.manifest)
        if self.caller is not None:
            await speaks(context, self.caller, "the stage before this one")
        upstream = make_link(self.manifest, self.caller or PeerId("a caller without TLS"), "the stage before")
        answering = asyncio.create_task(self.answer(upstream))
        await upstream.carry(context)
        await answering

    async def answer(self, upstream: Link) -> None:
        gradients = payload(self.rules)
        for number in count():
            try:
                messages = [await upstream.receive() for _ in range(self.rules.activations.messages)]
            except LostMemberError:
                return
            place = FramePosition(1, 0, number)
            unpack_forward(messages, self.rules, place, EMBEDDING)
            for message in pack_frame(BackwardFrame(place, gradients), self.rules):
                upstream.send(message)


async def answer(folder: Path, manifest: Manifest) -> None:
    """Serve on both ports until standard input ends."""
    authority, calls, answers = identities(folder)
    secure = grpc.aio.server(options=options(manifest), interceptors=[Guard()])
    plain = grpc.aio.server(options=options(manifest))
    pipeline_pb2_grpc.add_PipelineServicer_to_server(Answers(manifest, calls.peer_id), secure)
    pipeline_pb2_grpc.add_PipelineServicer_to_server(Answers(manifest, None), plain)
    ports = {
        "tls": listen(secure, "127.0.0.1:0", shown(answers, authority).serving()),
        "plain": plain.add_insecure_port("127.0.0.1:0"),
    }
    await secure.start()
    await plain.start()
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(secure.stop(None), plain.stop(None))


# The stage that calls


def payload(rules: FrameRules) -> bytes:
    """The values of one tensor in bf16, normal: nothing on the way could make them much shorter."""
    count = rules.sequences * rules.context * rules.activations.width
    values = np.random.default_rng(0).standard_normal(count, np.float32)
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


@dataclass(frozen=True, slots=True)
class Caller:
    """Opens a stream to the stage behind, on either side."""

    manifest: Manifest
    credentials: Credentials
    answers: PeerId
    ports: dict[str, int]

    def channel(self, side: Side) -> grpc.aio.Channel:
        address = f"127.0.0.1:{self.ports[side]}"
        if side == "plain":
            return grpc.aio.insecure_channel(address, options=options(self.manifest))
        return channel_to(There(self.answers, address), self.manifest, self.credentials)

    async def seconds(self, side: Side, frames: int, warm_up: int) -> float:
        """Of one stream that exchanges so many pairs of frames, after some that do not count."""
        rules, ahead = FrameRules.of(self.manifest), self.manifest.replicas.stages
        activations, tokens = payload(rules), np.zeros((rules.sequences, rules.context + 1), np.int64)
        downstream = make_link(self.manifest, self.answers, "the stage behind")

        def send(number: int) -> None:
            frame = ForwardFrame(FramePosition(1, 0, number), activations, tokens, EMBEDDING)
            for message in pack_frame(frame, rules):
                downstream.send(message)

        async with self.channel(side) as channel:
            stub = pipeline_pb2_grpc.PipelineStub(channel)
            call = asyncio.create_task(downstream.carry(stub.Exchange(metadata=handshake(self.manifest))))
            total = warm_up + frames
            for number in range(min(ahead, total)):
                send(number)
            begin = time.perf_counter()
            for number in range(total):
                if number == warm_up:
                    begin = time.perf_counter()
                messages = [await downstream.receive() for _ in range(rules.gradients.messages)]
                unpack_backward(messages, rules, FramePosition(1, 0, number))
                if number + ahead < total:
                    send(number + ahead)
            seconds = time.perf_counter() - begin
            downstream.close()
            await call
        return seconds


def neighbours(preset: str, compression: int, measure: Callable[[Caller], Any]) -> Any:
    """What `measure` finds, with the stage that answers beside it."""
    manifest = manifest_of(preset, compression)
    with tempfile.TemporaryDirectory() as temporary:
        authority, calls, answers = identities(Path(temporary))
        words = [sys.executable, __file__, "--answer", temporary, preset, str(compression)]
        with begin(words) as process:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            caller = Caller(manifest, shown(calls, authority), answers.peer_id, ports)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(measure(caller))


def throughput(preset: str, compression: int, megabytes: float, turns: int) -> Row:
    """The stream with frames of one size."""

    async def measure(caller: Caller) -> Row:
        rules = FrameRules.of(caller.manifest)
        ahead, size = caller.manifest.replicas.stages, len(payload(rules))
        frames = max(2 * ahead, round(megabytes * 1e6 / (2 * size)))
        found: dict[Side, list[float]] = {side: [] for side in SIDES}
        for turn in range(turns):
            for side in SIDES if turn % 2 else SIDES[::-1]:
                found[side].append(await caller.seconds(side, frames, 2 * ahead))
        tls, plain = (statistics.median(found[side]) for side in SIDES)
        total = 2 * size * frames / 1e6
        return Row(compression, size, total / tls, total / plain, 1 - plain / tls, 1e3 * (tls - plain) / frames)

    row: Row = neighbours(preset, compression, measure)
    return row


def connecting(turns: int) -> dict[Side, float]:
    """Milliseconds of a first connection, by side."""

    async def measure(caller: Caller) -> dict[Side, float]:
        found: dict[Side, list[float]] = {side: [] for side in SIDES}
        for turn in range(1 + turns):
            for side in SIDES if turn % 2 else SIDES[::-1]:
                begin = time.perf_counter()
                await caller.seconds(side, 1, 0)
                if turn:
                    found[side].append(time.perf_counter() - begin)
        return {side: 1e3 * statistics.median(found[side]) for side in SIDES}

    milliseconds: dict[Side, float] = neighbours("nano", 8, measure)
    return milliseconds


# Joining


class NobodyThere:
    """A DHT without records."""

    async def read_all(self) -> dict[str, object]:
        return {}


async def joining(turns: int) -> float:
    """Milliseconds that a newcomer is at a door."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        authority = load_or_create(folder / "operator")
        manifest = manifest_of("nano", 8)
        descriptor = descriptor_of(
            manifest, authority.peer_id, [RunFile(name, "0" * 64, 1) for name in file_names(manifest)]
        )
        server = grpc.aio.server(options=options(None))
        run_pb2_grpc.add_RunServicer_to_server(_door(descriptor, authority, folder), server)
        port = listen(server, "127.0.0.1:0", as_operator(authority, A_DAY).credentials.for_registration())
        await server.start()
        ticket = Ticket(descriptor.run_id, authority.public, (f"127.0.0.1:{port}",), ())
        seconds = []
        for turn in range(1 + turns):
            newcomer = load_or_create(folder / f"newcomer-{turn}")
            begin = time.perf_counter()
            found = await admission.fetch_descriptor(ticket)
            await admission.register(ticket, found, newcomer, "volunteer", None)
            seconds.append(time.perf_counter() - begin)
        await server.stop(None)
    return 1e3 * statistics.median(seconds[1:])


def _door(descriptor: Descriptor, authority: Identity, folder: Path) -> RegistrationService:
    """The operator's, which lets in as many an hour as the benchmark likes."""
    manifest, standing = descriptor.manifest, as_operator(authority, A_DAY)
    register = Register(Authority(descriptor.run_id, descriptor.operator), manifest)
    admission_policy = AdmissionPolicy(folder, Rates(RateLimit(10**6, 1e-3)))
    dht: Any = NobodyThere()
    return RegistrationService(
        descriptor, dht, register, Admission(manifest), authority, standing.credentials, 1, A_DAY, admission_policy
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="178m", help="whose frames are exchanged")
    parser.add_argument("--megabytes", type=float, default=512.0, help="of one turn, both ways together")
    parser.add_argument("--turns", type=int, default=7, help="of each side; the median counts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--answer", nargs=3, metavar=("FOLDER", "PRESET", "COMPRESSION"), help=argparse.SUPPRESS)
    given = sized_arguments(parser, preset="nano", megabytes=1.0, turns=1)
    if given.answer:
        folder, preset, compression = given.answer
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(answer(Path(folder), manifest_of(preset, int(compression))))
        return
    rows = [throughput(given.preset, each, given.megabytes, given.turns) for each in COMPRESSIONS]
    connected = connecting(given.turns)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        joined = runner.run(joining(given.turns))
    report(rows, connected, joined, given.json)


def report(rows: list[Row], connected: dict[Side, float], joined: float, as_json: bool) -> None:
    """`share` is of the frames of a run with compression and of one without."""
    if as_json:
        numbers = {"share": rows[0].share, "share_uncompressed": rows[1].share, "join_ms": joined}
        times = {f"connect_{side}_ms": connected[side] for side in SIDES}
        print(json.dumps(numbers | times | {"frames": [asdict(each) for each in rows]}))
        return
    print(f"{'k':>5} {'frame, MB':>10} {'TLS, MB/s':>10} {'none, MB/s':>11} {'TLS costs':>10} {'a microbatch, ms':>17}")
    for each in rows:
        k = "d" if each.compression == 1 else f"d/{each.compression}"
        print(
            f"{k:>5} {each.frame_bytes / 1e6:10.2f} {each.tls_mb_per_s:10.0f} {each.plain_mb_per_s:11.0f} "
            f"{each.share:10.1%} {each.milliseconds:17.2f}"
        )
    print(f"a first connection: {connected['tls']:.1f} ms with TLS, {connected['plain']:.1f} ms without")
    print(f"joining, the door's part: {joined:.1f} ms")


if __name__ == "__main__":
    main()
