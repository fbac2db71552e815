"""What a person sees of a run: strangers' words without what would move the cursor."""

import io
from typing import Any

import pytest
from rich.console import Console

from peer.cli.status import run_tables
from protocol.events.event import PeerState
from protocol.monitor import GroupView, LineView, PeerView, RoundView, View

LEADER, CENTER = "QmaaaaaaLeader1", "QmaaaaaaCenter1"


def shown(trouble: str = "", width: int = 120, **fields: Any) -> str:
    view = View(
        run_id="ab" * 32,
        now=100.0,
        started=1.0,
        stages=2,
        replicas=2,
        rounds=50,
        round=4,
        inner_steps=6,
        compression=8,
        tokens=123456,
        tokens_per_second=2345.0,
        peers=[
            PeerView(
                id=LEADER, role="volunteer", replica=LEADER, state=PeerState.TRAINING, round=4, step=3, loss=5.1234
            ),
            PeerView(id=CENTER, role="datacenter", state=PeerState.LOST, why="it is silent\x1b[2J"),
        ],
        groups=[GroupView(replica=LEADER, slot=0, members=[LEADER, ""], broken="nobody is at stage 1")],
        history=[
            RoundView(round=3, began=80.0, ended=88.5, loss=5.5, late={CENTER: "slow"}, pipeline_bytes=2_000_000),
            RoundView(round=4, began=88.5),
        ],
        short="stage 1 is short: it has 0 volunteers",
        log=[LineView(at=1e300, kind="Refused", words="Refused \x1b[31mred", peer=CENTER)],
    )
    view = view.model_copy(update=fields)
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(run_tables(view, trouble, width))
    return out.getvalue()


def test_no_number_breaks_where_lines_are_short():
    busy = PeerView(
        id=LEADER,
        role="volunteer",
        replica=LEADER,
        state=PeerState.TRAINING,
        round=1234,
        step=500,
        loss=5.1234,
        tokens_per_second=122_880.0,
        up=12.3e6,
        down=45.6e6,
        credit=899_072,
    )
    seen = shown(width=80, peers=[busy], seconds_left=98_000.0)
    assert "about 27.2 h left" in " ".join(seen.split())
    for words in ("aLeader1  stage 0", "1234.500", "5.123", "122,880", "899,072", "12 s so far"):
        assert words in seen, words
    assert "uncompressed" in shown()
    assert "uncompressed" not in seen


@pytest.mark.parametrize("width", [80, 120])
def test_no_word_breaks_however_many_are_late(width: int):
    late = {f"Qm{number}aaaabbbb{number}": "slow" for number in range(4)}
    rounds = [RoundView(round=3, began=80.0, ended=88.5, loss=5.5, late=late, left=late, pipeline_bytes=2_000_000)]
    words = shown(width=width, history=rounds).split()
    names = {"peer", "place", "state", "datacenter", "tokens/s", "round", "took", "loss", "contributions", "late"}
    assert names | {"left", "sent", "training", "aaabbbb0,", "aaabbbb3", "5.123", "5.500", "4.3"} <= {
        word.strip("\x1b") for word in words
    }


def test_peers_rounds_and_what_happened_are_there():
    seen = shown()
    for words in (
        "round 4 of 50, 123,456 tokens, 2,345 a second",
        "aLeader1  stage 0",
        "4.3  5.123",
        "aCenter1 is lost: it is silent",
        "The group of aLeader1 does not train: nobody is at stage 1",
        "Stage 1 is short: it has 0 volunteers",
        "8.5 s",
        "12 s so far",
        "2.0 MB",
        "--:--:-- aCenter1 Refused",
    ):
        assert words in seen, words


def test_rounds_that_the_node_has_not_seen_and_a_loss_that_nobody_measures_are_explained():
    ended = [RoundView(round=round, began=80.0, ended=88.5) for round in (1, 2, 4, 8)]
    seen = shown(history=ended)
    assert "The node was away in round 3, 5 to 7, and knows nothing of it." in seen
    assert "Nobody measures the held-out loss: `hetpeer bootstrap --evaluate` does." in seen
    measured = [*ended[:1], RoundView(round=2, began=80.0, ended=88.5, loss=5.5)]
    assert "node was away" not in shown(history=measured)
    assert "--evaluate" not in shown(history=measured)
    assert "--evaluate" not in shown(history=[RoundView(round=1, began=80.0)])


def test_that_peers_are_gone_is_explained_as_long_as_the_run_goes_on():
    gone = PeerView(id=LEADER, role="volunteer", state=PeerState.GONE, why="it left")
    assert "is gone: it left" in shown(peers=[gone], state="training")
    assert "is gone: it left" not in shown(peers=[gone], state="finished")


def test_a_run_has_its_name_and_what_says_nothing_is_left_out():
    ended = [RoundView(round=3, began=80.0, ended=80.0, loss=5.5), RoundView(round=4, began=88.5)]
    lines = [
        LineView(at=1.0, kind="Evaluated", words="Held-out loss after round 3: 5.5"),
        LineView(at=1.0, kind="Caught", words="Caught up"),
    ]
    seen = shown(name="ours\x1b[2J", seconds_left=0.239, history=ended, log=lines)
    assert "Run ours" in seen
    assert f"({'ab' * 6}): round 4 of 50" in seen
    assert "\x1b" not in seen
    assert not any(words in seen for words in (" left\n", "0.0 s", "Held-out"))
    assert "Caught up" in seen
    assert f"Run {'ab' * 6}: round" in shown()
    assert "about 2.0 s left" in shown(seconds_left=2.0)


def test_who_pauses_is_not_said_to_run():
    paused = PeerView(id=LEADER, role="volunteer", state=PeerState.PAUSED, why="by command", heard=90.0)
    seen = " ".join(shown(peers=[paused]).split())
    assert "is paused: by command (since " in seen
    assert "whether its process still runs is not known)" in seen


def test_a_slow_member_is_named():
    slow = GroupView(replica=LEADER, slot=0, members=[LEADER], slow="stage 1 (peer QmB) takes 14 s a step")
    assert "The group of aLeader1 is slow: stage 1 (peer QmB) takes 14 s a step" in shown(groups=[slow])


def test_nobody_moves_the_cursor_of_who_looks():
    assert "\x1b" not in shown("\x1b[2J")


def test_the_title_says_how_the_run_is_and_a_line_for_want_of_what():
    seen = shown(state="stalled", state_why="no replica is complete: waits for 1 datacenter (0 of 1)", state_since=9.0)
    assert "Run abababababab: stalled, round 4 of 50" in seen
    assert ": no replica is complete: waits for 1 datacenter (0 of 1)" in seen
    assert "The run is" not in shown()  # its node is too old to tell


def test_credit_is_there_where_anybody_has_some():
    assert "credit" not in shown()


def test_trouble_is_said_below():
    assert "no answer from 192.0.2.1" in shown("no answer from 192.0.2.1")
