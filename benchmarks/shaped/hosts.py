"""Hosts on shaped links: namespaces, a switch with a delay, jitter and loss, and the same rate up and down for all.
Needs root."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SWITCH = Path(__file__).with_name("switch.py")
BURST_SECONDS = 0.005


def missing() -> str | None:
    """Why this machine cannot do it; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return "this needs Linux, root, and /dev/net/tun"
    for command in (("ip", "-V"), ("tc", "-V"), ("nsenter", "-V")):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except OSError:
            return f"this needs the command {command[0]} (Debian: iproute2, util-linux)"
    return None


@dataclass(frozen=True, slots=True)
class Hosts:
    """Some hosts, by number."""

    namespaces: list[str]
    switch: subprocess.Popen[str]

    def address(self, number: int) -> str:
        """A host's."""
        return f"10.78.0.{number + 1}"

    def enter(self, number: int) -> list[str]:
        """What goes before a command for it to run on a host."""
        return ["nsenter", f"--net=/run/netns/{self.namespaces[number]}"]

    def bytes_of(self, number: int) -> dict[str, int]:
        """What a host has sent ("tx") and received ("rx") until now, as its network interface counts it."""
        shown = subprocess.run(
            ("ip", "-n", self.namespaces[number], "-json", "-stats", "link", "show", "dev", "eth0"),
            check=True,
            capture_output=True,
        )
        counted = json.loads(shown.stdout)[0]["stats64"]
        return {way: int(counted[way]["bytes"]) for way in ("tx", "rx")}

    def limit(self, megabits: float, count: int, down: float = 1.0, first: int = 0) -> None:
        """Let the links of `count` hosts from `first` on carry so much up, and `down` times as much down."""
        bits = megabits * 1e6
        burst = max(3000, int(bits / 8 * BURST_SECONDS))
        for namespace in self.namespaces[first : first + count]:
            shape = ("tbf", "rate", f"{bits:.0f}bit", "burst", f"{burst}", "latency", "200ms")
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", "eth0", "root", *shape)
        assert self.switch.stdin is not None
        print(down * bits, first, count, file=self.switch.stdin, flush=True)


@contextlib.contextmanager
def hosts(
    count: int, delay: float, jitter: float = 0.0, loss: float = 0.0, seed: int = 0, forget: bool = True
) -> Iterator[Hosts]:
    """So many hosts, `delay` ± `jitter` seconds from each other, with so much loss each way; all is removed at the
    end. Unless they `forget`, TCP keeps its congestion window over idle moments, as Linux does where
    net.ipv4.tcp_slow_start_after_idle = 0."""
    names = [f"hetpeer-bench-{os.getpid()}-{number}" for number in range(count)]
    with contextlib.ExitStack() as stack:
        for name in names:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            for setting, value in (("congestion_control", "reno"), ("slow_start_after_idle", int(forget))):
                write = f"echo {value} > /proc/sys/net/ipv4/tcp_{setting}"
                _run("nsenter", f"--net=/run/netns/{name}", "sh", "-c", write)
        made = Hosts(names, None)  # type: ignore[arg-type]
        where = [f"{name}={made.address(number)}" for number, name in enumerate(names)]
        command = (sys.executable, str(SWITCH), *map(str, (delay, jitter, loss, seed)), *where)
        switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(_end, switch)
        assert switch.stdout is not None
        if switch.stdout.readline() != "ready\n":
            raise RuntimeError("the switch did not start")
        yield Hosts(names, switch)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
