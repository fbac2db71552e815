"""Real processes that are stopped, killed and put to sleep, and started again by the same command."""

import asyncio
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.network import admission
from peer.testnet.child import two_free_ports
from protocol.events.activity import Contributed, Finished, Joined, Progress, Resumed, Serving, StepDone
from protocol.trust.ticket import parse_ticket
from tests.reference.processes import TEXT, Peer

KILLS = int(os.environ.get("HETPEER_KILLS", "1"))
"""So often everything is killed; twenty times where there is time."""

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = {datacenters}
[inner]
steps = {steps}
sequences = 4
microbatch = 2
[outer]
rounds = {rounds}
"""


class Run:
    """A node, and peers with folders of their own: the same name, the same command again, at the same ports."""

    def __init__(self, folder: Path, stack: ExitStack, *node: str, datacenters: int, steps: int, rounds: int) -> None:
        self.folder, self.stack = folder, stack
        (folder / "run.toml").write_text(RUN.format(datacenters=datacenters, steps=steps, rounds=rounds))
        (folder / "text.txt").write_text(TEXT)
        where = ["--listen", f"127.0.0.1:{two_free_ports()}", "--dir", str(folder / "node")]
        self.created = ["bootstrap", str(folder / "run.toml"), *where, "--data", str(folder / "text.txt"), *node]
        self.node = self.start_node()
        self.ticket = self.node.wait_for(Serving).ticket

    def start_node(self) -> Peer:
        """The operator's node."""
        return self.stack.enter_context(Peer(*self.created))

    def start(self, name: str) -> Peer:
        """`stage-0`, `stage-1`, …, or a datacenter of another name."""
        what = ["join", self.ticket, "--stage", name[-1]] if name.startswith("stage") else ["replica", self.ticket]
        where = ["--dir", str(self.folder / name), "--device", "cpu", "--threads", "1"]
        return self.stack.enter_context(Peer(*what, *where))


def test_a_group_alone_goes_on_when_the_one_that_was_stopped_in_mid_round_is_back(tmp_path: Path):
    stage = 1  # `tests/world` has both, and the seconds
    with ExitStack() as stack:
        run = Run(tmp_path, stack, datacenters=0, steps=24, rounds=3)
        peers = [run.start("stage-0"), run.start("stage-1")]
        stays = peers[1 - stage]
        peers[0].wait_for(StepDone, lambda event: event.round == 2 and event.step >= 8)
        assert peers[stage].end(signal.SIGINT) == 130
        assert peers[stage].wait_for(Contributed, lambda event: event.round == 2)
        back = run.start(f"stage-{stage}")
        back.wait_for(Joined)
        back.wait_for(StepDone)
        digests = [each.wait_for(Finished).digests["embedding"] for each in (stays, back)]
        assert digests[0] == digests[1]
        assert [each.process.wait(120) for each in (stays, back)] == [0, 0]


def test_who_is_late_is_told_that_the_run_is_over_and_takes_the_last_state(tmp_path: Path):
    with ExitStack() as stack:
        run = Run(tmp_path, stack, "--evaluate", datacenters=1, steps=24, rounds=3)
        quick, *group = [run.start(name) for name in ("center", "stage-0", "stage-1")]
        group[0].wait_for(StepDone, lambda event: event.round == 2 and event.step >= 4)
        for each in group:
            each.process.send_signal(signal.SIGSTOP)
        last = quick.wait_for(Finished).digests
        assert quick.process.wait(240) == 0
        run.node.wait_for(Progress, lambda event: event.doing.startswith("staying, for those who come late"))
        while not asyncio.run(admission.ask_node(parse_ticket(run.ticket))).finished:
            time.sleep(1)  # until it counts no longer on those that sleep
        new = run.start("late-center")
        assert new.process.wait(120) == 0
        assert new.wait_for(Progress, is_over)
        assert not [event for event in new.said if isinstance(event, StepDone)]
        before = [contributed(each) for each in group]
        for each in group:
            each.process.send_signal(signal.SIGCONT)
        for stage, each in enumerate(group):
            assert each.process.wait(120) == 0
            assert each.wait_for(Progress, is_over)
            assert each.wait_for(Finished).digests == {part: last[part] for part in ("embedding", f"stage-{stage}")}
            assert contributed(each) == before[stage]
        again = run.start("stage-0")
        assert again.wait_for(Finished).digests["embedding"] == last["embedding"]
        assert again.process.wait(120) == 0


def contributed(peer: Peer) -> list[int]:
    return [event.round for event in peer.said if isinstance(event, Contributed)]


def is_over(event: Progress) -> bool:
    return event.doing.startswith("the run is over")


def test_everything_killed_again_and_again_goes_on_from_the_last_state(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """The operator's node too. Nobody waits for anybody else to be back."""
    chance = random.Random(9)
    with ExitStack() as stack:
        run = Run(tmp_path, stack, datacenters=1, steps=3, rounds=5 * KILLS + 5)
        names = ["center", "stage-0", "stage-1"]
        finished: dict[str, int] = {}
        for kill in range(KILLS + 1):
            peers = {name: run.start(name) for name in names}
            for name, peer in peers.items():
                if name in finished:
                    assert peer.wait_for(Resumed).round >= finished[name]
            if kill == KILLS:
                break
            peers["center"].wait_for(StepDone)
            time.sleep(chance.uniform(0, 1.5))  # at no moment that means anything
            for name, peer in [*peers.items(), ("node", run.node)]:
                assert peer.end(signal.SIGKILL) == -signal.SIGKILL  # it had not ended by itself
                for event in peer.said:
                    if isinstance(event, Contributed):
                        finished[name] = event.round - 1
            run.node = run.start_node()
        digests = [set(peer.wait_for(Finished).digests.items()) for peer in peers.values()]
        assert digests[1] <= digests[0]
        assert digests[2] <= digests[0]
        assert [peer.process.wait(120) for peer in peers.values()] == [0, 0, 0]
    assert "Traceback" not in (said := capfd.readouterr().err), said
