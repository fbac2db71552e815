"""The analytic model of a round: seconds of compute, of the links, and what the one hides of the other. Pure.

It gives the paper's Figures 2 and 3 (arXiv 2601.02360), which leave the outer exchange out, and counts that, too.
`tests/peer/planning` checks it against the schedule played in virtual time, `benchmarks/utilization.py` against real
processes on shaped links.

    t_c = 6 P/S · m / F                  passes of a microbatch of m tokens, at a stage with P/S weights
    t_x = 8 · bytes / BW                 a frame on a link; it arrives l later
    T   = (n − 1) · max(t_c, 2 t_x) + S · t_c + 2 (S − 1) (t_x + l)

A stage in the middle sends two frames a microbatch, activations one way and gradients the other, over the one uplink
that a home has: hence 2 t_x. The paper counts a link of its own for each pair of stages; where links are hidden it is
the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from protocol.contribution import expected_bytes
from protocol.identity import EMBEDDING
from protocol.layout import model_layout, operations_per_token, parts_authored
from protocol.manifest import Manifest
from protocol.payloads import Payload

Limit = Literal["compute", "upload", "download", "latency"]


@dataclass(frozen=True, slots=True)
class Volunteer:
    """What one stage runs on. `operations`: floating-point operations a second that it really does; `up` and `down`
    are bits a second; `latency` is seconds one way, to a neighbour."""

    operations: float
    up: float
    down: float
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a run asks of the stage that has most to do.

    `operations`: of both passes of one microbatch. `forward_bytes` and `backward_bytes`: of its frames. `contribution`:
    bytes that the stage publishes in a round; as many come from each of the other `replicas`.
    """

    operations: float
    forward_bytes: float
    backward_bytes: float
    microbatches: int
    stages: int
    steps: int
    replicas: int
    contribution: float


@dataclass(frozen=True, slots=True)
class Step:
    """One inner step: seconds of a microbatch's passes, of its frame on the slower link, of the whole step, and of
    the same step if frames took no time."""

    passes: float
    carry: float
    seconds: float
    ideal: float

    @property
    def utilization(self) -> float:
        """Share of the step in which a stage computes, of what the pipeline's own filling and draining leave."""
        return self.ideal / self.seconds


@dataclass(frozen=True, slots=True)
class Round:
    """H inner steps and the outer exchange: seconds in all, those that the exchange adds, and what the stage waits
    for most."""

    step: Step
    seconds: float
    exchange: float
    utilization: float
    limit: Limit
    up_bytes: float
    down_bytes: float


def work_of(manifest: Manifest, compression: int | None = None) -> Work:
    """What a run's manifest asks of a volunteer; with another `compression` than its own, if given."""
    model, replicas, inner = manifest.model, manifest.replicas, manifest.inner
    tokens = inner.microbatch * model.context
    width = model.d // (compression or manifest.compressions[0])
    forward, backward = (Payload(wire, inner.microbatch, model.context, width).size for wire in replicas.wires)
    share = max(
        sum(expected_bytes(manifest, part) for part in parts_authored(stage)) for stage in range(replicas.stages)
    )
    return Work(
        operations=tokens * operations_per_token(manifest) * _largest_share(manifest),
        forward_bytes=forward + 4 * inner.microbatch * (model.context + 1),
        backward_bytes=backward,
        microbatches=inner.microbatches,
        stages=replicas.stages,
        steps=inner.steps,
        replicas=replicas.total,
        contribution=share,
    )


def _largest_share(manifest: Manifest) -> float:
    """Of the model's multiplications, those of the stage with most of them."""
    sizes = [
        sum(rows * columns for rows, columns in (shape for shape in layout.values() if len(shape) == 2))
        for part, layout in model_layout(manifest).items()
        if part != EMBEDDING
    ]
    return max(sizes) / sum(sizes)


def step_of(work: Work, on: Volunteer) -> Step:
    """One inner step. Both directions of a link are busy at once; a stage in the middle sends and receives both kinds
    of frames."""
    passes = work.operations / on.operations
    inner = work.stages > 2
    carried = work.forward_bytes + work.backward_bytes if inner else work.forward_bytes
    carry = 8 * carried / min(on.up, on.down) if work.stages > 1 else 0.0
    hop = 8 * (work.forward_bytes + work.backward_bytes) / 2 / min(on.up, on.down) + on.latency
    stages, microbatches = work.stages, work.microbatches
    filling = stages * passes + 2 * (stages - 1) * hop
    seconds = (microbatches - 1) * max(passes, carry) + filling
    return Step(passes, carry, seconds, (microbatches + stages - 1) * passes)


def round_of(work: Work, on: Volunteer, overlap: bool = False) -> Round:
    """A whole round. With `overlap` the exchange has the next inner loop's time, as far as frames leave room."""
    step = step_of(work, on)
    frames = work.steps * work.microbatches * (work.forward_bytes + work.backward_bytes)
    others = work.replicas - 1
    exchanged = others * work.contribution
    exchange = 8 * exchanged / min(on.up, on.down) + (2 * on.latency if others else 0.0)
    inner = work.steps * step.seconds
    if overlap:
        least = 8 * (frames + exchanged) / min(on.up, on.down)
        exchange = max(0.0, least - inner)
    seconds = inner + exchange
    limit = _limit(step, exchange, inner, on)
    moved = frames + exchanged
    utilization = work.steps * step.ideal / seconds
    return Round(step, seconds, exchange, utilization, limit, moved, moved)


def _limit(step: Step, exchange: float, inner: float, on: Volunteer) -> Limit:
    """What would have to be better for a round to take less time, before anything else."""
    link: Limit = "upload" if on.up <= on.down else "download"
    if step.carry > step.passes:
        return link
    lost = inner * (1 - step.utilization)
    if max(exchange, lost) < 0.02 * inner:
        return "compute"
    if exchange >= lost:
        return link
    return "latency" if on.latency > step.carry else link


def best_compression(manifest: Manifest, on: Volunteer, choices: Iterable[int], least: float = 0.97) -> int | None:
    """The least compression (the largest k) at which a step's links are hidden; None: at none of them."""
    for compression in sorted(choices):
        if step_of(work_of(manifest, compression), on).utilization >= least:
            return compression
    return None
