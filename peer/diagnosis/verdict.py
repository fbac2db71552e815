"""The verdict on each stage of a run on this machine and its link, in words. Pure: the measurements are arguments.

The plan's model (`peer.planning.model`) with measured seconds in the place of operations. The other stages of the group
are taken to be like this one, as its neighbours would otherwise wait for it, or it for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peer.diagnosis.finding import Finding
from peer.planning.model import (
    COMPRESSIONS_TRIED,
    RoundEstimate,
    StageWork,
    Volunteer,
    best_of,
    compression_at,
    round_of,
    round_of_group,
    work_of,
)
from peer.planning.welcome import DAY_SECONDS, bytes_of_a_round
from protocol.manifest import Manifest
from protocol.wording import digits, lasting, numbers_named, size

SLOW_ROUND_RATIO = 1.1
"""The ratio to the swarm's duration of a round from which a round counts as slow."""

WELL_USED = 0.9
"""The use of the device that counts as good, where nobody knows the swarm's duration."""

LONG_ROUND_SECONDS = 3600.0
"""The duration of a round, in seconds, that counts as slow where nobody knows the swarm's."""

TOO_LONG = "a round of more than an hour is slow"

WHOLE_MICROBATCH_SHARE = 0.99
"""The share of a microbatch below which the verdict says how much was measured."""

LIMIT_NOUNS = {
    "compute": "your device",
    "upload": "your upload",
    "download": "your download",
    "latency": "the distance",
}

REMEDIES = {
    "compute": "A quicker device (--device), more cores (--threads), or a stage that takes less",
    "upload": "A cable instead of Wi-Fi, and no other uploads; or ask the operator for a larger d / k",
    "download": "A cable instead of Wi-Fi, and no other downloads; or ask the operator for a larger d / k",
    "latency": "Ask the operator for more microbatches (inner.sequences), or join a run of peers that are nearer",
}

EXCHANGE = "Ask the operator for `overlap = true` in [outer]: the exchange would have the next round's time"

NO_LINK = Volunteer(1.0, float("inf"), float("inf"))
"""A link that takes no time, where none was measured."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds at a stage: of both passes of a microbatch, of what else an inner step takes (AdamW, the norm of the
    gradients), and of what the end of a round takes beside the network. `share` is how much of a microbatch's
    operations were measured; the rest is scaled."""

    passes: float
    update: float
    closing: float
    share: float


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of memory that a stage takes where it is computed here, and that are free there; whether it has to compute
    activations again; and what is `lacking`, in words; empty: it fits."""

    needed: int
    free: int
    recompute: bool = False
    lacking: str = ""

    @property
    def fits(self) -> bool:
        """Whether the free memory is enough for the stage."""
        return not self.lacking


def works(manifest: Manifest, speeds: Sequence[Speed], compression: int | None = None) -> list[StageWork]:
    """Return the seconds that each stage takes here; with another `compression` than the run's, if given."""
    return [
        replace(
            work_of(manifest, compression, stage), operations=speed.passes, update=speed.update, closing=speed.closing
        )
        for stage, speed in enumerate(speeds)
    ]


def stages(
    manifest: Manifest, speeds: Sequence[Speed | None], rooms: Sequence[Room], on: Volunteer | None, swarm: float
) -> list[Finding]:
    """A verdict for each stage. `swarm`: seconds that the swarm takes for a round; 0: not known."""
    any_fits = any(room.fits and speed is not None for room, speed in zip(rooms, speeds, strict=True))
    findings = []
    for stage, (speed, room) in enumerate(zip(speeds, rooms, strict=True)):
        if speed is None or not room.fits:
            findings.append(_too_large(stage, room, any_fits))
            continue
        findings.append(_verdict(manifest, stage, speed, room, on, swarm))
    return findings


def _too_large(stage: int, room: Room, any_fits: bool) -> Finding:
    lacking = room.lacking or f"{size(room.needed)} of memory, and {size(room.free)} are free"
    value = f"does not fit: takes {lacking}"
    advice = "Join with another stage" if any_fits else "End other programs, or use a machine with more memory"
    numbers = {"memory": room.needed, "free": room.free}
    return Finding(f"stage {stage}", value, "warning" if any_fits else "failure", advice, numbers)


def _verdict(manifest: Manifest, stage: int, speed: Speed, room: Room, on: Volunteer | None, swarm: float) -> Finding:
    def at(compression: int) -> StageWork:
        work = work_of(manifest, compression, stage)
        return replace(work, operations=speed.passes, update=speed.update, closing=speed.closing)

    ratio = compression_at(manifest, at, on or NO_LINK)
    estimate = round_of(at(ratio), on or NO_LINK, manifest.outer.overlap)
    best = best_of(
        at, on or NO_LINK, [ratio_tried for ratio_tried in COMPRESSIONS_TRIED if manifest.model.d % ratio_tried == 0]
    )
    numbers = {
        "passes": speed.passes,
        "step": estimate.step.seconds,
        "round": estimate.seconds,
        "utilization": estimate.utilization,
        "swarm_round": swarm,
        "memory": room.needed,
        "best_compression": float(best or 0),
        "share_measured": speed.share,
        "teraflops": work_of(manifest, ratio, stage).operations / speed.passes / 1e12,
    }
    sentence = f"would take {lasting(estimate.seconds)} a round here"
    sentence += f" ({lasting(estimate.step.seconds)} an inner step{', links aside' if on is None else ''})"
    sentence += f"; the swarm takes {lasting(swarm)}" if swarm else ""
    sentence += f"; {LIMIT_NOUNS[estimate.limit]} is the limit"
    sentence += f"; {size(room.needed)} of memory{', with activations recomputed' if room.recompute else ''}"
    sentence += f"; computed from {speed.share:.1%} of a microbatch" if speed.share < WHOLE_MICROBATCH_SHARE else ""
    too_long = _takes_too_long(estimate.seconds, swarm)
    sentence += f"; {TOO_LONG}" if too_long and not swarm else ""
    if not too_long and (swarm or estimate.utilization >= WELL_USED):
        return Finding(f"stage {stage}", sentence, numbers=numbers)
    remedy = REMEDIES[estimate.limit]
    if estimate.limit in ("upload", "download") and best is not None:
        sentence += f"; k = d/{best} would fit" if best > ratio else "; it is the exchange that does not fit"
        remedy = remedy if best > ratio or manifest.outer.overlap else EXCHANGE
    return Finding(f"stage {stage}", sentence, "warning", remedy, numbers)


def _takes_too_long(seconds: float, swarm: float) -> bool:
    """Whether a round of so many seconds is slow, beside the swarm's or, where that is 0, by itself."""
    return seconds > (SLOW_ROUND_RATIO * swarm if swarm else LONG_ROUND_SECONDS)


def whole_replica(
    manifest: Manifest, speeds: Sequence[Speed | None], room: Room, on: Volunteer | None, swarm: float
) -> Finding | None:
    """The verdict on a whole replica, whose stages this machine computes one after the other; None: it does not fit,
    or was not measured."""
    measured = [speed for speed in speeds if speed is not None]
    if not room.fits or len(measured) < len(speeds):
        return None
    inner = manifest.inner
    step = inner.microbatches * sum(speed.passes for speed in measured) + sum(speed.update for speed in measured)
    exchange = 8 * bytes_of_a_round(manifest, "datacenter", 0) / min(on.up, on.down) if on is not None else 0.0
    trained = inner.steps * step
    seconds = max(trained, exchange) if manifest.outer.overlap else trained + exchange
    seconds += sum(speed.closing for speed in measured)
    sentence = (
        f"all stages would take about {lasting(seconds)} a round here ({lasting(step)} an inner step)"
        f"{f'; the swarm takes {lasting(swarm)}' if swarm else ''}; {size(room.needed)} of memory"
        f"{', with activations recomputed' if room.recompute else ''}"
    )
    numbers = {"step": step, "round": seconds, "memory": room.needed, "swarm_round": swarm}
    if not _takes_too_long(seconds, swarm):
        return Finding("replica", sentence, numbers=numbers)
    sentence += "" if swarm else f"; {TOO_LONG}"
    return Finding("replica", sentence, "warning", REMEDIES["compute" if trained >= exchange else "upload"], numbers)


def traffic(manifest: Manifest, seconds: float) -> Finding:
    """The bytes that a stage and a whole replica send in a round, and in a day of rounds of so many `seconds`."""
    by_stage = [bytes_of_a_round(manifest, "volunteer", stage) for stage in range(manifest.replicas.stages)]
    whole = bytes_of_a_round(manifest, "datacenter", 0)

    def both(times: float) -> str:
        least, most = size(times * min(by_stage)), size(times * max(by_stage))
        stage = f"a stage {least}" if least == most else f"a stage {least} to {most}"
        return f"{stage}, a whole replica {size(times * whole)}"

    numbers = {"most_of_a_stage": max(by_stage), "replica": whole}
    a_day = f"; in a day of rounds of {lasting(seconds)}, {both(DAY_SECONDS / seconds)}" if seconds else ""
    return Finding("traffic", f"each way in a round: {both(1)}{a_day}", numbers=numbers)


def conclusion(findings: Sequence[Finding], whole: Room | None, is_over: bool) -> Finding:
    """The end of a diagnosis, in a sentence: whether this machine can join, as what, and how well. `whole`: the room
    for a whole replica; None: the run is not known."""
    if is_over:
        value = "the run is over, and nobody can help it any more"
        return Finding("verdict", value, "warning", "For another run, ask for its ticket")
    if failures := [finding.name for finding in findings if finding.outcome == "failure"]:
        value = f"this machine cannot join: {', '.join(failures)}"
        return Finding("verdict", value, "failure", "Mend that first, as is said above")
    judged = [finding for finding in findings if "round" in finding.numbers]
    by_name = {finding.name: finding.outcome for finding in judged}
    named = [(int(name.removeprefix("stage ")), outcome) for name, outcome in by_name.items() if name[:6] == "stage "]
    well, slow = ([stage for stage, outcome in named if outcome == kind] for kind in ("ok", "warning"))
    if well and slow:
        value = f"this machine can serve {_stages_named(well)} well, and {_stages_named(slow)} slowly"
    elif named:
        value = f"this machine can serve {_stages_named(well or slow)}{'' if well else ', but slowly'}"
    else:
        value = "nothing stands in the way of joining"
    if whole is not None:
        fits = "fits" if by_name.get("replica", "ok") == "ok" else "fits, but would be slow"
        value += f"; a whole replica {fits if whole.fits else f'does not fit: it takes {whole.lacking}'}"
    if well or not named or by_name.get("replica") == "ok":
        return Finding("verdict", value)
    return Finding("verdict", value, "warning", "What would make it quicker is said above")


def _stages_named(stages: Sequence[int]) -> str:
    return f"{'stage' if len(stages) == 1 else 'stages'} {numbers_named(stages)}"


def group(manifest: Manifest, speeds: Sequence[Speed | None], on: Volunteer | None) -> Finding | None:
    """The speed of a group whose members are all machines like this one; None where this one cannot serve every stage.
    `on`: this machine's link; None: none was measured, and links take no time."""
    measured = [speed for speed in speeds if speed is not None]
    if len(measured) < len(speeds):
        return None
    ratio = compression_at(
        manifest, lambda compression: max(works(manifest, measured, compression), key=_pass_seconds), on or NO_LINK
    )
    estimate: RoundEstimate = round_of_group(works(manifest, measured, ratio), on or NO_LINK, manifest.outer.overlap)
    rate = manifest.tokens_per_step / estimate.step.seconds
    teraflops = work_of(manifest).operations / max(speed.passes for speed in measured) / 1e12
    sentence = (
        f"one of machines and links like these: {lasting(estimate.step.seconds)} an inner step, "
        f"{lasting(estimate.seconds)} a round, {rate:,.0f} tokens a second"
    )
    numbers = {
        "step": estimate.step.seconds,
        "round": estimate.seconds,
        "tokens_per_second": rate,
        "teraflops": teraflops,
    }
    if on is not None:
        numbers |= {"up": on.up, "down": on.down, "latency": on.latency}
        link = f"--up {digits(on.up / 1e6)} --down {digits(on.down / 1e6)} --latency {digits(1e3 * on.latency)}"
        sentence += f"; for another k: hetpeer plan RUN.toml {link} --teraflops {digits(teraflops)}"
    return Finding("group", sentence, numbers=numbers)


def _pass_seconds(work: StageWork) -> float:
    """The measured seconds of a microbatch's passes, which `works` puts in the place of operations."""
    return work.operations
