"""Places in a run."""

import pytest

from bootstrap.admission.places import ARRIVAL_SECONDS, Admission, Place
from protocol.errors import RefusedError
from protocol.identity import PeerId
from protocol.manifest import check_manifest
from protocol.trust.membership_card import Card

MANIFEST = check_manifest({"model": {"preset": "nano"}, "replicas": {"groups": 2, "datacenters": 2, "stages": 2}})


def admission() -> Admission:
    return Admission(MANIFEST)


def admit(places: Admission, name: str, role="volunteer", stage=None, alive=(), now=0.0) -> Place:
    return places.admit(PeerId(name), role, stage, {PeerId(each) for each in alive}, now)


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
