"""A replica in several gloo processes, beside one that is whole: real processes, started once where a test allows."""

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest
import torch
from torch import Tensor

from peer.compute.arithmetic import Arithmetic
from peer.compute.evaluation import Evaluator
from peer.compute.replica import WholeReplica
from peer.devices.messages import shared_tensors
from peer.devices.parallel_replica import ShardedEvaluator, ShardedReplica
from peer.devices.weights import weights_layout
from peer.devices.workers import Split, WorkerPool
from protocol.errors import DivergedError, LostMemberError, ResourceError
from protocol.identity import Part, stage_part
from protocol.layout import elements, model_layout
from protocol.manifest import Manifest, check_manifest
from tests.peer.compute.test_replica import batches, genesis
from tests.reference.boundary import orthonormal

Grids = dict[Part, dict[str, Tensor]]

CPU = torch.device("cpu")
SIZES = {"layers": 3, "d": 32, "heads": 2, "kv_heads": 1, "ffn": 48, "context": 16, "vocabulary": 301}


def manifest(sequences: int, microbatch: int, optimizer: str = "adamw") -> Manifest:
    inner = {"sequences": sequences, "microbatch": microbatch, "learning_rate": 1e-2, "warmup": 5, "clip": 0.5}
    inner |= {"optimizer": optimizer}
    replicas = {"stages": 2, "compression": 4, "wire": "fp32", "ngrams": 2, "ngram_width": 7}
    return check_manifest({"model": SIZES, "replicas": replicas, "inner": inner, "outer": {"rounds": 2}})


def sharded(
    run: Manifest, processes: int = 2, said: list[str] | None = None, recompute: bool = False
) -> ShardedReplica:
    split = Split(processes, 2, 19, Arithmetic(recompute=recompute))
    return ShardedReplica(run, CPU, split, ([] if said is None else said).append)


def worker_pool(replica: ShardedReplica) -> WorkerPool:
    assert replica.worker_pool is not None
    return replica.worker_pool


def processes(replica: ShardedReplica) -> list[psutil.Process]:
    return [psutil.Process(worker.process.pid) for worker in worker_pool(replica).workers]


def advanced(grids: Grids, moved: Grids) -> Grids:
    """The outer state after a round of one replica alone."""
    return {
        part: {name: grid - (moved[part][name] * 2**26).round().to(torch.int32) for name, grid in tensors.items()}
        for part, tensors in grids.items()
    }


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=1e-3)


@pytest.fixture(scope="module")
def pair() -> Iterator[ShardedReplica]:
    """A replica in two processes that has trained two steps of its first round."""
    run = manifest(4, 2)
    replica = sharded(run)
    try:
        replica.load(genesis(run))
        for step, batch in enumerate(batches(run, 2)):
            replica.inner_step(batch, step)
        yield replica
    finally:
        replica.stop()


@pytest.mark.parametrize(
    ("number", "sequences", "microbatch", "recompute", "optimizer"),
    [(2, 8, 2, False, "adamw"), (3, 6, 3, True, "muon")],
    ids=["two microbatches each", "rows left over, activations computed again, and Muon"],
)
def test_losses_moves_moments_and_evaluations_are_those_of_one_process_over_rounds(
    number: int, sequences: int, microbatch: int, recompute: bool, optimizer: str
):
    run, basis = manifest(sequences, microbatch, optimizer), orthonormal(32)
    ours, theirs = sharded(run, number, recompute=recompute), WholeReplica(run, "datacenter", None, CPU)
    held_out_EM = batches(run, 2).flatten(0, 1)[:7]
    evaluators = ShardedEvaluator(ours, basis, held_out_EM), Evaluator(run, basis, held_out_EM, CPU)
    grids, losses = genesis(run), []
    try:
        for round in range(3):
            part = stage_part(round % 2)
            ahead = {part: {name: each + 2**14 for name, each in grids[part].items()}} if round else None
            for replica in (ours, theirs):
                replica.load(grids, ahead)
            for step, batch in enumerate(batches(run, 4)):
                overall = 4 * round + step
                losses.append((ours.inner_step(batch, overall), theirs.inner_step(batch, overall)))
            moved, expected = ours.moved(), theirs.moved()
            assert list(moved) == list(expected)
            for part, tensors in expected.items():
                assert_close(moved[part], tensors)
            assert_close(ours.optimizer_tensors(), theirs.optimizer_tensors())
            grids = advanced(grids, expected)
            assert evaluators[0].evaluate(grids) == pytest.approx(evaluators[1].evaluate(grids), abs=1e-5)
    finally:
        ours.stop()
    assert [one for one, _ in losses] == pytest.approx([other for _, other in losses], abs=1e-4)
    assert losses[-1][0] < losses[0][0] - 0.5


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
def test_in_bf16_and_compiled_several_processes_come_to_the_losses_of_one_over_rounding():
    run, bf16 = manifest(4, 2), Arithmetic("bf16")
    exact, whole = (WholeReplica(run, "datacenter", None, CPU, arithmetic=each) for each in (Arithmetic(), bf16))
    several = ShardedReplica(run, CPU, Split(2, 2, 0, Arithmetic("bf16", compiled=True, recompute=True)), print)
    losses: list[list[float]] = []
    try:
        for replica in (exact, whole, several):
            replica.load(genesis(run))
            replica.warm_up()
            losses.append([replica.inner_step(batch, step) for step, batch in enumerate(batches(run, 6))])
            assert all(tensor.dtype == torch.float32 for tensor in replica.optimizer_tensors().values())
    finally:
        several.stop()
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert losses[2] == pytest.approx(losses[1], abs=0.02)
    assert losses[0] != losses[1]
    assert losses[2][-1] < losses[2][0] - 0.5


def test_what_one_process_has_learnt_about_gradients_several_go_on_with():
    run = manifest(4, 2)
    whole, other = (WholeReplica(run, "datacenter", None, CPU) for _ in range(2))
    first, second = batches(run, 2)
    whole.load(genesis(run))
    whole.inner_step(first, 0)
    kept = whole.optimizer_tensors()
    replica = sharded(run)
    try:
        replica.load_optimizer(kept)
        other.load_optimizer(kept)
        for each in (replica, other):
            each.load(genesis(run))
            each.inner_step(second, 1)
        assert_close(replica.optimizer_tensors(), other.optimizer_tensors())
        moved = replica.moved()
        for part, tensors in other.moved().items():
            assert_close(moved[part], tensors)
    finally:
        replica.stop()


def test_each_process_holds_its_share_of_weights_gradients_and_moments(pair: ShardedReplica):
    held = [answer.sizes for answer in worker_pool(pair).run("held_bytes")]
    whole = 4 * sum(map(elements, model_layout(pair.manifest).values()))
    assert {*held[0]} == {"weights", "gradients", "moments"}
    for kind, times in (("weights", 1), ("gradients", 1), ("moments", 2)):
        shares = [sizes[kind] / (times * whole) for sizes in held]
        assert shares == pytest.approx([0.5, 0.5], abs=0.02)  # odd numbers of rows


def test_processes_listen_on_loopback_alone(pair: ShardedReplica):
    listening = [each for process in processes(pair) for each in process.net_connections() if each.status == "LISTEN"]
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}


@pytest.mark.skipif(sys.platform != "linux", reason="where threads have priorities, and environments can be read")
def test_processes_give_way_and_share_the_cores(pair: ShardedReplica):
    for process in processes(pair):
        assert process.nice() == 19
        assert process.environ()["OMP_NUM_THREADS"] == "1"


def test_ctrl_c_and_sigterm_are_left_to_the_daemon(pair: ShardedReplica):
    for number in (signal.SIGINT, signal.SIGTERM):
        for process in processes(pair):
            process.send_signal(number)
    assert len(worker_pool(pair).run("held_bytes")) == 2


def test_a_gradient_that_is_no_number_is_said_as_in_one_process(pair: ShardedReplica):
    with shared_tensors(weights_layout(pair.manifest)) as shared:
        for weight in shared.tensors.values():
            weight.fill_(math.nan)
        worker_pool(pair).run("load", shared)
    with pytest.raises(DivergedError, match="the gradient is not a number"):
        pair.inner_step(batches(pair.manifest, 1)[0], 2)


def test_a_killed_process_is_named_and_the_round_begins_again_with_the_moments_and_the_losses_that_it_had():
    run, said, undisturbed = manifest(4, 2), [], WholeReplica(manifest(4, 2), "datacenter", None, CPU)
    replica = sharded(run, said=said)
    *rounds, evaluated = batches(run, 4)
    try:
        for each in (replica, undisturbed):
            each.load(genesis(run))
            each.inner_step(rounds[0], 0)
        replica.optimizer_tensors()  # as at a round's end
        replica.load(genesis(run))
        first = [replica.inner_step(batch, 1 + step) for step, batch in enumerate(rounds[1:])]
        before = processes(replica)
        before[1].kill()
        with pytest.raises(LostMemberError, match=rf"^worker 1 \(process {before[1].pid}\) was killed by SIGKILL$"):
            replica.inner_step(rounds[0], 3)
        assert not any(each.is_running() for each in before)
        with pytest.raises(LostMemberError, match="started again"):
            replica.inner_step(rounds[0], 3)
        basis = orthonormal(32)
        assert replica.evaluate(genesis(run), evaluated, basis) == pytest.approx(
            Evaluator(run, basis, evaluated, CPU).evaluate(genesis(run)), abs=1e-5
        )
        for each in (replica, undisturbed):
            each.load(genesis(run))
        assert [replica.inner_step(batch, 1 + step) for step, batch in enumerate(rounds[1:])] == first
        for step, batch in enumerate(rounds[1:]):
            undisturbed.inner_step(batch, 1 + step)
        assert_close(replica.optimizer_tensors(), undisturbed.optimizer_tensors())
    finally:
        replica.stop()
    assert said == ["starting 2 processes that compute on cpu"] * 2


def test_a_process_that_ends_while_nobody_waits_for_it_is_noticed_and_one_that_hangs_too(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("peer.devices.workers.COLLECTIVE_SECONDS", 20.0)  # a machine under load takes some to start
    run, said = manifest(4, 2), []
    replica = sharded(run, said=said)
    try:
        replica.load(genesis(run))
        replica.mend()
        before = processes(replica)
        before[0].kill()
        worker_pool(replica).workers[0].process.wait(10)
        replica.mend()
        assert said[1:] == [f"worker 0 (process {before[0].pid}) was killed by SIGKILL", said[0]]
        assert not set(before) & set(processes(replica))
        with pytest.raises(LostMemberError, match="started again"):
            replica.inner_step(batches(run, 1)[0], 1)
        replica.load(genesis(run))
        processes(replica)[1].suspend()
        with pytest.raises(LostMemberError, match=r"a worker failed: .*Timed out"):
            replica.inner_step(batches(run, 1)[0], 0)
    finally:
        replica.stop()


def test_processes_that_end_again_and_again_end_the_replica_with_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peer.devices.parallel_replica.MOST_LOST", 1)
    run = manifest(4, 2)
    replica = sharded(run)
    try:
        for _ in range(2):
            replica.load(genesis(run))
            processes(replica)[0].kill()
            with pytest.raises(LostMemberError, match=r"SIGKILL$"):
                replica.inner_step(batches(run, 1)[0], 0)
        for again in (
            lambda: replica.load(genesis(run)),
            lambda: replica.evaluate(genesis(run), batches(run, 1)[0], None),
        ):
            with pytest.raises(ResourceError, match=r"^worker 0 .* SIGKILL; that was loss 2 in one round"):
                again()
    finally:
        replica.stop()


def test_who_stops_a_replica_in_the_midst_of_a_step_waits_for_nobody():
    run = manifest(4, 2)
    replica = sharded(run)
    replica.load(genesis(run))
    running = processes(replica)
    running[0].suspend()  # so the step cannot end
    failed: list[Exception] = []

    def step() -> None:
        try:
            replica.inner_step(batches(run, 1)[0], 0)
        except LostMemberError as error:
            failed.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    replica.stop()
    thread.join(20)
    assert len(failed) == 1
    assert not any(each.is_running() for each in running)
    with pytest.raises(LostMemberError):
        replica.load(genesis(run))


DAEMON = """
import os, signal
from tests.peer.devices.test_parallel_replica import genesis, manifest, processes, sharded
replica = sharded(manifest(4, 2))
replica.load(genesis(replica.manifest))
print(replica.worker_pool.begin.rendezvous, *(each.pid for each in processes(replica)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_with_the_daemon_and_leave_nothing():
    ran = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, timeout=120)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    folder, *pids = ran.stdout.split()
    assert len(pids) == 2
    left = [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
    assert not os.path.exists(folder)
