"""The whole swarm in one process, with no network: the reference that the real one is compared with.

The same stages, boundaries, batches, contributions and outer steps as the daemons'; the replicas take
turns. The same manifest gives the same losses and, with one torch thread, the same digests, bit by bit.

Between two rounds a run can be saved, so that days of computing outlive the process. Going on changes no bit.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from peer.compute.evaluation import Evaluator
from peer.data.batches import held_out_batch
from peer.data.text import open_text
from peer.lab.boundaries import Coder, GroupBoundaries
from peer.lab.methods import Averaged, DiLoCo, Method, PerStep, SparseLoCo, method
from peer.lab.replicas import Bench, Workshop
from peer.lab.shares import Shares
from peer.lab.switches import Switches
from peer.model.first_weights import read_basis, read_part
from peer.optim.grid import grid_digest, to_float
from peer.telemetry.events import Evaluated, Finished, Joined, Listener, RoundDone
from protocol.codec.contribution import Contribution, SparseTensor
from protocol.errors import ResourceError
from protocol.files import write_atomically
from protocol.identity import EMBEDDING, ContributionName, Part
from protocol.layout import EMBEDDING_TENSOR, model_layout
from protocol.run.run_files import Descriptor


@dataclass(slots=True)
class Lab:
    """M replicas in turn. All share one grid; each has its own AdamW moments and error feedback."""

    bench: Bench
    evaluator: Evaluator
    method: Method
    done: int = 0
    """Rounds behind it."""

    @staticmethod
    def open(
        descriptor: Descriptor,
        directory: Path,
        device: torch.device,
        switches: Switches | None = None,
        fast: bool = False,
        taken: Mapping[tuple[int, int], int] | None = None,
    ) -> "Lab":
        """Set up from a run's files. `fast`, for a GPU, is not bit by bit what a swarm computes: all replicas of a kind
        train at once, and layers are compiled where they cannot. `taken` are the inner steps that replicas took in a
        swarm whose run is played again, by round and slot, where its manifest lets them differ."""
        manifest, switches = descriptor.manifest, switches or Switches()
        basis = read_basis(directory, manifest)
        grids = {part: read_part(directory, manifest, part) for part in model_layout(manifest)}
        tokens, held_out = open_text(descriptor, directory)
        held_out_SM = torch.from_numpy(held_out_batch(held_out, manifest))
        te_VD = to_float(grids[EMBEDDING][EMBEDDING_TENSOR])
        workshop = Workshop.open(manifest, switches, basis, te_VD, device, stacked=fast)
        workshop.complete(grids)
        replicas = [workshop.replica(slot, grids) for slot in range(manifest.replicas.total)]
        evaluator = Evaluator(manifest, basis, held_out_SM, device, workshop.through)
        if fast and not workshop.stacks:
            workshop.compile()
            evaluator.compile()
        bench = Bench(manifest, grids, workshop, replicas, tokens, Shares(manifest, switches.shares, taken or {}))
        return Lab(bench, evaluator, method(manifest, switches, descriptor.run_id))

    def run(self, emit: Listener) -> None:
        """Train all rounds that are left."""
        rounds = self.bench.manifest.outer.rounds
        emit(Joined("lab", "lab", 0, 0, ""))
        for round in range(self.done + 1, rounds + 1):
            self.round(round, emit)
        emit(Finished(rounds))

    def round(self, round: int, emit: Listener, evaluate: bool = True) -> None:
        """One round: every replica's inner loop, then the outer step over the set of contributions that is due."""
        bench, manifest, started = self.bench, self.bench.manifest, time.monotonic()
        counts = self.method.round(bench, round, emit)
        if bench.workshop.group is not None:
            bench.workshop.group.end_round(manifest.inner.steps)
        emit(
            RoundDone(
                round=round,
                seconds=time.monotonic() - started,
                tokens=manifest.tokens_per_step * sum(bench.shares.steps(round)),
                contributions={str(part): count for part, count in counts.items()},
                digests={part: grid_digest(grid) for part, grid in bench.grids.items()},
                pipeline_sent=0,
                outer_sent=self.method.sent_bytes,
            )
        )
        if evaluate:
            with bench.workshop.computing():
                emit(Evaluated(round, *self.evaluator.evaluate(bench.grids)))
        self.done = round


META = "hetpeer"


def save_lab(lab: Lab, path: Path, told: Any) -> None:
    """Write everything that the next round depends on.

    Raises:
        ResourceError: it cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(lab)}
    for name in [name for name, tensor in tensors.items() if not tensor.dim()]:
        tensors[name] = tensors[name].clone()  # replicas that train at once share their count of steps
    numbers = {"done": lab.done, "sent_bytes": lab.method.sent_bytes, "told": told}
    numbers["steps"] = lab.bench.workshop.group.steps if lab.bench.workshop.group else 0
    try:
        write_atomically(path, save(tensors, {META: json.dumps(numbers)}))
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror}") from None


def load_lab(lab: Lab, path: Path) -> Any:
    """Bring a fresh lab to where `save_lab` found it; what was told then.

    Raises:
        ResourceError: the file is not one of this run.
    """
    try:
        with safe_open(path, "pt") as file:
            numbers = json.loads(file.metadata()[META])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ResourceError(f"{path} is damaged: {error}; remove it to begin this run anew") from None
    lab.done, lab.method.sent_bytes = numbers["done"], numbers["sent_bytes"]
    for part, grid in lab.bench.grids.items():
        grid.update({name: tensors[f"grid/{part}/{name}"] for name in grid})
    for replica in lab.bench.replicas:
        for part, state in replica.outer.items():
            state.error_feedback = _under(tensors, f"error/{replica.slot}/{part}/")
        for stage, own in enumerate(replica.optimizers):
            own.load(_under(tensors, f"adamw/{replica.slot}/{stage}/"))
    _load_method(lab, lab.method, tensors)
    if lab.bench.workshop.group is not None:
        lab.bench.workshop.group.steps = numbers["steps"]
        _load_group(lab.bench.workshop.group, tensors)
    return numbers["told"]


def _tensors(lab: Lab) -> Iterator[tuple[str, Tensor]]:
    for part, grid in lab.bench.grids.items():
        yield from _named(f"grid/{part}/", grid)
    for replica in lab.bench.replicas:
        for part, state in replica.outer.items():
            yield from _named(f"error/{replica.slot}/{part}/", state.error_feedback)
        for stage, own in enumerate(replica.optimizers):
            yield from _named(f"adamw/{replica.slot}/{stage}/", own.tensors())
    yield from _tensors_of(lab.method)
    if lab.bench.workshop.group is not None:
        yield from _group_tensors(lab.bench.workshop.group)


def _tensors_of(method: Method) -> Iterator[tuple[str, Tensor]]:
    match method:
        case Averaged(method=averaged, last=last):
            for part, tensors in last.items():
                yield from _named(f"last/{part}/", tensors)
            yield from _tensors_of(averaged)
        case SparseLoCo(waiting=waiting):
            for round, parts in waiting.items():
                for part, sent in parts.items():
                    for slot, contribution in enumerate(sent):
                        where = f"waiting/{round}/{part}/{slot}"
                        yield f"{where}/steps", torch.tensor(contribution.steps)
                        for name, sparse in contribution.tensors.items():
                            yield f"{where}/{name}/offsets", torch.from_numpy(sparse.offsets)
                            yield f"{where}/{name}/values", torch.from_numpy(sparse.values)
        case DiLoCo(velocity=velocity):
            for part, tensors in velocity.items():
                yield from _named(f"velocity/{part}/", tensors)
        case PerStep(weights=weights, optimizer=optimizer) if optimizer is not None:
            for part, tensors in weights.items():
                yield from _named(f"weights/{part}/", tensors)
            yield from _named("together/", optimizer.tensors())
        case _:
            pass


def _group_tensors(group: GroupBoundaries) -> Iterator[tuple[str, Tensor]]:
    yield "basis", group.basis_dk
    for i, pair in enumerate(group.coders):
        for way, coder in zip(("out", "back"), pair, strict=True):
            yield f"coder/{i}/{way}/basis", coder.basis_dk.clone()
            if coder.bits_k is not None:
                yield f"coder/{i}/{way}/bits", coder.bits_k.clone()
            if coder.deviation_k is not None:
                yield f"coder/{i}/{way}/deviation", coder.deviation_k.clone()
    for i, spectra in enumerate(group.spectra):
        for way, spectrum in zip(("out", "back"), spectra, strict=True):
            yield f"spectrum/{i}/{way}/moment", spectrum.moment_DD
            yield f"spectrum/{i}/{way}/counts", torch.tensor([spectrum.count, spectrum.seen])


def _load_group(group: GroupBoundaries, tensors: Mapping[str, Tensor]) -> None:
    group.basis_dk.copy_(tensors["basis"])
    device = group.basis_dk.device

    def coder(i: int, way: str, old: Coder) -> Coder:
        own = {name: each.to(device) for name, each in _under(tensors, f"coder/{i}/{way}/").items()}
        basis_dk = (
            group.basis_dk if old.basis_dk is group.basis_dk and group.switches.basis == "random" else own["basis"]
        )
        return Coder(basis_dk, old.dtype, own.get("bits"), own.get("deviation"), old.residuals)

    group.coders = [(coder(i, "out", out), coder(i, "back", back)) for i, (out, back) in enumerate(group.coders)]
    for i, spectra in enumerate(group.spectra):
        for way, spectrum in zip(("out", "back"), spectra, strict=True):
            spectrum.moment_DD.copy_(tensors[f"spectrum/{i}/{way}/moment"])
            spectrum.count, spectrum.seen = tensors[f"spectrum/{i}/{way}/counts"].tolist()


def _load_method(lab: Lab, method: Method, tensors: Mapping[str, Tensor]) -> None:
    match method:
        case Averaged() as method:
            method.last = {part: own for part in lab.bench.grids if (own := _under(tensors, f"last/{part}/"))}
            _load_method(lab, method.method, tensors)
        case SparseLoCo() as method:
            method.waiting = _waiting(lab, method, tensors)
        case DiLoCo() as method:
            method.velocity = {part: own for part in lab.bench.grids if (own := _under(tensors, f"velocity/{part}/"))}
        case PerStep() as method:
            method.begin(lab.bench)
            for part, weights in method.weights.items():
                for name, tensor in weights.items():
                    tensor.detach().copy_(tensors[f"weights/{part}/{name}"])
            assert method.optimizer is not None
            method.optimizer.load(_under(tensors, "together/"))
        case _:
            pass


def _waiting(lab: Lab, method: SparseLoCo, tensors: Mapping[str, Tensor]) -> dict[int, dict[Part, list[Contribution]]]:
    rounds = sorted({int(name.split("/")[1]) for name in tensors if name.startswith("waiting/")})

    def sent(round: int, part: Part, slot: int) -> Contribution:
        own = _under(tensors, f"waiting/{round}/{part}/{slot}/")
        kept = {
            name: SparseTensor(own[f"{name}/offsets"].numpy(), own[f"{name}/values"].numpy())
            for name in lab.bench.grids[part]
        }
        name = ContributionName(part, round, lab.bench.replicas[slot].id)
        return Contribution(method.run, name, int(own["steps"]), kept)

    return {
        round: {part: [sent(round, part, replica.slot) for replica in lab.bench.replicas] for part in lab.bench.grids}
        for round in rounds
    }


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((prefix + name, tensor) for name, tensor in tensors.items())


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
