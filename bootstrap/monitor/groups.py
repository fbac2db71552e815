"""The replicas that volunteers form, stage by stage. Pure."""

from collections.abc import Callable, Mapping

from bootstrap.monitor.peers import AWAY, Peer
from protocol.identity import PeerId
from protocol.view import GroupView


def group_views(peers: Mapping[PeerId, Peer], stages: int, compression: Callable[[Peer], int]) -> list[GroupView]:
    """The groups that volunteers say they are in: of two that claim one stage, the one that the leader names."""
    members: dict[str, list[str]] = {}
    for peer in peers.values():
        record = peer.record
        if record is None or record.role != "volunteer" or not peer.group or peer.state in AWAY:
            continue
        if record.stage < stages and PeerId(peer.group) in peers:
            seats = members.setdefault(peer.group, [""] * stages)
            named = peers[PeerId(peer.group)].members
            if not seats[record.stage] or peer.id in named:
                seats[record.stage] = peer.id
    return sorted(
        (_view(peers[PeerId(replica)], seats, compression) for replica, seats in members.items()),
        key=lambda each: (each.slot, each.replica),
    )


def _view(leader: Peer, seats: list[str], compression: Callable[[Peer], int]) -> GroupView:
    missing = [str(stage) for stage, peer in enumerate(seats) if not peer]
    broken = leader.broken or (f"nobody is at stage {', '.join(missing)}" if missing else "")
    return GroupView(
        replica=leader.id,
        slot=leader.record.slot if leader.record is not None else 0,
        members=seats,
        compression=compression(leader),
        broken=broken,
    )
