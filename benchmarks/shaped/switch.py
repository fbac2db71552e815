"""A switch in user space, since this kernel may have no netem: a process of its own.

Each host has a TAP device as its `eth0`. Every packet is there `delay` after it was sent, up to `jitter` sooner or
later, or never: one is lost of so many, drawn from a seed. None overtakes another between the same two hosts, so of
packets in quick succession all wait for the latest. Packets also wait for those before them on the receiver's way down,
where it has a rate. What a host sends is shaped in its own namespace (`tc tbf`). On its standard input the switch is
told the rate, in bits a second, whenever that changes, the first of the hosts that have it, and how many have.
"""

import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LONGEST = 2048
"""A packet of Ethernet has 1514 bytes."""

QUEUE_SECONDS = 0.2
"""What would wait longer on the way down is lost: a home router's buffer."""


def tap(name: str, namespace: str, address: str) -> int:
    """A TAP device that is `eth0` in a namespace; what goes through it can be read and written here."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    for command in (
        ("link", "set", name, "netns", namespace),
        ("-n", namespace, "link", "set", name, "name", "eth0"),
        ("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0"),
        ("-n", namespace, "link", "set", "eth0", "up"),
    ):
        subprocess.run(("ip", *command), check=True)
    return device


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to a packet: seconds one way, by how much they vary, the share that is lost, and the seed of all."""

    delay: float
    jitter: float = 0.0
    loss: float = 0.0
    seed: int = 0


class Way:
    """From one host to another, with a luck of its own."""

    def __init__(self, weather: Weather, sender: int, receiver: int) -> None:
        self.weather = weather
        self.chance = random.Random(f"{weather.seed} {sender} {receiver}")
        self.latest = 0.0

    def arrival(self, now: float) -> float | None:
        """When a packet that is sent now arrives; None: never."""
        weather = self.weather
        lost, later = self.chance.random() < weather.loss, self.chance.uniform(-weather.jitter, weather.jitter)
        if lost:
            return None
        self.latest = max(self.latest, now + weather.delay + later)
        return self.latest


class Switch:
    """Packets under way, and where each address was last seen."""

    def __init__(self, devices: list[int], weather: Weather) -> None:
        self.devices = devices
        count = range(len(devices))
        self.ways = {(one, other): Way(weather, one, other) for one in count for other in count}
        self.rates = [0.0] * len(devices)
        self.free_at = [0.0] * len(devices)
        self.where: dict[bytes, int] = {}
        self.under_way: list[tuple[float, int, int, bytes]] = []
        self.count = self.lost = 0

    def take(self, sender: int, packet: bytes) -> None:
        """A host has sent a packet."""
        self.where[packet[6:12]] = sender
        known = self.where.get(packet[:6])
        others = [each for each in range(len(self.devices)) if each != sender]
        for receiver in others if known is None else [known]:
            self._send(sender, receiver, packet)

    def _send(self, sender: int, receiver: int, packet: bytes) -> None:
        there = self.ways[sender, receiver].arrival(time.monotonic())
        if there is not None and self.rates[receiver]:
            there = self._queued(receiver, there, len(packet))
        if there is None:
            self.lost += 1
            return
        self.count += 1
        heapq.heappush(self.under_way, (there, self.count, receiver, packet))

    def _queued(self, receiver: int, there: float, size: int) -> float | None:
        """When the last of so many bytes has come down the receiver's link; None: its queue is full."""
        begin = max(there, self.free_at[receiver])
        if begin - there > QUEUE_SECONDS:
            return None
        self.free_at[receiver] = begin + 8 * size / self.rates[receiver]
        return self.free_at[receiver]

    def deliver(self) -> float | None:
        """Hand over what has arrived; seconds until the next packet does."""
        while self.under_way:
            left = self.under_way[0][0] - time.monotonic()
            if left > 0:
                return left
            *_, receiver, packet = heapq.heappop(self.under_way)
            try:
                os.write(self.devices[receiver], packet)
            except BlockingIOError:
                self.lost += 1
        return None


def main() -> None:
    """`switch.py DELAY JITTER LOSS SEED NAMESPACE=ADDRESS …`; says when it is ready, and ends with its input."""
    hosts = [each.split("=") for each in sys.argv[5:]]
    delay, jitter, loss = map(float, sys.argv[1:4])
    prefix = f"t{os.getpid()}"
    devices = [tap(f"{prefix}-{i}", *host) for i, host in enumerate(hosts)]
    switch = Switch(devices, Weather(delay, jitter, loss, int(sys.argv[4])))
    waiting = selectors.DefaultSelector()
    for number, device in enumerate(switch.devices):
        waiting.register(device, selectors.EVENT_READ, number)
    waiting.register(sys.stdin, selectors.EVENT_READ, None)
    with suppress(PermissionError):
        os.nice(-10)  # links do not wait for a machine's other work
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select(switch.deliver()):
            if key.data is None:
                line = sys.stdin.readline()
                if not line:
                    return
                rate, first, count = line.split()
                switch.rates[int(first) : int(first) + int(count)] = [float(rate)] * int(count)
                continue
            try:
                while True:
                    switch.take(key.data, os.read(switch.devices[key.data], LONGEST))
            except BlockingIOError:
                continue


if __name__ == "__main__":
    main()
