"""An attacking peer, for `python -m tests.chaos --chaos attacker:KIND`: the ordinary daemon with one thing replaced.

    python -m tests.chaos.attackers.attacker KIND TICKET --dir FOLDER

It is a peer of the run like all others, admitted and certified. Each attack replaces one thing of the daemon, in this
process alone. Whoever attacks says so, as `Progress`: a run that nobody attacked shows nothing.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from peer import assembly, daemon
from peer.network.gossip import Reconciler
from peer.optim.bounds import largest_value
from peer.process import Terminal, exit_code_of, print_json, run_command
from peer.settings import PeerSettings
from peer.store.home import locked
from peer.swarm.group import inner_step
from peer.swarm.group.inner_step import InnerStep
from peer.swarm.node import Node
from protocol.codec.bitstream import Int32Array
from protocol.codec.contribution import SparseTensor, compose, contribution_digest, decode
from protocol.codec.frames import BackwardFrame, FramePosition, FrameRules
from protocol.codec.frames import pack_frame as honest_pack
from protocol.codec.quantize import LARGEST_UNITS
from protocol.errors import HetpeerError
from protocol.events.activity import Progress
from protocol.identity import ContributionName, Part
from protocol.layout import part_layout
from protocol.net.channels import handshake
from protocol.net.tasks import Children
from protocol.outer.ledger import Entry
from protocol.patience import RECORD_SECONDS
from protocol.schemas import pipeline_pb2 as pipeline
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.proofs import sign_contribution
from protocol.trust.records import PeerRecord
from protocol.trust.ticket import find_ticket
from tests.chaos.attackers import ATTACK
from tests.chaos.faults import CONTRIBUTING

Publish = Callable[[Reconciler, Part, int, bytes], Coroutine[Any, Any, None]]

FACTOR = 1000

ROOM = 0.98
"""Of the bound that `flipped` keeps to: values are rounded on the wire, to 8 significant bits."""

HUGE = 2**31 - 1
STALE_ROUNDS = 2
"""Contributions are held back for so many rounds; as many the attacker is honest for, in a group."""

honest_publish = Reconciler.publish


def say(what: str) -> None:
    """Tell of an attack, as `Progress`."""
    print_json(Progress(ATTACK + what))


def replace(where: object, name: str, by: object) -> None:
    """Put `by` in the place of an attribute, for all of this process."""
    assert hasattr(where, name)
    setattr(where, name, by)


async def keep(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> Entry:
    """Keep a contribution where others fetch it; the entry that stands for it."""
    entry = sign_contribution(reconciler.intake.signer, part, round, contribution_digest(blob), len(blob))
    await asyncio.to_thread(reconciler.intake.contribution_store.put, entry, blob)
    return entry


async def give(reconciler: Reconciler, part: Part, round: int, blob: bytes, peers: Sequence[PeerRecord]) -> None:
    """Give a contribution in this peer's name to some peers."""
    entry = await keep(reconciler, part, round, blob)
    await asyncio.gather(*(reconciler._send_news(peer, [entry]) for peer in peers))


# As a datacenter, by what it contributes


def changed(blob: bytes, reconciler: Reconciler, change: Callable[[str, Int32Array], Int32Array]) -> bytes:
    """A contribution in this peer's name with other values: `change` makes them of a tensor's name and values."""
    made, me = decode(blob, reconciler.manifest), reconciler.discovery.record
    picked = {name: SparseTensor(each.offsets, change(name, each.values)) for name, each in made.tensors.items()}
    name = ContributionName(made.name.part, made.name.round, me.peer_id)
    return compose(name, made.run, made.steps, picked, reconciler.manifest, me.slot)[0]


def contributing(otherwise: Publish) -> None:
    """Publish something else than what this replica made, which is kept as its own."""

    async def publish(self: Reconciler, part: Part, round: int, blob: bytes) -> None:
        await keep(self, part, round, blob)
        await otherwise(self, part, round, blob)

    replace(Reconciler, "publish", publish)


async def two_of_one_name(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """Give a contribution to every other peer, and its negative to the rest."""
    other = changed(blob, reconciler, lambda _, values: -values)
    peers = reconciler.followers(part)
    say(f"two contributions to {part} of round {round}")
    await give(reconciler, part, round, blob, peers[::2])
    await give(reconciler, part, round, other, peers[1::2])


async def a_thousandfold(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """Give a contribution larger than any honest one."""

    def scaled(_: str, values: Int32Array) -> Int32Array:
        return np.clip(values.astype(np.int64) * FACTOR, -LARGEST_UNITS, LARGEST_UNITS).astype(np.int32)

    say(f"{FACTOR} times a contribution to {part} of round {round}")
    await give(reconciler, part, round, changed(blob, reconciler, scaled), reconciler.followers(part))


async def anothers(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """Publish the first contribution that comes from another peer, under this peer's name."""
    ledger = reconciler.intake.ledgers[part]
    while not (others := [sha256 for author, sha256 in ledger.chosen(round).items() if author != ledger.me]):
        await reconciler.discovery.news.wait(1.0)
    copy = changed(reconciler.intake.contribution_store.read(others[0]), reconciler, lambda _, values: values)
    say(f"a copy to {part} of round {round}")
    await honest_publish(reconciler, part, round, copy)


async def against_all(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """Publish a contribution with every sign the other way round, as large as the rules allow."""
    layout = part_layout(reconciler.manifest, part)

    def flipped(tensor: str, values: Int32Array) -> Int32Array:
        bound = int(ROOM * largest_value(reconciler.manifest, tensor, layout[tensor], round))
        return (-np.sign(values) * bound).astype(np.int32)

    say(f"a contribution to {part} of round {round} as large as can be")
    await honest_publish(reconciler, part, round, changed(blob, reconciler, flipped))


# In a pipeline, as the last stage: what it sends are gradients


def with_raw_bytes(raw: Callable[[], bytes]) -> None:
    """Send bytes of our own where gradients were to be sent."""

    def serializer(frame: pipeline.Frame) -> bytes:
        if frame.WhichOneof("kind") not in ("backward", "rest"):
            return frame.SerializeToString()
        made = raw()
        say(f"{len(made)} bytes for a frame")
        return made

    def add_to_server(servicer: Any, server: Any) -> None:
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.Exchange, request_deserializer=pipeline.Frame.FromString, response_serializer=serializer
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("hetpeer.v1.Pipeline", {"Exchange": handler}),)
        )

    replace(sys.modules["protocol.schemas.pipeline_pb2_grpc"], "add_PipelineServicer_to_server", add_to_server)


def garbage() -> None:
    """Send random bytes for frames."""
    with_raw_bytes(lambda: os.urandom(4096))


def lengths() -> None:
    """Send headers that announce gigabytes: of a frame, of its tensor, and of a message that is sent, too."""
    turns = count()
    announced = b"\xff\xff\xff\xff\x07"  # 2³¹ − 1 as a varint
    tensor = pipeline.Tensor(format=pipeline.BF16, shape=[HUGE, HUGE, HUGE], data=b"\0" * 64)
    shaped = pipeline.Frame(backward=pipeline.Backward(gradients=tensor)).SerializeToString()
    raw: Sequence[bytes] = (b"\x12" + announced + b"\0" * 64, shaped, b"\x12" + announced + bytes(8 << 20))
    honest_options = assembly.__dict__["options"]
    unlimited = [("grpc.max_send_message_length", -1)]
    replace(assembly, "options", lambda *given: [*honest_options(*given), *unlimited])
    with_raw_bytes(lambda: raw[next(turns) % len(raw)])


def shapes() -> None:
    """Send frames of another shape, and of another size than their shape."""
    turns = count()

    def pack(frame: Any, rules: FrameRules) -> list[pipeline.Frame]:
        messages = honest_pack(frame, rules)
        tensor = messages[0].backward.gradients
        if next(turns) % 2:
            tensor.shape[0] += 1
        tensor.data = tensor.data[:-2]
        say(f"a frame of shape {list(tensor.shape)} in {len(tensor.data)} bytes")
        return messages

    replace(inner_step, "pack_frame", pack)


def loris() -> None:
    """After two honest rounds nothing is ever finished, nor read; signs of life go on."""
    honest_take = InnerStep.take

    async def take(self: InnerStep) -> Any:
        if self.round > STALE_ROUNDS:
            say(f"nothing, in round {self.round}")
            await asyncio.Event().wait()
        return await honest_take(self)

    replace(InnerStep, "take", take)


def stale() -> None:
    """Contributions of old rounds, told again and again; and after two honest rounds frames of the round before."""
    held: list[tuple[Part, int, bytes]] = []

    def pack(frame: Any, rules: FrameRules) -> list[pipeline.Frame]:
        place = frame.position
        if place.round > STALE_ROUNDS:
            say(f"a frame of round {place.round - 1}")
            frame = BackwardFrame(FramePosition(place.round - 1, place.step, place.microbatch), frame.gradients)
        return honest_pack(frame, rules)

    async def publish(self: Reconciler, part: Part, round: int, blob: bytes) -> None:
        await keep(self, part, round, blob)
        held.append((part, round, blob))

    async def tell_old(node: Node) -> None:
        while True:
            await asyncio.sleep(0.5)
            now = node.discovery.record.round + 1
            for part, round, blob in held:
                if round <= now - STALE_ROUNDS:
                    say(f"a contribution of round {round} in round {now}")
                    await give(node.reconciler, part, round, blob, node.reconciler.followers(part))

    replace(inner_step, "pack_frame", pack)
    replace(Reconciler, "publish", publish)
    beside(tell_old)


# Beside an ordinary volunteer's work


def beside(attack: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    """Attack for as long as the daemon serves."""
    honest_serve = daemon.__dict__["serve_stage"]

    async def serve(node: Node) -> None:
        async with Children() as children:
            children.spawn(attack(node))
            await honest_serve(node)

    replace(daemon, "serve_stage", serve)


def spam() -> None:
    """Statements and records, valid ones and others, to everybody, as fast as they are taken."""

    async def flood(node: Node) -> None:
        for turn in count():
            peers = node.discovery.others()
            await asyncio.gather(*(_pester(node, peer, turn) for peer in peers), _litter(node, turn))
            if turn % 100 == 0:
                say(f"turn {turn}, at {len(peers)} peers")
            await asyncio.sleep(0)

    beside(flood)


async def _pester(node: Node, peer: PeerRecord, turn: int) -> None:
    """Tell, with what is valid but for every hundredth time; and compare."""
    reconciler = node.reconciler
    entry = pb.Entry(proof=os.urandom(500), receipts=[os.urandom(200)] * 8)
    news = pb.News(statement=reconciler.statement(), entries=[entry] if turn % 100 == 99 else [])
    if turn % 100 == 50:
        news.statement = os.urandom(2000)
    with suppress(HetpeerError, TimeoutError):
        async with reconciler.contacts.to(peer) as channel:
            for name, message in (("Tell", news), ("Compare", pb.Comparison(statement=reconciler.statement()))):
                call: Any = channel.unary_unary(f"/hetpeer.v1.Reconciliation/{name}", serialized, bytes)
                await call(message, metadata=handshake(node.workplace.manifest), timeout=3.0)


def serialized(message: pb.News | pb.Comparison) -> bytes:
    """A message as the bytes that travel."""
    return message.SerializeToString()


async def _litter(node: Node, turn: int) -> None:
    """In the DHT: this peer's own record again, and random bytes in another's name."""
    discovery = node.discovery
    if turn % 2:
        await discovery.publish()
        return
    for peer in discovery.others():
        until = time.time() + RECORD_SECONDS
        await discovery.dht.store(discovery.register.key(peer.peer_id), peer.peer_id, os.urandom(1000), until)


ATTACKS: dict[str, Callable[[], None]] = {
    "garbage": garbage,
    "shapes": shapes,
    "lengths": lengths,
    "loris": loris,
    "spam": spam,
    "stale": stale,
    "equivocation": lambda: contributing(two_of_one_name),
    "scaled": lambda: contributing(a_thousandfold),
    "copied": lambda: contributing(anothers),
    "flipped": lambda: contributing(against_all),
}


def attack(kind: str, ticket: str, folder: Path) -> int:
    """Join as a volunteer of stage 1, or as a datacenter, and attack until the run is over; the exit code."""
    ATTACKS[kind]()
    terminal = Terminal(print_json, json=True, until_stdin_closes=True)

    def serve() -> int:
        with locked(folder) as directory:
            settings = PeerSettings(
                ticket=find_ticket(ticket, directory),
                role="datacenter" if kind in CONTRIBUTING else "volunteer",
                directory=directory,
                stage=None if kind in CONTRIBUTING else 1,
                device="cpu",
            )
            return run_command(partial(daemon.run_until, settings=settings, emit=terminal.emit), terminal)

    return exit_code_of(terminal.emit, serve)


if __name__ == "__main__":
    sys.exit(attack(sys.argv[1], sys.argv[2], Path(sys.argv[sys.argv.index("--dir") + 1])))
