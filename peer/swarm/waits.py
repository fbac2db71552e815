"""The waits of a peer as values (`Waiting`), one function for each occasion: what is missing, how much of it is here,
how much is needed, and what ends the wait. The words are for the peer's owner; `most_seconds` is the longest that a
wait lasts, from its beginning. Pure."""

from collections.abc import Collection, Iterable

from peer.swarm.departures import Departures
from peer.swarm.roles import free_volunteers, looking, replicas
from protocol.events.waiting import Spare, Waiting
from protocol.identity import Part, PeerId, stage_part
from protocol.manifest import Manifest
from protocol.outer.phases import RunView, lacking_parts, target
from protocol.outer.window import SKEW
from protocol.staffing import missing_peers, stage_in_need, volunteers_by_stage
from protocol.trust.records import PeerRecord, Peers, lost_states
from protocol.wording import LOST, lasting, parts_named, so_many, state_after, tails

MOST_NAMED = 8
"""The number of peers that a wait names; it counts all of them."""


def for_the_beginning(peers: Peers, manifest: Manifest) -> Waiting:
    """The wait of a peer for the run to begin: until all replicas of the manifest have formed, or `run.gather` seconds
    after the first has. It names what is missing: "1 datacenter (0 of 1) and 1 volunteer of stage 1 (1 of 2)"."""
    planned, formed = manifest.replicas, len(replicas(peers))
    lacking = " and ".join(missing_peers(peers, planned))
    what = lacking or f"the other copies of the model ({formed} of {planned.total} complete)"
    if planned.total == 1:
        return Waiting(lacking or "the stages to meet", "the run begins then", formed, 1)
    ends = f"all {planned.total} copies of the model are complete, or {lasting(manifest.run.gather)} after the first is"
    return Waiting(what, f"the run begins when {ends}", formed, planned.total)


def for_members(
    peers: Peers, me: PeerRecord, manifest: Manifest, begun: bool, missing: Collection[int], departures: Departures
) -> Waiting:
    """The wait of a peer, `me`, whose group has nobody at the `missing` stages: for volunteers of these; as a spare, if
    it is of the first stage and other groups have all of these; or for the beginning of a run that has not `begun`."""
    if not me.stage and (spare := _as_spare(peers, me, manifest, begun, departures)):
        return spare
    return _for_stages(peers, manifest, missing, me.round) if begun else for_the_beginning(peers, manifest)


def for_a_seat(peers: Peers, me: PeerRecord, manifest: Manifest, begun: bool, departures: Departures) -> Waiting:
    """The wait of a volunteer of a later stage without a group, `me`: as a spare, if others of its stage have all
    seats; for the beginning of a run that has not `begun`; for a stage that nobody serves; or else for a call of the
    stage before, which invites it into a group."""
    if spare := _as_spare(peers, me, manifest, begun, departures):
        return spare
    if not begun:
        return for_the_beginning(peers, manifest)
    nobody = [stage for stage, count in volunteers_by_stage(peers, manifest.replicas.stages).items() if not count]
    if nobody:
        return _for_stages(peers, manifest, nobody, me.round)
    before = me.stage - 1
    able = len(looking(peers, before))
    return Waiting(
        f"a group that has a volunteer of stage {before}", f"that one calls this peer; {able} look for one of its stage"
    )


def for_its_group(peers: Peers, me: PeerRecord, manifest: Manifest, begun: bool, first: PeerId) -> Waiting:
    """The wait of a member, `me`, of the group of the first stage `first`: for stages of the group that have nobody, or
    for a round to begin; or for the beginning of a run that has not `begun`."""
    if not begun:
        return for_the_beginning(peers, manifest)
    seated = {peer.stage for peer in peers if peer.replica == first} | {0, me.stage}
    if missing := [stage for stage in range(manifest.replicas.stages) if stage not in seated]:
        return _for_stages(peers, manifest, missing, me.round)
    return Waiting(f"peer {first[-8:]}, the first stage of its group", "it offers a round, or is found lost")


def for_a_member(member: PeerId, stage: int, round: int) -> Waiting:
    """The wait for the volunteer `member`, at another stage of the group, to be ready for a round. It may have to wait
    for others first."""
    return Waiting(f"peer {member[-8:]}, stage {stage} of its group", f"it is ready for round {round}", round=round)


def for_a_neighbour(peer: PeerId, stage: int, step: int) -> Waiting:
    """The wait of a stage for what its neighbour computes in inner step `step` (from 0), where that takes long."""
    what = f"what peer {peer[-8:]}, stage {stage} of its group, computes in step {step + 1}"
    return Waiting(what, "it comes, or has lasted too long")


def for_contributions(
    round: int,
    awaited: Collection[PeerId],
    missing: Collection[PeerId],
    least: int,
    most_seconds: float | None,
    brief: bool,
) -> Waiting:
    """The wait for contributions to a round, of a peer that has made its own or only follows the round. `awaited` are
    their authors, `missing` those of them whose contribution is not here, and `least` is how many the round needs.
    `most_seconds` is None before the round has a deadline, which it has once half of them are here. `brief`: the wait
    is of ordinary length so far, and is not logged."""
    by_whom = (
        f", of {_names(missing)}" if missing else ", of peers that are not here yet" if len(awaited) < least else ""
    )
    ends = "they come, or the round's deadline passes" if most_seconds is not None else "half of them are here"
    ends = ends if awaited else "somebody trains"
    arrived, needed = len(awaited) - len(missing), max(len(awaited), least)
    return Waiting(f"contributions to round {round}{by_whom}", ends, arrived, needed, most_seconds, round, brief)


def for_a_return(round: int, missing: Collection[PeerId], most_seconds: float, brief: bool) -> Waiting:
    """The wait with a round's end for the `missing`, which were in it or in the one before, and are in no replica now:
    they look for a group, or do not answer, and may be started again."""
    what = f"{_names(missing)} to be back in round {round}"
    return Waiting(
        what, "they contribute, or the time for that has passed", 0, len(missing), most_seconds, round, brief
    )


def for_a_lost_state(peers: Peers, manifest: Manifest) -> Waiting | None:
    """The wait of all peers for the newest state of stages whose volunteers lack it while no peer here holds it; None:
    there is no such stage."""
    last, stages = lost_states(peers, manifest.replicas.stages)
    return Waiting(state_after(last, parts_named(map(stage_part, stages))), LOST, 0, len(stages)) if stages else None


def for_the_newest_state(view: RunView) -> Waiting:
    """The wait of a peer with an old state for the run's newest: for peers here to send it; if none of them holds it,
    for one that brings it back; or, if this peer may hold it itself, for an answer that says so."""
    missing = lacking_parts(view)
    if missing:
        return Waiting(state_after(view.run, parts_named(missing)), LOST, 0, len(missing))
    if not view.confirmed:
        what = "an answer from the operator's node, or from a peer that trains: how far the run is"
        return Waiting(what, f"one of them is back; this peer has the state after round {view.finished}", 0, 1)
    return Waiting(
        f"the state after round {target(view)}", "peers that hold it give it, and this peer goes on from there"
    )


def for_another_holder(parts: Collection[Part], round: int, most_seconds: float) -> Waiting:
    """The wait of the only holder of some parts, which is to leave, for another to take their state."""
    what = f"another peer, or the operator's node, to take {state_after(round, parts_named(parts))}"
    ends = "only this peer holds it; Ctrl-C again leaves at once, and the run stands still until this peer is back"
    return Waiting(what, ends, 0, len(parts), most_seconds)


def for_somebody_who_trains(round: int) -> Waiting:
    """The wait of an observer while nobody trains whom it could follow in a round."""
    return Waiting("somebody who trains", "a replica forms; this peer follows it then", 0, 1, round=round)


def for_the_end(peers: Peers, missed: Collection[PeerId], rounds: int, most_seconds: float) -> Waiting:
    """The wait of a peer that has finished the last round, for others that have not, or that do not answer (`missed`);
    it gives them what they lack."""
    late = [peer.peer_id for peer in peers if peer.round < rounds]
    here, needed = len(peers) - len(late), len(peers) + len(missed)
    if late or missed:
        what, ends = f"the end of the run at {_names([*late, *missed])}", "they finish the last round, or are gone"
    else:
        what, ends = "the others to say that they hold the run's last state", "all hold the same"
    return Waiting(what, ends, here, needed, most_seconds)


def for_those_who_end(peers: Peers, most_seconds: float) -> Waiting:
    """The wait of a peer that has come late to the run's end, for those who still take contributions into the last
    state: before they are done, its state and theirs may differ."""
    names = _names(peer.peer_id for peer in peers if peer.ending)
    return Waiting(
        f"the run's last state to be settled by {names}", "they have, or are gone", most_seconds=most_seconds
    )


def for_word(peers: Peers) -> Waiting:
    """The wait of a peer that starts for others to say which round the run is at; silent peers are asked again."""
    names = _names(peer.peer_id for peer in peers)
    return Waiting(f"others to say how far the run is: {names}", "they answer, or have been asked often enough")


def for_hearers(peers: Peers, most_seconds: float) -> Waiting:
    """The wait of a leaving peer, for others to take its own contributions."""
    names = _names(peer.peer_id for peer in peers)
    return Waiting(f"others to take what this peer has made: {names}", "they have it", most_seconds=most_seconds)


def for_the_last_state(rounds: int, most_seconds: float | None) -> Waiting:
    """The wait of a peer that has missed the run's end, for somebody who holds the last state."""
    return Waiting(f"somebody who holds the state after round {rounds}, the last", "", 0, 1, most_seconds)


def for_the_node(address: str, reason: str, pause_seconds: float) -> Waiting:
    """The wait of a peer that has been in the run, for the operator's node to let it in again; `reason` says why it
    does not now, and `pause_seconds` is the longest pause before the peer asks again."""
    again = f"this peer asks again every {pause_seconds:.0f} s or sooner"
    return Waiting(f"an answer from the operator's node at {address}", f"{again}; {reason}", 0, 1)


def for_the_node_to_know(most_seconds: float) -> Waiting:
    """The wait of a peer that has finished the run, until the operator's node has heard that it is over."""
    return Waiting("the operator's node to know that the run is over", "it says so", 0, 1, most_seconds)


def for_the_node_to_take(most_seconds: float) -> Waiting:
    """The wait of a peer that has finished the run, until the operator's node holds its last state, too."""
    return Waiting("the operator's node to take the run's last state", "it says that it has it", 0, 1, most_seconds)


def _for_stages(peers: Peers, manifest: Manifest, missing: Collection[int], round: int) -> Waiting:
    """The wait for a volunteer of each `missing` stage: of a group, or of volunteers that could form one. Free
    volunteers that have not come to `round`, or near it, are counted as behind."""
    counts, stages = volunteers_by_stage(peers, manifest.replicas.stages), manifest.replicas.stages
    needs = []
    for stage in sorted(missing):
        free = free_volunteers(peers, stage)
        lagging = sum(peer.round + SKEW < round for peer in free)
        of_them = f", {lagging} of them rounds behind" if lagging else ""
        volunteer = f"a free volunteer of stage {stage} ({counts[stage]} there, {len(free)} free{of_them})"
        needs.append(f"an answer of {volunteer}" if free else volunteer)
    return Waiting(" and ".join(needs), "a group needs one of each stage", stages - len(missing), stages)


def surplus_of(stage: int, short: int) -> str:
    """Say that a stage has too many volunteers, and another one too few."""
    return f"stage {stage} has more volunteers than groups can use, and stage {short} is short"


def _as_spare(peers: Peers, me: PeerRecord, manifest: Manifest, begun: bool, departures: Departures) -> Spare | None:
    """The wait of a volunteer without a group, `me`, as a spare; None: it is not a spare. It is one if others have all
    seats of its stage, or if the run has `begun` and another stage is short of volunteers. A stage has as many seats as
    groups can form, by the run's plan and by the volunteers of the scarcest other stage. `departures` say how soon one
    may become free."""
    counts, groups = volunteers_by_stage(peers, manifest.replicas.stages), manifest.replicas.groups
    others = {stage: count for stage, count in counts.items() if stage != me.stage}
    scarce = min(others, key=lambda stage: others[stage]) if others else me.stage
    seats = min(groups, counts[scarce])
    seated = sum(
        peer.role == "volunteer" and peer.stage == me.stage and bool(peer.replica) and peer.peer_id != me.peer_id
        for peer in peers
    )
    short = stage_in_need(peers, me, manifest.replicas.stages)
    all_seats_taken, other_stage_is_short = 0 < seats <= seated, begun and short is not None
    if not (all_seats_taken or other_stage_is_short):
        return None
    needed = min(groups, counts[me.stage])
    if short is not None:
        unable = (
            "that one does not fit this machine" if me.moves_to else "`hetpeer join` without --stage would move there"
        )
        moving = "this peer moves there if that lasts" if short in me.moves_to else unable
        why = f"{surplus_of(me.stage, short)}: {moving}"
    elif counts[scarce] < needed:
        why = f"stage {scarce} has {so_many(counts[scarce], 'volunteer')}, {needed} are needed"
    else:
        outlook = departures.outlook(max(1, counts[me.stage] - seated), manifest.outer.rounds - me.round)
        why = f"every group is complete, and it takes the next free seat of stage {me.stage}; {outlook}"
    return Spare("a seat in a group; this peer is a spare", why, seated, seated + 1)


def _names(peers: Iterable[PeerId]) -> str:
    names = sorted(peers)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return tails(names[:MOST_NAMED]) + more
