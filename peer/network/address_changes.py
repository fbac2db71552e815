"""The addresses of this peer's machine, which may change while it runs: another Wi-Fi, a new DHCP lease, a VPN that is
switched off. The peer then listens at the new ones, tells the others, and takes up its connections again.

TCP waits for minutes where an address is gone, since nothing comes back to it, neither an answer nor a refusal. So all
that was opened from there, or to there, is closed at once.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from peer.network.admission import address_towards, own_addresses
from peer.network.contacts import Contacts
from peer.network.discovery import Discovery
from peer.network.reach import reach as reaching
from peer.network.reach.reach import MachineAddresses, Reach, Wish
from peer.network.reach.relayed import Reachability
from protocol.addresses import dialled_at, is_loopback
from protocol.clock import monotonic
from protocol.errors import ResourceError, UnreachableError
from protocol.events.activity import Progress
from protocol.events.event import Listener
from protocol.net.dht import Dht
from protocol.net.gate import Gate
from protocol.net.tasks import Children
from protocol.trust.records import PeerRecord
from protocol.trust.ticket import Ticket

ADDRESS_POLL_SECONDS = 1.0
"""The interval at which the addresses of this machine are read, which takes less than a millisecond."""

OUTER_SECONDS = 10.0
"""The shortest interval at which the operator's node is asked to dial this peer while others fall silent."""

ANNOUNCED_TO = 64
"""The peers that are told in person at once of a new address. Others read it in the DHT, or hear of it by gossip."""


def machine_addresses(ticket: Ticket) -> MachineAddresses:
    """Read the addresses of this machine. Sends nothing, but asks the resolver if the ticket names a host."""
    towards = ""
    with suppress(UnreachableError):
        towards = address_towards(*ticket.node_addresses)
    return MachineAddresses(own_addresses(), towards)


@dataclass(slots=True)
class AddressChanges:
    """Follows the addresses of this machine. `reach` is how others reach this peer now, and `machine` the addresses by
    which that was found."""

    wish: Wish
    ticket: Ticket
    machine: MachineAddresses
    reach: Reach
    gate: Gate
    reachability: Reachability
    discovery: Discovery
    contacts: Contacts
    emit: Listener
    announce: Callable[[PeerRecord], Coroutine[Any, Any, object]]
    """A function that tells a peer in person what this peer's record says now."""
    tried_at: float = -math.inf
    """The time by `monotonic` when the operator's node was last asked for this peer's outer address."""
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: Children = field(default_factory=Children)

    async def watch(self) -> None:
        """Move with the addresses of this machine, for as long as this peer lives. While nothing leads to the
        operator's node, or an address is gone again before this peer listens there, it waits for the next change."""
        had = set(self.machine.own)
        try:
            while True:
                await asyncio.sleep(ADDRESS_POLL_SECONDS)
                now = await asyncio.to_thread(machine_addresses, self.ticket)
                had |= now.own
                if now == self.machine or not now.towards:
                    if self._may_have_another_outer_address():
                        self.tasks.spawn(self._try_out())
                    continue
                moved = reaching.after_change(self.wish, self.reach, self.machine, now, had, self.gate.port)
                try:
                    if moved is not None:
                        await self._move(replace(moved, objection=moved.objection or self._objection()))
                        self.tasks.spawn(self._try_out())
                    self.machine = now
                except ResourceError as error:
                    self.emit(Progress(f"this machine's addresses change: {error}"))
        finally:
            await self.tasks.end()

    def _may_have_another_outer_address(self) -> bool:
        """Whether a router's address that this peer has found out and announces may have changed: peers have fallen
        silent. At most once in `OUTER_SECONDS`."""
        found_out = not self.wish.announce and not self.reach.hidden and self.reach.announced[0] not in self.machine.own
        if not (found_out and self.discovery.missed()) or monotonic() < self.tried_at + OUTER_SECONDS:
            return False
        self.tried_at = monotonic()
        return True

    def _objection(self) -> str:
        """The reason why others could not dial this peer so far, which holds at a new address until that is tried."""
        return "" if self.wish.way == "direct" else self.reach.objection

    async def _move(self, reach: Reach) -> None:
        """Listen where `reach` says, and tell the others.

        Raises:
            ResourceError: one of the addresses is gone again.
        """
        async with self.moving:
            self.contacts.hang_up_all()
            self.reachability.close()
            await self.gate.move(reach.hosts)
            await self.discovery.dht.move(reach.host, reach.hidden)
            self.reach = reach
            port = self.gate.port
            self.discovery.update_record(**address_fields(reach, port, self.discovery.dht, self.reachability.relays))
            self.emit(Progress(f"this machine's addresses have changed: this peer is at {reach.address(port)} now"))
            await self.reachability.open(reach)
            await self._announce()

    async def _announce(self) -> None:
        """Tell the others where this peer is: its group and some more in person, everybody by the DHT."""
        me, others = self.discovery.record, self.discovery.others()
        for peer in sorted(others, key=lambda peer: not peer.replica or peer.replica != me.replica)[:ANNOUNCED_TO]:
            self.tasks.spawn(self.announce(peer))
        await self.discovery.publish()

    async def _try_out(self) -> None:
        """Have the operator's node dial this peer at its new address, and go by what it finds."""
        reach, port = self.reach, self.gate.port
        if self.wish.way != "auto" or is_loopback(reach.host):
            return
        me = self.discovery.record.peer_id
        tried = await reaching.try_out(self.wish, replace(reach, objection=""), port, self.ticket, me)
        if tried.doubt or self.reach is not reach:
            return
        if tried.hidden != reach.hidden:
            self.emit(Progress(tried.objection or "others can dial this peer at its new address"))
            await self._move(tried)
        elif not tried.hidden and tried.announced != reach.announced:  # a router forwards the port
            self.reach = tried
            self.discovery.update_record(**address_fields(tried, port, self.discovery.dht, self.reachability.relays))
            await self._announce()


def address_fields(reach: Reach, port: int, dht: Dht, relays: bool) -> dict[str, Any]:
    """The fields of a peer's record that say how others reach it, where its gRPC server has this port. `relays`: it
    carries streams for others if it can be dialled."""
    fields = {
        "address": reach.address(port),
        "other_addresses": [] if reach.hidden else reach.other_addresses(port),
        "libp2p": "" if reach.hidden else dialled_at(dht.addresses, reach.announced[0]),
        "relays": relays and not reach.hidden,
    }
    return fields if reach.hidden else fields | {"via": []}
