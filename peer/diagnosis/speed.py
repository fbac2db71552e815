"""The speed of this machine at a stage of a run: the stage's own trainer on the run's shapes, with random weights.

What would take too long is measured on a part, and scaled by its operations: fewer sequences, then fewer layers, then
shorter ones.
"""

import time
from collections.abc import Callable
from statistics import mean

import torch

from peer.compute.arithmetic import Arithmetic, precision_on
from peer.compute.calibration import RUN, a_microbatch, wait_for, warm_up
from peer.compute.fitting import best_way, shortage
from peer.compute.trainer import StageTrainer
from peer.diagnosis.verdict import Speed
from peer.optim.outer import OuterState
from peer.planning.memory import PROCESS_BYTES, Duty, memory_of
from peer.planning.model import work_of
from protocol.codec.contribution import decode
from protocol.identity import EMBEDDING, Part, PeerId, parts_authored, stage_part
from protocol.layout import elements, part_layout, parts_followed
from protocol.manifest import Manifest, check_manifest

FEWEST, MOST = 3, 40
"""Microbatches that are timed, after one that is not."""

SHORTEST_CONTEXT = 64

TRIED_SIDE = 512
TRIED_SHARE = 0.4
"""The speed of a stage's passes as a share of a matrix product's, by which their duration is guessed."""

ME = PeerId("QmMe")


def kind_of(manifest: Manifest, stage: int) -> tuple[bool, int, bool]:
    """Stages of one kind take the same: with the embedding or not, so many layers, with the head or not."""
    stages = manifest.replicas.stages
    return stage == 0, len(manifest.cut[stage]), stage == stages - 1


def measure_stages(
    manifest: Manifest,
    device: torch.device,
    threads: int,
    seconds: float,
    tell: Callable[[int], None],
    process: int = PROCESS_BYTES,
) -> list[Speed | None]:
    """Every stage's speed; None where not even a part of it fits into the memory. One stage of each kind is measured,
    and `tell` is told before which. `process`: the bytes of a process without a model."""
    torch.set_num_threads(threads)
    warm_up()
    closing = _closing_by_value(manifest)
    rate = _tried_operations(device)
    speeds: dict[tuple[bool, int, bool], Speed | None] = {}
    for stage in range(manifest.replicas.stages):
        if (kind := kind_of(manifest, stage)) not in speeds:
            tell(stage)
            speeds[kind] = _measure(manifest, stage, device, seconds, rate, closing, process)
    return [speeds[kind_of(manifest, stage)] for stage in range(manifest.replicas.stages)]


def _measure(
    manifest: Manifest, stage: int, device: torch.device, seconds: float, rate: float, closing: float, process: int
) -> Speed | None:
    whole = work_of(manifest, stage=stage).operations
    part = part_that_takes(manifest, stage, rate * seconds / (FEWEST + 1))
    whole_stage = Duty("volunteer", stage)
    way, _ = best_way(manifest, whole_stage, device, process=process)  # as the whole stage would be trained
    if shortage(memory_of(part, way, process), device) is not None:
        return None
    passes, update = _time(part, way, device, seconds)
    share = work_of(part, stage=stage).operations / whole
    values = _trained(manifest, stage)
    return Speed(passes / share, update * values / _trained(part, stage), closing * values, share)


def part_that_takes(manifest: Manifest, stage: int, operations: float) -> Manifest:
    """The run itself, or as much of it as takes no more operations for a microbatch at this stage: fewer sequences in
    it, then one layer, then shorter sequences."""
    sizes = manifest.model_dump(mode="json")
    inner, model = sizes["inner"], sizes["model"]

    def taken() -> float:
        return work_of(check_manifest(sizes), stage=stage).operations

    while taken() > operations and inner["microbatch"] > 1:
        inner["microbatch"] //= 2
        inner["sequences"] = inner["microbatch"]
    if taken() > operations:
        model["layers"] = manifest.replicas.stages
        sizes["replicas"].pop("layers", None)  # one each, by count
    while taken() > operations and model["context"] >= 2 * SHORTEST_CONTEXT:
        model["context"] //= 2
    return check_manifest(sizes)


def _trained(manifest: Manifest, stage: int) -> int:
    return sum(elements(part_layout(manifest, part)) for part in parts_authored(stage))


def _tried_operations(device: torch.device) -> float:
    """Operations a second of a stage on this device, about, by a small matrix product."""
    left = torch.randn(TRIED_SIDE, TRIED_SIDE, device=device)
    for _ in range(3):
        begun = time.perf_counter()
        wait_for(left @ left)
        taken = time.perf_counter() - begun
    return TRIED_SHARE * 2 * TRIED_SIDE**3 / taken


def _time(manifest: Manifest, way: Duty, device: torch.device, seconds: float) -> tuple[float, float]:
    """Return the mean seconds of a microbatch's passes, and of an update; means, since a step is a sum."""
    trainer = _trainer(manifest, way, device)
    passes = a_microbatch(trainer)

    def update(step: int) -> None:
        trainer.squared_norm()
        trainer.update(1.0, step)
        wait_for(trainer.parameters[0])

    passes()
    update(0)
    durations, ends = list[float](), time.perf_counter() + seconds
    while len(durations) < FEWEST or (len(durations) < MOST and time.perf_counter() < ends):
        durations.append(_seconds(passes))
    return mean(durations), _seconds(lambda: update(1))


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _trainer(manifest: Manifest, way: Duty, device: torch.device) -> StageTrainer:
    """A volunteer's trainer, with weights that no run has."""
    model, stage = manifest.model, way.stage
    basis_Dk = torch.randn(model.d, manifest.k) / model.d**0.5
    arithmetic = Arithmetic(precision_on("auto", device), recompute=way.recompute)  # as a volunteer that says nothing
    trainer = StageTrainer(manifest, stage, "group", basis_Dk, device, arithmetic=arithmetic)
    weights = {
        part: {
            name: torch.randn(shape, device=device) * 0.02 if len(shape) > 1 else torch.ones(shape, device=device)
            for name, shape in part_layout(manifest, part).items()
        }
        for part in parts_followed(manifest, stage)
    }
    te_VD = next(iter(weights[EMBEDDING].values())) if EMBEDDING in weights else None
    trainer.start_from(weights[stage_part(stage)], te_VD)
    return trainer


def _closing_by_value(manifest: Manifest) -> float:
    """Seconds of a round's end for each value that a stage trains: making its own contribution, reading the others',
    and applying all; on a part of this size, whatever the model's."""
    outer = manifest.outer.model_dump(mode="json")
    sizes = {"layers": 1, "d": 512, "heads": 4, "kv_heads": 4, "ffn": 1408, "context": 8, "vocabulary": 258}
    small = check_manifest({"model": sizes, "replicas": {"stages": 1}, "outer": outer})
    part: Part = stage_part(0)
    layout = part_layout(small, part)
    genesis = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in layout.items()}
    state = OuterState.begin(small, part, genesis, author=True)
    moved = {name: torch.randn(shape) * 1e-3 for name, shape in layout.items()}

    def close() -> None:
        blob, sent = state.contribute(RUN, 1, ME, 1, moved)
        others = [decode(blob, small) for _ in range(manifest.replicas.total - 1)]
        state.replace([], [sent, *others])

    return _seconds(close) / elements(layout)
