"""The ticket: the one line that a volunteer pastes. It names the run, and where to register. A peer that was away finds
the run again by the addresses at which others were last, too.

    hetpeer1-<base64url of: 4 bytes of check, then msgpack [run id, authority, [doors], [libp2p addresses], token]>

The run id pins the descriptor, and the descriptor pins every file; the authority, the operator's public key, says who
may speak in the run. So a ticket from a trusted hand is all the trust that joining needs.
"""

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from protocol.addresses import join_address, split_address
from protocol.errors import FormatError, TicketError
from protocol.files import write_atomically
from protocol.identity import RunId
from protocol.limits import ADDRESSES_NAMED
from protocol.trust.keys import PUBLIC_BYTES, peer_id_of_public

TICKET_PREFIX = "hetpeer1-"
TICKET_VARIABLE = "HETPEER_TICKET"
MOST_TOKEN_BYTES = 64
MOST_TICKET_CHARACTERS = 2**16
MOST_ADDRESSES = 1024
"""The most addresses in a ticket; a bootstrap node has a few."""

PEERS = "peers"
"""The file of a folder that has the libp2p addresses at which others were last, one a line."""

ADDRESSES_KEPT = 32
"""The number of addresses in that file: one that still answers is enough."""

_ASK = "ask the run's operator for a new one (`hetpeer bootstrap` prints it)"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket: where a run is found. `node_addresses` are the gRPC addresses of the nodes that let newcomers
    in, of which one will do, and `addresses` their libp2p multiaddresses. A closed run lets nobody in without a
    `token`, which is a secret: it is not shown where a ticket is printed for people to debug."""

    run_id: RunId
    authority: bytes
    node_addresses: tuple[str, ...]
    addresses: tuple[str, ...]
    token: bytes = field(default=b"", repr=False)

    @property
    def operator(self) -> str:
        """The address of the first node."""
        return self.node_addresses[0]

    def other_node_addresses(self, address: str) -> list[str]:
        """Other addresses of the node that is known at `address`, if it has several: its port on the hosts of the other
        nodes, some of which may be other nodes. None, where `address` is on none of these hosts."""
        host, port = split_address(address)
        hosts = dict.fromkeys(
            split_address(node_address)[0] for node_address in self.node_addresses[: ADDRESSES_NAMED + 1]
        )
        return [join_address(other, port) for other in hosts if other != host] if host in hosts else []

    def __str__(self) -> str:
        fields = [
            bytes.fromhex(self.run_id),
            self.authority,
            list(self.node_addresses),
            list(self.addresses),
            self.token,
        ]
        body = msgpack.packb(fields)
        return TICKET_PREFIX + _encoded(_check(body) + body)


def parse_ticket(text: str) -> Ticket:
    """Read a ticket.

    Raises:
        TicketError: it is no ticket, or was damaged on its way.
    """
    text = "".join(text.split())
    if not text.startswith(TICKET_PREFIX):
        raise TicketError(f"this is no hetpeer ticket (it does not begin with {TICKET_PREFIX}); {_ASK}")
    encoded = text[len(TICKET_PREFIX) :]
    if not re.fullmatch("[A-Za-z0-9_-]*", encoded):  # Python's decoder takes the other alphabet's + and /, too
        raise TicketError(f"the ticket has characters that do not belong there; {_ASK}")
    try:
        raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except binascii.Error:  # a length that no bytes have
        raw = b""
    if _check(raw[4:]) != raw[:4] or _encoded(raw) != encoded:
        raise TicketError(f"the ticket is damaged or cut short: copy it whole, or {_ASK}")
    try:
        fields = msgpack.unpackb(raw[4:], max_array_len=MOST_ADDRESSES)
    except (ValueError, msgpack.UnpackException):
        fields = None
    match fields:
        case [bytes(run), bytes(authority), [str(), *_] as node_addresses, list(addresses), bytes(token)] if (
            len(run) == 32
            and _is_key(authority)
            and len(token) <= MOST_TOKEN_BYTES
            and all(isinstance(address, str) for address in (*node_addresses, *addresses))
        ):
            ticket = Ticket(RunId(run.hex()), authority, tuple(node_addresses), tuple(addresses), token)
        case _:
            raise TicketError(f"the ticket is of another version of hetpeer; {_ASK}")
    if not all(map(_is_node_address, ticket.node_addresses)):
        raise TicketError(f"the ticket names no address; {_ASK}")
    return ticket


def find_ticket(given: str | None, *folders: Path) -> Ticket:
    """Find the ticket: the one from the command line (the text or a file), that in `HETPEER_TICKET`, or the last one
    used in the first of `folders` that has one.

    Raises:
        TicketError: there is none, or it cannot be read.
    """
    remembered = (str(folder / "ticket") for folder in folders if (folder / "ticket").is_file())
    source = given or os.environ.get(TICKET_VARIABLE) or next(remembered, None)
    if not source:
        raise TicketError(f"no ticket: give it as an argument, a file, or in {TICKET_VARIABLE}; {_ASK}")
    if source.lstrip().startswith(TICKET_PREFIX):
        return parse_ticket(source)
    try:
        if not stat.S_ISREG(os.stat(source).st_mode):
            raise TicketError(f"{source} is no file that has a ticket: it is a folder, a device or a pipe; {_ASK}")
        with Path(source).open(encoding="utf-8", errors="replace") as file:
            text = file.read(MOST_TICKET_CHARACTERS)
    except (OSError, ValueError):  # as what is too long for a name: a ticket that was copied with something before it
        raise TicketError(
            f"this is no hetpeer ticket (it does not begin with {TICKET_PREFIX}), and no file of that name can be "
            f"read; {_ASK}"
        ) from None
    return parse_ticket(text)


def remember_addresses(folder: Path, addresses: Sequence[str]) -> None:
    """Write down the libp2p addresses at which others are now, instead of those that were there.

    Raises:
        ResourceError: the file cannot be written, as on a full disk.
    """
    write_atomically(folder / PEERS, "".join(f"{address}\n" for address in addresses[:ADDRESSES_KEPT]).encode())


def recall_addresses(folder: Path) -> tuple[str, ...]:
    """Read the addresses that were remembered; none, if the file is not there or no text. Nothing is promised of the
    addresses."""
    try:
        return tuple((folder / PEERS).read_text(encoding="ascii").split()[:ADDRESSES_KEPT])
    except (OSError, ValueError):
        return ()


def _is_key(authority: bytes) -> bool:
    """Whether these bytes are a public key: 33, of a point that lies on the curve."""
    try:
        peer_id_of_public(authority)
    except FormatError:
        return False
    return len(authority) == PUBLIC_BYTES


def _is_node_address(address: str) -> bool:
    """Whether a node can listen at an address: nobody is reached at port 0."""
    try:
        return split_address(address)[1] > 0
    except FormatError:
        return False


def _encoded(raw: bytes) -> str:
    """Encode bytes as the one text for them; others would decode to them as well."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]
