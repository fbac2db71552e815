"""Copies of this peer's folder: a virtual machine's image, or a snapshot, that is started while the peer runs.

Both have the same key, so others take them for one peer that is at two places by turns. A peer that starts therefore
looks for a record of its own key with another address, and sees by TLS whether its own key answers there. If it does,
the peer tells the one that runs, and does not start. A record whose address is dead, or is somebody else's by now, is
that of a peer that has moved or was killed.

Two copies that start in the same moment find each other later, by records of their key that neither has published. The
one with the lower address stays. So do copies that cannot be dialled, which nobody can ask before they run.
"""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass, field

from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from protocol.errors import FormatError, HetpeerError, UserError
from protocol.events.activity import Warned
from protocol.events.event import Listener
from protocol.net.channels import handshake
from protocol.net.tls_probe import probe
from protocol.patience import CALL_SECONDS, HEARTBEAT_SECONDS
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc
from protocol.trust.certificates import shown_by
from protocol.trust.records import PeerRecord, make_statement

PROBE_SECONDS = 5.0
"""The time for the address in an older record to answer: a peer that has moved waits for it at its start."""

RENEWALS = 2
"""The number of newer records that show that somebody renews them. One may be this peer's own last, if its clock was
set back since."""


def elsewhere(own: PeerRecord, found: PeerRecord) -> bool:
    """Whether a record of this peer's key is of a process at another address, which has not said goodbye."""
    return not found.gone and _place(own) != _place(found)


def stays(own: PeerRecord, other: PeerRecord) -> bool:
    """Whether this process, of two with one key, is the one that goes on: both come to the same answer."""
    return _place(own) < _place(other)


def _place(record: PeerRecord) -> tuple[str, list[str]]:
    return record.address, record.via


@dataclass(slots=True)
class Copies:
    """The copies of this peer's folder that it knows of."""

    discovery: Discovery
    contacts: Contacts
    emit: Listener
    newer: dict[int, None] = field(default_factory=dict)
    """The sequence numbers of newer records of this peer's key that were seen from one other address."""
    warned: str = ""
    """The address about which its owner was warned last."""

    async def require_none(self) -> None:
        """Look for a running copy before this peer publishes anything.

        Raises:
            UserError: there is one; it was told.
        """
        own_record = self.discovery.record
        published = await self.discovery.own_record()
        if published is None or not elsewhere(own_record, published) or not await self._answers(published):
            return
        with suppress(HetpeerError):
            await self._announce(published)
        raise UserError(_refusal(published))

    def on_call(self, record: PeerRecord) -> None:
        """Warn this peer's owner: a copy has called, which does not start."""
        self._warn(record, f"a copy of this peer's folder was started at {record.address} and did not start")

    async def watch(self) -> None:
        """Look at records of this peer's key that it has not published, for as long as it lives.

        Raises:
            UserError: a copy runs, and this process is the one to end.
        """
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            published, own_record = self.discovery.namesake, self.discovery.record
            self.discovery.namesake = None
            if published is None or not elsewhere(own_record, published):
                continue
            self.newer[published.sequence] = None
            if not (await self._answers(published) or (published.via and len(self.newer) >= RENEWALS)):
                continue
            if not stays(own_record, published):
                raise UserError(_refusal(published))
            self._warn(published, f"a copy of this peer's folder runs at {published.address}: stop it")

    async def _answers(self, record: PeerRecord) -> bool:
        """Whether this peer's own key answers at the address of a record."""
        try:
            return shown_by((await probe(record.address, PROBE_SECONDS)).certificate) == record.peer_id
        except (ssl.SSLError, OSError, ValueError, FormatError):
            return False

    async def _announce(self, running: PeerRecord) -> None:
        """Tell the process that runs with this peer's key where this one was started."""
        signer = self.discovery.signer
        question = pb.Comparison(statement=make_statement(signer, self.discovery.record, {}))
        async with self.contacts.to(running) as channel:
            stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
            await stub.Compare(question, metadata=handshake(self.contacts.manifest), timeout=CALL_SECONDS)

    def _warn(self, record: PeerRecord, words: str) -> None:
        if record.address != self.warned:
            self.warned = record.address
            self.emit(Warned(f"WARNING: {words}; a second machine needs a folder of its own"))


def _refusal(running: PeerRecord) -> str:
    return (
        f"this peer runs already, at {running.address}, with a copy of this folder: stop it there first, or give this "
        "machine a folder of its own with --dir, with which it joins as another peer"
    )
