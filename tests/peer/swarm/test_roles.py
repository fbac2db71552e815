"""Reading the swarm off its records."""

from peer.swarm.roles import all_at, authors, free_volunteers, may_lead, replicas, successors
from protocol.identity import EMBEDDING, PeerId, stage_part
from protocol.trust.records import PeerRecord


def peer(name: str, role="volunteer", stage=0, replica="", round=0, contributed=0, on_trial=False) -> PeerRecord:
    fields = {"role": role, "stage": stage, "replica": replica, "round": round, "contributed": contributed}
    fields["on_trial"] = on_trial
    return PeerRecord.model_validate({"peer_id": PeerId(name), "address": "h:1", "slot": 0} | fields)


LEADER = peer("a", replica="a")
MEMBER = peer("b", stage=1, replica="a")
DATACENTER = peer("d", role="datacenter", replica="d")
OBSERVER = peer("o", role="observer")
LONELY = peer("l", stage=1)
SWARM = (LEADER, MEMBER, DATACENTER, OBSERVER, LONELY)


def test_a_replica_is_known_by_its_leader():
    assert replicas(SWARM) == {"a", "d"}


def test_datacenters_and_volunteers_of_the_first_stage_may_lead():
    assert [peer for peer in SWARM if may_lead(peer)] == [LEADER, DATACENTER]


def test_each_replica_has_one_author_of_each_part():
    assert authors(SWARM, stage_part(1)) == (MEMBER, DATACENTER)
    assert authors(SWARM, stage_part(0)) == (LEADER, DATACENTER)
    assert authors(SWARM, EMBEDDING) == (LEADER, DATACENTER)


def test_nobody_waits_for_who_is_on_trial():
    newcomer = peer("n", role="datacenter", replica="n", on_trial=True)
    assert authors((*SWARM, newcomer), EMBEDDING) == (LEADER, DATACENTER)


def test_a_volunteer_without_a_group_is_free():
    assert free_volunteers(SWARM, 1) == (LONELY,)


def test_the_successor_of_a_leaver_is_who_took_its_seat_or_else_is_free():
    seated = peer("s", stage=1, replica="a")
    elsewhere = peer("e", stage=1, replica="x")
    others = (LEADER, DATACENTER, OBSERVER, LONELY, elsewhere, seated, peer("z", stage=0))
    assert successors(others, MEMBER) == (seated, LONELY)
    assert successors((LEADER, DATACENTER, elsewhere), MEMBER) == ()
    assert successors(others, peer("y", stage=1)) == (LONELY,)
    assert successors(others, MEMBER, for_good=True) == (seated, LONELY, elsewhere)


def test_the_run_is_over_when_everyone_is_done():
    done = tuple(each.model_copy(update={"round": 3}) for each in SWARM)
    assert all_at(done, 3)
    assert not all_at((*done[:3], OBSERVER), 3)
