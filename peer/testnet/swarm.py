"""The processes of a testnet, how far it is, and which of them a target means now. Built from events, pure."""

from dataclasses import dataclass, field

from peer.testnet.faults import Moment, Target
from protocol.events.activity import GroupBroken, GroupFormed, Joined, RoundDone, StepDone
from protocol.events.event import Event

BOOTSTRAP = "bootstrap"


def volunteer(group: int, stage: int) -> str:
    """A volunteer's process by its name, in which groups count from 1."""
    return f"volunteer {group + 1}, stage {stage}"


def datacenter(number: int) -> str:
    """A datacenter's process by its name, in which they count from 1."""
    return f"datacenter {number + 1}"


@dataclass(slots=True)
class Swarm:
    """The processes by name. `stages` has the volunteers' stages, `replicas` whose group they are in: None, no more."""

    groups: int
    stages: dict[str, int] = field(default_factory=dict)
    datacenters: list[str] = field(default_factory=list)
    replicas: dict[str, str | None] = field(default_factory=dict)
    reached: Moment = field(default_factory=lambda: Moment(0))
    ended: int = 0

    @staticmethod
    def of(groups: int, stages: int, datacenters: int) -> "Swarm":
        """The swarm as it is when it starts."""
        volunteers = {volunteer(group, stage): stage for group in range(groups) for stage in range(stages)}
        return Swarm(groups, volunteers, [datacenter(number) for number in range(datacenters)])

    def take(self, process: str, event: Event) -> None:
        """Follow what a process says."""
        match event:
            case GroupFormed(replica):
                self.replicas[process] = replica
            case Joined() if process in self.replicas:
                self.replicas[process] = None  # it has started again, and is in no group yet
            case GroupBroken() if self.stages.get(process):
                self.replicas[process] = None  # it is free; the first stage keeps its place
            case StepDone(round, step):
                self.reached = max(
                    self.reached, Moment(round, step + 1), key=lambda status: (status.round, status.step)
                )
            case RoundDone(round):
                self.ended = max(self.ended, round)
            case _:
                pass

    def add(self, stage: int | None) -> str:
        """One more process, a volunteer of `stage` or a datacenter (None); its name."""
        if stage is None:
            self.datacenters.append(datacenter(len(self.datacenters)))
            return self.datacenters[-1]
        name = volunteer(next(group for group in range(10**6) if volunteer(group, stage) not in self.stages), stage)
        self.stages[name] = stage
        return name

    def has_reached(self, moment: Moment) -> bool:
        """Whether some process has done that inner step, or a later one."""
        return (self.reached.round, self.reached.step) >= (moment.round, moment.step)

    @property
    def names(self) -> list[str]:
        """The names of all processes, the bootstrap node first."""
        return [BOOTSTRAP, *self.stages, *self.datacenters]

    def processes(self, target: Target) -> list[str]:
        """The names of the processes that `target` means now."""
        match target.kind:
            case "volunteer":
                members = self.group(target.number)
                return [name for name in members if self.stages[name] == target.stage]
            case "group":
                return self.group(target.number)
            case "datacenter":
                return [datacenter(target.number)]
            case "bootstrap":
                return [BOOTSTRAP]
            case "all":
                return self.names

    def group(self, number: int) -> list[str]:
        """The group that the `number`-th volunteer of stage 0 is in. Who has not said yet which is its own, is in the
        one it is named after: a group's members are not all heard at once."""
        replica = self.replicas.get(volunteer(number, 0))
        members = {name for name in self.stages if replica is not None and self.replicas.get(name) == replica}
        taken = {self.stages[name] for name in members}
        named = {volunteer(number, stage) for stage in self.stages.values() if stage not in taken}
        unheard = named - self.replicas.keys()
        return [name for name in self.stages if name in members | unheard]
