"""A replica on two machines, both of which are this one: real links, real processes."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from peer.devices.machines import Hello, MachineLink, Machines, Welcome
from peer.devices.messages import Begin, Order, encoded
from peer.devices.other_machine import Limits, OtherMachine
from peer.devices.parallel_replica import ShardedReplica
from peer.devices.weights import weights_layout
from peer.devices.workers import Split, WorkerPool
from peer.network.machine_link import LinkListener, connect_machine
from protocol.errors import FormatError, HetpeerError, LostMemberError, RefusedError, ResourceError, UnreachableError
from protocol.manifest import Manifest
from tests.peer.compute.test_replica import batches, genesis
from tests.peer.devices.test_parallel_replica import CPU, advanced, manifest, processes, sharded, worker_pool
from tests.reference.boundary import orthonormal

SECRET = b"the secret of a datacenter, all of chance"
SECONDS = 60


class Second:
    """The other machine, in a thread of this process."""

    def __init__(self, port: int, secret: bytes = SECRET, most: int | None = None, **hello: Any) -> None:
        self.said: list[str] = []
        self.failed: HetpeerError | None = None
        self.news = threading.Condition()
        own = Hello.of(2, 1, "cpu", "", 1)
        call = partial(connect_machine, "127.0.0.1", port, secret)
        self.machine = OtherMachine(
            replace(own, **hello), Limits(CPU, 1, 19, most), f"127.0.0.1:{port}", call, self.say
        )
        self.thread = threading.Thread(target=self.run, daemon=True)  # a test that fails shall end
        self.thread.start()

    def say(self, doing: str) -> None:
        with self.news:
            self.said.append(doing)
            self.news.notify_all()

    def wait_said(self, words: str) -> None:
        with self.news:
            assert self.news.wait_for(lambda: any(words in each for each in self.said), SECONDS), self.said

    def run(self) -> None:
        try:
            self.machine.run()
        except HetpeerError as error:
            self.failed = error

    def end(self) -> None:
        self.machine.stop()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


def all_there(machines: Machines) -> None:
    """Wait until no machine is missing."""
    tried = threading.Event()
    for _ in range(600):
        if not machines.missing():
            return
        tried.wait(0.1)
    raise AssertionError(machines.missing())


@contextmanager
def two_machines(run: Manifest, said: list[str] | None = None) -> Iterator[tuple[ShardedReplica, Machines, Second]]:
    """A replica of one process on each of two machines, which are there."""
    machines = Machines(Hello.of(2, 1, "cpu", run.digest), partial(LinkListener, "127.0.0.1", 0, SECRET))
    split = Split(1, 1, 19, machines=2)
    replica = ShardedReplica(run, CPU, split, ([] if said is None else said).append, machines)
    second = Second(machines.port)
    try:
        all_there(machines)
        yield replica, machines, second
    finally:
        replica.stop()
        second.end()


def trained(replica: ShardedReplica, run: Manifest, rounds: int, basis: Tensor) -> list[Any]:
    """All that comes out of some rounds of three steps, and their evaluations."""
    grids, found = genesis(run), []
    for round in range(rounds):
        replica.load(grids)
        found += [replica.inner_step(batch, 3 * round + step) for step, batch in enumerate(batches(run, 3))]
        moved = {part: dict(tensors) for part, tensors in replica.moved().items()}
        found += [*replica.optimizer_tensors().values()]
        grids = advanced(grids, moved)
        found += [*replica.evaluate(grids, batches(run, 1)[0][:3], basis)]
        found += [tensor for tensors in moved.values() for tensor in tensors.values()]
    return found


def equal(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other) if isinstance(one, Tensor) else one == other
        for one, other in zip(ours, theirs, strict=True)
    )


def test_two_machines_of_one_process_equal_one_machine_of_two_to_the_bit_and_end_with_the_run():
    run, basis = manifest(4, 2), orthonormal(32)
    one = sharded(run)
    try:
        expected = trained(one, run, 2, basis)
    finally:
        one.stop()
    with two_machines(run) as (replica, _, second):
        assert equal(trained(replica, run, 2, basis), expected)
        replica.over = True
        replica.stop()
        second.thread.join(SECONDS)
        assert not second.thread.is_alive()
        assert (second.failed, second.said[-1]) == (None, "the run is over")


def other_worker(second: Second) -> psutil.Process:
    assert second.machine.worker_pool is not None
    return psutil.Process(second.machine.worker_pool.workers[0].process.pid)


def test_a_process_that_is_killed_on_either_machine_is_named_and_all_begin_the_round_again_with_the_same_losses():
    run = manifest(4, 2)
    with two_machines(run) as (replica, machines, second):

        def steps(count: int) -> list[float]:
            return [replica.inner_step(batch, step) for step, batch in enumerate(batches(run, count))]

        replica.load(genesis(run))
        first = steps(2)
        beyond, here = other_worker(second), processes(replica)[0]
        beyond.kill()
        lost = rf"^machine 1 \(127\.0\.0\.1\): worker 1 \(process {beyond.pid}\) was killed by SIGKILL$"
        with pytest.raises(LostMemberError, match=lost):
            replica.inner_step(batches(run, 1)[0], 2)
        assert not here.is_running()
        all_there(machines)
        replica.load(genesis(run))
        assert steps(2) == first
        beyond, here = other_worker(second), processes(replica)[0]
        here.kill()
        with pytest.raises(LostMemberError, match=rf"^worker 0 \(process {here.pid}\) was killed by SIGKILL$"):
            replica.inner_step(batches(run, 1)[0], 2)
        all_there(machines)
        assert not beyond.is_running()
        replica.load(genesis(run))
        assert steps(2) == first


def test_a_machine_that_goes_while_nobody_waits_for_it_is_noticed_waited_for_and_taken_in_again():
    run, said = manifest(4, 2), []
    with two_machines(run, said) as (replica, machines, second):
        replica.load(genesis(run))
        first = replica.inner_step(batches(run, 1)[0], 0)
        second.end()
        assert (
            worker_pool(replica).machines[0].lost(SECONDS)
            == "machine 1 (127.0.0.1): 127.0.0.1 has closed the connection"
        )
        replica.mend()
        assert said[1:] == ["machine 1 (127.0.0.1): 127.0.0.1 has closed the connection"]
        assert replica.missing().startswith("waiting for machine 1 since 20")
        for again in (
            lambda: replica.load(genesis(run)),
            lambda: replica.evaluate(genesis(run), batches(run, 1)[0], None),
        ):
            with pytest.raises(LostMemberError, match=r"^waiting for machine 1 since"):
                again()
        third = Second(machines.port)
        try:
            all_there(machines)
            assert third.said == [f"the first machine, 127.0.0.1:{machines.port}, has taken in machine 1"]
            replica.load(genesis(run))
            assert replica.inner_step(batches(run, 1)[0], 0) == first
        finally:
            third.end()


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"nproc": 2}, "--nproc is 1 on the first machine and 2 here"),
        ({"nnodes": 3, "node_rank": 2}, "--nnodes is 2 on the first machine and 3 here"),
        ({"manifest": "ab" * 32}, "the manifest is [0-9a-f]{64} on the first machine and (ab){32} here"),
        ({"hetpeer": "0.0.0"}, r"hetpeer is \S+ on the first machine and 0.0.0 here"),
        ({"torch": "1.0\x1b[2J"}, r"torch is \S+ on the first machine and 1.0�\[2J here"),
        ({"device": "cuda"}, "the device is cpu on the first machine and cuda here"),
        ({"node_rank": 2}, "--node-rank 2: the other machines have 1 to 1"),
        ({"node_rank": 0}, "--node-rank 0: the other machines have 1 to 1"),
    ],
)
def test_a_machine_that_does_not_go_with_the_first_is_refused_with_both_values(hello: dict[str, Any], words: str):
    own = Hello.of(2, 1, "cpu", manifest(4, 2).digest)
    machines = Machines(own, partial(LinkListener, "127.0.0.1", 0, SECRET))
    second = Second(machines.port, **hello)
    try:
        second.thread.join(5)
        assert isinstance(second.failed, RefusedError)
        assert re.search(f"refuses this one: {words}$", str(second.failed)), second.failed
        assert machines.missing()
    finally:
        second.end()
        machines.close(over=False)


def test_a_second_machine_of_one_rank_waits_and_says_for_what(monkeypatch: pytest.MonkeyPatch):
    with two_machines(manifest(4, 2)) as (_, machines, _):
        third = Second(machines.port)
        third.wait_said("another machine with --node-rank 1 is there, 127.0.0.1")
        monkeypatch.setattr("peer.devices.other_machine.GONE_SECONDS", 0.0)
        third.thread.join(SECONDS)
        assert isinstance(third.failed, UnreachableError)


def test_a_machine_whose_first_one_is_away_says_so_and_since_when_and_gives_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    second = Second(port)
    second.wait_said(f"machine 1 waits for the first machine, 127.0.0.1:{port}, since 20")
    assert "for at most 10.0 min: " in second.said[0]
    assert "refused" in second.said[0]
    monkeypatch.setattr("peer.devices.other_machine.GONE_SECONDS", 0.0)
    second.thread.join(SECONDS)
    assert isinstance(second.failed, UnreachableError)
    assert "has been gone for" in str(second.failed)


def test_a_machine_with_another_secret_says_so_and_is_not_let_in():
    machines = Machines(Hello.of(2, 1, "cpu", ""), partial(LinkListener, "127.0.0.1", 0, SECRET))
    second = Second(machines.port, secret=b"another secret of a datacenter, of chance")
    try:
        second.wait_said("--secret-file must be the same on all machines")
        assert machines.missing()
    finally:
        second.end()
        machines.close(over=False)


def test_a_machine_that_is_too_small_ends_and_the_first_one_says_which():
    run = manifest(4, 2)
    machines = Machines(Hello.of(2, 1, "cpu", run.digest), partial(LinkListener, "127.0.0.1", 0, SECRET))
    replica = ShardedReplica(run, CPU, Split(1, 1, 19, machines=2), print, machines)
    second = Second(machines.port, most=10**6)
    try:
        all_there(machines)
        with pytest.raises(ResourceError, match=r"^machine 1 \(127\.0\.0\.1\): --max-memory 1\.0 MB is not enough"):
            replica.load(genesis(run))
        second.thread.join(SECONDS)
        assert isinstance(second.failed, ResourceError)
    finally:
        replica.stop()
        second.end()


class FalseFirst(MachineLink):
    """A first machine that says what it likes."""

    peer = interface = "nobody"

    def __init__(self, *messages: bytes) -> None:
        self.messages = [json.dumps(asdict(Welcome())).encode(), *messages]
        self.ours, self.theirs = socket.socketpair()
        self.ours.sendall(b"x")
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return self.theirs.fileno()

    def waits(self) -> bool:
        return True

    def keep(self) -> None: ...

    def send(self, message: bytes, pieces: Any = ()) -> None:
        self.sent.append(message)

    def receive(self) -> bytes:
        if not self.messages:
            raise ConnectionError("gone")
        return self.messages.pop(0)

    def receive_into(self, piece: memoryview) -> None:
        raise AssertionError("nothing of it should be held")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


RUN = manifest(4, 2)
BEGIN = Begin(RUN.model_dump_json(), 2, "cpu", "", 1, 0, 60.0, store="127.0.0.1:1")


@pytest.mark.parametrize(
    "message",
    [
        b"{",
        b"[]",
        encoded(Order("step", {"batch": ("int64", (4, 17))})),  # before `begin`
        encoded(Order("begin", begin=replace(BEGIN, manifest="{}"))),
        encoded(Order("begin", begin=replace(BEGIN, store="nowhere"))),
        encoded(Order("begin", begin=replace(BEGIN, ranks=3))),
        encoded(Order("begin", begin=replace(BEGIN, device="cuda"))),
        encoded(Order("begin", begin=replace(BEGIN, rendezvous="/tmp"))),
        encoded(Order("begin", begin=replace(BEGIN, patience=1e9))),
        encoded(Order("step", {"batch": ("int64", (4, 17))})).replace(b'"step"', b'"shell"', 1),
    ],
)
def test_a_first_machine_that_asks_for_what_cannot_be_is_hung_up_on(message: bytes):
    link = FalseFirst(message)
    machine = OtherMachine(Hello.of(2, 1, "cpu", "", 1), Limits(CPU, 1, 19, None), "h:1", lambda hello: link, print)
    try:
        with pytest.raises(FormatError):
            machine._serve(link)
        assert machine.worker_pool is None
    finally:
        link.close()


@pytest.mark.parametrize(
    "order",
    [
        Order("step", {"batch": ("int64", (4, 10**12))}),
        Order("step", {}),
        Order("load", {"0.0": ("float32", (10**12,))}),
        Order("moments", {}),
        Order("evaluate", {"held_out": ("int64", (1, 17))}),
        Order("evaluate", {"held_out": ("int64", ())}),
        Order("evaluate", {**weights_layout(RUN), "held_out": ("int64", (2**40, 17))}),
        Order("evaluate", {**weights_layout(RUN), "held_out": ("int64", (1, 17)), "basis": ("float32", (32, 10**12))}),
        Order("warm_up", {"more": ("float32", (1,))}),
    ],
)
def test_an_order_with_tensors_that_the_run_does_not_have_holds_no_memory(order: Order):
    link = FalseFirst(encoded(order))
    machine = OtherMachine(Hello.of(2, 1, "cpu", "", 1), Limits(CPU, 1, 19, None), "h:1", lambda hello: link, print)
    machine.worker_pool, machine.manifest = WorkerPool(replace(BEGIN, first=1), 0), RUN
    try:
        with pytest.raises(FormatError, match="of other tensors than its run has"):
            machine._serve(link)
    finally:
        link.close()
