"""The state of a run, at and near each threshold."""

from dataclasses import replace

import pytest

from bootstrap.monitor.fold import Fold
from bootstrap.monitor.peers import Peer
from bootstrap.monitor.rounds import Round
from bootstrap.monitor.run_state import (
    BROKEN_SECONDS,
    STALLED_SECONDS,
    STALLED_TIMES,
    RunStatus,
    run_state,
)
from protocol.events.activity import GroupBroken, GroupFormed
from protocol.events.event import PeerState
from protocol.events.peer_report import PeerReport, ReportedStatus
from protocol.identity import PeerId, RunId
from protocol.outer.phases import RunPhase
from protocol.patience import AT_WORK_SECONDS, SILENT_LEADER_SECONDS
from protocol.trust.records import PeerRecord
from protocol.wording import LOST
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(
    model={"layers": 2}, replicas={"groups": 2, "datacenters": 1, "stages": 2}, outer={"rounds": 50}
)
TRAINED = RunStatus("training", "", 900.0)
NOW = 10_000.0


def peer(name: str, role: str, stage: int = 0, gone: bool = False) -> Peer:
    record = PeerRecord(peer_id=PeerId(name), address="h:1", role=role, stage=stage, slot=0)  # type: ignore[arg-type]
    made = Peer(PeerId(name), joined=0.0, last_seen=NOW, record=record)
    made.state = PeerState.GONE if gone else PeerState.WAITING
    return made


def found(
    rounds: list[Round], before: RunStatus = TRAINED, alone: float | None = None, over: bool = False, *there: Peer
) -> RunStatus:
    return run_state(MANIFEST, there, [], rounds, before, alone, over, NOW)


def ended(number: int, began: float, end: float) -> Round:
    return Round(number, began, end, stepped={PeerId("A"): 1})


def test_a_run_gathers_until_the_first_inner_step():
    gathers = RunStatus("gathering", "", 900.0)
    told = Round(1, 900.0, stepped={PeerId("A"): 0})
    assert found([told], gathers).why.startswith("waits for 1 datacenter (0 of 1), 2 volunteers")
    told.stepped[PeerId("A")] = 1
    assert found([told], gathers) == RunStatus("training", "", NOW)
    assert found([], TRAINED).state == "training"  # a run does not gather again
    assert found([told], gathers, alone=900.0).state == "training"  # that no replica was complete is no standstill
    began = RunStatus("training", "", NOW - BROKEN_SECONDS + 0.1)
    assert found([told], began, alone=900.0).state == "training"
    assert found([told], replace(began, since=NOW - BROKEN_SECONDS), alone=900.0).state == "stalled"


@pytest.mark.parametrize(("seconds", "state"), [(BROKEN_SECONDS - 0.1, "training"), (BROKEN_SECONDS, "stalled")])
def test_a_run_without_a_complete_replica_is_stalled_after_a_while(seconds: float, state: str):
    since = NOW - seconds
    now = found([ended(1, 900.0, NOW - 20.0)], TRAINED, since)
    assert now.state == state
    if state == "stalled":
        assert now.since == since
        assert now.why.startswith("no replica is complete: waits for 1 datacenter (0 of 1), ")
        assert found([ended(1, 900.0, NOW - 20.0)], now, NOW - 16).since == since


@pytest.mark.parametrize("usual", [2.0, 20.0])
def test_a_run_in_which_no_round_ends_is_stalled(usual: float):
    bound = max(STALLED_SECONDS, STALLED_TIMES * usual)
    for seconds, state in ((bound - 0.1, "training"), (bound, "stalled")):
        end = NOW - seconds
        now = found([ended(1, end - 2 * usual, end - usual), ended(2, end - usual, end), Round(3, end)])
        assert now.state == state
        assert now.since == (end if state == "stalled" else TRAINED.since)
    assert f"no round has ended for 10 times the usual {usual:.0f} s" in now.why


def test_a_node_that_was_away_itself_does_not_say_that_no_round_has_ended():
    rounds = [ended(1, NOW - 1000, NOW - 998), ended(2, NOW - 998, NOW - 996), Round(3, NOW - 996)]
    states = [
        run_state(MANIFEST, [], [], rounds, TRAINED, None, False, NOW, awake=NOW - seconds).state
        for seconds in (STALLED_SECONDS - 0.1, STALLED_SECONDS)
    ]
    assert states == ["training", "stalled"]


def test_a_run_whose_first_round_is_long_is_not_stalled():
    assert found([Round(1, 0.0, stepped={PeerId("A"): 1})]).state == "training"


def test_a_run_that_is_over_is_finished_whoever_is_missing():
    assert found([], TRAINED, NOW - 900, True) == RunStatus("finished", "", NOW)


# In the fold

LEADER, MEMBER = PeerId("Leader"), PeerId("Member")
ONE = small_manifest(model={"layers": 2}, replicas={"groups": 1, "datacenters": 0, "stages": 2}, outer={"rounds": 50})


def sync(fold: Fold, now: float, *there: PeerId) -> None:
    fold.see_records(
        [
            PeerRecord(
                peer_id=each,
                address="h:1",
                role="volunteer",
                stage=int(each == MEMBER),
                slot=0,
                sequence=int(1000 * now),
                replica=LEADER,
            )
            for each in there
        ],
        now,
    )


def group(fold: Fold, now: float, **fields: int) -> None:
    joined = GroupFormed(LEADER, 0, [LEADER, MEMBER])
    for each in (LEADER, MEMBER):
        fold.begin(each, now)
        fold.apply_report(each, PeerReport(ReportedStatus(**fields), [(0.0, joined)]), now)


def states(fold: Fold, now: float) -> dict[str, tuple[str, str]]:
    return {each.id: (each.state, each.why) for each in fold.view(now).peers}


def test_a_group_that_waits_at_the_beginning_waits_for_what_the_run_waits_for():
    fold = Fold(MANIFEST, RunId("ab" * 32), NOW)
    sync(fold, NOW, LEADER, MEMBER)
    group(fold, NOW)
    view = fold.view(NOW + 1)
    assert view.state_why.startswith("waits for 1 datacenter (0 of 1), 1 volunteer of stage 0 (1 of 2)")
    assert (view.state, view.state_since) == ("gathering", NOW)
    assert states(fold, NOW + 1) == dict.fromkeys((LEADER, MEMBER), ("waiting", view.state_why))
    fold.apply_report(MEMBER, PeerReport(ReportedStatus(waits_for="waits for its turn")), NOW + 2)
    assert states(fold, NOW + 2)[MEMBER] == ("waiting", "waits for its turn")
    fold.apply_report(LEADER, PeerReport(ReportedStatus(round=1, step=1)), NOW + 3)
    assert fold.view(NOW + 3).state == "training"
    assert states(fold, NOW + 3)[LEADER][0] == "training"
    assert fold.view(NOW + 3).log[-1].words == "The run is training"


def test_a_leader_that_is_frozen_is_named_and_its_member_does_not_train():
    fold = Fold(ONE, RunId("ab" * 32), NOW)
    sync(fold, NOW, LEADER, MEMBER)
    group(fold, NOW, round=1, step=1)
    now = NOW
    while now < NOW + SILENT_LEADER_SECONDS:
        now += 1
        fold.apply_report(MEMBER, PeerReport(ReportedStatus(round=1, step=1)), now)
        (shown,) = fold.view(now).groups
        assert shown.broken == ""
        assert states(fold, now)[MEMBER][0] == "training"
    fold.apply_report(MEMBER, PeerReport(ReportedStatus(round=1, step=1)), now + 1)
    (shown,) = fold.view(now + 1).groups
    assert shown.broken == "its first stage, peer Leader, has given no sign of life since 02:46:40 UTC"
    assert states(fold, now + 1)[MEMBER] == ("waiting", shown.broken)


def test_where_a_member_has_left_a_silent_leader_it_is_named_soon():
    fold = Fold(ONE, RunId("ab" * 32), NOW)
    sync(fold, NOW, LEADER, MEMBER)
    group(fold, NOW, round=1, step=1)
    fold.apply_report(MEMBER, PeerReport(ReportedStatus(), [(0.0, GroupBroken(LEADER, 0, 0, "x"))]), NOW + 9)
    assert fold.view(NOW + AT_WORK_SECONDS).groups[0].broken == "nobody is at stage 1"
    assert "no sign of life" in fold.view(NOW + AT_WORK_SECONDS + 1).groups[0].broken


def test_the_row_of_a_frozen_member_says_so():
    fold = Fold(ONE, RunId("ab" * 32), NOW)
    sync(fold, NOW, LEADER, MEMBER)
    group(fold, NOW, round=1, step=1)
    fold.begin(MEMBER, NOW)
    for later in range(1, int(AT_WORK_SECONDS) + 2):
        fold.apply_report(LEADER, PeerReport(ReportedStatus(round=1, step=1)), NOW + later)
    assert states(fold, NOW + AT_WORK_SECONDS)[MEMBER] == ("training", "")
    assert states(fold, NOW + AT_WORK_SECONDS + 1)[MEMBER] == (
        "waiting",
        "it has given no sign of life since 02:46:40 UTC",
    )


def test_a_leader_that_waits_and_tells_little_is_not_taken_for_frozen():
    fold = Fold(ONE, RunId("ab" * 32), NOW)
    sync(fold, NOW, LEADER)
    group(fold, NOW)
    assert fold.view(NOW + SILENT_LEADER_SECONDS).groups[0].broken == ""
    assert "no sign of life" in fold.view(NOW + SILENT_LEADER_SECONDS + 1).groups[0].broken


def test_a_run_is_stalled_for_want_of_a_state_that_nobody_holds():
    late, ahead = peer("A", "volunteer"), peer("B", "volunteer", 1)
    assert late.record is not None
    assert ahead.record is not None
    late.record = late.record.model_copy(update={"phase": RunPhase.AWAITING_STATE})
    ahead.record = ahead.record.model_copy(update={"round": 3})
    why = f"waits for the state of stage 0 after round 3: {LOST}"
    known = MANIFEST, [late, ahead], [], [], TRAINED, None, False, NOW, ""
    since = NOW - BROKEN_SECONDS
    assert run_state(*known, lost=since) == RunStatus("stalled", why, since)  # type: ignore[arg-type]
    assert run_state(*known, lost=since + 1).state == "training"  # type: ignore[arg-type]
    assert run_state(*known, lost=None).state == "training"  # type: ignore[arg-type]
