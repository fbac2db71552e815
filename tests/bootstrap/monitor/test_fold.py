"""What the node makes of records and of what peers tell, at invented times."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap.monitor.fold import MOST_PEERS, MOST_ROUNDS, MOST_ROUNDS_AHEAD, Fold, KeptMonitor
from bootstrap.monitor.peers import IDLE_SECONDS
from bootstrap.monitor.rounds import JUDGE_SECONDS
from protocol.events.activity import (
    Contributed,
    DeviceReadings,
    Evaluated,
    GroupBroken,
    GroupFormed,
    Refused,
    RoundDone,
)
from protocol.events.decisions import Left, WentOn
from protocol.events.event import Event, PeerState
from protocol.events.peer_report import PeerReport, ReportedStatus, pack_report, unpack_report
from protocol.identity import PeerId, RunId
from protocol.monitor import MOST_LINES, PeerView, View
from protocol.patience import CUT_STREAM_SECONDS, LOST_PEER_SECONDS
from protocol.trust.records import PeerRecord
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"rounds": 50})
START = 1_900_000_000.0
LEADER, MEMBER, CENTER, EYE = (PeerId(name) for name in ("Leader", "Member", "Center", "Eye"))
ROLES: dict[PeerId, tuple[str, int]] = {
    LEADER: ("volunteer", 0),
    MEMBER: ("volunteer", 1),
    CENTER: ("datacenter", 0),
    EYE: ("observer", 0),
}


class Scene:
    """A fold, the time, and who says what."""

    def __init__(self, *there: PeerId) -> None:
        self.fold = Fold(MANIFEST, RunId("ab" * 32), START)
        self.now = START
        self.records: dict[PeerId, PeerRecord] = {}
        for peer in there:
            self.says(peer)
        self.sync()

    def says(self, peer: PeerId, **fields: Any) -> None:
        role, stage = ROLES.get(peer, ("datacenter", 0))
        known = self.records.get(peer) or PeerRecord(
            peer_id=peer, address="192.0.2.1:1", role=role, stage=stage, slot=0
        )
        sequence = max(known.sequence + 1, int(1000 * self.now))
        self.records[peer] = known.model_copy(update={**fields, "sequence": sequence})

    def sync(self) -> None:
        self.fold.see_records(self.records.values(), self.now)

    def tells(self, peer: PeerId, *events: Event, **fields: Any) -> None:
        report = PeerReport(ReportedStatus(**fields), [(0.0, event) for event in events])
        self.fold.apply_report(peer, report, self.now)

    def ends(self, peer: PeerId, round: int, steps: int = 3, **fields: Any) -> None:
        """A peer does a whole round."""
        self.tells(peer, Contributed(round, steps), round=round, step=steps)
        said = {"seconds": 1.0, "tokens": 96, "contributions": {}, "digests": {}, "pipeline_sent": 0, "outer_sent": 0}
        self.tells(peer, RoundDone(round, **(said | fields)), round=round, step=steps)

    def later(self, seconds: float) -> None:
        self.now += seconds

    def peer(self, peer: PeerId) -> PeerView:
        return next(each for each in self.fold.view(self.now).peers if each.id == peer)

    def state(self, peer: PeerId) -> tuple[str, str]:
        shown = self.peer(peer)
        return shown.state, shown.why


def test_who_is_revoked_is_said_to_be_and_moves_no_round():
    scene = Scene(LEADER, MEMBER, CENTER)
    scene.fold.begin(CENTER, scene.now)
    scene.ends(CENTER, 1)
    scene.fold.peers[CENTER].revoked = True
    scene.fold.end(CENTER, scene.now)
    scene.later(CUT_STREAM_SECONDS + 1)
    assert scene.state(CENTER) == ("gone", "the operator has revoked it")
    words = f"Peer {CENTER[-8:]} is gone: the operator has revoked it"
    assert words in [line.words for line in scene.fold.view(scene.now).log]
    assert scene.fold.finished == 0


def with_a_member_behind() -> Scene:
    """Two have finished round 7, and a member round 3."""
    scene = Scene(LEADER, MEMBER, CENTER)
    scene.later(1)
    for peer, round in ((LEADER, 7), (CENTER, 7), (MEMBER, 3)):
        scene.says(peer, round=round)
    scene.sync()
    return scene


def test_a_round_ends_when_more_peers_say_so_than_may_lie():
    scene = Scene(LEADER, MEMBER, CENTER)
    scene.ends(LEADER, 1)
    assert scene.fold.view(scene.now).round == 1
    scene.later(1)
    scene.ends(CENTER, 1)
    scene.later(1)
    view = scene.fold.view(scene.now)
    assert view.round == 2
    assert [(each.round, each.ended is not None) for each in view.history] == [(1, True), (2, False)]
    assert view.history[0].contributions == {LEADER: 3, CENTER: 3}
    assert view.history[1].began == view.history[0].ended


def test_tokens_of_a_group_are_counted_once_and_nobody_has_more_than_a_round_has():
    scene = Scene(LEADER, MEMBER, CENTER)
    for peer, tokens in ((LEADER, 90), (MEMBER, 90), (CENTER, 2**50)):
        scene.ends(peer, 1, tokens=tokens)
    scene.later(1)
    most = MANIFEST.tokens_per_step * MANIFEST.inner.steps
    assert scene.fold.view(scene.now).history[0].tokens == 90 + most
    assert scene.fold.view(scene.now).tokens == 90 + most


def test_the_tokens_of_rounds_that_end_too_quickly_to_be_seen_count_too():
    """A report brings the events of a second, in which a small run ends several rounds."""
    scene = Scene(LEADER, MEMBER, CENTER)
    for round in range(1, 9):
        scene.ends(CENTER, round, tokens=50)
    assert scene.fold.tokens == 8 * 50
    assert len(scene.fold.rounds) < 8


def test_no_time_is_left_where_nobody_is_there_to_train():
    scene = Scene(LEADER, MEMBER, CENTER)
    for round in (1, 2, 3):
        scene.later(1)
        scene.ends(LEADER, round)
        scene.ends(CENTER, round)
        scene.later(1)
        scene.fold.look(scene.now)
    assert scene.fold.view(scene.now).seconds_left
    for peer in (LEADER, MEMBER, CENTER):
        scene.tells(peer, state=PeerState.PAUSED, doing="by command")
    assert scene.fold.view(scene.now).seconds_left is None


def test_a_round_whose_end_is_told_again_counts_once():
    scene = Scene(LEADER, MEMBER, CENTER)
    for _ in range(2):  # as a peer does that was killed, and is back
        scene.ends(LEADER, 1, tokens=90)
    assert scene.fold.tokens == 90


def test_who_was_awaited_and_did_not_contribute_was_late_and_it_is_said_why():
    scene = Scene(LEADER, MEMBER, CENTER)
    scene.tells(MEMBER, round=1, step=2)
    why = WentOn(1, [MEMBER, "Nobody"], "the round has lasted 9 s")
    scene.tells(LEADER, why, round=1, step=3)
    scene.ends(LEADER, 1)
    scene.ends(CENTER, 1)
    scene.later(1)
    assert not scene.fold.view(scene.now).history[0].late
    scene.later(JUDGE_SECONDS)
    assert scene.fold.view(scene.now).history[0].late == {MEMBER: "the round has lasted 9 s, says peer Leader"}


def test_who_says_nothing_of_the_reason_was_late_with_what_it_had_done():
    scene = Scene(LEADER, MEMBER, CENTER)
    scene.tells(MEMBER, round=1, step=2)
    scene.ends(LEADER, 1)
    scene.ends(CENTER, 1)
    scene.later(1)
    scene.sync()
    scene.later(JUDGE_SECONDS)
    late = scene.fold.view(scene.now).history[0].late
    assert late == {MEMBER: "it had done 2 of 3 inner steps when the others had ended the round"}


def test_who_tells_nothing_but_has_contributed_by_its_record_was_not_late():
    scene = Scene(LEADER, MEMBER, CENTER)
    scene.tells(MEMBER, round=1, step=2)
    scene.says(MEMBER, contributed=1)
    scene.ends(LEADER, 1)
    scene.ends(CENTER, 1)
    scene.sync()
    scene.later(JUDGE_SECONDS + 1)
    assert not scene.fold.view(scene.now).history[0].late


def test_losses_come_from_who_evaluates_and_of_three_the_one_in_the_middle_is_shown():
    other = PeerId("Center2")
    scene = Scene(LEADER, CENTER, EYE, other)
    for peer, loss in ((LEADER, 0.1), (EYE, 5.0), (CENTER, 0.0), (other, 5.1)):
        scene.tells(peer, Evaluated(1, loss, loss), round=1)
        if peer == EYE:
            first = scene.fold.view(scene.now).history[0]
            assert (first.loss, first.evaluated_by) == (5.0, EYE)
    assert scene.fold.view(scene.now).history[0].loss == 5.0


def test_whose_stream_breaks_is_lost_within_seconds_and_has_left_the_round():
    scene = Scene(LEADER, MEMBER)
    scene.fold.begin(MEMBER, scene.now)
    scene.later(1)
    scene.tells(MEMBER, round=1, step=1)
    scene.later(1)
    scene.fold.end(MEMBER, scene.now)
    assert scene.state(MEMBER)[0] != "lost"
    scene.later(CUT_STREAM_SECONDS + 1)
    state, why = scene.state(MEMBER)
    assert (state, "connection broke" in why) == ("lost", True)
    view = scene.fold.view(scene.now)
    assert "connection broke" in view.history[-1].left[MEMBER]
    assert view.log[-1].kind == "Lost"
    scene.fold.begin(MEMBER, scene.now)
    assert scene.state(MEMBER)[0] != "lost"


def test_whose_stream_breaks_but_whose_record_is_renewed_is_not_lost():
    scene = Scene(MEMBER)
    scene.fold.begin(MEMBER, scene.now)
    scene.fold.end(MEMBER, scene.now)
    scene.later(CUT_STREAM_SECONDS + 1)
    scene.says(MEMBER)
    scene.sync()
    assert scene.state(MEMBER)[0] == "waiting"


def test_who_is_silent_for_some_heartbeats_is_lost_and_later_forgotten():
    scene = Scene(MEMBER)
    scene.later(LOST_PEER_SECONDS - 1)
    assert scene.state(MEMBER)[0] == "waiting"
    scene.later(2)
    assert scene.state(MEMBER) == ("lost", "nothing was heard of it for 45 s")
    scene.later(3600)
    scene.fold.view(scene.now)
    assert not scene.fold.view(scene.now).peers


@pytest.mark.parametrize(("how", "state"), [("paused", "paused"), ("gone", "gone"), ("leaving", "leaving")])
def test_who_goes_says_why(how: str, state: str):
    scene = Scene(MEMBER)
    scene.later(1)
    if how == "leaving":
        scene.tells(MEMBER, Left("", "quiet hours"))
    else:
        scene.tells(MEMBER, state=PeerState(how), doing="quiet hours")
    assert scene.state(MEMBER) == (state, "quiet hours")
    scene.fold.begin(MEMBER, scene.now)
    assert scene.state(MEMBER)[0] == "waiting"


def test_who_pauses_and_says_in_the_same_breath_that_it_leaves_is_paused():
    scene = Scene(MEMBER)
    scene.tells(MEMBER, Left("", "its owner stops or pauses this peer"), state=PeerState.PAUSED, doing="quiet hours")
    assert scene.state(MEMBER) == (PeerState.PAUSED, "quiet hours")


def test_who_is_back_from_a_goodbye_is_not_gone_though_its_record_still_says_so():
    scene = Scene(MEMBER)
    scene.later(1)
    scene.says(MEMBER, gone=True)
    scene.sync()
    assert scene.state(MEMBER) == ("gone", "it has said goodbye")
    scene.fold.begin(MEMBER, scene.now)
    assert scene.state(MEMBER)[0] == "waiting"
    scene.fold.end(MEMBER, scene.now)
    assert scene.state(MEMBER)[0] == "gone"


def test_a_broken_group_whose_member_is_in_another_is_over_and_its_leader_waits(monkeypatch: pytest.MonkeyPatch):
    other = PeerId("Other")
    monkeypatch.setitem(ROLES, other, ROLES[LEADER])
    scene = Scene(LEADER, MEMBER, other)
    formed = GroupFormed(LEADER, 0, [LEADER, MEMBER])
    scene.tells(LEADER, formed)
    scene.tells(MEMBER, formed)
    scene.tells(LEADER, GroupBroken(LEADER, 0, 0, "stage 1 is gone"))
    scene.tells(MEMBER, GroupBroken(LEADER, 0, 0, "it left for another"))
    assert [group.replica for group in scene.fold.view(scene.now).groups] == [LEADER]
    again = GroupFormed(other, 0, [other, MEMBER])
    scene.tells(other, again)
    scene.tells(MEMBER, again)
    assert [(group.replica, group.broken) for group in scene.fold.view(scene.now).groups] == [(other, "")]
    assert scene.state(LEADER) == ("waiting", "stage 1 is gone")


def test_states_of_peers_at_work():
    scene = Scene(LEADER, MEMBER, CENTER, EYE)
    assert scene.state(LEADER) == ("waiting", "it has no group yet")
    joined = GroupFormed(LEADER, 0, [LEADER, MEMBER])
    scene.tells(LEADER, joined)
    scene.tells(MEMBER, joined)
    scene.tells(CENTER, round=1, step=1)  # the run has begun
    scene.later(1)
    assert scene.state(LEADER)[0] == scene.state(MEMBER)[0] == "training"
    (group,) = scene.fold.view(scene.now).groups
    assert (group.replica, group.members, group.broken) == (LEADER, [LEADER, MEMBER], "")
    scene.tells(LEADER, GroupBroken(LEADER, 0, 0, "stage 1 is gone"))
    assert scene.state(LEADER) == ("waiting", "stage 1 is gone")
    scene.tells(MEMBER, GroupBroken(LEADER, 0, 0, "stage 0 is gone"))
    (group,) = scene.fold.view(scene.now).groups  # who is lost is shown in its place
    assert (group.members, group.broken) == ([LEADER, MEMBER], "stage 1 is gone")
    scene.says(MEMBER, on_trial=True)
    scene.later(1)
    scene.says(MEMBER, on_trial=True)
    scene.sync()
    assert scene.state(MEMBER)[0] == "on trial"
    assert scene.state(EYE)[0] == "waiting"


def test_what_a_peer_says_that_it_waits_for_is_what_people_see_of_it():
    """And not why its last group broke, or that it is behind: its owner reads the same words."""
    scene = with_a_member_behind()
    scene.tells(LEADER, GroupBroken(LEADER, 0, 0, "stage 1 is gone"))
    for peer in (LEADER, MEMBER):
        scene.tells(peer, waits_for="a volunteer of stage 1: a group needs one of each stage")
        assert scene.state(peer) == ("waiting", "a volunteer of stage 1: a group needs one of each stage")


def test_a_peer_that_is_rounds_behind_catches_up():
    scene = with_a_member_behind()
    assert scene.state(MEMBER) == ("catching up", "it has finished round 3, and most others round 7")


def test_a_group_with_an_empty_stage_says_which_where_the_run_has_begun_and_is_not_over():
    scene = Scene(LEADER)
    scene.tells(LEADER, GroupFormed(LEADER, 0, [LEADER]))
    view = scene.fold.view(scene.now)
    assert "2 volunteers of stage 1 (0 of 2)" in view.state_why  # of all that the run waits for; once is enough
    assert (view.state, view.groups[0].members, view.groups[0].broken) == ("gathering", [LEADER, ""], "")
    scene.tells(LEADER, round=1, step=1)
    view = scene.fold.view(scene.now)
    assert (view.state, view.groups[0].members) == ("training", [LEADER, ""])
    assert view.groups[0].broken == "nobody is at stage 1"
    scene.fold.over = True
    view = scene.fold.view(scene.now)
    assert (view.state, view.groups[0].broken) == ("finished", "")


def test_who_is_slow_is_told_by_the_last_stage_that_knows_of_somebody():
    """All stages before wait for that one, and may take the one behind them for it."""
    scene = Scene(LEADER, MEMBER)
    for peer in (LEADER, MEMBER):
        scene.says(peer, replica=LEADER)
        scene.tells(peer, GroupFormed(LEADER, 0, [LEADER, MEMBER]), round=1, step=1)
    scene.sync()
    (group,) = scene.fold.view(scene.now).groups
    assert group.slow == ""
    scene.tells(LEADER, round=1, step=2, slow="stage 1, or one behind it")
    assert scene.fold.view(scene.now).groups[0].slow == "stage 1, or one behind it"
    scene.tells(MEMBER, round=1, step=2, slow="stage 2")
    assert scene.fold.view(scene.now).groups[0].slow == "stage 2"
    scene.tells(MEMBER, GroupBroken(LEADER, 0, 0, "it leaves"), slow="stage 2")
    scene.tells(LEADER, GroupBroken(LEADER, 0, 0, "stage 1 is gone"), slow="stage 2")
    assert scene.fold.view(scene.now).groups[0].slow == ""


def test_bytes_a_second_and_readings_are_those_that_it_tells_and_fall_when_nothing_is_told():
    scene = Scene(LEADER)
    device = DeviceReadings(51.5, None)
    scene.tells(LEADER, round=1, step=1, up=900.0, device=device)
    shown = scene.peer(LEADER)
    assert (shown.up, shown.device) == (900, device)
    scene.later(30)
    assert scene.peer(LEADER).up == 0


def test_tokens_a_second_are_the_mean_of_the_last_seconds_also_while_a_round_ends():
    """A peer that waits for others between two rounds says that it trains nothing now; the run trains all the same."""
    scene = Scene(LEADER)
    for second in range(31):
        waits = second % 3 == 0
        scene.tells(LEADER, round=1 + second // 3, tokens=90 * second, tokens_per_second=0.0 if waits else 135.0)
        scene.later(1)
        assert scene.peer(LEADER).tokens_per_second == pytest.approx(90, rel=0.1) or second < 10
    assert scene.fold.view(scene.now).tokens_per_second == scene.peer(LEADER).tokens_per_second > 0
    scene.tells(LEADER, round=12, tokens=30)  # it has joined anew
    assert scene.peer(LEADER).tokens_per_second == 0
    scene.later(30)
    assert scene.peer(LEADER).tokens_per_second == 0


def test_whatever_tokens_a_peer_tells_others_can_read_the_view():
    scene = Scene(LEADER)
    scene.tells(LEADER, tokens=0)
    scene.tells(LEADER, tokens=2**53)
    view = scene.fold.view(scene.now)
    assert View.model_validate_json(view.model_dump_json()) == view


def test_the_bytes_of_a_round_are_those_since_the_last_that_was_told():
    scene = Scene(LEADER, CENTER)
    ends = [RoundDone(round, 1.0, 96, {}, {}, 1000 * round, 100 * round) for round in (4, 5)]
    scene.fold.finished = 3
    report = PeerReport(ReportedStatus(), [(0.0, event) for event in ends], (2500, 250))
    scene.fold.apply_report(LEADER, report, scene.now)
    sent = [(each.pipeline_bytes, each.outer_bytes) for each in scene.fold.rounds.values()]
    assert sent == [(1500, 150), (1000, 100)]


def test_events_that_the_node_does_not_know_are_counted():
    scene = Scene(LEADER)
    scene.fold.apply_report(LEADER, PeerReport(ReportedStatus(), unknown=3), scene.now)
    assert scene.fold.unknown_events == 3


def test_bytes_are_compared_with_what_they_would_be_uncompressed():
    scene = Scene(LEADER, CENTER)
    scene.ends(LEADER, 1, pipeline_sent=1000, outer_sent=100)
    scene.ends(CENTER, 1, outer_sent=100)
    scene.later(1)
    entry = scene.fold.view(scene.now).history[0]
    assert (entry.pipeline_bytes, entry.outer_bytes) == (1000, 200)
    assert entry.uncompressed_bytes > 2 * 1000 + 2 * 200


def test_one_peer_does_not_fill_the_log():
    scene = Scene(LEADER, CENTER)
    scene.tells(CENTER, Refused("", "something of the center's"))
    for number in range(1000):
        scene.tells(LEADER, Refused("", f"spam {number}"))
    words = [line.words for line in scene.fold.view(scene.now).log]
    assert "Refused what peer  sent: something of the center's" in words
    assert len(words) <= 21


def test_what_was_known_is_known_again_after_a_restart():
    scene = Scene(LEADER, CENTER)
    scene.ends(LEADER, 1)
    scene.ends(CENTER, 1)
    scene.tells(CENTER, Evaluated(1, 4.0, 3.5))
    scene.later(JUDGE_SECONDS + 1)
    before = scene.fold.view(scene.now)
    again = Fold(MANIFEST, RunId("ab" * 32), scene.now)
    again.recall(scene.fold.to_keep(scene.now))
    after = again.view(scene.now)
    assert after.history == [each for each in before.history if each.ended is not None]
    assert (after.started, after.tokens, after.round) == (before.started, before.tokens, before.round)


def test_rounds_that_ended_before_the_node_looked_ended_at_no_time_that_is_known():
    scene = Scene()
    for peer in (LEADER, CENTER):
        scene.says(peer, round=20)
    scene.sync()
    assert [each.round for each in scene.fold.view(scene.now).history] == []
    assert scene.fold.view(scene.now).round == 21


# Whatever anybody tells

COUNTS = st.integers(0, 2**53)
ROUNDS = st.one_of(st.integers(0, 60), st.integers(0, 2**31 - 1))
FLOATS = st.floats(0, 1e6)
NAMES = st.sampled_from([*ROLES, "Nobody", ""])
TEXTS = st.text(max_size=5)
PARTS = st.dictionaries(st.sampled_from(["embedding", "stage-0"]), COUNTS)
STEPS = st.integers(0, 2**31 - 1)
TOLD = st.one_of(
    st.builds(
        RoundDone,
        round=ROUNDS,
        seconds=FLOATS,
        tokens=COUNTS,
        contributions=PARTS,
        digests=st.just({}),
        pipeline_sent=COUNTS,
        outer_sent=COUNTS,
    ),
    st.builds(Evaluated, round=ROUNDS, loss=FLOATS, loss_plain=FLOATS),
    st.builds(GroupFormed, replica=NAMES, slot=STEPS, members=st.lists(NAMES, max_size=5), reason=TEXTS),
    st.builds(GroupBroken, replica=NAMES, round=ROUNDS, step=STEPS, reason=TEXTS),
    st.builds(Contributed, round=ROUNDS, steps=STEPS),
    st.builds(WentOn, round=ROUNDS, without=st.lists(NAMES, max_size=5), reason=TEXTS),
    st.builds(Left, replica=NAMES, reason=TEXTS),
)
STATUSES = st.builds(
    ReportedStatus,
    state=st.sampled_from(PeerState),
    doing=TEXTS,
    round=ROUNDS,
    step=STEPS,
    loss=st.none() | FLOATS,
    tokens=COUNTS,
    up=FLOATS,
    down=FLOATS,
    compression=st.integers(0, 65536),
)
BATCHES = st.builds(
    PeerReport,
    status=STATUSES,
    events=st.lists(st.tuples(st.floats(0, 3600), TOLD), max_size=4),
    sent_before=st.tuples(COUNTS, COUNTS),
)


@settings(max_examples=60, deadline=None)
@given(said=st.lists(st.tuples(NAMES, BATCHES, st.floats(0, 100), st.booleans()), max_size=12))
def test_whatever_is_told_there_is_a_view_within_bounds(said: list[tuple[str, PeerReport, float, bool]]):
    scene = Scene(*ROLES)
    for peer, batch, seconds, stream in said:
        scene.later(seconds)
        if stream:
            scene.fold.begin(PeerId(peer), scene.now)
        scene.fold.apply_report(PeerId(peer), unpack_report(pack_report(batch)), scene.now)
        scene.fold.end(PeerId(peer), scene.now)
        view = scene.fold.view(scene.now)
        assert view == type(view).model_validate_json(view.model_dump_json())
        assert {each.id for each in view.peers} <= set(ROLES)
        assert len(scene.fold.rounds) <= min(MOST_ROUNDS, MANIFEST.outer.rounds)
        assert 0 < view.round <= MANIFEST.outer.rounds
        assert all(each.round <= scene.fold.finished + MOST_ROUNDS_AHEAD for each in view.history)
        assert all(START <= each.began <= (each.ended or scene.now) <= scene.now for each in view.history)


def test_peers_without_records_are_few_and_make_room_for_those_with_one():
    scene = Scene()
    for number in range(MOST_PEERS + 10):
        scene.tells(PeerId(f"Stranger{number}"), round=1)
    assert len(scene.fold.peers) == MOST_PEERS
    scene.says(CENTER)
    scene.sync()
    assert len(scene.fold.peers) == MOST_PEERS
    assert [each.id for each in scene.fold.view(scene.now).peers] == [CENTER]
    assert len(scene.fold.log) <= MOST_LINES


def watched(scene: Scene, seconds: int, *there: PeerId, **fields: Any) -> None:
    """Time passes at the node, in which only these give signs of life."""
    for _ in range(seconds):
        scene.later(1)
        for peer in there:
            scene.tells(peer, **fields)
        scene.sync()


def test_the_run_is_over_when_somebody_has_come_to_its_end_and_nobody_is_at_work():
    scene = Scene(LEADER, MEMBER, CENTER)
    scene.says(MEMBER, contributed=49)
    scene.says(CENTER, round=50)
    watched(scene, 15, LEADER, MEMBER)
    assert not scene.fold.over  # the group is at work
    scene.says(CENTER, gone=True)
    watched(scene, 9)
    assert not scene.fold.over
    watched(scene, 2)  # nothing is heard of it: asleep
    assert scene.fold.over
    watched(scene, 5, LEADER, MEMBER)  # awake again, and told at the door
    assert scene.fold.over


def test_who_waits_in_vain_for_those_who_have_gone_does_not_keep_a_run_from_its_end():
    scene = Scene(CENTER, LEADER, MEMBER)
    scene.says(MEMBER, contributed=3)
    scene.says(CENTER, round=50)
    scene.says(CENTER, round=50, gone=True)
    watched(scene, 200, MEMBER, round=4, step=1)  # a step of minutes is work
    watched(scene, 1, MEMBER, round=4, step=2, tokens=96, waits_for="contributions")
    watched(scene, int(IDLE_SECONDS), MEMBER, round=4, step=2, tokens=96, waits_for="contributions")
    assert not scene.fold.over
    watched(scene, 2, MEMBER, round=4, step=2, tokens=96, waits_for="contributions")
    assert scene.fold.over


def test_a_spare_that_never_had_a_group_does_not_keep_a_run_from_its_end():
    scene = Scene(MEMBER, CENTER)
    scene.says(CENTER, round=50)
    watched(scene, 12, MEMBER)
    assert scene.fold.over


def test_names_that_say_they_have_finished_end_no_run_in_which_anybody_trains():
    liars = [PeerId(f"Center {number}") for number in range(100)]
    scene = Scene(LEADER, MEMBER, *liars)
    scene.says(MEMBER, contributed=3)
    for liar in liars:
        scene.says(liar, round=50, contributed=50)
    watched(scene, 30, MEMBER)
    assert not scene.fold.over


def test_a_node_that_stood_still_takes_nobody_for_gone():
    scene = Scene(MEMBER, CENTER)
    scene.says(MEMBER, contributed=3)
    watched(scene, 15, MEMBER)
    scene.says(CENTER, round=50)
    scene.later(60)
    scene.sync()  # its first look; what others have told meanwhile is still unread
    assert not scene.fold.over
    watched(scene, 15, MEMBER)
    assert not scene.fold.over


def test_who_comes_with_the_last_round_behind_it_shows_no_end():
    scene = Scene(MEMBER)
    scene.says(CENTER, round=50)
    watched(scene, 15)
    assert not scene.fold.over


def test_a_node_that_was_away_at_the_end_knows_who_was_in_the_run_before():
    scene = Scene(CENTER)
    firsts = dict(scene.fold.firsts)
    assert firsts == {CENTER: 0}
    for known, over in ((firsts, True), ({}, False)):
        again = Scene()
        again.fold.firsts = dict(known)
        again.says(CENTER, round=50)
        watched(again, 15)
        assert again.fold.over is over


def test_a_node_that_restarts_keeps_that_the_run_is_over_though_those_who_ended_it_are_unknown_by_now():
    scene = Scene(MEMBER, CENTER)
    scene.says(MEMBER, contributed=49)
    scene.says(CENTER, round=50)
    scene.says(CENTER, round=50, gone=True)
    watched(scene, 15)
    assert scene.fold.over
    again = Scene()  # the records have expired meanwhile
    again.fold.recall(KeptMonitor.model_validate_json(scene.fold.to_keep(scene.now).model_dump_json()))
    again.now = scene.now
    again.says(MEMBER, contributed=49)
    watched(again, 15, MEMBER)  # has slept over the end, and is at work
    assert again.fold.over


def test_the_stage_that_is_short_is_named_where_somebody_can_be_in_no_group_for_it():
    scene = Scene(LEADER, CENTER, EYE)
    assert scene.fold.view(scene.now).short == (
        "stage 1 is short: it has 0 volunteers, each other stage more; one more there makes a group"
    )
    scene.says(MEMBER)
    scene.sync()
    assert scene.fold.view(scene.now).short == ""
    scene.says(PeerId("Another"), role="volunteer", stage=1)
    scene.sync()
    assert scene.fold.view(scene.now).short.startswith("stage 0 is short: it has 1 volunteer, ")
    scene.says(PeerId("Another"), gone=True)
    scene.sync()
    assert scene.fold.view(scene.now).short == ""
