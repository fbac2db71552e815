"""T: how long pipelines over home links take until a loss, by the lab's curves and the model of `hetpeer plan`.

T = tokens until a run's held-out loss first is the target (its curve, linear between two evaluations)
  × seconds a token of such a pipeline (`peer/planning/model.py`: passes, frames, and the outer exchange)

The curves are of small models; seconds are those of the model `--scale`, of which a step is long enough that not
latency alone decides, with the same optimizer, stages and share d / k. So it is supposed that methods need tokens in
the same proportion there. A run without compressed boundaries counts as the vanilla pipeline, whose stages send whole
activations in bf16; the lab's own boundaries count as their bytes.

In the middle of a run a loss is above that of a shorter run, planned to end there. The target is by default the worst
of the last losses, so that every method reaches it: the worst one at its end, which flatters that one.

    python benchmarks/time_to_loss.py docs/results/results-ladder.jsonl --preset nano
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.experiments.results import Record, records_in
from peer.planning.model import Volunteer, round_of, work_of
from protocol.codec.frames import Payload
from protocol.manifest import Manifest, check_manifest

STEP = {"sequences": 32, "microbatch": 4}
"""Of a volunteers' pipeline, by default in the manifest, too."""


@dataclass(frozen=True, slots=True)
class TimeToLoss:
    """A run, and when its loss is the target. `bytes_per_token`: of a boundary and direction, at the scale. `times`: T
    of the vanilla pipeline, with AdamW if there is such a run, as a multiple of this one's."""

    name: str
    last_loss: float
    bytes_per_token: int
    tokens: float
    seconds_per_million: float
    times: float


def tokens_until(record: Record, target: float) -> float | None:
    """Tokens of all replicas until the loss is the target; None: it never is."""
    which = "through" if record.groups else "plain"
    before: tuple[float, float] | None = None
    for point in record.curve:
        loss = getattr(point, which)
        if loss <= target:
            if before is None:
                return float(point.tokens)
            tokens, higher = before
            return tokens + (point.tokens - tokens) * (higher - target) / (higher - loss)
        before = float(point.tokens), loss
    return None


def as_pipeline(record: Record, scale: str) -> Manifest:
    """Such a run of the model `scale`, by groups alone; with whole activations where the run had no group."""
    run = check_manifest(record.manifest)
    replicas = {"groups": record.replicas, "datacenters": 0, "stages": run.replicas.stages, "compression": 1}
    if record.groups:
        own = run.replicas
        replicas |= {"compression": run.compressions[0], "wire": own.wire, "gradient_wire": own.gradient_wire}
    return check_manifest(
        {
            "model": {"preset": scale},
            "replicas": replicas,
            "inner": {"steps": run.inner.steps, "optimizer": run.inner.optimizer} | STEP,
            "outer": run.outer.model_dump(mode="json", exclude_none=True),
        }
    )


def compare(records: Sequence[Record], on: Volunteer, scale: str, target: float | None = None) -> list[TimeToLoss]:
    """All runs that reach the target, of those that are as long as the longest, the vanilla pipeline first; the target
    is what all reach, if none is given.

    Raises:
        ValueError: there is no vanilla pipeline that reaches it.
    """
    longest = max((record.curve[-1].tokens for record in records), default=0)
    alike = [r for r in records if r.groups in (0, r.replicas) and r.curve[-1].tokens == longest]
    alike.sort(key=lambda each: (each.groups, tables(each) != "none", check_manifest(each.manifest).inner.optimizer))
    last = {record.id: record.loss("through" if record.groups else "plain") for record in alike}
    goal = max(last.values(), default=0.0) if target is None else target
    found: list[TimeToLoss] = []
    for record in alike:
        tokens = tokens_until(record, goal)
        if not found and (record.groups or tokens is None):
            raise ValueError(f"no run without compressed boundaries has a loss of {goal:g} or less")
        if tokens is None:
            continue
        manifest = as_pipeline(record, scale)
        tokens_a_round = manifest.tokens_per_step * manifest.inner.steps * record.replicas
        seconds = round_of(work_of(manifest), on).seconds / tokens_a_round * 1e6
        first = found[0].tokens * found[0].seconds_per_million if found else tokens * seconds
        width = Payload(manifest.replicas.wire, 1, 1, manifest.k).token_bytes
        found.append(TimeToLoss(name_of(record), last[record.id], width, tokens, seconds, first / (tokens * seconds)))
    return found


def name_of(record: Record) -> str:
    """What a run is, in a few words."""
    inner = record.manifest["inner"]
    boundary = record.axes.get("label") or ("whole activations" if not record.groups else "random basis, bf16")
    width = record.switches.get("anchor_width") or ""
    learned = "" if tables(record) == "none" else f", tables of {tables(record)} {width}"
    return f"{inner.get('optimizer', 'adamw')}, {boundary}{learned.rstrip()}, rate {inner['learning_rate']:g}"


def tables(record: Record) -> str:
    """What a run's stages look up by the token ids; none."""
    return str(record.switches.get("anchors", "none"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.jsonl of a sweep")
    parser.add_argument("--preset", default="nano", help="runs of this model alone")
    parser.add_argument("--scale", default="178m", help="the model whose pipelines are timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, help="nats a token; default: what every run reaches")
    parser.add_argument("--megabits", type=float, nargs="+", default=[50, 100, 200], help="of each volunteer's link")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds one way")
    parser.add_argument("--operations", type=float, default=5e12, help="that a volunteer computes a second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model = check_manifest({"model": {"preset": given.preset}}).model
    wanted = [
        record
        for record in records_in(given.results)
        if check_manifest(record.manifest).model == model and record.seed == given.seed and not record.switches["late"]
    ]
    links = {rate: Volunteer(given.operations, rate * 1e6, rate * 1e6, given.latency) for rate in given.megabits}
    try:
        found = {rate: compare(wanted, on, given.scale, given.target) for rate, on in links.items()}
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if given.json:
        print(json.dumps({rate: [asdict(row) for row in rows] for rate, rows in found.items()}, indent=1))
        return
    for rate, rows in found.items():
        print(f"\n{given.preset}'s curves, {given.scale}'s steps at {rate:g} Mb/s and {1000 * given.latency:g} ms")
        print(f"{'':60} {'last loss':>9} {'B/token':>8} {'M tokens':>9} {'s/M tokens':>10} {'times':>6}")
        for row in rows:
            print(
                f"{row.name:60} {row.last_loss:9.3f} {row.bytes_per_token:8} {row.tokens / 1e6:9.1f} "
                f"{row.seconds_per_million:10.1f} {row.times:6.2f}"
            )


if __name__ == "__main__":
    main()
