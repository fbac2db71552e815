"""A peer's place in the run as its folder has it, to go on when the operator's node does not answer.

membership.json    what the operator's node told when it last admitted this peer, or renewed its certificate
run.json           the descriptor, which the ticket's run id pins; the run's other files lie beside it
peers              libp2p addresses of others (`protocol/trust/ticket.py`), which change at other times
identity.key       this peer's key (`protocol/trust/keys.py`)
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.addresses import join_address, split_address
from protocol.errors import FormatError, ResourceError
from protocol.files import write_atomically
from protocol.identity import Endpoint, PeerId, RunId
from protocol.net.blobs import is_file
from protocol.net.channels import Credentials, Reachable
from protocol.run.dataset import base_urls
from protocol.run.run_files import DESCRIPTOR, Descriptor, files_needed, parse_descriptor
from protocol.trust.certificates import private_key, public_key, read_certificate
from protocol.trust.keys import Identity
from protocol.trust.membership_card import CARD_KIND, Authority, Card, Role
from protocol.trust.signed import claimed_fields
from protocol.trust.ticket import Ticket, recall_addresses

MEMBERSHIP = "membership.json"

OLD_FILES = ("card", "certificate", "authority", "mirrors", "node")
"""The files in which earlier versions kept the fields of `KeptMembership`."""


class KeptMembership(BaseModel):
    """`membership.json`. Every field may be missing, and none is believed: who reads one checks it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_bytes="base64", val_json_bytes="base64"
    )

    version: Literal[1] = 1
    card: bytes = Field(b"", description="the operator's signed word that this peer has its place")
    certificate: str = Field("", description="by which others know this peer, and those of whoever signed it (PEM)")
    authority: str = Field("", description="the run's (PEM), which the ticket pins")
    mirrors: tuple[str, ...] = Field((), description="base URLs of the run's prepared text")
    node: Endpoint | None = Field(None, description="the operator's node, which serves the run's files and blocks")


@dataclass(frozen=True, slots=True)
class StoredMembership:
    """A place in the run as this folder has it. `addresses` are where the DHT may be found."""

    descriptor: Descriptor
    card: Card
    signed_card: bytes
    credentials: Credentials
    addresses: tuple[str, ...]


def write_membership(
    folder: Path, signed_card: bytes, credentials: Credentials, mirrors: Sequence[str], node: Reachable
) -> None:
    """Keep what the operator's node has told this peer, in one write, in the place of what was there.

    Raises:
        ResourceError: it cannot be written, as on a full disk.
    """
    membership = KeptMembership(
        card=signed_card,
        certificate=credentials.chain.decode("ascii"),
        authority=credentials.root.decode("ascii"),
        mirrors=tuple(mirrors),
        node=Endpoint(node.peer_id, node.address),
    )
    write_atomically(folder / MEMBERSHIP, membership.model_dump_json(indent=1).encode() + b"\n")
    for name in OLD_FILES:
        (folder / name).unlink(missing_ok=True)


def claim_folder(folder: Path, descriptor: Descriptor) -> bool:
    """Note in a folder which run it belongs to. A descriptor that is damaged there counts as missing, and is written
    again. Returns whether it was.

    Raises:
        ResourceError: the folder is another run's, by its descriptor or its card; or it cannot be written.
    """
    marker, own_bytes = folder / DESCRIPTOR, descriptor.canonical()
    marked = marker.read_bytes() if marker.exists() else b""
    if marked == own_bytes:
        return False
    if _is_descriptor(marked) or _run_of_card(read_membership(folder).card) not in (None, descriptor.run_id):
        raise ResourceError(f"{folder} holds another run's files; give this run a folder of its own with --dir")
    write_atomically(marker, own_bytes)
    return bool(marked)


def _is_descriptor(data: bytes) -> bool:
    """Whether bytes are the descriptor of a run, whichever it is."""
    try:
        parse_descriptor(data, RunId(hashlib.sha256(data).hexdigest()))
    except FormatError:
        return False
    return True


def _run_of_card(card: bytes) -> str | None:
    """The run that a card claims to be of; None: it is none."""
    try:
        return str(claimed_fields(card, CARD_KIND)[1][0])
    except (FormatError, IndexError):
        return None


def read_membership(folder: Path) -> KeptMembership:
    """Read the membership of a folder's peer; an empty one where there is nothing, or it is damaged."""
    try:
        return KeptMembership.model_validate_json((folder / MEMBERSHIP).read_bytes())
    except FileNotFoundError:
        return _of_old_files(folder)
    except (OSError, ValidationError):
        return KeptMembership()


def _of_old_files(folder: Path) -> KeptMembership:
    """The membership in the folder of a peer that an earlier version ran, which had a file for each field."""

    def content(name: str) -> str:
        try:
            return (folder / name).read_bytes().decode("latin-1")
        except OSError:
            return ""

    peer_id, _, address = content("node").strip().partition(" ")
    return KeptMembership(
        card=content("card").encode("latin-1"),
        certificate=content("certificate"),
        authority=content("authority"),
        mirrors=tuple(content("mirrors").split()),
        node=Endpoint(PeerId(peer_id), address),
    )


def recall(folder: Path, ticket: Ticket, identity: Identity, role: Role, stage: int | None) -> StoredMembership | None:
    """Read the membership of the ticket's run from `folder`, checked as if another had sent it; None unless it is all
    that this peer needs for this role and stage (None: any). The certificate may have ended. Hashes every file: call it
    off the event loop."""
    membership = read_membership(folder)
    try:
        descriptor = parse_descriptor((folder / DESCRIPTOR).read_bytes(), ticket.run_id)
        card = Authority(descriptor.run_id, descriptor.operator).read(membership.card)
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
    addresses = (*ticket.addresses, *recall_addresses(folder))
    return StoredMembership(descriptor, card, membership.card, credentials, addresses)


def kept_credentials(folder: Path, ticket: Ticket, identity: Identity) -> Credentials | None:
    """The credentials that `folder` keeps: this peer's private key, its certificate, and the run's root certificate.
    None unless the certificate is for this peer's key, and the root for the key in the ticket. The certificate may have
    expired."""
    membership = read_membership(folder)
    chain, root = membership.certificate.encode(), membership.authority.encode()
    try:
        if (public_key(chain), public_key(root)) != (identity.public, ticket.authority):
            return None
        read_certificate(chain)
    except FormatError:
        return None
    return Credentials(private_key(identity), chain, root)


def mirrors_of(folder: Path) -> tuple[str, ...]:
    """The mirrors of the run's text that this peer was told last; none where one of them is no mirror."""
    try:
        return base_urls(read_membership(folder).mirrors)
    except FormatError:
        return ()


def node_of(folder: Path) -> Endpoint | None:
    """The node that admitted this peer last."""
    node = read_membership(folder).node
    try:
        return node and Endpoint(node.peer_id, join_address(*split_address(node.address)))
    except FormatError:
        return None
