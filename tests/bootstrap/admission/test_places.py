"""Places in a run."""

import pytest

from bootstrap.admission.places import ARRIVAL_SECONDS, Admission, Place
from protocol.errors import RefusedError
from protocol.identity import PeerId
from protocol.manifest import check_manifest
from protocol.trust.membership_card import Card
from protocol.trust.records import PeerRecord

MANIFEST = check_manifest({"model": {"preset": "nano"}, "replicas": {"groups": 2, "datacenters": 2, "stages": 2}})


def admission() -> Admission:
    return Admission(MANIFEST)


def admit(places: Admission, name: str, role="volunteer", stage=None, alive=(), now=0.0, servable=()) -> Place:
    return places.admit(PeerId(name), role, stage, {PeerId(each) for each in alive}, now, servable)


def test_volunteers_count_up_and_datacenters_down_so_that_arrival_does_not_matter():
    places = admission()
    assert admit(places, "dc", "datacenter").slot == 3
    assert admit(places, "v0", stage=0).slot == 0
    assert admit(places, "dc2", "datacenter").slot == 2
    assert admit(places, "v1", stage=0).slot == 1


def test_without_a_wish_a_volunteer_gets_the_scarcest_stage():
    places = admission()
    admit(places, "a", stage=0)
    assert [admit(places, name).stage for name in "bcd"] == [1, 0, 1]


def test_of_the_stages_that_a_volunteer_can_serve_it_gets_the_scarcest():
    places = Admission(check_manifest({"model": {"preset": "nano"}, "replicas": {"groups": 2, "stages": 3}}))
    admit(places, "a", stage=1)
    assert admit(places, "b", servable=[1]).stage == 1  # though nobody has another
    assert admit(places, "c", servable=[2, 1]).stage == 2
    assert admit(places, "d", servable=[1, 2, 1]).stage == 2
    assert admit(places, "e", servable=[]).stage == 0


def test_who_comes_back_keeps_its_place_unless_it_cannot_serve_that_any_longer():
    places = admission()
    assert admit(places, "a", servable=[1]) == Place("volunteer", 1, 0)
    assert admit(places, "a", servable=[0, 1]) == Place("volunteer", 1, 0)
    assert admit(places, "a") == Place("volunteer", 1, 0)
    assert admit(places, "a", servable=[0]) == Place("volunteer", 0, 0)


@pytest.mark.parametrize(
    ("servable", "words"),
    [
        ([2], "no stage 2; this run's stages are 0 to 1"),
        ([0, 2**32 - 1], "no stage 4294967295"),
        ([1] * 3, "3 stages are more than this run has, which are 2"),
        (range(10**6), "1000000 stages are more"),
    ],
)
def test_stages_that_a_run_has_not_are_refused_and_change_no_place(servable, words):
    places = admission()
    held = admit(places, "a", stage=1)
    for name in ("a", "b"):
        with pytest.raises(RefusedError, match=words):
            admit(places, name, servable=servable)
    assert places.places == {PeerId("a"): held}


def test_of_who_names_its_stage_and_of_who_holds_all_the_stages_that_it_can_serve_do_not_count():
    places = admission()
    assert admit(places, "a", stage=1, servable=[0]).stage == 1
    assert admit(places, "dc", "datacenter", servable=[1, 7]) == Place("datacenter", 0, 3)
    assert admit(places, "o", "observer", servable=[1, 7]) == Place("observer", 0, 0)


def test_whoever_asks_again_keeps_its_place():
    places = admission()
    first = admit(places, "a", stage=0)
    admit(places, "b", stage=0)
    assert admit(places, "a", stage=0) == first
    assert admit(places, "a") == first


def test_a_peer_may_change_its_stage():
    places = admission()
    admit(places, "a", stage=0)
    assert admit(places, "a", stage=1) == Place("volunteer", 1, 0)
    assert admit(places, "b", stage=0).slot == 0


def test_no_two_that_come_beside_the_first_replicas_have_one_slot():
    places = admission()
    volunteers = [admit(places, name, stage=0).slot for name in "abcd"]
    datacenters = [admit(places, name, "datacenter").slot for name in "wxyz"]
    assert volunteers == [0, 1, 4, 6]
    assert datacenters == [3, 2, 5, 7]


def test_a_stage_that_does_not_exist_is_named():
    with pytest.raises(RefusedError, match="no stage 2; this run's stages are 0 to 1"):
        admit(admission(), "a", stage=2)


def test_the_place_of_a_peer_that_never_arrived_is_given_away_in_time():
    places = admission()
    admit(places, "lost", stage=0)
    admit(places, "here", stage=0)
    assert admit(places, "early", stage=0, alive=["here"], now=ARRIVAL_SECONDS - 1).slot == 4
    assert admit(places, "new", stage=0, alive=["here", "early"], now=ARRIVAL_SECONDS + 1).slot == 0
    assert admit(places, "newer", stage=0, alive=["here", "early", "new"], now=ARRIVAL_SECONDS + 1).slot == 6


def test_observers_take_nobodys_place():
    places = admission()
    assert admit(places, "o", "observer") == Place("observer", 0, 0)
    assert admit(places, "dc", "datacenter").slot == 3


def test_who_shows_the_place_it_was_given_gets_it_again_though_nobody_here_remembers():
    places = admission()
    places.recall(Card(PeerId("a"), "volunteer", 1, 7), "volunteer", 0.0)
    assert admit(places, "a", now=2 * ARRIVAL_SECONDS, alive="a") == Place("volunteer", 1, 7)
    assert admit(places, "b", stage=1).slot != 7
    places.recall(Card(PeerId("a"), "volunteer", 0, 3), "volunteer", 2.0)
    assert admit(places, "a", now=3.0) == Place("volunteer", 1, 7)


def test_who_comes_back_when_its_slot_has_been_given_away_gets_another_and_keeps_its_stage():
    places = admission()
    for role, stage, slot, more in (("volunteer", 1, 0, 1), ("datacenter", 0, 3, 2)):
        admit(places, f"new {role}", role, stage=stage)
        places.recall(Card(PeerId(f"old {role}"), role, stage, slot), role, 0.0)
        assert admit(places, f"old {role}", role) == Place(role, stage, more)
    places.recall(Card(PeerId("o"), "observer", 0, 0), "observer", 0.0)
    assert admit(places, "o", "observer") == Place("observer", 0, 0)


@pytest.mark.parametrize(("role", "stage", "beside"), [("datacenter", 0, 2), ("volunteer", 1, 1)])
def test_of_two_that_two_nodes_gave_one_slot_the_higher_id_gets_another(role, stage, beside):
    places = admission()
    same = PeerRecord(peer_id=PeerId("Qm1"), address="h:1", role=role, stage=stage, slot=3 if stage == 0 else 0)
    for each in ("Qm1", "Qm2"):
        places.see(same.model_copy(update={"peer_id": each}), 0.0)
    both = ("Qm1", "Qm2")
    assert admit(places, "Qm1", role, stage, both).slot == same.slot
    assert admit(places, "Qm2", role, stage, ("Qm2",)).slot == same.slot  # the other is gone
    assert admit(places, "Qm2", role, stage, both).slot == beside
    assert admit(places, "Qm2", role, stage, both).slot == beside


def test_observers_read_nothing_and_all_have_one_slot():
    places = admission()
    assert {admit(places, name, "observer", alive="ab").slot for name in "abab"} == {0}
