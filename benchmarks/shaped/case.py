"""The paper's case, 70 billion weights in stages, scaled so that small links carry it: see `../utilization.py`."""

from dataclasses import dataclass

from peer.planning.model import StageWork, Volunteer, round_of
from protocol.manifest import Manifest, check_manifest

STAGES, MICROBATCHES, D = 4, 64, 8192
TOKENS, PAPERS_TOKENS = 20, 2048
BYTES = TOKENS / PAPERS_TOKENS

LATENCY = 0.02
STEPS, PAPERS_STEPS = 3, 50
REPLICAS = 8

COMPRESSIONS = (1, 8, 24, 96)
MEGABITS = (80, 100, 200, 500, 1000)


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured. `time`: seconds here for one of the paper's; `overlap`: the manifest's `inner.overlap`;
    `steps`: of a round."""

    time: float = 0.1
    stages: int = STAGES
    microbatches: int = MICROBATCHES
    overlap: int = 0
    steps: int = STEPS

    @property
    def contribution(self) -> float:
        """Bytes of a stage's contribution, as many for each step as in the paper: 32 of 4096 values in 10.5 bits."""
        return 70e9 / STAGES * 32 / 4096 * 10.5 / 8 * BYTES * self.steps / PAPERS_STEPS

    @property
    def passes(self) -> float:
        """Seconds of a microbatch at a stage, of as many weights as the paper's, however many stages there are."""
        return 6 * 70e9 / STAGES * PAPERS_TOKENS / 125e12 * self.time

    @property
    def rate(self) -> float:
        """What a link carries here, of what it carries there."""
        return BYTES / self.time

    def manifest(self, compression: int) -> Manifest:
        """The scaled run. 8192 has no 24th and no 96th: the next ratios that divide it stand for them, 32 and 128."""
        ratio = next(each for each in range(compression, 2 * compression) if D % each == 0)
        model = {"d": D, "heads": 64, "kv_heads": 64, "ffn": 8, "context": TOKENS, "vocabulary": 258}
        return check_manifest(
            {
                "model": model | {"layers": self.stages},
                "replicas": {"stages": self.stages, "compression": ratio},
                "inner": {"microbatch": 1, "sequences": self.microbatches, "overlap": self.overlap},
            }
        )

    @property
    def hardware_seconds(self) -> float:
        """A step in which every stage computes all the time."""
        return self.microbatches * self.passes

    @property
    def ideal_seconds(self) -> float:
        """A step over links that take no time: with the filling and draining of the pipeline, if it drains."""
        return (self.microbatches + (0 if self.overlap else self.stages - 1)) * self.passes


def modelled(manifest: Manifest, case: Case, megabits: float, outer: bool, headers: float = 0.0) -> float:
    """What `peer.planning.model` says of the same; as the paper's model does, or with what headers take of a link."""
    frame = 2.0 * TOKENS * manifest.k
    work = StageWork(
        operations=case.passes,
        forward_bytes=frame + 4 * TOKENS,
        backward_bytes=frame,
        microbatches=case.microbatches,
        stages=case.stages,
        steps=case.steps,
        replicas=REPLICAS if outer else 1,
        contribution=case.contribution,
        overlap=case.overlap,
    )
    rate = megabits * 1e6 * case.rate
    return round_of(work, Volunteer(1.0, rate, rate, LATENCY, headers), overlap=True).utilization
