"""Playing a schedule, and what must be true at its end."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from peer import pausing
from peer.process import INTERRUPTED
from peer.telemetry.events import Finished, Joined, to_line
from protocol.errors import UnreachableError
from protocol.manifest import Manifest
from tests.reference.small_manifest import small_manifest
from tests.world.schedule import Fault, Schedule
from tests.world.world import Owner, World

MOST_STARTS = 12
"""So often somebody is started in one schedule, at most."""

END_SECONDS = 600.0
"""The time within which a run has to end from which on nothing is broken any more."""

PARTIAL = (".partial", ".part", ".tmp")
"""The endings of files that are being written."""

MEMORY = Path("/dev/shm")
"""Where folders lie: in memory, where the system has such a place."""


@dataclass(slots=True)
class Outcome:
    """How a schedule has ended. `objections` is empty if all is well."""

    schedule: Schedule
    objections: list[str] = field(default_factory=list)
    seconds: float = 0.0
    digest: str = ""
    """The hash of all events of all processes, with their times."""
    story: list[str] = field(default_factory=list)
    turns: int = 0


def manifest_of(schedule: Schedule) -> Manifest:
    """The manifest of a schedule: the smallest model that has all parts."""
    return small_manifest(
        model={"layers": schedule.stages},
        replicas={"groups": schedule.groups, "datacenters": schedule.datacenters, "stages": schedule.stages},
        inner={"steps": 4, "sequences": 2, "microbatch": 1},
        outer={"rounds": schedule.rounds, "overlap": schedule.overlap},
    )


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """An empty folder, for the block."""
    folder = Path(tempfile.mkdtemp(prefix="hetpeer-world-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def play(schedule: Schedule, files: Path) -> Outcome:
    """Play a schedule to its end. `files`: those of runs, made once for each manifest."""
    outcome = Outcome(schedule)
    with folder_in_memory() as folder:
        _play(outcome, folder, files)
    return outcome


def _play(outcome: Outcome, folder: Path, files: Path) -> None:
    world = World(manifest_of(outcome.schedule), folder, outcome.schedule.seed, files)
    with world.standing():
        try:
            _tell(world, outcome.schedule, outcome)
        finally:
            world.close()


def _tell(world: World, schedule: Schedule, outcome: Outcome) -> None:
    node = world.owners["node"]
    world.start(node)
    world.run_until(lambda: world.ticket is not None, 30)
    for each in schedule.members:
        owner = world.add(each.name, each.role, each.stage, latency=each.latency, skew=each.skew)
        owner.machine.speed = each.speed
        world.at(each.at, lambda owner=owner: None if owner.process else world.start(owner))
    for fault in schedule.faults:
        world.at(fault.at, lambda fault=fault: _do(world, fault))
    last = max((each.at for each in (*schedule.members, *schedule.faults)), default=0.0)
    world.run_for(last + 0.5)
    world.network.partition(())
    peers = [owner for owner in world.owners.values() if owner is not node]
    for owner in world.owners.values():
        pausing.resume(owner.folder)
        if owner.process is not None and owner.process.held is not None:
            world.thaw(owner.process)
    begun = world.loop.now

    def over() -> bool:
        for owner in world.owners.values():  # whoever has been stopped is started again
            if owner.process is None and not (owner.runs and owner.runs[-1].exit_code == 0 and owner is not node):
                if len(owner.runs) > MOST_STARTS:
                    return True
                world.start(owner)
        return all(owner.process is None for owner in peers)

    ended = world.run_until(over, END_SECONDS)
    outcome.seconds = world.loop.now - begun
    outcome.turns = world.loop.turns
    if not ended:
        for owner in peers:
            if owner.process is not None:
                status = owner.process.status
                outcome.objections.append(
                    f"{owner.name} goes on after {END_SECONDS:.0f} s: {status.state}, round {status.round}, "
                    f"waits for {status.waits_for!r}"
                )
    _look(world, peers, outcome)
    if node.process is not None:
        world.interrupt(node.process)
        if not world.run_until(lambda: node.process is None, 60):
            outcome.objections.append("the node does not stop")
    for failure in world.failures:
        outcome.objections.append(f"{failure.process}: {failure.error!r}")
    _write(world, outcome)


def _look(world: World, peers: list[Owner], outcome: Outcome) -> None:
    """What must be true of peers at the end."""
    digests: dict[str, dict[str, str]] = {}
    for owner in peers:
        for run in owner.runs:
            joined = any(isinstance(event, Joined) for _, event in run.events)
            known = (0, None) if run is owner.runs[-1] else (0, None, INTERRUPTED)
            unreached = run.exit_code == UnreachableError.exit_code and not joined  # the node was away
            if run.exit_code not in known and not unreached:
                outcome.objections.append(f"{owner.name} ends with {run.exit_code}: {run.error}")
            for finished in (event for _, event in run.events if isinstance(event, Finished)):
                for part, digest in finished.digests.items():
                    digests.setdefault(str(part), {})[owner.name] = digest[:8]
    for part, said in digests.items():
        if len(set(said.values())) > 1:
            outcome.objections.append(f"at the end {part} has {len(set(said.values()))} states: {said}")
    left = [path.name for owner in peers for path in owner.folder.rglob("*") if path.suffix in PARTIAL]
    if left:
        outcome.objections.append(f"files are half written: {left}")
    if not digests:
        outcome.objections.append("nobody has finished the run")


def _do(world: World, fault: Fault) -> None:
    """Do one thing of a schedule."""
    if fault.kind in ("cut", "heal"):
        world.network.partition(fault.names)
        return
    owner = world.owners[fault.names[0]]
    process = owner.process
    match fault.kind:
        case "start" if process is None:
            world.start(owner)
        case "kill" if process is not None:
            world.kill(process)
        case "power" if process is not None:
            world.lose_power(process)
        case "wipe" if process is not None:
            world.kill(process)
            shutil.rmtree(owner.folder)
            owner.folder.mkdir()
        case "interrupt" if process is not None:
            world.interrupt(process)
        case "freeze" if process is not None:
            world.freeze(process)
        case "thaw" if process is not None and process.held is not None:
            world.thaw(process)
        case "pause":
            pausing.pause(owner.folder)
        case "resume":
            pausing.resume(owner.folder)


def _write(world: World, outcome: Outcome) -> None:
    """The story of all processes, in the order of time."""
    told = [
        (at, owner.name, number, to_line(event).replace(str(world.folder), ""))
        for owner in world.owners.values()
        for number, run in enumerate(owner.runs)
        for at, event in run.events
    ]
    told.sort(key=lambda each: each[0])
    outcome.story = [f"{at:9.3f} {name}{'+' * number} {line}" for at, name, number, line in told]
    outcome.digest = hashlib.sha256("\n".join(outcome.story).encode()).hexdigest()[:16]
