"""A replica on two machines, both of which are this one: real links, real processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from peer.devices.machines import Hello, Machines
from peer.devices.other_machine import Limits, OtherMachine
from peer.devices.parallel_replica import ShardedReplica
from peer.devices.workers import Split
from peer.network.machine_link import LinkListener, connect
from protocol.errors import HetpeerError, LostMemberError, RefusedError, ResourceError, UnreachableError
from protocol.manifest import Manifest
from tests.peer.compute.test_replica import batches, genesis
from tests.peer.devices.test_parallel_replica import CPU, advanced, crew, manifest, processes, sharded
from tests.reference.boundary import orthonormal

SECRET = b"the secret of a datacenter, all of chance"
SECONDS = 60


class Second:
    """The other machine, in a thread of this process."""

    def __init__(self, port: int, secret: bytes = SECRET, most: int | None = None, **hello: Any) -> None:
        self.said: list[str] = []
        self.failed: HetpeerError | None = None
        self.news = threading.Condition()
        known = {"nnodes": 2, "nproc": 1, "device": "cpu", "manifest": "", "node_rank": 1} | hello
        call = partial(connect, "127.0.0.1", port, secret)
        self.machine = OtherMachine(Hello(**known), Limits(CPU, 1, 19, most), f"127.0.0.1:{port}", call, self.say)
        self.thread = threading.Thread(target=self.run)
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
    ports: list[int] = []

    def listen(serve: Any) -> LinkListener:
        listener = LinkListener("127.0.0.1", 0, SECRET, serve)
        ports.append(listener.port)
        return listener

    machines = Machines(Hello(2, 1, "cpu", run.digest), listen)
    split = Split(1, 1, 19, machines=2)
    replica = ShardedReplica(run, CPU, split, ([] if said is None else said).append, machines)
    second = Second(ports[0])
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
