"""Who is missing for a run's replicas, and which stage is short. Moves are in `tests/peer/swarm/test_surplus.py`."""

from itertools import count

from protocol.identity import PeerId
from protocol.staffing import missing_peers, stages_short
from protocol.trust.records import PeerRecord
from tests.reference.small_manifest import small_manifest

PLANNED = small_manifest(model={"layers": 2}, replicas={"groups": 2, "datacenters": 1, "stages": 2}).replicas
NUMBERS = count()


def peer(role: str, stage: int = 0) -> PeerRecord:
    name = PeerId(f"Peer{next(NUMBERS)}")
    return PeerRecord(peer_id=name, address="192.0.2.1:1", role=role, stage=stage, slot=0)  # type: ignore[arg-type]


def test_who_is_missing_is_said_with_how_many_there_are():
    there = (peer("volunteer"), peer("volunteer", 1), peer("volunteer"), peer("observer"))
    assert missing_peers(there, PLANNED) == ["1 datacenter (0 of 1)", "1 volunteer of stage 1 (1 of 2)"]
    there += (peer("volunteer", 1),)
    assert missing_peers(there, PLANNED) == ["1 datacenter (0 of 1)"]
    assert missing_peers((*there, peer("datacenter")), PLANNED) == []
    volunteers = [f"2 volunteers of stage {stage} (0 of 2)" for stage in (0, 1)]
    assert missing_peers((), PLANNED) == ["1 datacenter (0 of 1)", *volunteers]


def test_of_several_stages_that_are_short_each_needs_one_more():
    peers = [peer("volunteer", stage) for stage in (0, 0, 1, 2, 2)]
    assert stages_short(peers, 4) == (
        "stage 3 is short: it has 0 volunteers, each other stage more; one more there makes a group"
    )
    assert stages_short(peers, 3).startswith("stage 1 is short: it has 1 volunteer, ")
    assert stages_short(peers[1:], 3) == (
        "stages 0 and 1 are short: they have 1 volunteer each, the others more; one more at each makes another group"
    )
    assert stages_short(peers[1:4], 3) == ""
    assert stages_short([], 3) == ""
