"""Runs of the lab that are saved between two rounds, so that days of computing outlive the process. Going on changes no
bit."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from peer.lab.boundaries import GroupBoundaries
from peer.lab.methods import DiLoCo, Method, PerStep, SparseLoCo
from peer.lab.reference_run import Lab
from protocol.codec.contribution import Contribution, SparseTensor
from protocol.errors import ResourceError
from protocol.files import write_atomically
from protocol.identity import ContributionName, Part

META = "hetpeer"


def save_lab(lab: Lab, path: Path, progress: Any) -> None:
    """Write everything that the next round depends on, and the `progress` that its owner keeps beside it, as JSON.

    Raises:
        ResourceError: it cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(lab)}
    for name in [name for name, tensor in tensors.items() if not tensor.dim()]:
        tensors[name] = tensors[name].clone()  # replicas that train at once share their count of steps
    numbers = {"done": lab.done, "sent_bytes": lab.method.sent_bytes, "progress": progress}
    numbers["steps"] = lab.swarm.weights.group.steps if lab.swarm.weights.group else 0
    try:
        write_atomically(path, save(tensors, {META: json.dumps(numbers)}))
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror}") from None


def load_lab(lab: Lab, path: Path) -> Any:
    """Bring a fresh lab to where `save_lab` found it; the `progress` that was saved.

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
    for part, grid in lab.swarm.grids.items():
        grid.update({name: tensors[f"grid/{part}/{name}"] for name in grid})
    for replica in lab.swarm.replicas:
        for part, state in replica.outer.items():
            state.error_feedback = _under(tensors, f"error/{replica.slot}/{part}/")
        for stage, own in enumerate(replica.optimizers):
            own.load(_under(tensors, f"adamw/{replica.slot}/{stage}/"))
    _load_method(lab, lab.method, tensors)
    if lab.swarm.weights.group is not None:
        lab.swarm.weights.group.steps = numbers["steps"]
        _load_group(lab.swarm.weights.group, tensors)
    return numbers["progress"]


def _tensors(lab: Lab) -> Iterator[tuple[str, Tensor]]:
    for part, grid in lab.swarm.grids.items():
        yield from _named(f"grid/{part}/", grid)
    for replica in lab.swarm.replicas:
        for part, state in replica.outer.items():
            yield from _named(f"error/{replica.slot}/{part}/", state.error_feedback)
        for stage, own in enumerate(replica.optimizers):
            yield from _named(f"adamw/{replica.slot}/{stage}/", own.tensors())
    yield from _tensors_of(lab.method)
    if lab.swarm.weights.group is not None:
        yield from _group_tensors(lab.swarm.weights.group)


def _tensors_of(method: Method) -> Iterator[tuple[str, Tensor]]:
    match method:
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
    for boundary, moment in enumerate(group.moments):
        yield f"moment/{boundary}/sum", moment.moment_DD
        yield f"moment/{boundary}/counts", torch.tensor([moment.count, moment.seen])


def _load_group(group: GroupBoundaries, tensors: Mapping[str, Tensor]) -> None:
    group.basis_dk.copy_(tensors["basis"])
    for boundary, moment in enumerate(group.moments):
        moment.moment_DD.copy_(tensors[f"moment/{boundary}/sum"])
        moment.count, moment.seen = tensors[f"moment/{boundary}/counts"].tolist()


def _load_method(lab: Lab, method: Method, tensors: Mapping[str, Tensor]) -> None:
    match method:
        case SparseLoCo() as method:
            method.waiting = _waiting(lab, method, tensors)
        case DiLoCo() as method:
            method.velocity = {part: own for part in lab.swarm.grids if (own := _under(tensors, f"velocity/{part}/"))}
        case PerStep() as method:
            method.begin(lab.swarm)
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
            for name in lab.swarm.grids[part]
        }
        name = ContributionName(part, round, lab.swarm.replicas[slot].id)
        return Contribution(method.run, name, int(own["steps"]), kept)

    return {
        round: {part: [sent(round, part, replica.slot) for replica in lab.swarm.replicas] for part in lab.swarm.grids}
        for round in rounds
    }


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return ((prefix + name, tensor) for name, tensor in tensors.items())


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
