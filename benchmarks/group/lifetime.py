"""Two rounds of a peer without a network, in a process of its own, for `benchmarks/memory.py`. `prepare FOLDER CASE`
writes the first weights of the parts that it follows; `live FOLDER CASE` takes them up, trains, and prints what it
took."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

import peer.daemon  # what a peer's process has in memory at least
from benchmarks.memory import Case
from peer.compute.arithmetic import Arithmetic
from peer.compute.capacity import cores, give_large_blocks_back, peak_bytes, resident_bytes
from peer.compute.evaluation import Evaluator
from peer.compute.replica import WholeReplica
from peer.compute.schedule import least_depth
from peer.compute.trainer import StageTrainer
from peer.model.first_weights import read_part
from peer.model.number_format import number_format
from peer.model.subspace import Formats
from peer.optim.grid import grid_digest
from peer.optim.outer import OuterState
from peer.planning.memory import parts_of
from peer.store.checkpoint import Checkpoint, PartCheckpoint, PartState, write_checkpoint
from peer.store.served import SnapshotStore
from peer.swarm.rounds.parts import contribute_from, replace_in_grid
from protocol.codec.contribution import Contribution, decode
from protocol.identity import Part, PeerId, RunId
from protocol.layout import part_layout
from protocol.manifest import Manifest
from protocol.outer.data_plan import Reading
from protocol.outer.history import History
from protocol.run.run_files import genesis_file

CPU = torch.device("cpu")
RUN, ME = RunId("ab" * 32), PeerId("QmMe")
ROUNDS = 2
assert peer.daemon


def prepare(folder: Path, case: Case) -> None:
    """Write first weights of chance, as their files have them, and a contribution to each part."""
    torch.manual_seed(0)
    manifest = case.manifest
    authored, followed = parts_of(manifest, case.duty)
    for part in (*authored, *followed):
        tensors = {
            name: (torch.randn(shape) * 0.02 * 2**26).to(torch.int32)
            if len(shape) > 1
            else torch.full(shape, 2**26).int()
            for name, shape in part_layout(manifest, part).items()
        }
        save_file(tensors, folder / genesis_file(part))
        state = OuterState.begin(manifest, part, tensors, author=True)
        moved = {name: torch.randn(tensor.shape) * 1e-3 for name, tensor in tensors.items()}
        blob, _ = state.contribute(RUN, 1, ME, 1, moved)
        (folder / f"{part}.contribution").write_bytes(blob)


@dataclass(slots=True)
class Lifetime:
    """One peer's state, and how it goes through a round."""

    case: Case
    folder: Path
    states: dict[Part, OuterState] = field(default_factory=dict)
    trainers: list[StageTrainer] = field(default_factory=list)
    replica: WholeReplica | None = None
    evaluator: Evaluator | None = None
    sent: dict[Part, list[Contribution]] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        """The run's."""
        return self.case.manifest

    def begin(self) -> None:
        """Take up the first weights, and make what the role trains or evaluates with."""
        manifest, duty = self.manifest, self.case.duty
        authored, followed = parts_of(manifest, duty)
        for part in (*authored, *followed):
            genesis = read_part(self.folder, manifest, part)
            self.states[part] = OuterState.begin(manifest, part, genesis, part in authored)
        basis_DD, arithmetic = torch.eye(manifest.model.d), Arithmetic(recompute=duty.recompute)
        if duty.role == "volunteer":
            self.trainers = [StageTrainer(manifest, duty.stage, "group", basis_DD, CPU, arithmetic=arithmetic)]
        elif duty.role == "datacenter":
            self.replica = WholeReplica(manifest, "datacenter", None, CPU, arithmetic=arithmetic)
            self.trainers = self.replica.stages
        if duty.role != "volunteer" and not duty.holds:
            held_out_SM = torch.randint(
                manifest.model.vocabulary, (manifest.inner.microbatch, manifest.model.context + 1)
            )
            self.evaluator = Evaluator(manifest, basis_DD, held_out_SM, CPU, replica=self.replica)

    @property
    def grids(self) -> dict[Part, dict[str, Tensor]]:
        """θ of each part."""
        return {part: state.grid for part, state in self.states.items()}

    def round(self, number: int) -> tuple[int, int]:
        """One round; the bytes that were held between its inner step and its end, on the device and on the host."""
        if self.trainers:
            for each in [self.replica] if self.replica is not None else self.trainers:
                each.load(self.grids)
            self._inner_step(number)
            held = self._held()
            self._contribute(number)
        else:
            held = self._held()
        self._settle(number)
        if self.evaluator is not None:
            self.evaluator.evaluate(self.grids)
        return held

    def _inner_step(self, number: int) -> None:
        manifest = self.manifest
        tokens_BM = torch.randint(manifest.model.vocabulary, (manifest.inner.microbatch, manifest.model.context + 1))
        if self.replica is not None:
            self.replica.inner_step(tokens_BM, number)
            return
        (trainer,) = self.trainers
        formats = Formats(*(number_format(wire, manifest.k) for wire in manifest.replicas.wires))
        sent_BLk = torch.randn(manifest.inner.microbatch, manifest.model.context, manifest.k)
        in_flight = range(least_depth(trainer.index, manifest.replicas.stages))
        for microbatch in in_flight:
            trainer.forward(microbatch, tokens_BM, None if trainer.first else formats.activations.pack(sent_BLk))
        for microbatch in in_flight:
            trainer.backward(microbatch, None if trainer.last else formats.gradients.pack(sent_BLk * 1e-3))
        trainer.squared_norm()
        trainer.update(1.0, number)

    def _held(self) -> tuple[int, int]:
        found = list[Tensor]()
        for each in self.trainers:
            found += [*each.parameters, *(p.grad for p in each.parameters if p.grad is not None)]
            found += [tensor for of in each.optimizer.state.values() for tensor in of]
            found += list(each.embedding.buffers()) if each.embedding is not None else []
            found += [*vars_of(each.before), *vars_of(each.behind), *(() if each.basis_DD is None else [each.basis_DD])]
        if self.evaluator is not None:
            found += [tensor for stage in self.evaluator.stages for tensor in stage.parameters()]
        outer = [
            tensor
            for state in self.states.values()
            for tensor in (*state.grid.values(), *state.error_feedback.values())
        ]
        return stored(found), stored(outer)

    def _contribute(self, number: int) -> None:
        parts = {}
        for moved in (each.moved() for each in self.trainers):
            for part, tensors in moved.items():
                blob, sent = contribute_from(self.states[part], RUN, number, ME, 1, tensors, 0)
                self.sent[part] = [sent]
                parts[part] = PartCheckpoint(PartState(sent={}, returned={}), self.states[part].error_feedback, blob)
        optimizer = {name: tensor for each in self.trainers for name, tensor in each.optimizer_tensors().items()}
        write_checkpoint(self.folder, Checkpoint(number, number, parts, optimizer))
        for each in self.trainers:
            each.forget_start()

    def _settle(self, number: int) -> None:
        snapshots = SnapshotStore(self.folder / "snapshots", self.manifest)
        for part, state in self.states.items():
            blob = (self.folder / f"{part}.contribution").read_bytes()
            others = [decode(blob, self.manifest) for _ in range(self.manifest.replicas.total - 1)]
            replace_in_grid(state, [], [*self.sent.get(part, []), *others])
            grid_digest(state.grid)
            tensors = (tensor.numpy() for tensor in state.closed([]).values())
            snapshots.write(part, number, History(), tensors, Reading.begin(self.manifest))


def vars_of(boundary: object) -> list[Tensor]:
    """The tensors of a boundary."""
    fields: Mapping[str, object] = getattr(type(boundary), "__dataclass_fields__", {})
    return [each for name in fields if isinstance(each := getattr(boundary, name), Tensor)]


def stored(tensors: list[Tensor]) -> int:
    """Bytes of the memory behind tensors, each counted once."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def main() -> None:
    """Do one of the two."""
    what, folder, case = sys.argv[1], Path(sys.argv[2]), Case(**json.loads(sys.argv[3]))
    torch.set_num_threads(cores())
    if what == "prepare":
        prepare(folder, case)
        return
    give_large_blocks_back()
    me = os.getpid()
    base = resident_bytes()
    lifetime = Lifetime(case, folder)
    lifetime.begin()
    begun = peak_bytes(me)
    held = (0, 0)
    for number in range(1, ROUNDS + 1):
        held = lifetime.round(number)
    print(json.dumps({"device": held[0], "host": held[1], "peak": peak_bytes(me), "base": base, "begun": begun}))


if __name__ == "__main__":
    main()
