"""Revoking a peer: with the key in the folder of the operator's node, from the round that is going on."""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.errors import PeerError, RefusedError, UnreachableError, UserError

if TYPE_CHECKING:
    from peer.process import Terminal
    from protocol.identity import PeerId, RunId
    from protocol.outer.ledger import Revocation
    from protocol.outer.window import Window
    from protocol.run.run_files import Descriptor
    from protocol.trust.keys import Identity
    from protocol.trust.records import PeerRecord, Peers
    from protocol.trust.ticket import Ticket

PEER_ID = r"Qm[1-9A-HJ-NP-Za-km-z]{44}"
"""The base58 of a SHA-256 multihash."""

ENTRIES_SEARCHED = 10_000
"""The number of log entries that are searched for peers that have been here and are gone."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator's folder, key and run."""

    folder: Path
    identity: "Identity"
    descriptor: "Descriptor"

    @staticmethod
    def of(folder: Path, run: "RunId") -> "Operator":
        """The operator whose node has this folder.

        Raises:
            UserError: the key there is not the operator's.
        """
        from protocol.run.run_files import DESCRIPTOR, parse_descriptor
        from protocol.trust.keys import load_or_create

        descriptor = parse_descriptor((folder / DESCRIPTOR).read_bytes(), run)
        operator = Operator(folder, load_or_create(folder), descriptor)
        if operator.identity.peer_id != descriptor.operator:
            raise UserError(f"{folder} does not hold the key of this run's operator: only that node can revoke")
        return operator

    def sign(self, revocation: "Revocation") -> bytes:
        """The revocation, signed by the operator."""
        from protocol.trust.membership_card import Authority
        from protocol.trust.proofs import sign_revocation

        return sign_revocation(self.identity, Authority(self.descriptor.run_id, self.descriptor.operator), revocation)

    @property
    def window(self) -> "Window":
        """The rounds that stay open in this run."""
        from protocol.outer.window import Window

        outer = self.descriptor.manifest.outer
        return Window(outer.grace, outer.liars)


async def spread(given: str, start: int | None, operator: Operator, ticket: "Ticket", terminal: "Terminal") -> None:
    """Shut a peer out, from a round on (None: from now), and tell everybody who can be found.

    Raises:
        HetpeerError: there is no such peer, or the node's folder cannot be written.
    """
    from bootstrap.admission import audit_log, operator_lists
    from bootstrap.admission.audit_log import AuditEntry
    from bootstrap.admission.database import RevokedPeer
    from peer.network.admission import read_peers
    from protocol.clock import unix_time
    from protocol.events.activity import Progress, Warned
    from protocol.identity import PeerId
    from protocol.outer.ledger import Revocation

    try:
        present = await read_peers(ticket, operator.descriptor)
    except UnreachableError as error:
        terminal.emit(Progress(str(error)))
        present = ()
    logged = (PeerId(entry.peer) for entry in audit_log.last(operator.folder, ENTRIES_SEARCHED) if entry.peer)
    peer = one_peer(given, [record.peer_id for record in present], logged)
    revocation, signed = None, b""
    # Where nobody tells which round it is, there is none: one that says it was issued too early would reach into rounds
    # that are closed, and split the run (`protocol.outer.ledger`).
    revoked = {entry.peer for entry in operator_lists.read_revoked(operator.folder)}
    others = tuple(record for record in present if record.peer_id not in {peer, *revoked})
    if others:
        issued = await finished_round(others, operator, ticket) + 1
        revocation = Revocation(peer, start or issued, issued)
        signed = operator.sign(revocation)
    records = tuple(record for record in present if record.peer_id == peer)
    if warning := stall_warning(peer, (*records, *others), operator.descriptor.manifest.replicas.stages, unix_time()):
        terminal.emit(Warned(f"WARNING: {warning}"))
    now, first = unix_time(), revocation.start if revocation else start or 0
    # On the node's list first: that holds, whoever can be told.
    operator_lists.add_revoked(operator.folder, RevokedPeer(peer=peer, start=first, at=now, signed=signed))
    since = f"from round {first} on" if first else ""
    audit_log.append_entry(operator.folder, AuditEntry(what="revoked", at=now, peer=peer, reason=since))
    reached = await _tell(operator, present, signed) if signed else 0
    terminal.emit(Progress(_outcome(peer, revocation, operator.window, reached, len(present))))


async def finished_round(others: "Iterable[PeerRecord]", operator: Operator, ticket: "Ticket") -> int:
    """Return the last round that the run has finished: as the operator's node knows it, and the records of the others.

    A record outlives its peer by a minute, in which a quick run ends dozens of rounds, and is renewed every 15 seconds:
    the node, which peers report to, knows better. A node that does not answer has written it down.
    """
    from bootstrap.monitor.watch import kept_round
    from peer.network.admission import ask_node
    from protocol.clock import unix_time

    try:
        by_node = (await ask_node(ticket)).run
    except (UnreachableError, PeerError):
        by_node = kept_round(operator.folder, operator.descriptor.run_id)
    return max(by_node, round_by_records(others, unix_time()))


def round_by_records(others: "Iterable[PeerRecord]", now: float) -> int:
    """Return the last round that these peers have finished, by their records: that of the peer in the middle, of those
    who have not said goodbye and whose record was renewed in time; or else of all. Of two, it is the later: a
    revocation that was issued in an earlier round would reach into closed ones."""
    from statistics import median_high

    records = [*others]
    present = [record for record in records if not record.gone]
    fresh = [record for record in present if _is_fresh(record, now)]
    return median_high(record.round for record in fresh or present or records)


def stall_warning(peer: "PeerId", present: "Peers", stages: int, now: float) -> str:
    """A sentence on the newest states that go with a peer, as nobody else who is here holds them; empty: none do. All
    by the records of those who are `present`."""
    from protocol.identity import stage_part
    from protocol.trust.records import FAR_BEHIND, holds_newest
    from protocol.wording import parts_named, state_after

    last = max((record.round for record in present), default=0)
    holders = [record for record in present if holds_newest(record) and record.round >= last - FAR_BEHIND]
    others = [record for record in holders if record.peer_id != peer and not record.gone and _is_fresh(record, now)]
    serving = {record.stage for record in holders if record.peer_id == peer and record.role == "volunteer"}
    if any(record.peer_id == peer and record.role != "volunteer" for record in holders):
        serving = {*range(stages)}
    covered = {record.stage for record in others}
    alone = [] if any(record.role != "volunteer" for record in others) else sorted(serving - covered)
    if not alone:
        return ""
    state = state_after(last, parts_named(map(stage_part, alone)))
    return (
        f"nobody else who is here holds {state}. The run stands still until another peer brings it back; if none can, "
        "`hetpeer admin rewind` lists the older states, and goes on from one"
    )


async def states_of(peers: "Collection[PeerRecord]", revoked: "Collection[PeerId]", ticket: "Ticket") -> dict[str, str]:
    """The state of each peer, by peer id, as the operator's node sees it. A node that does not answer tells none: then
    a record that was not renewed is marked. Records outlive their peers by a minute."""
    from peer.network.admission import ask_status
    from protocol.clock import unix_time
    from protocol.wording import lasting

    now = unix_time()
    states: dict[str, str] = {
        peer.peer_id: f"silent for {lasting(now - peer.sequence / 1000)}" for peer in peers if not _is_fresh(peer, now)
    }
    with suppress(UnreachableError, RefusedError, PeerError):
        view = await ask_status(ticket)
        states |= {peer.id: str(peer.state) for peer in view.peers}
    return {**states, **dict.fromkeys(revoked, "revoked")}


def _is_fresh(record: "PeerRecord", now: float) -> bool:
    """Whether a record was renewed in time: it outlives its peer by a minute."""
    from protocol.patience import HEARTBEAT_SECONDS

    return now - record.sequence / 1000 <= 2 * HEARTBEAT_SECONDS


async def _tell(operator: Operator, here: "Peers", signed: bytes) -> int:
    """Bring the revocation to every peer; the number of those that heard it."""
    import asyncio

    from bootstrap.node import as_operator
    from peer.network.contacts import Contacts
    from peer.network.gossip import send_revocation

    contacts = Contacts(operator.descriptor.manifest, as_operator(operator.identity, 0.0).credentials)
    try:
        return sum(await asyncio.gather(*(send_revocation(peer, signed, contacts) for peer in here)))
    finally:
        await contacts.close()


def one_peer(given: str, here: Iterable["PeerId"], logged: Iterable["PeerId"] = ()) -> "PeerId":
    """The peer that is meant by `given`: a whole id, or the end of one that is in the run, or else in the log.

    Raises:
        UserError: no peer, or more than one, ends so.
    """
    from protocol.identity import PeerId

    if re.fullmatch(PEER_ID, given):
        return PeerId(given)
    matches: set[PeerId] = set()
    for pool in (sorted(set(here)), sorted(set(logged))):
        matches = {
            candidate for candidate in pool if given and candidate.endswith(given) and re.fullmatch(PEER_ID, candidate)
        }
        if matches:
            break
    if len(matches) != 1:
        which = "no peer" if not matches else f"{len(matches)} peers"
        choices = ", ".join(sorted(matches or set(here))) or "none that could be found; give the whole id"
        raise UserError(f"{which} of the run ends with {given!r}; there are {choices}")
    return matches.pop()


def _outcome(peer: "PeerId", revocation: "Revocation | None", window: "Window", reached: int, known: int) -> str:
    """A sentence for the operator: the effect of the revocation, and what is left to do."""
    if revocation is None:
        return (
            f"peer {peer[-8:]} gets no new certificate. No other peer was found, so what it has contributed stays: "
            "give this command again when the run is up"
        )
    first = revocation.effective(window)
    closed = f"; rounds before {first} are closed and stay as they are" if first > revocation.start else ""
    outcome = f"{reached} of {known} peers know; they tell the others"
    if not reached:
        outcome = f"None of {known} peers could be told: give this command again when one can be reached"
    return f"peer {peer[-8:]} is taken out from round {first} on{closed}. It gets no new certificate. {outcome}"
