"""Reading the swarm off its records."""

from peer.swarm.view import all_at, authors, disagreement, free, replicas
from protocol.identity import EMBEDDING, PeerId, stage_part
from protocol.records import PeerRecord


def peer(name: str, role="volunteer", stage=0, replica="", round=0, digests=None) -> PeerRecord:
    fields = {"role": role, "stage": stage, "replica": replica, "round": round, "digests": digests or {}}
    return PeerRecord.model_validate({"peer_id": PeerId(name), "address": "h:1", "slot": 0} | fields)


LEADER = peer("a", replica="a")
MEMBER = peer("b", stage=1, replica="a")
DATACENTER = peer("d", role="datacenter", replica="d")
OBSERVER = peer("o", role="observer")
LONELY = peer("l", stage=1)
SWARM = (LEADER, MEMBER, DATACENTER, OBSERVER, LONELY)


def test_a_replica_is_known_by_its_leader():
    assert replicas(SWARM) == {"a", "d"}


def test_each_replica_has_one_author_of_each_part():
    assert authors(SWARM, stage_part(1)) == (MEMBER, DATACENTER)
    assert authors(SWARM, stage_part(0)) == (LEADER, DATACENTER)
    assert authors(SWARM, EMBEDDING) == (LEADER, DATACENTER)


def test_a_volunteer_without_a_group_is_free():
    assert free(SWARM, 1) == (LONELY,)


def test_the_run_is_over_when_everyone_in_a_replica_and_every_observer_is():
    done = tuple(each.model_copy(update={"round": 3}) for each in (LEADER, MEMBER, DATACENTER, OBSERVER))
    assert all_at((*done, LONELY), 3)
    assert not all_at((*done[:3], OBSERVER), 3)


def test_another_digest_after_the_same_round_is_a_disagreement():
    mine = peer("a", round=2, digests={"stage-0": "aa", "embedding": "ee"})
    same = peer("b", round=2, digests={"embedding": "ee", "stage-1": "bb"})
    later = peer("c", round=3, digests={"embedding": "ff"})
    other = peer("d", round=2, digests={"embedding": "00"})
    assert disagreement(mine, (same, later)) is None
    assert disagreement(mine, (same, other)) == (EMBEDDING, other)
