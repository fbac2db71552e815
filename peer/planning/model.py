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

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from protocol.architectures import architecture_of
from protocol.codec.contribution import expected_bytes
from protocol.codec.frames import Payload
from protocol.identity import parts_authored, stage_part
from protocol.layout import model_layout, multiplies, operations_per_token
from protocol.manifest import Manifest
from protocol.manifest_tables import MOST_OVERLAP
from protocol.net.bandwidth import ACKNOWLEDGED, WIRE

Bottleneck = Literal["compute", "upload", "download", "latency"]

COMPRESSIONS_TRIED = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""The values of d / k that a plan and a verdict compare."""

HEADERS_SHARE = 1 - 1 / (WIRE + ACKNOWLEDGED)
"""The share of a link that carries frames both ways for TLS, HTTP/2, TCP, IP and Ethernet, and acknowledgements of the
other direction."""


@dataclass(frozen=True, slots=True)
class Volunteer:
    """The device and the link of one stage. `operations`: floating-point operations a second that it really does; `up`
    and `down` are bits a second, of which `headers` is the share that is not what is sent: 0 where they were measured
    by what arrived, and as the paper counts; `latency` is seconds one way, to a neighbour."""

    operations: float
    up: float
    down: float
    latency: float = 0.0
    headers: float = 0.0

    @property
    def carries(self) -> float:
        """Bits a second of frames and contributions, in the slower direction."""
        return min(self.up, self.down) * (1 - self.headers)


@dataclass(frozen=True, slots=True)
class StageWork:
    """The work of a stage in a run: of the one that has most to do, or of a certain one.

    `operations`: of both passes of one microbatch. `forward_bytes` and `backward_bytes`: of its frames. `contribution`:
    bytes that the stage publishes in a round; as many come from each of the other `replicas`. `update` and `closing`:
    operations of an inner step and of a round beside the passes, where they are known. `neighbours`: of a certain
    stage; None: as many as any has.
    """

    operations: float
    forward_bytes: float
    backward_bytes: float
    microbatches: int
    stages: int
    steps: int
    replicas: int
    contribution: float
    update: float = 0.0
    closing: float = 0.0
    neighbours: int | None = None
    overlap: int = 0

    @property
    def carried(self) -> float:
        """Bytes of a microbatch on the fuller direction of the stage's link."""
        neighbours = min(2, self.stages - 1) if self.neighbours is None else self.neighbours
        both = (self.forward_bytes, self.backward_bytes)
        return sum(both) if neighbours == 2 else max(both) if neighbours else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One inner step: seconds of a microbatch's passes, of its frame on the slower link, of the whole step, and of
    the same step if frames took no time."""

    passes: float
    carry: float
    seconds: float
    ideal: float

    def trip(self, microbatches: int) -> float:
        """Seconds of the step in which it is the first microbatch that passes all stages and comes back: the others
        follow, each by the longer of its passes and its frame."""
        return self.seconds - (microbatches - 1) * max(self.passes, self.carry)

    @property
    def utilization(self) -> float:
        """Share of the step in which a stage computes, of what the pipeline's own filling and draining leave, where it
        fills and drains in each step."""
        return self.ideal / self.seconds


@dataclass(frozen=True, slots=True)
class RoundEstimate:
    """H inner steps and the outer exchange: seconds in all, those that the exchange adds, and what the stage waits
    for most. `utilization` is the share of them in which a stage computes or its pipeline fills and drains, `used` that
    in which it computes."""

    step: Step
    seconds: float
    exchange: float
    utilization: float
    used: float
    limit: Bottleneck
    up_bytes: float
    down_bytes: float


def work_of(manifest: Manifest, compression: int | None = None, stage: int | None = None) -> StageWork:
    """Return the work of a volunteer, or of one at a certain stage; with another `compression` than the run's own, if
    given."""
    model, replicas, inner = manifest.model, manifest.replicas, manifest.inner
    tokens = inner.microbatch * model.context
    width = model.d // (compression or manifest.compressions[0])
    forward, backward = (Payload(wire, inner.microbatch, model.context, width).size for wire in replicas.wires)
    stages = range(replicas.stages) if stage is None else (stage,)
    shares = shares_of(manifest)
    return StageWork(
        operations=tokens * operations_per_token(manifest) * max(shares[stage_index] for stage_index in stages),
        forward_bytes=forward + 4 * inner.microbatch * (model.context + 1),
        backward_bytes=backward,
        microbatches=inner.microbatches,
        stages=replicas.stages,
        steps=inner.steps,
        replicas=replicas.total,
        contribution=max(
            sum(expected_bytes(manifest, part) for part in parts_authored(stage_index)) for stage_index in stages
        ),
        neighbours=None if stage is None else (stage > 0) + (stage < replicas.stages - 1),
        overlap=inner.overlap,
    )


def shares_of(manifest: Manifest) -> list[float]:
    """The share of the model's multiplications that each stage has: of its matrices, and of its layers'
    attention."""
    layouts, costs = model_layout(manifest), architecture_of(manifest.model).layer_costs(manifest.model)
    sizes = [
        sum(
            math.prod(shape)
            for tensor, shape in layouts[stage_part(stage)].items()
            if len(shape) == 2 and multiplies(tensor)
        )
        + len(layers) * costs.attention
        for stage, layers in enumerate(manifest.cut)
    ]
    return [size / sum(sizes) for size in sizes]


def step_of(work: StageWork, on: Volunteer) -> Step:
    """One inner step. Both directions of a link are busy at once; a stage in the middle sends and receives both kinds
    of frames. With `inner.overlap` the pipeline fills and drains while microbatches of the steps beside pass, once a
    round apart."""
    passes, update = work.operations / on.operations, work.update / on.operations
    carry = 8 * work.carried / on.carries
    hop = 8 * (work.forward_bytes + work.backward_bytes) / 2 / on.carries + on.latency
    stages, microbatches = work.stages, work.microbatches
    filling = (stages - 1) * (passes + 2 * hop)
    hidden = min(filling, work.overlap * (stages - 1) * max(passes, carry))
    seconds = (microbatches - 1) * max(passes, carry) + passes + filling - hidden + hidden / work.steps + update
    bubble = 0 if work.overlap else (stages - 1) * passes
    return Step(passes, carry, seconds, microbatches * passes + bubble + update)


def round_of(work: StageWork, on: Volunteer, overlap: bool = False) -> RoundEstimate:
    """A whole round. With `overlap` the exchange has the next inner loop's time, as far as frames leave room."""
    step = step_of(work, on)
    frames = work.steps * work.microbatches * work.carried
    others = work.replicas - 1
    exchanged = others * work.contribution
    exchange = 8 * exchanged / on.carries + (2 * on.latency if others else 0.0)
    inner = work.steps * step.seconds
    if overlap:
        least = 8 * (frames + exchanged) / on.carries
        exchange = max(0.0, least - inner)
    seconds = inner + exchange + work.closing / on.operations
    limit = _limit(step, exchange, inner, on)
    moved = (frames + exchanged) / (1 - on.headers)
    utilization = work.steps * step.ideal / seconds
    used = (work.steps * work.microbatches * work.operations + work.steps * work.update + work.closing) / on.operations
    return RoundEstimate(step, seconds, exchange, utilization, used / seconds, limit, moved, moved)


def round_of_group(works: Sequence[StageWork], on: Volunteer, overlap: bool = False) -> RoundEstimate:
    """A round of a group whose stages differ in what they have to do, by the one that takes longest. Where it fills and
    drains, it does so through all of them."""
    rounds = [round_of(work, on, overlap) for work in works]
    slowest = max(rounds, key=lambda estimate: estimate.seconds)
    less = 0.0 if works[0].overlap else sum(slowest.step.passes - estimate.step.passes for estimate in rounds)
    step = replace(slowest.step, seconds=slowest.step.seconds - less, ideal=slowest.step.ideal - less)
    steps = works[0].steps
    seconds = slowest.seconds - steps * less
    used = slowest.used * slowest.seconds / seconds
    return replace(slowest, step=step, seconds=seconds, utilization=steps * step.ideal / seconds, used=used)


def _limit(step: Step, exchange: float, inner: float, on: Volunteer) -> Bottleneck:
    """Return the bottleneck: what would have to be better for a round to take less time, before anything else."""
    link: Bottleneck = "upload" if on.up <= on.down else "download"
    if step.carry > step.passes:
        return link
    lost = inner * (1 - step.utilization)
    if max(exchange, lost) < 0.02 * inner:
        return "compute"
    if exchange >= lost:
        return link
    return "latency" if on.latency > step.carry else link


def best_overlap(work: StageWork, on: Volunteer, overlap: bool = False) -> tuple[int, float]:
    """The least `inner.overlap` with which a round is about as short as with any (within 2 %), and how much shorter it
    is than without, as a share. `overlap` is the outer exchange's."""
    most = min(MOST_OVERLAP, work.microbatches // max(1, work.stages - 1))
    seconds = [round_of(replace(work, overlap=steps), on, overlap).seconds for steps in range(most + 1)]
    best = next(steps for steps, taken in enumerate(seconds) if taken <= 1.02 * min(seconds))
    return best, 1 - seconds[best] / seconds[0]


def best_compression(manifest: Manifest, on: Volunteer, choices: Iterable[int], least: float = 0.97) -> int | None:
    """The least compression (the largest k) at which a step's links are hidden; None: at none of them."""
    return best_of(lambda compression: work_of(manifest, compression), on, choices, least)


def best_of(
    work_at: Callable[[int], StageWork], on: Volunteer, choices: Iterable[int], least: float = 0.97
) -> int | None:
    """The same, of any work that depends on it."""
    return next((choice for choice in sorted(choices) if step_of(work_at(choice), on).utilization >= least), None)


def compression_at(manifest: Manifest, work_at: Callable[[int], StageWork], on: Volunteer) -> int:
    """d / k of the run; where it leaves that to its groups, what a group of such volunteers comes to."""
    if manifest.replicas.compression != "auto":
        return manifest.replicas.compression
    return best_of(work_at, on, manifest.compressions) or manifest.compressions[-1]
