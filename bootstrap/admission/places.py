"""Who gets which place in the run. Pure: the clock and who is alive are arguments."""

from dataclasses import dataclass, field
from itertools import chain, count
from typing import Literal

from protocol.errors import RefusedError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.trust.membership_card import Card, Role
from protocol.trust.records import PeerRecord

ARRIVAL_SECONDS = 600.0
"""How long an admitted peer may take to fetch its files and show up in the DHT before its place is given away."""


PlaceRole = Role | Literal["gateway"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the run. `slot` is under whose name the replica reads that this peer leads
    (`protocol/outer/data_plan.py`): no two have the same."""

    role: PlaceRole
    stage: int
    slot: int


@dataclass(slots=True)
class Admission:
    """The places of one run, and who holds them.

    Volunteers' slots count up from 0, datacenters' down from the last, so that what each kind reads at first
    does not depend on who arrived first.
    """

    manifest: Manifest
    places: dict[PeerId, Place] = field(default_factory=dict)
    since: dict[PeerId, float] = field(default_factory=dict)

    def see(self, record: PeerRecord, now: float) -> None:
        """A peer is there that this node may not have admitted itself: another node of the run did."""
        self.places.setdefault(record.peer_id, Place(record.role, record.stage, record.slot))
        self.since[record.peer_id] = now

    def recall(self, card: Card, role: PlaceRole, now: float) -> None:
        """A peer shows the place that it was given, here before a restart or at another node of the run. If it was away
        for so long that another has its slot by now, it gets the next."""
        if card.peer not in self.places:
            trains = role in ("volunteer", "datacenter")
            slot = self._free_slot(role, card.stage, card.slot) if trains else card.slot
            self.places[card.peer] = Place(role, card.stage, slot)
            self.since[card.peer] = now

    def admit(self, peer: PeerId, role: PlaceRole, stage: int | None, alive: set[PeerId], now: float) -> Place:
        """A place for `peer`; the same one if it asks again. `stage` None: where a volunteer is needed most.

        Raises:
            RefusedError: there is no such stage.
        """
        for each in list(self.places):
            if each not in alive and now - self.since[each] > ARRIVAL_SECONDS:
                del self.places[each], self.since[each]
        held = self.places.get(peer)
        if held is None or (held.role, stage) not in ((role, held.stage), (role, None)):
            self.places.pop(peer, None)
            held = self._free_place(role, stage)
        self.places[peer] = held
        self.since[peer] = now
        return held

    def _free_place(self, role: PlaceRole, stage: int | None) -> Place:
        replicas = self.manifest.replicas
        if role in ("observer", "gateway"):
            return Place(role, 0, 0)
        if role == "datacenter":
            return Place(role, 0, self._free_slot(role, 0))
        if stage is None:
            held = [place.stage for place in self.places.values() if place.role == "volunteer"]
            stage = min(range(replicas.stages), key=lambda each: (held.count(each), each))  # the earliest of equals
        if not 0 <= stage < replicas.stages:
            raise RefusedError(f"there is no stage {stage}; this run's stages are 0 to {replicas.stages - 1}")
        return Place(role, stage, self._free_slot(role, stage))

    def _free_slot(self, role: PlaceRole, stage: int, *wanted: int) -> int:
        """The slot that is wanted, if nobody has it; or one of those that the run begins with; or, for who comes beside
        them, the next of all."""
        replicas = self.manifest.replicas
        groups, datacenters = range(replicas.groups), range(replicas.total - 1, replicas.groups - 1, -1)
        taken = {place.slot for place in self.places.values() if (place.role, place.stage) == (role, stage)}
        more = count(replicas.total + (role == "datacenter"), 2)  # no two kinds read the same
        first = groups if role == "volunteer" else datacenters
        return next(slot for slot in chain(wanted, first, more) if slot not in taken)
