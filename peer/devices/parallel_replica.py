"""A datacenter replica whose inner loop runs in several processes, one for each device of this machine, or of several.

It is called from the torch thread, as `WholeReplica` is, and gives the same but for rounding. Processes that end are
started again with the next round, or with the same one from its start: what they need is here, the outer state and
the optimizer's moments as they were after the last round.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from peer.compute.on_demand import OnDemand
from peer.compute.trainer import GridView
from peer.devices.machines import Machines
from peer.devices.messages import Answer, Do, SharedTensors, layout_of, shared_tensors
from peer.devices.weights import by_part, fill, moments_layout, weights_layout
from peer.devices.workers import Split, WorkerPool, worker_settings
from peer.optim.grid import to_float
from protocol.errors import LostMemberError, ResourceError
from protocol.identity import Part
from protocol.manifest import Manifest

MOST_LOST = 3
"""The most losses of worker processes that are mended in one round: after one more the replica gives up."""


class ShardedReplica:
    """A datacenter replica that several worker processes compute, its *worker pool*. `machines`: the other machines
    that have such processes, if the split is over several. `say` is called with a line for the owner before what takes
    long. `stop` and `missing` may be called from any thread, all else from one."""

    def __init__(
        self,
        manifest: Manifest,
        device: torch.device,
        split: Split,
        say: Callable[[str], None],
        machines: Machines | None = None,
    ) -> None:
        self.manifest = manifest
        self.device = device
        self.split = split
        self.say = say
        self.machines = machines
        self.worker_pool: WorkerPool | None = None
        """The worker processes; None: none are running."""
        self.moments: Mapping[str, Tensor] = {}
        """The optimizer's state at the end of the last round: each new worker pool is given it."""
        self.loaded = False
        """Whether the worker pool has the weights of the round under way; without them a step raises
        LostMemberError."""
        self.began: Mapping[Part, GridView] = {}
        """θ from which the inner loop started, for Δ."""
        self.lost: list[str] = []
        """A line for each loss of a worker pool since a round was last done."""
        self.stopped = False
        self.over = False
        """Whether the run is over: other machines are told so when this one stops."""

    def end_run(self) -> None:
        """Tell the other machines, when this one stops, that the run is over."""
        self.over = True

    def start(self) -> None:
        """See that the processes are there. It takes seconds: others should not wait for it. Raises as `load` does."""
        if self.worker_pool is not None:
            return
        if len(self.lost) > MOST_LOST:
            raise ResourceError(
                f"{self.lost[-1]}; that was loss {len(self.lost)} in one round: is there too little memory? "
                "--device and --nproc say on what a replica computes"
            )
        self.loaded = False
        self.worker_pool = self._new_worker_pool()
        if self.stopped:  # here, as another thread may just have called `stop`
            self.worker_pool.stop()
        try:
            self.worker_pool.start()
        except LostMemberError as error:
            raise self._without(error) from None
        self._load_moments()

    def _new_worker_pool(self) -> WorkerPool:
        """The processes, none of which is started. Raises LostMemberError while another machine is missing."""
        device, processes = self.device.type, self.split.processes
        starting = f"starting {processes} {'process' if processes == 1 else 'processes'} that compute on {device}"
        if self.machines is None:
            self.say(starting)
            return WorkerPool(worker_settings(self.manifest, device, self.split), processes)
        others, store = self.machines.take()
        self.say(f"{starting}, on each of {self.split.machines} machines")
        return WorkerPool(
            worker_settings(self.manifest, device, self.split, store), processes, others, self.machines.interface
        )

    def missing(self) -> str:
        """Say which other machines are missing, and since when; empty: none is."""
        if self.machines is None or self.worker_pool is not None:
            return ""
        return self.machines.missing()

    def mend(self) -> None:
        """Notice now, not only at the next order, that a process has ended, and start all of them again. A round that
        was under way goes on from its start: its next step raises a LostMemberError."""
        ended = self.worker_pool.ended() if self.worker_pool is not None else None
        if ended is None:
            return
        self.say(str(self._without(ended)))
        with suppress(LostMemberError, ResourceError):  # the next order tries again, and says it
            self.start()

    def load(self, grids: Mapping[Part, GridView], ahead: Mapping[Part, GridView] | None = None) -> None:
        """Start a round from the outer state, or, of the parts in `ahead`, from there.

        Raises:
            LostMemberError: a process has ended; `load` starts all of them again.
            ResourceError: that has happened too often.
        """
        self.start()
        with shared_tensors(weights_layout(self.manifest)) as shared:
            starts = {part: dict(grid) for part, grid in {**grids, **(ahead or {})}.items()}
            fill(shared.tensors, self.manifest, starts)
            self._run("load", shared)
        self.loaded, self.began = True, starts

    def warm_up(self) -> None:
        """Let torch compile now what it compiles at its first use. Raises as `load` does."""
        if self.split.arithmetic.compiled:
            self._run("warm_up")

    def inner_step(self, batch_SM: Tensor, step: float) -> float:
        """One inner step on `batch_SM` [sequences, L + 1], at place `step` of the run. The mean loss, in nats per
        token. Raises as `load` does, and:

        Raises:
            DivergedError: the gradient is not a number.
        """
        with shared_tensors(layout_of({"batch": batch_SM})) as shared:
            shared.tensors["batch"].copy_(batch_SM)
            return self._run("step", shared, step)[0].numbers[0]

    def moved(self) -> Mapping[Part, Mapping[str, Tensor]]:
        """Δ of every part of the model, float32, on the CPU, each tensor made when it is asked for. Raises as `load`
        does."""
        with shared_tensors(weights_layout(self.manifest)) as shared:
            self._run("weights", shared)
        began, ends = self.began, by_part(shared.tensors, self.manifest)

        def delta(part: Part, name: str) -> Tensor:
            return to_float(began[part][name]).sub_(ends[part][name])

        return {part: OnDemand({name: partial(delta, part, name) for name in ends[part]}) for part in ends}

    def forget_start(self) -> None:
        """Keep no longer the θ that the inner loop started from."""
        self.began = {}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state, to keep; as `WholeReplica` has it. With it the round is over: processes that end later
        go on from here. Raises as `load` does."""
        with shared_tensors(moments_layout(self.manifest)) as shared:
            self._run("moments", shared)
        self.moments = shared.tensors
        self.lost.clear()
        return shared.tensors

    def load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up the optimizer's state where `optimizer_tensors`, or `WholeReplica`'s, left it; nothing is no
        state."""
        self.moments = dict(tensors)
        if self.worker_pool is not None:
            with suppress(LostMemberError):  # those that are started next get them, too
                self._load_moments()

    def evaluate(
        self, grids: Mapping[Part, GridView], held_out_EM: Tensor, basis_DD: Tensor | None
    ) -> tuple[float, float]:
        """(loss through the boundaries, plain loss) of an outer state, in nats per token, between two rounds.

        Raises:
            ResourceError: processes have ended too often.
            LostMemberError: another machine is missing.
        """
        more = {"held_out": held_out_EM} | ({} if basis_DD is None else {"basis": basis_DD})
        while True:
            try:
                self.start()
                self.loaded = False
                with shared_tensors({**weights_layout(self.manifest), **layout_of(more)}) as shared:
                    fill(shared.tensors, self.manifest, grids)
                    for name, tensor in more.items():
                        shared.tensors[name].copy_(tensor)
                    through, plain = self._run("evaluate", shared)[0].numbers
                    return through, plain
            except LostMemberError as error:
                if self.stopped or self.machines is not None:  # who calls waits for the others, and tries again
                    raise
                self.say(f"{error}; evaluating once more")

    def stop(self) -> None:
        """End all processes; who waits for them gets a LostMemberError."""
        self.stopped = True
        if self.machines is not None:
            self.machines.close(self.over)
        if self.worker_pool is not None:
            self.worker_pool.stop()

    def _load_moments(self) -> None:
        if self.moments:
            with shared_tensors(moments_layout(self.manifest)) as shared:
                for name, tensor in shared.tensors.items():
                    tensor.copy_(self.moments[name])
                self._run("load_moments", shared)

    def _run(self, do: Do, shared: SharedTensors | None = None, step: float = 0.0) -> list[Answer]:
        if self.worker_pool is None or (do in ("step", "weights", "moments") and not self.loaded):
            raise LostMemberError("the processes that compute have been started again")
        try:
            return self.worker_pool.run(do, shared, step)
        except LostMemberError as error:
            raise self._without(error) from None

    def _without(self, error: LostMemberError) -> LostMemberError:
        """Note that the worker pool is lost; the error."""
        self.worker_pool = None
        self.lost.append(str(error))
        return error


class ShardedEvaluator:
    """Held-out loss as `Evaluator` has it, computed by the processes of a replica between two rounds."""

    def __init__(self, replica: ShardedReplica, basis_DD: Tensor | None, held_out_EM: Tensor) -> None:
        self.manifest = replica.manifest
        self.replica = replica
        self.basis_DD = basis_DD
        self.held_out_EM = held_out_EM

    def evaluate(self, grids: Mapping[Part, GridView]) -> tuple[float, float]:
        """(loss through the boundaries, plain loss) of this outer state, in nats per token."""
        return self.replica.evaluate(grids, self.held_out_EM, self.basis_DD)
