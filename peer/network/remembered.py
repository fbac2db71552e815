"""What a peer keeps of the run in its folder, to go on when the operator's node does not answer.

run.json      the descriptor, which the ticket's run id pins
card          the operator's signed word that this peer has its place
peers         libp2p addresses of others, one a line
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.network.discovery import Discovery
from protocol.atomic import write_atomically
from protocol.blobs import is_file
from protocol.cards import Authority, Card
from protocol.errors import FormatError
from protocol.identity import PeerId
from protocol.records import Role
from protocol.run_files import DESCRIPTOR, Descriptor, files_needed, parse
from protocol.ticket import Ticket

CARD, PEERS = "card", "peers"

PEERS_KEPT = 32
"""One that still answers is enough."""

WRITE_SECONDS = 5.0
"""Who comes and goes is written down this often at most."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A place in the run as this folder has it. `addresses` are where the DHT may be found."""

    descriptor: Descriptor
    card: Card
    signed_card: bytes
    addresses: tuple[str, ...]


def recall(folder: Path, ticket: Ticket, peer: PeerId, role: Role, stage: int | None) -> Remembered | None:
    """What `folder` has of the ticket's run, checked as if another had sent it; None unless it is all that this peer
    needs for this role and stage (None: any). Hashes every file: off the event loop."""
    try:
        descriptor = parse((folder / DESCRIPTOR).read_bytes(), ticket.run_id)
        signed_card = (folder / CARD).read_bytes()
        card = Authority(descriptor.run_id, descriptor.operator).read(signed_card)
    except (OSError, FormatError):
        return None
    if (card.peer, card.role) != (peer, role) or stage not in (None, card.stage):
        return None
    if card.stage >= descriptor.manifest.replicas.stages:
        return None
    names = files_needed(descriptor.manifest, card.stage if role == "volunteer" else None)
    if not all(is_file(folder / name, descriptor.file(name)) for name in names):
        return None
    return Remembered(descriptor, card, signed_card, (*ticket.addresses, *_peers(folder)))


def remember_card(folder: Path, signed_card: bytes) -> None:
    """This peer was admitted."""
    write_atomically(folder / CARD, signed_card)


def remember_peers(folder: Path, addresses: Sequence[str]) -> None:
    """Where others are now."""
    write_atomically(folder / PEERS, "".join(f"{address}\n" for address in addresses[:PEERS_KEPT]).encode())


async def keep_remembering(folder: Path, discovery: Discovery) -> None:
    """Keep in `folder` where others are, for as long as this peer lives. Who has lost all others keeps the last."""
    written: list[str] = []
    while True:
        known = [peer.libp2p for peer in discovery.others() if peer.libp2p]
        if known and known != written:
            await asyncio.to_thread(remember_peers, folder, known)
            written = known
        await (asyncio.sleep(WRITE_SECONDS) if written else discovery.news.wait(WRITE_SECONDS))


def _peers(folder: Path) -> list[str]:
    try:
        return (folder / PEERS).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
