"""The faults in a log, from invented events."""

from peer.telemetry.run_report import FaultDone
from peer.testnet.event_log import Timed, faults_done
from protocol.events.activity import Injected, StepDone


def step(seconds: float, round: int, step: int) -> Timed:
    return Timed(seconds, "datacenter 1", StepDone(round, step, 5.0, 8))


def injected(seconds: float, number: int, action: str, begins: bool = True, reason: str = "") -> Timed:
    return Timed(seconds, "chaos", Injected(number, f"fault {number}", action, ["datacenter 1"], begins, reason))


def test_a_fault_has_what_was_done_and_undone_and_how_far_the_swarm_was():
    log = [
        step(1.0, 1, 0),
        step(2.0, 1, 1),
        injected(2.5, 1, "paused"),
        step(3.0, 2, 0),
        injected(3.5, 0, "killed"),
        injected(4.5, 1, "resumed", begins=False),
    ]
    assert faults_done(log) == [
        FaultDone("fault 0", ["killed datacenter 1"], 3.5, (2, 1)),
        FaultDone("fault 1", ["paused datacenter 1", "resumed"], 2.5, (1, 2)),
    ]


def test_one_that_was_never_done_says_why():
    (fault,) = faults_done([injected(2.5, 0, "not applied", begins=False, reason="already dead")])
    assert fault == FaultDone("fault 0", ["not applied datacenter 1: already dead"], None, (0, 0))
