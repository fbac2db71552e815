"""What `hetpeer status` shows of real processes: rounds that advance, the loss, who is killed and who pauses."""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from protocol.events.activity import Joined, RoundDone, Serving
from protocol.monitor import View
from protocol.trust.ticket import Ticket
from tests.fuzz.material import OPERATOR
from tests.fuzz.material import RUN as RUN_ID
from tests.reference.processes import HETPEER, RUN, TEXT, Peer, hetpeer, serving

SECONDS = 60


def asked(ticket: str, *more: str) -> str:
    done = hetpeer("status", ticket, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def seen(ticket: str, holds: Callable[[View], bool]) -> View:
    """The first view of which this holds, asked for again and again: each answer takes a second."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        view = View.model_validate_json(asked(ticket, "--json"))
        if holds(view):
            return view
    raise AssertionError(view.model_dump_json(indent=1))


def test_rounds_advance_with_their_loss_and_who_is_killed_is_lost_and_who_pauses_says_why(tmp_path: Path):
    (tmp_path / "run.toml").write_text(RUN.format(datacenters=1, sequences=2) + "steps = 6\n[outer]\nrounds = 500\n")
    (tmp_path / "text.txt").write_text(TEXT)
    with ExitStack() as stack:

        def started(name: str, *arguments: str) -> Peer:
            return stack.enter_context(Peer(*arguments, "--dir", str(tmp_path / name)))

        files = [str(tmp_path / "run.toml"), "--data", str(tmp_path / "text.txt")]
        ticket = started("operator", "bootstrap", *files, "--listen", "127.0.0.1:0").wait_for(Serving).ticket
        small = ("--device", "cpu", "--threads", "1")
        leader = started("leader", "join", ticket, "--stage", "0", *small)
        member = started("member", "join", ticket, "--stage", "1", *small)
        center = started("center", "replica", ticket, *small)
        leader_id, member_id, center_id = (each.wait_for(Joined).peer_id for each in (leader, member, center))
        done = leader.wait_for(RoundDone).round

        def tells_enough(view: View) -> bool:
            all_told = any(len(each.contributions) == 3 and each.ended for each in view.history)
            return view.round > done + 1 and all_told and any(each.loss for each in view.history)

        view = seen(ticket, tells_enough)
        assert {each.id for each in view.peers} == {leader_id, member_id, center_id}
        full = next(each for each in view.history if len(each.contributions) == 3 and each.ended)
        assert set(full.contributions.values()) == {6}
        assert full.ended is not None
        assert full.began <= full.ended  # rounds of a second may come in one batch
        evaluated = next(each for each in view.history if each.loss)
        assert evaluated.evaluated_by == center_id
        assert 1 < evaluated.loss < 8
        (group,) = view.groups
        assert (group.members, group.broken) == ([leader_id, member_id], "")
        assert view.tokens > 0
        assert 0 < full.pipeline_bytes + full.outer_bytes < full.uncompressed_bytes
        # whose last batch is a second old may be a round behind, where rounds take no longer
        assert {"training", "waiting", "catching up"} >= {each.state for each in view.peers}

        member.end(signal.SIGKILL)
        view = seen(ticket, lambda view: any(each.state == "lost" for each in view.peers))
        (lost,) = [each for each in view.peers if each.state == "lost"]
        assert lost.id == member_id
        assert "connection broke" in lost.why
        assert any(member_id in each.left for each in view.history)
        shown = asked(ticket)
        assert "lost" in shown
        assert member_id[-8:] in shown
        assert "contributions" in shown

        hetpeer("pause", "--dir", str(tmp_path / "center")).check_returncode()
        view = seen(ticket, lambda view: any(each.state == "paused" for each in view.peers))
        (paused,) = [each for each in view.peers if each.state == "paused"]
        assert paused.id == center_id
        assert "hetpeer pause" in paused.why


def test_who_asks_a_node_that_is_not_there_is_told_so(tmp_path: Path):
    ticket = tmp_path / "ticket"

    ticket.write_text(str(Ticket(RUN_ID, OPERATOR.public, ("127.0.0.1:1",), ())))
    done = hetpeer("status", str(ticket))
    assert done.returncode != 0
    assert "bootstrap node at 127.0.0.1:1 does not answer" in " ".join((done.stdout + done.stderr).split())


def test_who_watches_sees_the_run_again_and_again_until_ctrl_c(tmp_path: Path):
    with (
        serving(RUN.format(datacenters=1, sequences=2), tmp_path / "run") as ticket,
        subprocess.Popen(
            [*HETPEER, "status", str(ticket), "--watch", "--json"], stdout=subprocess.PIPE, text=True
        ) as watching,
    ):
        assert watching.stdout is not None
        views = [View.model_validate_json(watching.stdout.readline()) for _ in range(2)]
        assert views[0].now < views[1].now
        assert [view.run_id for view in views] == [ticket.run_id] * 2
        watching.send_signal(signal.SIGINT)
        assert watching.wait(SECONDS) == 130
