"""What this peer knows of the swarm, read off checked records. Pure."""

from protocol.identity import Part, ReplicaId
from protocol.layout import parts_authored
from protocol.trust.records import PeerRecord, Peers


def replicas(peers: Peers) -> frozenset[ReplicaId]:
    """Every replica that has formed."""
    return frozenset(ReplicaId(peer.peer_id) for peer in peers if peer.leads)


def authors(peers: Peers, part: Part) -> Peers:
    """Peers that make contributions to a part that count, one of each replica."""
    return tuple(peer for peer in peers if peer.replica and writes(peer, part) and not peer.on_trial)


def writes(peer: PeerRecord, part: Part) -> bool:
    """Whether a peer of this role and stage makes contributions to a part."""
    if peer.role == "volunteer":
        return part in parts_authored(peer.stage)
    return peer.role == "datacenter"


def free(peers: Peers, stage: int) -> Peers:
    """Volunteers of a stage that are in no group."""
    return tuple(peer for peer in peers if peer.role == "volunteer" and peer.stage == stage and not peer.replica)


def heirs(peers: Peers, me: PeerRecord) -> Peers:
    """Who can take over from a volunteer that leaves: whoever has taken its place in its group, then those in none."""
    same = [peer for peer in peers if peer.role == "volunteer" and peer.stage == me.stage]
    seated = [peer for peer in same if peer.replica and peer.replica == me.replica]
    return (*seated, *(peer for peer in same if not peer.replica))


def all_at(peers: Peers, round: int) -> bool:
    """Whether every peer has finished this round."""
    return all(peer.round >= round for peer in peers)
