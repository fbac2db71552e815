"""Playing a schedule, and what must be true at its end."""

import hashlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from peer import pausing
from protocol.events.activity import Finished, Paused, PauseEnded, Progress, RoundDone
from protocol.events.event import Event
from protocol.events.lines import to_line
from protocol.manifest import Manifest
from tests.reference.small_manifest import small_manifest
from tests.world.network import WIDE
from tests.world.owners import Owner, Process, Role
from tests.world.properties import BACK_SECONDS, LATE_SECONDS, MOST_SLOW, at_the_end, slowness, told_in_time
from tests.world.returning import RETURNING, nothing_lost
from tests.world.schedule import Fault, Schedule
from tests.world.standing import standing
from tests.world.world import CERTIFICATE_SECONDS, World

MOST_STARTS = 12
"""So often somebody is started again at most when nothing is broken any more."""

END_SECONDS = 600.0
"""The time within which a run has to end from which on nothing is broken any more."""

MOMENTS_SECONDS = 200.0
"""So long the moments of faults may take to come when the others have happened."""

GOING_SECONDS = 105.0
"""Within this time who is told to stop, or to pause, has gone: after 30 s it is cut short, but for the only holder of a
state, which waits a minute more for another to take it."""

NOTICED_SECONDS = 10.0
"""Within this time who is told to pause says so: it looks every second."""

AGAIN_SECONDS = 0.5
"""So often somebody looks whether what is to be started again has ended."""

KNOWN_SECONDS = 15.0
"""Within this time after the end the node has looked at all who have finished."""

SLOW_SECONDS = 0.4
"""What a sync takes on a slow disk."""

NARROW = 50_000.0
"""What a narrow link carries, in bytes a second."""

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
        run={} if schedule.gather is None else {"gather": schedule.gather},
        model={"layers": schedule.stages},
        replicas={"groups": schedule.groups, "datacenters": schedule.datacenters, "stages": schedule.stages},
        inner={"steps": 4, "sequences": 2, "microbatch": 1, "overlap": schedule.step_overlap}
        | ({"most_steps": schedule.most_steps} if schedule.most_steps else {}),
        outer={"rounds": schedule.rounds, "overlap": schedule.overlap}
        | ({"weights": "steps"} if schedule.most_steps else {})
        | ({} if schedule.grace is None else {"grace": schedule.grace, "liars": schedule.liars}),
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
    schedule = outcome.schedule
    life = schedule.life or CERTIFICATE_SECONDS
    world = World(manifest_of(schedule), folder, schedule.seed, files, life)
    with standing(world):
        try:
            _tell(world, schedule, outcome)
        finally:
            world.close()


def _tell(world: World, schedule: Schedule, outcome: Outcome) -> None:
    node = world.owners["node"]
    world.start(node)
    world.run_until(lambda: world.ticket is not None, 30)
    for each in schedule.members:
        owner = world.add(each.name, each.role, each.stage, latency=each.latency, skew=each.skew)
        owner.machine.speed = each.speed
        owner.audits, owner.door = each.audits, each.door
        if owner.audits:
            world.name_attester(owner)
        world.at(each.at, lambda owner=owner: None if owner.process else world.start(owner))
    timed = [fault for fault in schedule.faults if fault.after is None]
    for fault in timed:
        world.at(fault.at, lambda fault=fault: _do(world, fault, outcome))
    last = max((each.at for each in (*schedule.members, *timed)), default=0.0)
    coming = _await_moments(world, outcome)
    world.run_for(last + 0.5)
    servers = [owner for owner in world.owners.values() if owner.role in ("node", "gateway")]
    peers = [owner for owner in world.owners.values() if owner not in servers]
    if coming:
        world.run_until(lambda: not coming or all(owner.process is None for owner in peers), MOMENTS_SECONDS)
        coming.clear()
        last = world.loop.now
    world.network.partition(())
    world.disk.full.clear()
    world.disk.slow.clear()
    for machine in world.network.machines.values():
        machine.up = machine.down = WIDE
    for owner in world.owners.values():
        _resume(owner)
        if owner.process is not None and owner.process.held is not None:
            world.thaw(owner.process)
    gone = [owner for owner in peers if owner.left]
    begun, starts = world.loop.now, {owner.name: len(owner.runs) for owner in peers}

    def over() -> bool:
        for owner in world.owners.values():  # whoever has been stopped is started again
            ended_well = owner in gone or (owner.runs and owner.runs[-1].exit_code == 0 and owner not in servers)
            if owner.process is None and not ended_well:
                if len(owner.runs) - starts.get(owner.name, 0) > MOST_STARTS:
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
    _write(world, outcome)
    outcome.objections += at_the_end(world, peers, last)
    if schedule.seed >= RETURNING:
        outcome.objections += nothing_lost(peers)
    if ended:
        _come_late(world, peers, gone, outcome)
    for server in servers:
        process = server.process
        if process is not None:
            world.interrupt(process)
            if not world.run_until(lambda server=server: server.process is None, 60):
                outcome.objections.append(f"the {server.name} does not stop")
    for failure in world.failures:
        outcome.objections.append(f"{failure.process}: {failure.error!r}")


def _await_moments(world: World, outcome: Outcome) -> set[Fault]:
    """Have faults happen after their moments. Returns those that have not happened yet; whoever takes one out keeps it
    from happening."""
    coming = {fault for fault in outcome.schedule.faults if fault.after is not None}

    def act(fault: Fault) -> None:
        if fault in coming:
            coming.discard(fault)
            _do(world, fault, outcome)

    for fault in [each for each in outcome.schedule.faults if each in coming]:
        assert fault.after is not None
        world.when(fault.after.is_come, lambda fault=fault: world.at(world.loop.now + fault.at, lambda: act(fault)))
    return coming


def _come_late(world: World, peers: list[Owner], gone: list[Owner], outcome: Outcome) -> None:
    """After the run's end: who has left before it comes back, and so does one that has finished; and a stranger."""
    world.run_for(KNOWN_SECONDS)
    schedule = outcome.schedule
    role: Role = "volunteer" if schedule.groups else "datacenter"
    newcomer = world.add("latecomer", role, 0 if schedule.groups else None)
    quick = [owner for owner in peers if owner not in gone and owner.machine.speed <= MOST_SLOW]
    back = [random.Random(f"hetpeer world late {schedule.seed}").choice(quick)] if quick else []
    for owner in (newcomer, *gone, *back):
        outcome.objections += told_in_time(
            world, owner, LATE_SECONDS if owner is newcomer else slowness(owner) * BACK_SECONDS
        )
        late = owner.runs[-1]
        outcome.story += [_line(world, owner, len(owner.runs) - 1, at, event) for at, event in late.events]


def _do(world: World, fault: Fault, outcome: Outcome) -> None:
    """Do one thing of a schedule."""
    if fault.kind in ("cut", "heal"):
        world.network.partition(fault.names)
        return
    owner = world.owners[fault.names[0]]
    process = owner.process
    match fault.kind:
        case "move":
            world.network.move(owner.machine)
        case "start" if process is None and not owner.left:
            world.start(owner)
        case "kill" if process is not None:
            world.kill(process)
        case "power" if process is not None:
            world.lose_power(process)
        case "wipe" if process is not None:
            world.kill(process)
            shutil.rmtree(owner.folder)
            owner.folder.mkdir()
            owner.paused = None
        case "interrupt" if process is not None:
            world.interrupt(process)
            world.at(world.loop.now + GOING_SECONDS, lambda: _has_gone(owner, process, outcome))
        case "again" if process is not None:
            world.at(world.loop.now + AGAIN_SECONDS, lambda: _do(world, fault, outcome))
        case "again" if not owner.left and not _has_finished(owner):
            world.start(owner)
        case "leave" if process is not None and any(isinstance(event, RoundDone) for _, event in process.events):
            world.interrupt(process)
            owner.left = True
        case "lose" if process is not None and any(isinstance(event, RoundDone) for _, event in process.events):
            world.kill(process)
            owner.left = True
        case "full":
            world.fill(owner)
        case "room":
            world.disk.full.discard(owner.folder)
        case "slow":
            world.disk.slow[owner.folder] = SLOW_SECONDS
        case "fast":
            world.disk.slow.pop(owner.folder, None)
        case "narrow":
            owner.machine.up = owner.machine.down = NARROW
        case "wide":
            owner.machine.up = owner.machine.down = WIDE
        case "freeze" if process is not None:
            world.freeze(process)
        case "thaw" if process is not None and process.held is not None:
            world.thaw(process)
        case "pause":
            pausing.request_pause(owner.folder)
            owner.paused = since = owner.paused if owner.paused is not None else world.loop.now
            world.at(world.loop.now + NOTICED_SECONDS, lambda: _has_noticed(owner, since, outcome))
            world.at(world.loop.now + GOING_SECONDS, lambda: _has_paused(owner, since, outcome))
        case "resume":
            _resume(owner)


def _has_finished(owner: Owner) -> bool:
    """Whether an owner's last process has seen the run's end: who comes after that is `_come_late`'s."""
    return any(isinstance(event, Finished) for run in owner.runs[-1:] for _, event in run.events)


def _resume(owner: Owner) -> None:
    pausing.end_pause(owner.folder)
    owner.paused = None


def _has_gone(owner: Owner, process: Process, outcome: Outcome) -> None:
    """See that a process has ended that was told to, unless it was stopped meanwhile."""
    if process is owner.process and not process.stops:
        outcome.objections.append(f"{owner.name} was told to stop, and goes on after {GOING_SECONDS:.0f} s")


def _is_told_to_pause(owner: Owner, since: float) -> bool:
    """Whether somebody who was told to pause then has been told so all the time, and was not started or stopped
    meanwhile."""
    process = owner.process
    return process is not None and process.started_at <= since and not process.stops and owner.paused == since


def _has_noticed(owner: Owner, since: float, outcome: Outcome) -> None:
    """See that somebody who is told to pause says that it does, or that it leaves first."""
    process = owner.process
    if process is None or not _is_told_to_pause(owner, since):
        return
    leaves = False
    for _, event in process.events:
        if isinstance(event, Paused | PauseEnded):
            leaves = isinstance(event, Paused)
        leaves |= isinstance(event, Progress) and event.doing.startswith("leaving")
    if not leaves:
        outcome.objections.append(f"{owner.name} was told to pause, and goes on after {NOTICED_SECONDS:.0f} s")


def _has_paused(owner: Owner, since: float, outcome: Outcome) -> None:
    """See that somebody serves nobody who has been told to pause."""
    if _is_told_to_pause(owner, since) and owner.machine.listeners:
        outcome.objections.append(f"{owner.name} was told to pause, and serves after {GOING_SECONDS:.0f} s")


def _write(world: World, outcome: Outcome) -> None:
    """The story of all processes, in the order of time."""
    told = [
        (at, _line(world, owner, number, at, event))
        for owner in world.owners.values()
        for number, run in enumerate(owner.runs)
        for at, event in run.events
    ]
    told.sort(key=lambda each: each[0])
    outcome.story = [line for _, line in told]
    outcome.digest = hashlib.sha256("\n".join(outcome.story).encode()).hexdigest()[:16]


def _line(world: World, owner: Owner, number: int, at: float, event: Event) -> str:
    line = to_line(event).replace(str(world.folder), "")
    return f"{at:9.3f} {owner.name}{'+' * number} {line}"
