"""`hetpeer admin`: what the operator alone can do, with the key in the bootstrap node's folder."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from peer.events import Progress
from peer.home import home
from peer.network.contacts import Contacts
from peer.network.discovery import Peers, read_peers
from peer.network.operator import address_towards
from peer.network.reconciliation import tell_revocation
from peer.process import Terminal, run, told
from protocol import dht as dhts
from protocol.cards import Authority
from protocol.errors import RefusedError, ResourceError, UserError
from protocol.keys import Identity, load_or_create
from protocol.ledger import Revocation
from protocol.proofs import revoke as sign
from protocol.run_files import DESCRIPTOR, Descriptor, parse
from protocol.ticket import Ticket, find
from protocol.window import Window


@dataclass(frozen=True, slots=True)
class RevokeOptions:
    """What the command line said. `peer` is a peer id, or its end as the logs show it."""

    peer: str
    start: int
    directory: Path | None
    ticket: str | None


def revoke(options: RevokeOptions, terminal: Terminal) -> int:
    """Take a peer's contributions out of every round from one on; the exit code."""

    def work() -> int:
        folder = _operators_folder(options.directory)
        ticket = find(options.ticket, folder)
        descriptor = parse((folder / DESCRIPTOR).read_bytes(), ticket.run_id)
        identity = load_or_create(folder)
        if identity.peer_id != descriptor.operator:
            raise UserError(f"{folder} does not hold the key of this run's operator: only that node can revoke")
        return run(lambda stop: spread(options, ticket, descriptor, identity, terminal), terminal)

    return told(terminal.emit, work)


def _operators_folder(given: Path | None) -> Path:
    """The bootstrap node's folder: the one given, or the only one there is."""
    found = [given] if given else sorted(path.parent for path in home().glob(f"bootstrap-*/{DESCRIPTOR}"))
    if len(found) != 1 or not (found[0] / DESCRIPTOR).exists():
        raise ResourceError("name the bootstrap node's folder with --dir: the one that holds its key and run.json")
    return found[0]


async def spread(
    options: RevokeOptions, ticket: Ticket, descriptor: Descriptor, identity: Identity, terminal: Terminal
) -> None:
    """Sign the revocation, and tell every peer.

    Raises:
        HetpeerError: there is no such peer, or nobody could be told.
    """
    with tempfile.TemporaryDirectory(prefix="hetpeer-admin-") as temporary:  # libp2p wants an identity of its own
        host = address_towards(ticket.operator)
        dht = await dhts.start(load_or_create(Path(temporary)), host, 0, ticket.addresses)
        contacts = Contacts(descriptor.manifest)
        try:
            peers = await read_peers(dht, descriptor.run_id, descriptor.manifest)
            revocation = _revocation(options, peers)
            signed = sign(identity, Authority(descriptor.run_id, descriptor.operator), revocation)
            reached = sum(await asyncio.gather(*(tell_revocation(peer.address, signed, contacts) for peer in peers)))
        finally:
            await contacts.close()
            await dht.stop()
    outer = descriptor.manifest.outer
    first = revocation.effective(Window(outer.grace, outer.liars))
    closed = f"; rounds before {first} are closed and stay as they are" if first > options.start else ""
    terminal.emit(
        Progress(
            f"peer {revocation.author[-8:]} is taken out from round {first} on{closed}. "
            f"{reached} of {len(peers)} peers know; they tell the others"
        )
    )
    if not reached:
        raise RefusedError("no peer could be told")


def _revocation(options: RevokeOptions, peers: Peers) -> Revocation:
    matching = [peer.peer_id for peer in peers if peer.peer_id.endswith(options.peer)]
    if len(matching) != 1:
        which = "no peer" if not matching else f"{len(matching)} peers"
        raise UserError(
            f"{which} of the run ends with {options.peer!r}; there are {', '.join(p.peer_id for p in peers)}"
        )
    return Revocation(matching[0], options.start, median_low(peer.round for peer in peers) + 1)
