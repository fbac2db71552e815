"""The assignment of places in the run: role, stage and slot. Pure: the clock and the live peers are arguments."""

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
    """A place in the run. A replica reads the text of the `slot` of the peer that leads it
    (`protocol/outer/data_plan.py`), so no two peers of one role and stage have the same slot, and no volunteer has a
    datacenter's. Observers and gateways have slot 0, and read none."""

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
    """The time at which each holder of a place was admitted or seen last, on the clock of `now`."""

    def see(self, record: PeerRecord, now: float) -> None:
        """Note a live peer by its record. If another node of the run admitted it, its place is taken from the
        record."""
        self.places.setdefault(record.peer_id, Place(record.role, record.stage, record.slot))
        self.since[record.peer_id] = now

    def recall(self, card: Card, role: PlaceRole, now: float) -> None:
        """Restore the place on a peer's `card`, given by this node before a restart or by another node of the run. If
        another peer has its slot by now, it gets the next free one."""
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
        """Return a place for `peer`: the one that it holds, unless another peer holds the same; else a free one. A
        volunteer names its `stage`; or, with None, gets the stage with the fewest volunteers among its `servable` ones
        (none named: among all). Places of peers that are not `alive` are freed after `ARRIVAL_SECONDS`.

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
        """Whether a live peer with a lower id holds the same place, as two nodes of the run gave it to both. The lower
        id keeps it."""
        held = self.places.get(peer)
        if held is None or held.role not in ("volunteer", "datacenter"):
            return False
        return any(other < peer and self.places.get(other) == held for other in alive)

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
        stage = min(choice, key=lambda candidate: (held.count(candidate), candidate))  # the earliest of equals
        return Place(role, stage, self._free_slot(role, stage))

    def _free_slot(self, role: PlaceRole, stage: int, *wanted: int) -> int:
        """Return the first free slot of a role at a stage: the `wanted` one; else one of the manifest's; else an extra
        one, from `replicas.total` up, where volunteers and datacenters take every second number each."""
        replicas = self.manifest.replicas
        groups, datacenters = range(replicas.groups), range(replicas.total - 1, replicas.groups - 1, -1)
        taken = {place.slot for place in self.places.values() if (place.role, place.stage) == (role, stage)}
        extra = count(replicas.total + (role == "datacenter"), 2)  # shared by no two kinds
        planned = groups if role == "volunteer" else datacenters
        return next(slot for slot in chain(wanted, planned, extra) if slot not in taken)
