"""What a peer keeps of the run in its folder, to go on when the operator's node does not answer.

run.json      the descriptor, which the ticket's run id pins
card          the operator's signed word that this peer has its place
certificate   by which the others know this peer, and whoever signed it (PEM)
authority     the run's (PEM), which the ticket pins
mirrors       base URLs of the run's prepared text, one a line, as the operator's node last told
node          the peer id and address of that node, which serves the run's files and blocks
peers         libp2p addresses of others (`protocol/net/known_peers.py`)
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protocol.addresses import join, split
from protocol.errors import FormatError
from protocol.files import write_atomically
from protocol.identity import Endpoint, PeerId
from protocol.net import known_peers
from protocol.net.blobs import is_file
from protocol.net.channels import Credentials, Reachable
from protocol.run.dataset import base_urls
from protocol.run.run_files import DESCRIPTOR, Descriptor, files_needed, parse_descriptor
from protocol.trust.certificates import private_key, public_key, read_certificate
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Card, Role
from protocol.trust.ticket import Ticket

CARD, CERTIFICATE, AUTHORITY = "card", "certificate", "authority"

MIRRORS, NODE = "mirrors", "node"


@dataclass(frozen=True, slots=True)
class Remembered:
    """A place in the run as this folder has it. `addresses` are where the DHT may be found."""

    descriptor: Descriptor
    card: Card
    signed_card: bytes
    credentials: Credentials
    addresses: tuple[str, ...]


def recall(folder: Path, ticket: Ticket, identity: Identity, role: Role, stage: int | None) -> Remembered | None:
    """What `folder` has of the ticket's run, checked as if another had sent it; None unless it is all that this peer
    needs for this role and stage (None: any). The certificate may have ended. Hashes every file: off the event loop."""
    try:
        descriptor = parse_descriptor((folder / DESCRIPTOR).read_bytes(), ticket.run_id)
        signed_card = (folder / CARD).read_bytes()
        card = Authority(descriptor.run_id, descriptor.operator).read(signed_card)
    except (OSError, FormatError):
        return None
    credentials = kept_credentials(folder, ticket, identity)
    if credentials is None or (card.peer, card.role) != (identity.peer_id, role) or stage not in (None, card.stage):
        return None
    if card.stage >= descriptor.manifest.replicas.stages:
        return None
    names = files_needed(descriptor, card.stage if role == "volunteer" else None)
    if not all(is_file(folder / name, descriptor.file(name)) for name in names):
        return None
    return Remembered(descriptor, card, signed_card, credentials, (*ticket.addresses, *known_peers.recall(folder)))


def card_of(folder: Path) -> bytes:
    """The card that this peer was given, if it was."""
    try:
        return (folder / CARD).read_bytes()
    except OSError:
        return b""


def remember_place(folder: Path, signed_card: bytes, credentials: Credentials) -> None:
    """This peer was admitted, or its certificate renewed."""
    write_atomically(folder / AUTHORITY, credentials.root)
    write_atomically(folder / CERTIFICATE, credentials.chain)
    write_atomically(folder / CARD, signed_card)


def kept_credentials(folder: Path, ticket: Ticket, identity: Identity) -> Credentials | None:
    """The certificate of this peer that `folder` has, by the ticket's authority, if it has one. It may have ended."""
    try:
        chain, root = (folder / CERTIFICATE).read_bytes(), (folder / AUTHORITY).read_bytes()
        if (public_key(chain), public_key(root)) != (identity.public, ticket.authority):
            return None
        read_certificate(chain)
    except (OSError, FormatError):
        return None
    return Credentials(private_key(identity), chain, root)


def remember_text(folder: Path, mirrors: Sequence[str], node: Reachable) -> None:
    """Where blocks of the run's text may be, as this peer was told when it was last admitted or renewed."""
    write_atomically(folder / MIRRORS, "".join(f"{url}\n" for url in mirrors).encode())
    write_atomically(folder / NODE, f"{node.peer_id} {node.address}\n".encode())


def mirrors_of(folder: Path) -> tuple[str, ...]:
    """The mirrors that this peer was told last."""
    try:
        return base_urls(_lines(folder / MIRRORS))
    except FormatError:
        return ()


def node_of(folder: Path) -> Endpoint | None:
    """The node that admitted this peer last."""
    with suppress(ValueError, FormatError):
        peer_id, address = _lines(folder / NODE)
        return Endpoint(PeerId(peer_id), join(*split(address)))
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
