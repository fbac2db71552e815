"""The peers that a run has for its replicas: who is missing, which stage is short of volunteers, and which volunteers
should serve another stage. Pure: peers and the operator's node, which read the same records, come to the same."""

from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from protocol.identity import PeerId
from protocol.manifest_tables import Replicas
from protocol.trust.records import PeerRecord, Peers
from protocol.wording import numbers_named, so_many


def volunteers_by_stage(peers: Iterable[PeerRecord], stages: int) -> dict[int, int]:
    """The number of volunteers of each stage, also of one that nobody serves."""
    counts = Counter(peer.stage for peer in peers if peer.role == "volunteer")
    return {stage: counts[stage] for stage in range(stages)}


def missing_peers(peers: Peers, planned: Replicas) -> list[str]:
    """The peers that are missing for all replicas of a run, in words, and how many there are of how many: "1 datacenter
    (0 of 1)", "2 volunteers of stage 1 (0 of 2)"."""
    datacenters = sum(peer.role == "datacenter" for peer in peers)
    lacks = [_lack(planned.datacenters, datacenters, "datacenter")]
    for stage, count in volunteers_by_stage(peers, planned.stages).items():
        lacks.append(_lack(planned.groups, count, "volunteer", f" of stage {stage}"))
    return [words for words in lacks if words]


def _lack(planned: int, there: int, what: str, where: str = "") -> str:
    return f"{so_many(planned - there, what)}{where} ({there} of {planned})" if there < planned else ""


def stages_short(peers: Iterable[PeerRecord], stages: int) -> str:
    """Say at which of the `stages` volunteers are lacking for another group; empty: all stages have as many."""
    return uneven_stages(volunteers_by_stage(peers, stages))


def uneven_stages(counts: Mapping[int, int]) -> str:
    """Say which stages are short, by the number of volunteers at each; empty: none is."""
    fewest = min(counts.values())
    short = [stage for stage in counts if counts[stage] == fewest]
    if len(short) == len(counts):
        return ""
    have, group = so_many(fewest, "volunteer"), "another group" if fewest else "a group"
    if len(short) == 1:
        return f"stage {short[0]} is short: it has {have}, each other stage more; one more there makes {group}"
    lacking = f"stages {numbers_named(short)} are short: they have {have} each, the others more"
    return f"{lacking}; one more at each makes {group}"


def moves(peers: Peers, stages: int, without: Collection[PeerId] = (), anywhere: bool = False) -> dict[PeerId, int]:
    """The stage to which each volunteer should move, so that as many groups as possible can form; empty: no moves would
    make another group possible.

    Those move who are in no whole group, and have agreed to (`PeerRecord.moves_to`), or all of them where `anywhere`;
    but for those `without` whom it has to do. A stage gives only what it has beyond one volunteer for each group, so
    that no stage becomes short, and no move is followed by one back. Nobody moves to a stage whose state nobody holds.
    """
    volunteers = [peer for peer in peers if peer.role == "volunteer" and peer.stage < stages]
    counts = volunteers_by_stage(volunteers, stages)
    fewest, most = min(counts.values()), len(volunteers) // stages
    if fewest == most:
        return {}

    def choice(peer: PeerRecord) -> Collection[int]:
        return range(stages) if anywhere else peer.moves_to

    def order(peer: PeerRecord) -> tuple[int, bool, int, PeerId]:  # first who has least choice, and is least missed
        return len(choice(peer)), bool(peer.replica), peer.contributed, peer.peer_id

    stay, held = in_whole_groups(peers, stages).union(without), _held(peers, stages)
    movable = sorted((peer for peer in volunteers if peer.peer_id not in stay), key=order)

    def plan(groups: int) -> dict[PeerId, int] | None:
        """The moves after which so many groups are possible; None: there are none such."""
        spare, planned = {stage: counts[stage] - groups for stage in range(stages)}, dict[PeerId, int]()
        for stage in [stage for stage in held if spare[stage] < 0]:
            for peer in movable:
                able = peer.peer_id not in planned and spare[peer.stage] > 0 and stage in choice(peer)
                if able and spare[stage] < 0:
                    planned[peer.peer_id] = stage
                    spare[peer.stage], spare[stage] = spare[peer.stage] - 1, spare[stage] + 1
        return planned if min(spare.values()) >= 0 else None

    possible = bisect(range(fewest + 1, most + 1), False, key=lambda groups: plan(groups) is None)
    return plan(fewest + possible) or {}


def stage_in_need(peers: Peers, me: PeerRecord, stages: int) -> int | None:
    """The stage where the volunteer `me`, or another surplus one of its stage, would make another group possible; None:
    there is none such, or this peer is in a group."""
    if me.peer_id in in_whole_groups(peers, stages):
        return None
    own, at = moves(peers, stages).get(me.peer_id), {peer.peer_id: peer.stage for peer in peers}
    others = (stage for peer, stage in moves(peers, stages, anywhere=True).items() if at[peer] == me.stage)
    return own if own is not None else next(others, None)


def in_whole_groups(peers: Peers, stages: int) -> set[PeerId]:
    """The members of groups that have one for each stage, as they say themselves."""
    groups: dict[str, dict[PeerId, int]] = {}
    for peer in peers:
        if peer.role == "volunteer" and peer.replica:
            groups.setdefault(peer.replica, {})[peer.peer_id] = peer.stage
    return {peer for members in groups.values() if len({*members.values()}) == stages for peer in members}


def _held(peers: Peers, stages: int) -> list[int]:
    """The stages whose state somebody holds; all of them where there is none yet, as no round is over."""
    holders = [peer for peer in peers if max(peer.round, peer.contributed)]
    if any(peer.role != "volunteer" for peer in holders) or not any(peer.round for peer in peers):
        return list(range(stages))
    return sorted({peer.stage for peer in holders})
