"""Places for peers in network namespaces: all on one loopback, or each on a link of 100 Mb/s. Links need root."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

RATE = "100mbit"


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one peer runs: a network namespace ("" is the machine's own), its address and its interface."""

    namespace: str
    address: str
    interface: str

    def within(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []

    def bytes_sent(self) -> int:
        text = subprocess.run(
            [*self.within(), "cat", "/proc/net/dev"], check=True, capture_output=True, text=True
        ).stdout
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{self.interface}:"))
        return int(line.split(":")[1].split()[8])


@contextlib.contextmanager
def namespaces(names: list[str]) -> Iterator[None]:
    """Network namespaces of these names for as long as the block lasts."""
    made = []
    try:
        for name in names:
            command("ip", "netns", "add", name)
            made.append(name)
            command("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in made:
            command("ip", "netns", "del", name)


@contextlib.contextmanager
def loopback(count: int) -> Iterator[list[Place]]:
    """So many peers on one loopback: of a namespace of their own where the kernel lets us."""
    name = f"hetpeer{os.getpid()}"
    try:
        with namespaces([name]):
            yield [Place(name, "127.0.0.1", "lo")] * count
    except (OSError, subprocess.CalledProcessError):
        if os.geteuid() == 0:
            raise
        yield [Place("", "127.0.0.1", "lo")] * count


@contextlib.contextmanager
def links(count: int) -> Iterator[list[Place]]:
    """Each of so many peers in its namespace, on a switch, with RATE up and down."""
    switch, hosts = f"hetpeer{os.getpid()}s", [f"hetpeer{os.getpid()}h{each}" for each in range(count)]
    shape = ("root", "tbf", "rate", RATE, "burst", "64kb", "latency", "50ms")
    with namespaces([switch, *hosts]):
        command("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        command("ip", "-n", switch, "link", "set", "br0", "up")
        for each, host in enumerate(hosts):
            command(
                "ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{each}", "netns", switch
            )
            command("ip", "-n", switch, "link", "set", f"p{each}", "master", "br0", "up")
            command("ip", "-n", host, "addr", "add", f"10.77.0.{each + 1}/24", "dev", "eth0")
            command("ip", "-n", host, "link", "set", "eth0", "up")
            command("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", "eth0", *shape)
            command("ip", "netns", "exec", switch, "tc", "qdisc", "add", "dev", f"p{each}", *shape)
        yield [Place(host, f"10.77.0.{each + 1}", "eth0") for each, host in enumerate(hosts)]
