"""Nodes of libp2p on loopback, none of which has ever dialled another unless a test lets it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from protocol.identity import PeerId, RunId
from protocol.net import dht as dhts
from protocol.net.dht import Dht
from protocol.net.streams import Stream, Streams
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, issue

RUN = RunId("ab" * 32)


class NoRules:
    """Nothing may lie in this DHT."""

    keys = ("nothing",)

    def expiration(self, key: str, subkey: str, value: object) -> float:
        raise AssertionError

    def signatures(self, value: object) -> int:
        return 1


@dataclass
class Libp2pNode:
    """One node, and its card in the run."""

    identity: Identity
    dht: Dht
    streams: Streams
    card: bytes
    refuses: bytes = b""

    @property
    def id(self) -> PeerId:
        return self.identity.peer_id

    @property
    def address(self) -> str:
        return self.dht.addresses[0]

    async def echo(self, peer: PeerId, stream: Stream) -> None:
        """Answers a tunnel: gives back what comes."""
        await stream.send_message(self.refuses)
        while piece := await stream.reader.read(65536):
            stream.writer.write(piece)
            await stream.writer.drain()


def operator(folder: Path) -> Identity:
    """Who admits them."""
    return load_or_create(folder / "operator")


def authority(folder: Path) -> Authority:
    """By whose word they are members."""
    return Authority(RUN, operator(folder).peer_id)


@asynccontextmanager
async def nodes(folder: Path, *names: str) -> AsyncIterator[list[Libp2pNode]]:
    """Nodes of these names, each admitted as a volunteer of stage 0."""
    made: list[Libp2pNode] = []
    try:
        for name in names:
            identity = load_or_create(folder / name)
            card = issue(operator(folder), RUN, Card(identity.peer_id, "volunteer", 0, 0))
            dht = await dhts.start(identity, "127.0.0.1", 0, NoRules())
            made.append(Libp2pNode(identity, dht, dht.streams, card))
        yield made
    finally:
        for node in made:
            await node.streams.close()
            await node.dht.stop()
