"""Real processes that leave, are killed, cut off, and come back: one state at the end, and nothing done twice."""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.telemetry.decisions import Waiting
from peer.telemetry.events import Contributed, Finished, GroupFormed, HandedOver, Inherited, Joined, StepDone
from peer.testnet import namespaces
from tests.reference.processes import Outcome, Peer, completed_swarm, serving

needs_namespaces = pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")


def churned(directory: Path, chaos: str, *more: str) -> Outcome:
    """A testnet with faults that ran to its end."""
    return completed_swarm(directory, "--inner-steps", "8", "--no-compare", "--chaos", chaos, *more)


def test_a_member_a_leader_and_a_datacenter_die_and_come_back(tmp_path: Path):
    chaos = "kill:stage=1@round=2.3+1s,kill:group=1/stage=0@round=4.4+1s,kill:datacenter=0@round=6.2+1s"
    outcome = churned(tmp_path, chaos, "--rounds", "9")
    assert outcome.report["chaos"]["rounds_completed"] == 9
    assert outcome.report["chaos"]["digests_equal"]
    assert outcome.said("GroupBroken")
    assert len(outcome.said("Resumed")) == 3
    assert not outcome.said("Resynchronised")
    names = {(line["process"], line["round"]) for line in outcome.said("Contributed")}
    assert len(names) == len(outcome.said("Contributed"))  # nobody contributes to a round twice


def test_two_groups_that_lose_their_leaders_in_one_round_go_on_where_they_were(tmp_path: Path):
    chaos = "kill:group=0/stage=0@round=2.3+1s,kill:group=1/stage=0@round=2.3+1s"
    outcome = churned(tmp_path, chaos, "--rounds", "2", "--inner-steps", "100")  # they are back before the round ends
    assert outcome.report["chaos"]["rounds_completed"] == 2
    assert outcome.report["chaos"]["digests_equal"]
    for broken in outcome.said("GroupBroken"):
        after = [line for line in outcome.said("StepDone", broken["process"]) if line["at"] > broken["at"]]
        assert after[0]["round"] == broken["round"] == 2
        assert after[0]["step"] >= broken["step"]


def test_everything_killed_at_once_goes_on_with_the_digests_it_had(tmp_path: Path):
    outcome = churned(tmp_path, "kill:all@round=4.4+1s", "--rounds", "6", "--overlap")
    assert outcome.report["chaos"]["digests_equal"]
    resumed = [line["round"] for line in outcome.said("Resumed")]
    assert len(resumed) >= 5
    # Contributed to round 3, which had been finished, or was about to be; with overlap one may be a round behind.
    assert min(resumed) >= 1
    for round in (1, 2, 3):  # finished before the kill, and the third again after it
        lines = [line for line in outcome.said("RoundDone") if line["round"] == round]
        assert all(len(digests) == 1 for digests in outcome.digests(lines).values())


def test_a_datacenter_that_joins_in_the_midst_takes_the_state_from_several_peers_and_contributes_next(tmp_path: Path):
    outcome = churned(tmp_path, "join:datacenter@round=9", "--rounds", "13", "--inner-steps", "14")
    assert outcome.report["chaos"]["digests_equal"]
    fetched = [
        line["doing"] for line in outcome.said("Progress", "datacenter 2") if " came from peer " in line["doing"]
    ]
    assert len({line.split()[-1] for line in fetched}) >= 2
    first = min(line["round"] for line in outcome.said("Contributed", "datacenter 2"))
    began = next(index for index, line in enumerate(outcome.log) if line["event"] == "Joined" and line["slot"] == 4)
    running = max((line["round"] for line in outcome.log[:began] if line["event"] == "StepDone"), default=0)
    assert first <= running + 3  # it takes seconds to start, and the others do not wait


@needs_namespaces
def test_two_halves_that_were_cut_off_from_each_other_become_one_again(tmp_path: Path):
    outcome = churned(tmp_path, "partition:half@rounds=3-4", "--rounds", "8", "--datacenters", "2")
    assert outcome.report["chaos"]["digests_equal"]
    assert not outcome.said("Resynchronised")
    apart = outcome.digests([line for line in outcome.said("RoundDone") if line["round"] == 3])
    assert len(apart["embedding"]) >= 2
    assert all(len(digests) == 1 for digests in outcome.digests(outcome.said("Finished")).values())


PAIR = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = 0
[inner]
steps = 12
sequences = 4
microbatch = 2
[outer]
rounds = 8
"""


def test_who_leaves_hands_over_to_the_standby_that_takes_its_seat(tmp_path: Path):
    with ExitStack() as stack:
        ticket = stack.enter_context(serving(PAIR, tmp_path / "run"))

        def join(stage: int, name: str) -> Peer:
            arguments = ["join", str(ticket), "--stage", str(stage), "--dir", str(tmp_path / name)]
            return stack.enter_context(Peer(*arguments, "--device", "cpu", "--threads", "1"))

        leader, *others = join(0, "leader"), join(1, "one"), join(1, "other")
        ids = {peer.wait_for(Joined).peer_id: peer for peer in others}
        member = leader.wait_for(GroupFormed).members[1]
        heir = next(peer_id for peer_id in ids if peer_id != member)
        ids[heir].wait_for(Waiting, lambda event: "this peer is a spare" in event.what)
        leader.wait_for(StepDone, lambda event: event.round == 2)
        assert ids[member].end(signal.SIGINT) == 130
        assert ids[member].wait_for(HandedOver).heir == heir
        assert ids[heir].wait_for(Inherited) == Inherited(member, True)
        assert ids[heir].wait_for(GroupFormed).members[1] == heir
        assert leader.wait_for(Finished).digests["embedding"] == ids[heir].wait_for(Finished).digests["embedding"]
        left, went_on = (
            {event.round for event in ids[each].said if isinstance(event, Contributed)} for each in (member, heir)
        )
        assert left | went_on == set(range(1, 9))
