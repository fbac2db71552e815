"""The paper's case, 70 billion weights in four stages, scaled so that small links carry it: see `../utilization.py`."""

from dataclasses import dataclass

from peer.planning.model import StageWork, Volunteer, round_of
from protocol.manifest import Manifest, check_manifest

STAGES, MICROBATCHES, D = 4, 64, 8192
TOKENS, PAPERS_TOKENS = 20, 2048
BYTES = TOKENS / PAPERS_TOKENS


@dataclass(frozen=True, slots=True)
class Scale:
    """`time`: seconds here for one of the paper's."""

    time: float = 0.1

    @property
    def passes(self) -> float:
        """Seconds of a microbatch at a stage."""
        return 6 * 70e9 / STAGES * PAPERS_TOKENS / 125e12 * self.time

    @property
    def rate(self) -> float:
        """What a link carries here, of what it carries there."""
        return BYTES / self.time


LATENCY = 0.02
STEPS, PAPERS_STEPS = 3, 50
REPLICAS = 8
CONTRIBUTION = 70e9 / STAGES * 32 / 4096 * 10.5 / 8 * BYTES * STEPS / PAPERS_STEPS
"""Bytes of a stage's contribution: 32 of 4096 values in 10.5 bits."""

COMPRESSIONS = (1, 8, 24, 96)
MEGABITS = (80, 100, 200, 500, 1000)


def manifest_of(compression: int) -> Manifest:
    """The scaled run. 8192 has no 24th and no 96th: the next ratios that divide it stand for them, 32 and 128."""
    ratio = next(each for each in range(compression, 2 * compression) if D % each == 0)
    model = {"layers": 4, "d": D, "heads": 64, "kv_heads": 64, "ffn": 8, "context": TOKENS, "vocabulary": 258}
    replicas = {"stages": STAGES, "compression": ratio}
    return check_manifest({"model": model, "replicas": replicas, "inner": {"microbatch": 1, "sequences": MICROBATCHES}})


def modelled(manifest: Manifest, scale: Scale, megabits: float, outer: bool, headers: float = 0.0) -> float:
    """What `peer.planning.model` says of the same; as the paper's model does, or with what headers take of a link."""
    frame = 2.0 * TOKENS * manifest.k
    work = StageWork(
        operations=scale.passes,
        forward_bytes=frame + 4 * TOKENS,
        backward_bytes=frame,
        microbatches=MICROBATCHES,
        stages=STAGES,
        steps=STEPS,
        replicas=REPLICAS if outer else 1,
        contribution=CONTRIBUTION,
    )
    rate = megabits * 1e6 * scale.rate
    return round_of(work, Volunteer(1.0, rate, rate, LATENCY, headers), overlap=True).utilization
