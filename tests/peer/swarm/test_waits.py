"""What a peer waits for, in words and numbers."""

from typing import Any

import pytest

from peer.swarm import waits
from peer.swarm.departures import Departures
from protocol.events.lines import row_of
from protocol.events.waiting import MEANWHILE, Spare
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.outer.phases import RunPhase
from protocol.trust.records import PeerRecord, Peers
from tests.reference.small_manifest import small_manifest


def peer(name: str, role: str = "volunteer", stage: int = 0, replica: str = "", round: int = 0) -> PeerRecord:
    fields = {"role": role, "stage": stage, "replica": replica, "round": round}
    return PeerRecord.model_validate({"peer_id": PeerId(name), "address": "h:1", "slot": 0} | fields)


def planned(stages: int = 2, groups: int = 2, datacenters: int = 1) -> Manifest:
    replicas: dict[str, Any] = {"stages": stages, "groups": groups, "datacenters": datacenters}
    return small_manifest(model={"layers": stages}, replicas=replicas)


ONE_GROUP = peer("a", replica="a"), peer("b", stage=1, replica="a")
SPARE = peer("c", stage=1)


def test_the_beginning_names_the_replicas_that_are_missing():
    wait = waits.for_the_beginning((*ONE_GROUP, peer("c")), planned())
    assert wait.words == (
        "Waits for 1 datacenter (0 of 1) and 1 volunteer of stage 1 (1 of 2): "
        "the run begins when all 3 copies of the model are complete, or 60 s after the first is"
    )
    assert (wait.here, wait.needed, wait.most_seconds) == (1, 3, None)


def test_the_beginning_waits_for_groups_to_form_where_nobody_is_missing():
    wait = waits.for_the_beginning((peer("a"), peer("b", stage=1)), planned(groups=1, datacenters=0))
    assert wait.words == "Waits for the stages to meet: the run begins then"
    assert waits.for_the_beginning((), planned(datacenters=0)).what == (
        "2 volunteers of stage 0 (0 of 2) and 2 volunteers of stage 1 (0 of 2)"
    )


def test_a_volunteer_without_a_group_is_a_spare_where_another_stage_is_short():
    swarm = *ONE_GROUP, SPARE
    wait = waits.for_a_seat(swarm, SPARE, planned(), True, Departures())
    assert wait.words == "Waits for a seat in a group; this peer is a spare: stage 0 has 1 volunteer, 2 are needed"


def test_a_first_stage_is_a_spare_where_others_have_all_members():
    me = peer("c")
    wait = waits.for_members((*ONE_GROUP, me), me, planned(), True, [1], Departures())
    assert wait.words == "Waits for a seat in a group; this peer is a spare: stage 1 has 1 volunteer, 2 are needed"


SHORT = "stage 0 has more volunteers than groups can use, and stage 1 is short"


@pytest.mark.parametrize(
    ("moves_to", "then"),
    [
        ([], "`hetpeer join` without --stage would move there"),
        ([1], "this peer moves there if that lasts"),
        ([2], "that one does not fit this machine"),
    ],
)
def test_a_surplus_volunteer_is_told_which_stage_is_short_and_what_to_do(moves_to: list[int], then: str):
    me = peer("c").model_copy(update={"moves_to": moves_to})
    swarm = *ONE_GROUP, me, peer("d")
    wait = waits.for_members(swarm, me, planned(), True, [1], Departures())
    assert wait.words == f"Waits for a seat in a group; this peer is a spare: {SHORT}: {then}"
    later = *ONE_GROUP[:1], peer("c", stage=1), peer("d", stage=1), peer("e", stage=1)
    assert (
        SHORT.replace("0", "x").replace("1", "0").replace("x", "1")
        in waits.for_a_seat(later, later[1], planned(), True, Departures()).until
    )


def test_where_a_stage_has_nobody_a_surplus_volunteer_is_told_once_the_run_has_begun():
    me = peer("c")
    swarm = me, peer("d")
    assert SHORT in waits.for_members(swarm, me, planned(), True, [1], Departures()).until
    assert "the run begins" in waits.for_members(swarm, me, planned(), False, [1], Departures()).until


@pytest.mark.parametrize("begun", [True, False])
def test_a_volunteer_is_a_spare_where_every_group_is_complete(begun: bool):
    wait = waits.for_a_seat((*ONE_GROUP, SPARE), SPARE, planned(groups=1), begun, Departures())
    assert wait.what == "a seat in a group; this peer is a spare"
    assert wait.until == (
        "every group is complete, and it takes the next free seat of stage 1; nobody else waits; how often a seat "
        "becomes free is not known yet"
    )
    assert isinstance(wait, Spare)
    assert wait.lasting_words == f"Spare: {wait.until}. {MEANWHILE}"
    assert row_of(wait)["event"] == "Waiting"


def test_a_volunteer_that_can_still_be_called_is_no_spare():
    swarm = peer("a"), peer("b", stage=1)
    wait = waits.for_a_seat(swarm, swarm[1], planned(groups=1), True, Departures())
    assert wait.words == (
        "Waits for a group that has a volunteer of stage 0: that one calls this peer; 1 look for one of its stage"
    )


def test_a_volunteer_of_a_later_stage_waits_for_a_group_that_has_the_one_before_it():
    me = peer("c", stage=2)
    swarm = peer("a"), peer("b", stage=1), me
    wait = waits.for_a_seat(swarm, me, planned(stages=3, groups=1), True, Departures())
    assert wait.what == "a group that has a volunteer of stage 1"
    assert wait.until == "that one calls this peer; 0 look for one of its stage"
    grown = peer("a"), peer("b", stage=1, replica="a"), me
    wait = waits.for_a_seat(grown, me, planned(stages=3, groups=1), True, Departures())
    assert wait.until == "that one calls this peer; 1 look for one of its stage"


def test_a_stage_that_nobody_serves_is_named_to_who_has_no_group():
    me = peer("b", stage=1)
    wait = waits.for_a_seat((me, peer("c", stage=2)), me, planned(stages=3, groups=1), True, Departures())
    assert wait.words == "Waits for a free volunteer of stage 0 (0 there, 0 free): a group needs one of each stage"
    assert (wait.here, wait.needed) == (2, 3)


def test_before_the_run_begins_all_wait_for_its_beginning():
    swarm, manifest = (peer("a"), peer("b", stage=1)), planned(groups=1)
    beginning = waits.for_the_beginning(swarm, manifest)
    assert waits.for_members(swarm, swarm[0], manifest, False, [1], Departures()) == beginning
    assert waits.for_a_seat(swarm, swarm[1], manifest, False, Departures()) == beginning
    assert waits.for_its_group(swarm, swarm[1], manifest, False, PeerId("a")) == beginning


def test_a_first_stage_waits_for_the_stages_of_its_group_that_have_nobody():
    me, other = peer("a"), peer("b", stage=1)
    wait = waits.for_members(
        (me, other, peer("c", stage=2)), me, planned(stages=3, groups=1), True, [1, 2], Departures()
    )
    assert (
        wait.what == "an answer of a free volunteer of stage 1 (1 there, 1 free) "
        "and an answer of a free volunteer of stage 2 (1 there, 1 free)"
    )
    assert (wait.here, wait.needed) == (1, 3)


def test_a_middle_stage_waits_for_those_behind_it_and_is_no_spare_though_others_are():
    me = peer("b", stage=1, replica="a")
    swarm = peer("a"), me, peer("c", stage=2), peer("d", stage=1)
    wait = waits.for_members(swarm, me, planned(stages=3, groups=1), True, [2], Departures())
    assert wait.words == (
        "Waits for an answer of a free volunteer of stage 2 (1 there, 1 free): a group needs one of each stage"
    )
    assert (wait.here, wait.needed) == (2, 3)


def test_a_member_waits_for_a_stage_of_its_group_or_for_its_first_stage():
    me = peer("b", stage=1, replica="QmFirst-a")
    swarm: Peers = (peer("QmFirst-a"), me)
    wait = waits.for_its_group(swarm, me, planned(stages=3, groups=1), True, PeerId("QmFirst-a"))
    assert wait.what == "a free volunteer of stage 2 (0 there, 0 free)"
    wait = waits.for_its_group(swarm, me, planned(groups=1), True, PeerId("QmFirst-a"))
    assert wait.words == ("Waits for peer mFirst-a, the first stage of its group: it offers a round, or is found lost")


def names(*peers: str) -> frozenset[PeerId]:
    return frozenset(map(PeerId, peers))


def test_a_stage_waits_for_a_member_by_name_and_stage():
    wait = waits.for_a_member(PeerId("x" * 30 + "member-1"), 2, 7)
    assert wait.words == "Waits for peer member-1, stage 2 of its group: it is ready for round 7"
    assert wait.round == 7


def test_contributions_are_waited_for_by_name_and_until_the_deadline_where_there_is_one():
    wait = waits.for_contributions(3, names("QmAAAAAAAA1", "b", "c"), names("QmAAAAAAAA1", "b"), 1, None, False)
    assert wait.words == "Waits for contributions to round 3, of AAAAAAA1, b: half of them are here"
    assert (wait.here, wait.needed, wait.round) == (1, 3, 3)
    wait = waits.for_contributions(3, names("a", "b"), names("a"), 1, 12.0, True)
    assert (wait.until, wait.most_seconds) == ("they come, or the round's deadline passes", 12.0)
    assert wait.words is None
    crowd = names(*map(str, range(20)))
    assert waits.for_contributions(3, crowd, crowd, 1, None, False).what.endswith("14, 15 and 12 more")


def test_who_may_be_back_in_a_round_is_waited_for_by_name_and_for_so_long():
    wait = waits.for_a_return(3, names("QmAAAAAAAA1", "b"), 20.0, False)
    assert wait.words == "Waits for AAAAAAA1, b to be back in round 3: they contribute, or the time for that has passed"
    assert (wait.here, wait.needed, wait.most_seconds, wait.round) == (0, 2, 20.0, 3)


def test_contributions_of_peers_that_nobody_knows_yet_are_waited_for_too():
    assert waits.for_contributions(1, names("a"), names(), 2, None, True).waits_for == (
        "contributions to round 1, of peers that are not here yet: half of them are here"
    )
    assert waits.for_contributions(2, (), (), 1, None, True).until == "somebody trains"


def test_the_end_of_the_run_is_waited_for_at_who_is_late_or_does_not_answer_and_not_for_ever():
    wait = waits.for_the_end((peer("a", round=4), peer("b", round=3)), [PeerId("c")], 4, 60.0)
    assert wait.words == "Waits for the end of the run at b, c: they finish the last round, or are gone"
    assert (wait.here, wait.needed, wait.most_seconds) == (1, 3, 60.0)
    same = waits.for_the_end((peer("a", round=4),), [], 4, 60.0)
    assert same.what == "the others to say that they hold the run's last state"
    assert waits.for_the_last_state(4, 5.0).words == "Waits for somebody who holds the state after round 4, the last"


def test_an_observer_waits_for_somebody_who_trains():
    assert waits.for_somebody_who_trains(2).waits_for == (
        "somebody who trains: a replica forms; this peer follows it then"
    )


def test_who_cannot_come_back_waits_for_the_node_and_says_how_often_it_asks():
    assert waits.for_the_node("h:1", "no answer from h:1", 30.0).words == (
        "Waits for an answer from the operator's node at h:1: "
        "this peer asks again every 30 s or sooner; no answer from h:1"
    )


def test_a_state_is_lost_where_who_serves_its_stage_came_too_late_and_nobody_else_holds_it():
    awaiting = {"phase": RunPhase.AWAITING_STATE}
    late, ahead = peer("late").model_copy(update=awaiting), peer("ahead", stage=1, round=3)
    lost = waits.for_a_lost_state((late, ahead), planned())
    assert lost is not None
    assert lost.words == (
        "Waits for the state of stage 0 after round 3: nobody who is here holds it; a peer that has it in its folder "
        "can bring it back, or the run's operator can go on without it: `hetpeer admin rewind`"
    )
    for holder in (peer("a round behind", round=2), peer("there", round=3), peer("observer", "observer", round=3)):
        assert waits.for_a_lost_state((late, ahead, holder), planned()) is None
    for other in (peer("fetching").model_copy(update={"phase": RunPhase.CATCHING_UP}), late):
        assert waits.for_a_lost_state((late, ahead, other), planned()) is not None
    assert waits.for_a_lost_state((ahead,), planned()) is None  # nobody serves stage 0: who comes may have it
    whole = peer("datacenter", "datacenter").model_copy(update=awaiting)
    lost = waits.for_a_lost_state((whole,), planned())
    assert lost is not None
    assert lost.what == "the state of stage 0 and stage 1 after round 0"
    alone = peer("alone", round=18).model_copy(update=awaiting | {"awaits": 21})
    lost = waits.for_a_lost_state((alone,), planned())
    assert lost is not None
    assert lost.what == "the state of stage 0 after round 21"


def test_a_holder_that_is_rounds_behind_is_none_and_said_to_be_behind():
    far, last = peer("far", stage=1, round=5), peer("first", replica="first", round=40)
    lost = waits.for_a_lost_state((far, last), planned())
    assert lost is not None
    assert lost.what == "the state of stage 1 after round 40"
    assert waits.for_a_lost_state((far, last, peer("center", "datacenter", round=40)), planned()) is None
    named = waits.for_members(
        (far, last, peer("center", "datacenter", round=40)), last, planned(groups=1), True, [1], Departures()
    )
    assert named.what == "an answer of a free volunteer of stage 1 (1 there, 1 free, 1 of them rounds behind)"


def test_a_step_that_takes_long_names_whom_it_waits_for_and_a_farewell_those_who_hear_it():
    assert waits.for_a_neighbour(PeerId("the-slow1"), 2, 0).waits_for == (
        "what peer he-slow1, stage 2 of its group, computes in step 1: it comes, or has lasted too long"
    )
    wait = waits.for_hearers((peer("b"), peer("a")), 30.0)
    assert (wait.what, wait.most_seconds) == ("others to take what this peer has made: a, b", 30.0)
    assert waits.for_word((peer("b"), peer("a"))).what == "others to say how far the run is: a, b"


def test_who_comes_late_to_the_end_names_those_who_still_settle_it():
    ending = peer("b", round=3).model_copy(update={"ending": True})
    wait = waits.for_those_who_end((peer("a", round=3), ending), 60.0)
    assert (wait.what, wait.most_seconds) == ("the run's last state to be settled by b", 60.0)
