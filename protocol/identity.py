"""The names of things: runs, peers, replicas, parts of the model and who contributes to them, contributions."""

from dataclasses import dataclass
from typing import NewType

PeerId = NewType("PeerId", str)
NO_PEER = PeerId("")
"""A peer's libp2p identity in base58, the hash of its public key; `NO_PEER` where there is no peer."""

RunId = NewType("RunId", str)
"""Hex SHA-256 of the run's descriptor, which pins every file of the run."""

ReplicaId = NewType("ReplicaId", str)
"""The peer id that a replica is named for: that of stage 0 of a replica group, or of the datacenter itself."""

Part = NewType("Part", str)
"""A piece of the model that one contribution covers: `stage-0`, `stage-1`, …, or `embedding`, which all stages follow.
"""

EMBEDDING = Part("embedding")


def stage_part(stage: int) -> Part:
    """The part that holds the layers of one stage (and, for the last, the norm and the head)."""
    return Part(f"stage-{stage}")


def parts_authored(stage: int) -> list[Part]:
    """The parts to which a volunteer of this stage contributes: stage 0 also trains the embedding."""
    return [EMBEDDING, stage_part(0)] if stage == 0 else [stage_part(stage)]


def contributes_to(role: str, stage: int, part: str) -> bool:
    """Whether a peer of this role and stage makes contributions to a part."""
    return role == "datacenter" or (role == "volunteer" and part in parts_authored(stage))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A peer or a node, and the HOST:PORT at which it is called."""

    peer_id: PeerId
    address: str


@dataclass(frozen=True, slots=True, order=True)
class ContributionName:
    """One author's Δ̂ of one part in one round. An author signs, so nobody can speak in its name."""

    part: Part
    round: int
    author: PeerId

    def __str__(self) -> str:
        return f"{self.part} of round {self.round} by {self.author[-8:]}"
