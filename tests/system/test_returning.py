"""Real processes that leave and come back: no work is lost that anybody still holds, and nobody stands still."""

import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from protocol.events.activity import Joined, Progress, RoundDone, Serving, StepDone
from protocol.events.decisions import CaughtUp
from protocol.events.waiting import Waiting
from tests.reference.forked import hetpeer
from tests.reference.processes import TEXT, Peer

RUN = """
[run]
gather = 5.0
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = {datacenters}
[inner]
steps = 2
sequences = 2
microbatch = 1
[outer]
rounds = 2000
grace = 2
"""


class Run:
    """A node without the model, and peers with folders of their own: the same name, the same command again."""

    def __init__(self, folder: Path, stack: ExitStack, datacenters: int = 0) -> None:
        self.folder, self.stack = folder, stack
        (folder / "run.toml").write_text(RUN.format(datacenters=datacenters))
        (folder / "text.txt").write_text(TEXT)
        where = ["--listen", "127.0.0.1:0", "--dir", str(folder / "node"), "--data", str(folder / "text.txt")]
        self.node = stack.enter_context(Peer("bootstrap", str(folder / "run.toml"), *where))
        self.ticket = self.node.wait_for(Serving).ticket

    def start(self, name: str) -> Peer:
        """A volunteer of the stage in its name, `a1` of stage 1, or the datacenter `center`."""
        what = ["replica"] if name == "center" else ["join", "--stage", name[-1]]
        where = ["--dir", str(self.folder / name), "--device", "cpu", "--threads", "1"]
        return self.stack.enter_context(Peer(*what, self.ticket, *where))


def last_round(peer: Peer) -> int:
    return max((event.round for event in peer.said if isinstance(event, RoundDone)), default=0)


def until_round(peer: Peer, round: int) -> None:
    peer.wait_for(RoundDone, lambda event: event.round >= round)


def says(text: str) -> Callable[[Waiting], bool]:
    return lambda event: text in event.waits_for


def empty_rounds(peer: Peer, part: str) -> list[int]:
    """The rounds that a peer has closed without a contribution to a part."""
    return [event.round for event in peer.said if isinstance(event, RoundDone) and not event.contributions[part]]


def leave_as_last(peer: Peer) -> None:
    """Stop a peer, which says that nobody else holds its state, and insist."""
    peer.process.send_signal(signal.SIGINT)
    peer.wait_for(Waiting, says("only this peer holds it; Ctrl-C again leaves at once"))
    assert peer.end(signal.SIGINT) == 130


def test_an_older_state_waits_for_the_newest_one_and_stands_only_by_the_operators_rewind(tmp_path: Path):
    with ExitStack() as stack:
        run = Run(tmp_path, stack)
        first, older = run.start("c0"), run.start("a1")
        until_round(older, 3)
        newer = run.start("b1")
        newer.wait_for(Waiting, says("this peer is a spare"))
        assert older.end(signal.SIGINT) == 130
        until_round(newer, last_round(older) + 6)
        leave_as_last(newer)

        older, stranger = run.start("a1"), run.start("n1")
        stack.callback(first.process.send_signal, signal.SIGCONT)
        first.process.send_signal(signal.SIGSTOP)  # the only one that could say how far the run is
        stranger.wait_for(Joined)
        for peer in (older, stranger):
            peer.wait_for(Waiting, says("stage 1 after round"))
        first.process.send_signal(signal.SIGCONT)
        first.wait_for(Waiting, says("the state of stage 1 after round"))
        assert last_round(older) == last_round(stranger) == 0
        steps = sum(isinstance(event, StepDone) for event in first.said)
        newer = run.start("b1")
        until_round(newer, last_round(first) + 2)
        for peer in (older, stranger):
            peer.wait_for(CaughtUp)
            until_round(peer, last_round(newer))
            assert not empty_rounds(peer, "stage-1")
        assert not empty_rounds(newer, "stage-1")
        assert sum(isinstance(event, StepDone) for event in first.said) > steps

        for peer in (stranger, older):
            assert peer.end(signal.SIGINT) == 130
        kept = last_round(older)
        until_round(newer, kept + 6)
        newer.end(signal.SIGKILL)
        shutil.rmtree(tmp_path / "b1")
        older = run.start("a1")
        older.wait_for(Waiting, says("stage 1 after round"))
        listed = hetpeer("admin", "rewind", "--dir", str(tmp_path / "node"))
        assert listed.returncode == 0
        assert "Stage 1: the newest known state is of round" in listed.stdout
        too_late = hetpeer("admin", "rewind", "--to-round", "100000", "--dir", str(tmp_path / "node"))
        assert too_late.returncode == 2
        assert hetpeer("admin", "rewind", "--to-round", str(kept), "--dir", str(tmp_path / "node")).returncode == 0
        older.wait_for(Progress, lambda event: "the operator has rewound the run" in event.doing)
        until_round(older, kept + 8)
        assert older.wait_for(StepDone)


def test_a_newcomer_joins_where_the_run_is_after_a_volunteer_has_left_and_come_back_as_a_spare(tmp_path: Path):
    with ExitStack() as stack:
        run = Run(tmp_path, stack)
        leaver, second = run.start("a0"), run.start("a1")
        until_round(second, 3)
        successor = run.start("b0")
        successor.wait_for(Waiting, says("this peer is a spare"))
        assert leaver.end(signal.SIGINT) == 130
        successor.wait_for(StepDone)
        spare = run.start("a0")
        until_round(second, last_round(leaver) + 16)
        at = last_round(second)
        newcomer = run.start("n0")
        newcomer.wait_for(CaughtUp)
        until_round(newcomer, at + 4)
        assert min(event.round for event in newcomer.said if isinstance(event, RoundDone)) >= at - 1
        assert not empty_rounds(newcomer, "stage-0")
        for peer in (spare, newcomer, second, successor):  # nobody says of a run that goes on that its state is lost
            assert not [event for event in peer.said if isinstance(event, Waiting) and "after round" in event.what]


def test_a_volunteer_that_was_away_while_a_datacenter_trained_on_is_in_its_group_again(tmp_path: Path):
    with ExitStack() as stack:
        run = Run(tmp_path, stack, datacenters=1)
        first, away, center = run.start("c0"), run.start("a1"), run.start("center")
        until_round(first, 4)
        assert away.end(signal.SIGINT) == 130
        until_round(center, last_round(center) + 20)
        at = last_round(center)
        back = run.start("a1")
        back.wait_for(CaughtUp, lambda event: event.round >= at - 1)
        assert back.wait_for(StepDone).round >= at
        done = back.wait_for(RoundDone, lambda event: event.contributions["stage-1"] == 2)
        assert done.round >= at
