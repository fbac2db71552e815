"""A network namespace for each process, all on one bridge that lives in a namespace of its own, so that links can be
cut and slowed. Nothing is left in the machine's own network, and all is removed at the end.

The congestion control is reno: with BBR, the default of some kernels, a bad link looks far too good.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from protocol.errors import ResourceError

NETWORK = "10.77"
HOSTS = 250
"""Addresses are 10.77.x.1 to 10.77.x.250 of one /16."""

COMMANDS = ("ip", "nft", "tc", "nsenter")

COMMAND_SECONDS = 10.0
"""These commands take milliseconds; one that hangs must not hang the testnet."""

BURST = ("burst", "64kb", "latency", "50ms")

RENO = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"

PROMOTE = "echo 1 > /proc/sys/net/ipv4/conf/all/promote_secondaries"
"""A setting by which a host that loses its first address of a network keeps its others of that network."""

LAN = "192.168"
"""Behind a router; no other host has a route there."""

ROUTER = """table ip home {{
chain out {{
type nat hook postrouting priority 100;
oifname "eth0" masquerade
}}
chain in {{
type filter hook forward priority 0; policy drop;
iifname "{inside}" accept
ct state established,related accept
}}
}}
"""

PREFIX = "hetpeer-"
FOLDER = Path("/run/netns")


def missing() -> str | None:
    """Why this machine has no namespaces for us; None if it has."""
    if sys.platform != "linux":
        return "Linux"
    if os.geteuid() != 0:
        return "root"
    lacking = [command for command in COMMANDS if shutil.which(command) is None]
    return f"the commands {', '.join(lacking)} (Debian: iproute2, nftables, util-linux)" if lacking else None


@dataclass(slots=True)
class Namespaces:
    """The namespaces of one testnet, by process. `hosts` has each one's number."""

    pid: int
    hosts: dict[str, int] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    """The newest address of each process."""
    given: int = 0
    """The number of addresses of the bridge's network that were given out."""

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{PREFIX}{self.pid}-switch"

    def namespace(self, name: str) -> str:
        """The namespace of a process."""
        return f"{PREFIX}{self.pid}-{self.hosts[name]}"

    async def open(self) -> None:
        """Make the bridge, in a namespace of its own."""
        await self._make(self.switch)
        await _run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        await _run("ip", "-n", self.switch, "link", "set", "bridge", "up")

    async def add(self, name: str) -> str:
        """Make a namespace for a process; its address."""
        self.hosts[name] = len(self.hosts)
        address = self.addresses[name] = self._new_address()
        inside, port = self.namespace(name), self._port(name)
        await self._make(inside)
        await _run(
            "ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inside
        )
        await _run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
        await _run("ip", "-n", inside, "addr", "add", f"{address}/16", "dev", "eth0")
        await _run("ip", "-n", inside, "link", "set", "eth0", "up")
        await _run("nsenter", f"--net={FOLDER / inside}", "sh", "-c", f"{RENO}; {PROMOTE}")
        return address

    async def add_address(self, name: str) -> str:
        """Give a process one more address of its network, which is returned."""
        before = self.addresses[name]
        network, last = before.rsplit(".", 1)
        address = f"{network}.{int(last) + 1}" if before.startswith(LAN) else self._new_address()
        self.addresses[name] = address
        await _run("ip", "-n", self.namespace(name), "addr", "add", _with_prefix(address), "dev", "eth0")
        return address

    async def remove_address(self, name: str, address: str) -> None:
        """Take an address from a process. Nobody is told: what is sent to it is lost."""
        await _run("ip", "-n", self.namespace(name), "addr", "del", _with_prefix(address), "dev", "eth0")

    async def add_behind_router(self, name: str) -> str:
        """A namespace for a process that sees the others through a router of its own, which lets nobody in: it
        translates addresses, as a home's does. The process's address, which is of no use to others."""
        router, inside = f"router of {name}", f"lan{len(self.hosts)}"
        await self.add(router)
        number = self.hosts[name] = len(self.hosts)
        namespace = self.namespace(name)
        await self._make(namespace)
        at = f"{self.namespace(router)}"
        await _run("ip", "-n", at, "link", "add", inside, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        await _run("ip", "-n", at, "addr", "add", f"{LAN}.{number}.1/24", "dev", inside)
        await _run("ip", "-n", at, "link", "set", inside, "up")
        await _run("ip", "-n", namespace, "addr", "add", f"{LAN}.{number}.2/24", "dev", "eth0")
        await _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        await _run("ip", "-n", namespace, "route", "add", "default", "via", f"{LAN}.{number}.1")
        routes = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        await _run("nsenter", f"--net={FOLDER / at}", "sh", "-c", routes)
        await _run("nsenter", f"--net={FOLDER / at}", "nft", ROUTER.format(inside=inside))
        await _run("nsenter", f"--net={FOLDER / namespace}", "sh", "-c", f"{RENO}; {PROMOTE}")
        self.addresses[name] = f"{LAN}.{number}.2"
        return self.addresses[name]

    async def enter(self, name: str) -> tuple[str, ...]:
        """What goes before a command for it to run in the namespace of `name`, which is made if it is missing."""
        if name not in self.hosts:
            await self.add(name)
        return "nsenter", f"--net={FOLDER / self.namespace(name)}"

    async def cut(self, number: int, one: Sequence[str], other: Sequence[str]) -> None:
        """Let nothing pass between two sides, until `heal` of the same number."""
        sides = ["{ " + ", ".join(f'"{self._port(name)}"' for name in side) + " }" for side in (one, other)]
        drops = [f"iifname {a} oifname {b} drop" for a, b in (sides, sides[::-1])]
        rules = "\n".join(("type filter hook forward priority 0;", *drops))
        table = f"table bridge cut{number} {{\nchain forward {{\n{rules}\n}}\n}}\n"
        await _run("nsenter", f"--net={FOLDER / self.switch}", "nft", table)

    async def heal(self, number: int) -> None:
        """Let everything pass again that `cut` of the same number has stopped."""
        await _run("nsenter", f"--net={FOLDER / self.switch}", "nft", "delete", "table", "bridge", f"cut{number}")

    async def limit(self, name: str, rate: str) -> None:
        """Let the link of `name` carry `rate` (as `tc` writes it) each way."""
        for namespace, device in self._link(name):
            await _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *BURST)

    async def unlimit(self, name: str) -> None:
        """Undo all `limit` of `name`."""
        for namespace, device in self._link(name):
            with suppress(ResourceError):  # there is none where another fault's end was first
                await _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    async def close(self) -> None:
        """Remove all namespaces, and with them every link and rule."""
        while self.made:
            with suppress(ResourceError):
                await _run("ip", "netns", "del", self.made.pop())

    def _new_address(self) -> str:
        """An address of the bridge's network that no process has had."""
        self.given += 1
        return f"{NETWORK}.{(self.given - 1) // HOSTS}.{(self.given - 1) % HOSTS + 1}"

    def _port(self, name: str) -> str:
        return f"port{self.hosts[name]}"

    def _link(self, name: str) -> list[tuple[str, str]]:
        return [(self.namespace(name), "eth0"), (self.switch, self._port(name))]

    async def _make(self, namespace: str) -> None:
        self.made.append(namespace)
        await _run("ip", "netns", "add", namespace)
        await _run("ip", "-n", namespace, "link", "set", "lo", "up")


@asynccontextmanager
async def opened() -> AsyncIterator[Namespaces]:
    """Namespaces for this process's testnet, removed at the end, however it comes.

    Raises:
        ResourceError: this machine has none for us.
    """
    if lacking := missing():
        raise ResourceError(f"partition and slow put each process into a network namespace, which needs {lacking}")
    for name in _names():  # a testnet that was killed could not remove its own
        pid = name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            with suppress(ResourceError):
                await _run("ip", "netns", "del", name)
    namespaces = Namespaces(os.getpid())
    try:
        await namespaces.open()
        yield namespaces
    finally:
        await namespaces.close()


def _names() -> list[str]:
    """Our namespaces on this machine, of every testnet."""
    return [path.name for path in FOLDER.glob(f"{PREFIX}*-*")]


def _with_prefix(address: str) -> str:
    return f"{address}/{24 if address.startswith(LAN) else 16}"


async def _run(*command: str) -> None:
    """Run a command that says nothing where it succeeds.

    Raises:
        ResourceError: it failed, or hung.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C must not end what puts things right
    )
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ResourceError(f"`{' '.join(command)}` hangs") from None
    if process.returncode:
        raise ResourceError(f"`{' '.join(command)}` failed: {' '.join(said.decode(errors='replace').split())}")
