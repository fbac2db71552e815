"""Revoking: the operator shuts a peer out of its run with the key in its node's folder, and tells the other peers."""

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from bootstrap.admission import audit_log as logs
from bootstrap.admission import operator_lists
from bootstrap.admission.audit_log import AuditEntry
from bootstrap.admission.database import RevokedPeer
from bootstrap.node import as_operator
from peer.network.contacts import Contacts
from peer.network.visiting import read_peers, tell_revocation
from peer.process import Terminal
from peer.telemetry.events import Progress
from protocol.errors import UnreachableError, UserError
from protocol.identity import PeerId, RunId
from protocol.outer.ledger import Revocation
from protocol.outer.window import Window
from protocol.run.run_files import DESCRIPTOR, Descriptor, parse_descriptor
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import revoke as sign
from protocol.trust.records import Peers
from protocol.trust.ticket import Ticket

PEER_ID = r"Qm[1-9A-HJ-NP-Za-km-z]{44}"
"""The base58 of a SHA-256 multihash."""

ENTRIES_SEARCHED = 10_000
"""Of the log, for peers that have been here and are gone."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator's folder, key and run."""

    folder: Path
    identity: Identity
    descriptor: Descriptor

    @staticmethod
    def of(folder: Path, run: RunId) -> "Operator":
        """The operator whose node has this folder.

        Raises:
            UserError: the key there is not the operator's.
        """
        descriptor = parse_descriptor((folder / DESCRIPTOR).read_bytes(), run)
        operator = Operator(folder, load_or_create(folder), descriptor)
        if operator.identity.peer_id != descriptor.operator:
            raise UserError(f"{folder} does not hold the key of this run's operator: only that node can revoke")
        return operator

    def sign(self, revocation: Revocation) -> bytes:
        """The revocation, signed by the operator."""
        return sign(self.identity, Authority(self.descriptor.run_id, self.descriptor.operator), revocation)

    @property
    def window(self) -> Window:
        """The rounds that stay open in this run."""
        outer = self.descriptor.manifest.outer
        return Window(outer.grace, outer.liars)


async def spread(given: str, start: int | None, operator: Operator, ticket: Ticket, terminal: Terminal) -> None:
    """Shut a peer out, from a round on (None: from now), and tell everybody who can be found.

    Raises:
        HetpeerError: there is no such peer, or the node's folder cannot be written.
    """
    try:
        here = await read_peers(ticket, operator.descriptor)
    except UnreachableError as error:
        terminal.emit(Progress(str(error)))
        here = ()
    await _revoke(given, start, operator, here, terminal)


async def _revoke(given: str, asked: int | None, operator: Operator, here: Peers, terminal: Terminal) -> None:
    """Put the peer on the node's list first: that holds, whoever can be told."""
    logged = (PeerId(entry.peer) for entry in logs.last(operator.folder, ENTRIES_SEARCHED) if entry.peer)
    peer = one_peer(given, [each.peer_id for each in here], logged)
    revocation = _revocation(peer, asked, [each.round for each in here if each.peer_id != peer])
    signed = operator.sign(revocation) if revocation else b""
    now, start = time.time(), revocation.start if revocation else asked or 0
    operator_lists.add_revoked(operator.folder, RevokedPeer(peer=peer, start=start, at=now, signed=signed))
    since = f"from round {start} on" if start else ""
    logs.append_entry(operator.folder, AuditEntry(what="revoked", at=now, peer=peer, reason=since))
    reached = await _tell(operator, here, signed) if signed else 0
    terminal.emit(Progress(_outcome(peer, revocation, operator.window, reached, len(here))))


async def _tell(operator: Operator, here: Peers, signed: bytes) -> int:
    """Bring the revocation to every peer; the number of those that heard it."""
    contacts = Contacts(operator.descriptor.manifest, as_operator(operator.identity, 0.0).credentials)
    try:
        return sum(await asyncio.gather(*(tell_revocation(peer, signed, contacts) for peer in here)))
    finally:
        await contacts.close()


def one_peer(given: str, here: Iterable[PeerId], logged: Iterable[PeerId] = ()) -> PeerId:
    """The peer that is meant by `given`: a whole id, or the end of one that is in the run, or else in the log.

    Raises:
        UserError: no peer, or more than one, ends so.
    """
    if re.fullmatch(PEER_ID, given):
        return PeerId(given)
    found: set[PeerId] = set()
    for known in (sorted(set(here)), sorted(set(logged))):
        found = {each for each in known if given and each.endswith(given) and re.fullmatch(PEER_ID, each)}
        if found:
            break
    if len(found) != 1:
        which = "no peer" if not found else f"{len(found)} peers"
        there = ", ".join(sorted(found or set(here))) or "none that could be found; give the whole id"
        raise UserError(f"{which} of the run ends with {given!r}; there are {there}")
    return found.pop()


def _revocation(peer: PeerId, start: int | None, finished: list[int]) -> Revocation | None:
    """A revocation by the last rounds that the others have `finished`.

    None where nobody tells which round it is: a revocation that says it was issued too early would reach into rounds
    that are closed, and split the run (`protocol.outer.ledger`).
    """
    if not finished:
        return None
    issued = median_low(finished) + 1
    return Revocation(peer, start or issued, issued)


def _outcome(peer: PeerId, revocation: Revocation | None, window: Window, reached: int, known: int) -> str:
    """A sentence for the operator: the effect of the revocation, and what is left to do."""
    if revocation is None:
        return (
            f"peer {peer[-8:]} gets no new certificate. No other peer was found, so what it has contributed stays: "
            "give this command again when the run is up"
        )
    first = revocation.effective(window)
    closed = f"; rounds before {first} are closed and stay as they are" if first > revocation.start else ""
    told = f"{reached} of {known} peers know; they tell the others"
    if not reached:
        told = f"None of {known} peers could be told: give this command again when one can be reached"
    return f"peer {peer[-8:]} is taken out from round {first} on{closed}. It gets no new certificate. {told}"
