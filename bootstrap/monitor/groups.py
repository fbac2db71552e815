"""The replicas that volunteers form, stage by stage. Pure."""

from collections.abc import Callable, Mapping

from bootstrap.monitor.peers import AWAY, Peer
from protocol.identity import PeerId
from protocol.monitor.view import GroupView


def group_views(peers: Mapping[PeerId, Peer], stages: int, compression: Callable[[Peer], int]) -> list[GroupView]:
    """The groups that volunteers say they are in: of two that claim one stage, the one that the leader names. And those
    that broke, with whom they had, until their members are in others."""
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
    broken: dict[str, str] = {}
    for peer in peers.values():
        if peer.broken and peer.members and not peer.group and peer.state not in AWAY:
            replica = peer.members[0]
            if PeerId(replica) in peers and replica not in members:
                members[replica] = _left(peer.members, replica, peers, stages)
                broken[replica] = peer.broken
    return sorted(
        (_view(peers[PeerId(each)], seats, broken.get(each, ""), compression) for each, seats in members.items()),
        key=lambda each: (each.slot, each.replica),
    )


def _left(members: list[str], replica: str, peers: Mapping[PeerId, Peer], stages: int) -> list[str]:
    """Of a broken group's members, by stage: those that are in no other."""
    known = [each if (peer := peers.get(PeerId(each))) and peer.group in ("", replica) else "" for each in members]
    return [*known, *[""] * stages][:stages]


def _view(leader: Peer, seats: list[str], broken: str, compression: Callable[[Peer], int]) -> GroupView:
    missing = [str(stage) for stage, peer in enumerate(seats) if not peer]
    broken = broken or leader.broken or (f"nobody is at stage {', '.join(missing)}" if missing else "")
    return GroupView(
        replica=leader.id,
        slot=leader.record.slot if leader.record is not None else 0,
        members=seats,
        compression=compression(leader),
        broken=broken,
    )
