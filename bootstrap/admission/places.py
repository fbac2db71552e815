"""The assignment of slots in the run. Pure: the clock and who is alive are arguments."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Literal

from protocol.errors import RefusedError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.trust.membership_card import Card, Role
from protocol.trust.records import PeerRecord

ARRIVAL_SECONDS = 600.0
"""The seconds in which an admitted peer has to fetch its files and show up in the DHT; then its slot is free again."""


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

    def admit(
        self,
        peer: PeerId,
        role: PlaceRole,
        stage: int | None,
        alive: set[PeerId],
        now: float,
        servable: Sequence[int] = (),
    ) -> Place:
        """A place for `peer`; the same one if it asks again, unless another has its slot as well. `stage` None: where a
        volunteer is needed most, of the stages that it says are `servable`, or of all if it names none.

        Raises:
            RefusedError: there is no such stage, or it names more stages than there are.
        """
        choice = self._choice((stage,) if stage is not None else servable) if role == "volunteer" else ()
        for candidate in list(self.places):
            if candidate not in alive and now - self.since[candidate] > ARRIVAL_SECONDS:
                del self.places[candidate], self.since[candidate]
        held = None if self._is_given_twice(peer, alive) else self.places.get(peer)
        if held is None or held.role != role or (role == "volunteer" and held.stage not in choice):
            self.places.pop(peer, None)
            held = self._free_place(role, choice)
        self.places[peer] = held
        self.since[peer] = now
        return held

    def _is_given_twice(self, peer: PeerId, alive: set[PeerId]) -> bool:
        """Whether a peer that is alive has the same slot at the same work, and a lower id: two nodes let both in."""
        held = self.places.get(peer)
        if held is None or held.role not in ("volunteer", "datacenter"):
            return False
        return any(each < peer and self.places.get(each) == held for each in alive)

    def _choice(self, named: Sequence[int]) -> Collection[int]:
        """The stages of which a volunteer may get one: those that it has named, or all.

        Raises:
            RefusedError: it has named one that does not exist, or more than there are.
        """
        stages = range(self.manifest.replicas.stages)
        if len(named) > len(stages):
            raise RefusedError(f"{len(named)} stages are more than this run has, which are {len(stages)}")
        for stage_index in named:
            if stage_index not in stages:
                raise RefusedError(f"there is no stage {stage_index}; this run's stages are 0 to {len(stages) - 1}")
        return set(named) or stages

    def _free_place(self, role: PlaceRole, choice: Collection[int]) -> Place:
        if role in ("observer", "gateway"):
            return Place(role, 0, 0)
        if role == "datacenter":
            return Place(role, 0, self._free_slot(role, 0))
        held = [place.stage for place in self.places.values() if place.role == "volunteer"]
        stage = min(choice, key=lambda each: (held.count(each), each))  # the earliest of equals
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
