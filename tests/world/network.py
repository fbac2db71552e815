"""The network of the simulated world: machines, what listens on them, and connections that lose nothing until they
break.

A connection is what TCP gives: bytes arrive in order, later where a link is slow, not at all while the network is cut.
It breaks when a process ends that has one end of it, as its machine says so; when a machine loses its power nobody says
so, and a connection that carries nothing is given up after `KEEPALIVE_SECONDS`, as gRPC's pings do it.
"""

from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import Any

from tests.world.loop import VirtualLoop

KEEPALIVE_SECONDS = 40.0
"""gRPC's: it asks after ten seconds of silence, and gives up after thirty more."""

CONNECT_SECONDS = 20.0
"""How long an attempt to connect goes on to which nobody answers."""

AGAIN_AFTER = (1.0, 3.0, 7.0, 15.0)
"""Seconds after its beginning at which it is tried again, as Linux sends a SYN again."""

WIDE = 12.5e6
"""What a link carries, in bytes a second, unless it is said otherwise."""

HEADER_BYTES = 60
"""What a message takes beside its content."""


@dataclass(eq=False, slots=True)
class Machine:
    """A machine with one link. `latency`: seconds to the middle of the network; `up` and `down`: bytes a second."""

    name: str
    address: str
    latency: float = 0.01
    up: float = WIDE
    down: float = WIDE
    skew: float = 0.0
    """By how much its clock is wrong, in seconds."""
    speed: float = 1.0
    """How many times longer than others it computes."""
    powered: bool = True
    listeners: dict[int, Any] = field(default_factory=dict)
    """What listens, by port."""
    up_free: float = 0.0
    down_free: float = 0.0
    ports: Any = field(default_factory=lambda: count(20000))


@dataclass(eq=False, slots=True)
class End:
    """One end of a connection: the process that has it, and what it is told when the connection breaks."""

    process: Any
    broken: Callable[[str], None] = lambda reason: None
    knows: bool = False
    """Whether it has been told."""
    owner: Any = None
    """What of the process has it: a server."""


@dataclass(eq=False, slots=True)
class Connection:
    """A connection between two processes; `near` has opened it."""

    network: "Network"
    near: End
    far: End
    last: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    """When the last message arrives that was sent from the near end, and from the far one."""
    sent: int = 0
    """The number of messages that were sent over it."""
    stalled: list[tuple[int, bool, int, Callable[[], None]]] = field(default_factory=list)
    """What was sent while the network was cut, or was on its way then."""
    stalled_since: float | None = None
    severed: bool = False
    """Whether an address of one of its ends is gone: it carries nothing any more."""

    def send(self, from_near: bool, size: int, arrive: Callable[[], None]) -> float:
        """Send a message. Returns when it has left its machine."""
        self.sent += 1
        return self.network.carry(self, self.sent, from_near, size, arrive)

    def close(self, end: End, reason: str) -> None:
        """End the connection from one end: the other is told when it hears of it."""
        end.knows = True
        other = self.far if end is self.near else self.near
        self.network.connections.pop(self, None)
        if self.severed:  # the other end does not hear of it, and gives up in its time
            return
        self.network.after(self.network.latency(end.process.machine, other.process.machine), self.tell, other, reason)

    def tell(self, end: End, reason: str) -> None:
        """Tell one end that the connection is no more."""
        self.network.connections.pop(self, None)
        if not end.knows:
            end.knows = True
            end.broken(reason)


class Network:
    """All machines and what connects them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.kernel = Context()
        """Where code runs that belongs to no process."""
        self.machines: dict[str, Machine] = {}
        self.connections: dict[Connection, None] = {}
        self.cut: frozenset[str] = frozenset()
        """The machines that are cut off from the others, and hear each other."""
        self.moves = 0
        """The number of addresses that machines were given in the place of others."""
        self.numbers = count(1)

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` in so many seconds, in no process."""
        self.loop.call_later(seconds, act, *arguments, context=self.kernel)

    def machine(self, name: str, **of: Any) -> Machine:
        """A new machine."""
        made = Machine(name, f"10.0.{len(self.machines) // 250}.{len(self.machines) % 250 + 1}", **of)
        self.machines[made.address] = made
        return made

    def latency(self, one: Machine, other: Machine) -> float:
        """The time of a small message between two machines."""
        return 0.00005 if one is other else one.latency + other.latency

    def reachable(self, one: Machine, other: Machine) -> bool:
        """Whether the network carries anything between two machines now."""
        return one is other or (one.powered and other.powered and (one.name in self.cut) == (other.name in self.cut))

    def carries(self, connection: Connection) -> bool:
        """Whether a connection carries anything now."""
        return not connection.severed and self.reachable(
            connection.near.process.machine, connection.far.process.machine
        )

    def listener(self, address: str) -> tuple[Machine | None, Any]:
        """The machine at an address, and what listens there."""
        host, _, port = address.rpartition(":")
        machine = self.machines.get(host)
        return machine, machine.listeners.get(int(port)) if machine is not None and machine.powered else None

    def carry(
        self, connection: Connection, number: int, from_near: bool, size: int, arrive: Callable[[], None]
    ) -> float:
        """Carry the message of this number over a connection, in order. Returns when it has left."""
        sender, receiver = connection.near, connection.far
        if not from_near:
            sender, receiver = receiver, sender
        one, other, now = sender.process.machine, receiver.process.machine, self.loop.now
        if connection.stalled or not self.carries(connection):
            connection.stalled.append((number, from_near, size, arrive))
            self._watch(connection)
            return now
        size += HEADER_BYTES
        one.up_free = max(now, one.up_free) + size / one.up
        at = one.up_free + self.latency(one, other)
        other.down_free = max(at - size / other.down, other.down_free) + size / other.down
        at = max(at, other.down_free, connection.last[from_near])
        connection.last[from_near] = at
        self.after(at - now, self._arrive, connection, receiver, number, from_near, size, arrive)
        return one.up_free

    def _arrive(
        self, connection: Connection, receiver: End, number: int, from_near: bool, size: int, arrive: Callable[[], None]
    ) -> None:
        if receiver.knows:
            return
        if not self.carries(connection):
            connection.stalled.append((number, from_near, size - HEADER_BYTES, arrive))
            self._watch(connection)
            return
        arrive()

    def _watch(self, connection: Connection) -> None:
        """Give a connection up that has been able to carry nothing for long."""
        if connection.stalled_since is None:
            connection.stalled_since = self.loop.now
            self.after(KEEPALIVE_SECONDS, self._give_up, connection, self.loop.now)

    def _give_up(self, connection: Connection, since: float) -> None:
        if connection.stalled_since == since:
            self.break_off(connection, "keepalive watchdog timeout")

    def break_off(self, connection: Connection, reason: str) -> None:
        """Tell both ends that a connection is no more."""
        for end in (connection.near, connection.far):
            connection.tell(end, reason)

    def partition(self, names: Iterable[str]) -> None:
        """Cut these machines off from all others; none: the network is whole again."""
        self.cut = frozenset(names)
        for connection in [*self.connections]:
            self.look_again(connection)

    def move(self, machine: Machine) -> None:
        """Give a machine another address in the place of its own. What was connected with others at the old one carries
        nothing any more, and nobody is told."""
        del self.machines[machine.address]
        self.moves += 1
        machine.address = f"10.1.{self.moves // 250}.{self.moves % 250 + 1}"
        self.machines[machine.address] = machine
        for connection in [*self.connections]:
            ends = connection.near.process.machine, connection.far.process.machine
            if machine in ends and ends != (machine, machine):
                connection.severed = True
                self._watch(connection)

    def look_again(self, connection: Connection) -> None:
        """What was held back goes on where the network carries it; else the connection is watched."""
        if not self.carries(connection):
            self._watch(connection)
            return
        connection.stalled_since = None
        stalled, connection.stalled = sorted(connection.stalled, key=itemgetter(0)), []
        for each in stalled:  # what was on its way came here after what was sent later
            self.carry(connection, *each)

    def died(self, process: Any) -> None:
        """A process has ended, and its machine says so to all it was connected with."""
        for port, listener in [*process.machine.listeners.items()]:
            if listener.process is process:
                del process.machine.listeners[port]
        for connection in [*self.connections]:
            for end in (connection.near, connection.far):
                if end.process is process:
                    connection.close(end, "Socket closed")

    def lost_power(self, process: Any) -> None:
        """A machine is off: nobody is told, and what goes to it is lost."""
        process.machine.listeners.clear()
        for connection in [*self.connections]:
            for end in (connection.near, connection.far):
                if end.process is process:
                    end.knows = True
                    self.after(
                        KEEPALIVE_SECONDS, connection.tell, _other(connection, end), "keepalive watchdog timeout"
                    )

    def stopped(self, process: Any, is_still: Callable[[], bool]) -> None:
        """A process stands still: its machine takes what comes, but answers no ping."""

        def give_up() -> None:
            if is_still():
                for connection in [*self.connections]:
                    if process in (connection.near.process, connection.far.process):
                        self.break_off(connection, "keepalive watchdog timeout")

        self.after(KEEPALIVE_SECONDS, give_up)


def _other(connection: Connection, end: End) -> End:
    return connection.far if end is connection.near else connection.near
