"""The roles in the swarm, read off checked records. Pure."""

from protocol.identity import Part, ReplicaId, contributes_to
from protocol.trust.records import PeerRecord, Peers, holds_newest


def replicas(peers: Peers) -> frozenset[ReplicaId]:
    """Every replica that has formed."""
    return frozenset(ReplicaId(peer.peer_id) for peer in peers if peer.leads)


def may_lead(peer: PeerRecord) -> bool:
    """Whether a peer can lead a replica through a round: a datacenter its own, a volunteer of stage 0 a group."""
    return peer.role == "datacenter" or (peer.role == "volunteer" and peer.stage == 0)


def authors(peers: Peers, part: Part) -> Peers:
    """Peers that make contributions to a part that count, one of each replica."""
    return tuple(
        peer for peer in peers if peer.replica and not peer.on_trial and contributes_to(peer.role, peer.stage, part)
    )


def free_volunteers(peers: Peers, stage: int) -> Peers:
    """Volunteers of a stage that are in no group, and hold the newest state of it."""
    there = (peer for peer in peers if peer.role == "volunteer" and peer.stage == stage)
    return tuple(peer for peer in there if not peer.replica and holds_newest(peer))


def looking(peers: Peers, stage: int) -> Peers:
    """The volunteers of a stage that look for one of the stage behind theirs: those in groups that have nobody there,
    and of the first stage those in none."""
    there = [peer for peer in peers if peer.role == "volunteer"]
    led = {peer.replica for peer in there if peer.replica and peer.stage == stage + 1}
    at_it = (peer for peer in there if peer.stage == stage and (peer.replica or not stage))
    return tuple(peer for peer in at_it if (peer.replica or peer.peer_id) not in led)


def successors(peers: Peers, me: PeerRecord, for_good: bool = False) -> Peers:
    """Return the peers that can take over from a volunteer that leaves: the one that has taken its place in its group,
    then those in no group, and where it leaves its stage `for_good`, then all others of the stage."""
    same = [peer for peer in peers if peer.role == "volunteer" and peer.stage == me.stage]
    seated = [peer for peer in same if peer.replica and peer.replica == me.replica]
    unseated = [peer for peer in same if not peer.replica]
    return (*seated, *unseated, *(peer for peer in same if for_good and peer not in seated + unseated))


def all_at(peers: Peers, round: int) -> bool:
    """Whether every peer has finished this round."""
    return all(peer.round >= round for peer in peers)
