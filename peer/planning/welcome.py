"""The words with which a run introduces itself to who joins: what it makes, whose it is, how far it is, and what it
takes. Pure."""

from dataclasses import dataclass
from pathlib import Path

from peer.planning.model import HEADERS_SHARE, work_of
from peer.traffic import SMALL_BYTES_A_SECOND, TrafficLimit
from protocol.layout import parameter_count
from protocol.manifest import Manifest
from protocol.monitor import View
from protocol.run.run_files import Descriptor
from protocol.trust.membership_card import Role
from protocol.wording import abbreviated, lasting, printable, size, so_many, tail

DAY_SECONDS = 86400
DAYS_OF_SPAN = {"day": 1, "month": 31}


def introduction(descriptor: Descriptor) -> str:
    """The run, in a sentence."""
    manifest = descriptor.manifest
    inner, outer = manifest.inner, manifest.outer
    tokens = manifest.tokens_per_step * inner.steps * outer.rounds * manifest.replicas.total
    parameters = parameter_count(manifest)
    return (
        f"the run {manifest.run.name} trains a model of {abbreviated(parameters)} parameters on "
        f"{abbreviated(tokens)} tokens of text, in {outer.rounds:,} rounds; its operator is {tail(descriptor.operator)}"
    )


def how_far(view: View) -> str:
    """The state of the run by its operator's node, and where volunteers are needed, in a sentence."""
    short = f"; {view.short}" if view.short else ""
    match view.state:
        case "gathering":
            words = "it has not begun yet" + (f": it {view.state_why}" if view.state_why else "")
        case "stalled":
            why = f": {view.state_why}" if view.state_why else ""
            words = f"it stands still at round {view.round} of {view.rounds}{why}"
        case "finished":
            words = f"the run is over: its {view.rounds} rounds are finished"
        case _:
            remaining = f", about {lasting(view.seconds_left)} are left" if view.seconds_left is not None else ""
            words = f"it is at round {view.round} of {view.rounds}{remaining}"
    return printable(words + short)


@dataclass(frozen=True, slots=True)
class RestOfRun:
    """The rounds that are left of a run, and the seconds of each; None: they are not known."""

    rounds: int
    seconds: float | None = None


def ahead_of(manifest: Manifest, view: View | None) -> RestOfRun:
    """The rest of a run, by the operator's node; without its `view` all of the run."""
    if view is None or view.round > view.rounds:
        return RestOfRun(manifest.outer.rounds)
    if view.state == "finished":
        return RestOfRun(0)
    rounds = view.rounds - max(1, view.round) + 1
    return RestOfRun(rounds, view.seconds_left / rounds if view.seconds_left else None)


def what_it_takes(manifest: Manifest, role: Role, stage: int, ahead: RestOfRun) -> str:
    """The part of the run that a peer does, and the traffic that it takes, in a sentence; empty for who only looks,
    and where no round is left."""
    if role == "observer" or not ahead.rounds:
        return ""
    rounds, seconds, moved = ahead.rounds, ahead.seconds, bytes_of_a_round(manifest, role, stage)
    does = f"stage {stage} of {manifest.replicas.stages}" if role == "volunteer" else "all stages"
    those = f"all {rounds:,} rounds" if rounds == manifest.outer.rounds else f"the {so_many(rounds, 'round')} left"
    takes = f"{size(rounds * moved)} each way in {those}"
    if seconds is not None:
        takes += f", about {lasting(rounds * seconds)}"
        if rounds * seconds > DAY_SECONDS:
            takes += f": {size(moved * DAY_SECONDS / seconds)} each way a day"
    return f"this machine does {does}, and sends {size(moved)} a round and receives as much; {takes}"


def what_it_keeps(memory: int, threads: int, device: str, is_low: bool, disk: int, most_disk: int, folder: Path) -> str:
    """The memory, the processor and the disk that a peer takes, in a sentence. `memory`: 0 where it is not known."""
    bytes_of_memory = f"up to {size(memory)} of memory, " if memory else ""
    computes = f"{so_many(threads, 'core')}{'' if device == 'cpu' else f' and {device}'}"
    gives_way = ", which give way to other programs" if is_low else ""
    return (
        f"it takes {bytes_of_memory}{computes}{gives_way}, and up to {size(disk)} of disk in {folder}, never more than "
        f"{size(most_disk)}"
    )


def allowance(limit: TrafficLimit, moved: float, ahead: RestOfRun, first: float = 0.0) -> str:
    """The traffic that a peer's owner allows, beside what the run takes here, in a sentence: `first` bytes before it
    helps, and `moved` bytes both ways in each round that is left."""
    rounds, seconds = ahead.rounds, ahead.seconds
    moved += SMALL_BYTES_A_SECOND * (seconds or 0)
    if first + rounds * moved <= limit.most_bytes:
        moves = f"what is left of the run moves about {size(first + rounds * moved)} here, both ways"
        return f"{moves}, within --max-traffic {limit.words}"
    then = f"this peer then pauses until the next {limit.span}"
    if first >= limit.most_bytes:
        return f"--max-traffic {limit.words} is used up within the first download; {then}, and goes on with it"
    if seconds is None:
        enough = (limit.most_bytes - first) / moved
        return f"--max-traffic {limit.words} is used up after {enough:,.0f} of {rounds:,} rounds; {then}"
    a_day = moved * DAY_SECONDS / seconds
    lasts = (limit.most_bytes - first) / a_day * DAY_SECONDS
    takes = f"the run takes about {size(a_day)} a day here, both ways"
    if lasts >= DAYS_OF_SPAN[limit.span] * DAY_SECONDS:
        return f"{takes}, within --max-traffic {limit.words}"
    return f"{takes}: --max-traffic {limit.words} is used up in {lasting(lasts)}, and {then}"


def bytes_of_a_round(manifest: Manifest, role: Role, stage: int) -> float:
    """The bytes that a peer sends in a round, with the share that is not content: frames to the stages beside it, and
    its contribution for each other replica. A replica that was not planned is beside all that were."""
    planned = manifest.replicas
    beside = planned.total - ((planned.groups if role == "volunteer" else planned.datacenters) > 0)
    stages = (stage,) if role == "volunteer" else range(manifest.replicas.stages)
    works = [work_of(manifest, stage=stage_index) for stage_index in stages]
    frames = works[0].carried * works[0].microbatches * works[0].steps if role == "volunteer" else 0.0
    exchanged = beside * sum(work.contribution for work in works)
    return (frames + exchanged) / (1 - HEADERS_SHARE)
