"""Silent connections, held open by a process of its own: `python -m tests.reference.flood COUNT SITES PORT…` opens so
many to each port, from one address and from so many /24 networks of loopback, says how many, and holds them until its
standard input closes."""

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sources(count: int, sites: int) -> Iterator[str]:
    """The addresses from which so many connections come, by turns: one address for a half, and as many networks."""
    for number in range(count):
        yield "127.0.0.1" if number % 2 else f"127.{1 + number // 2 % sites // 250}.{number // 2 % sites % 250}.9"


def held(count: int, sites: int, ports: Sequence[int]) -> list[socket.socket]:
    """The connections, of which those are left out that the system does not make."""
    connections = []
    for source in sources(count, sites):
        for port in ports:
            try:
                connections.append(socket.create_connection(("127.0.0.1", port), 1.0, (source, 0)))
            except OSError:
                continue
    return connections


@contextmanager
def flooded(count: int, sites: int, ports: Sequence[int]) -> Iterator[int]:
    """Hold such connections for the block, from another process. Their number."""
    command = [sys.executable, "-m", "tests.reference.flood", str(count), str(sites), *map(str, ports)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count, sites, *ports = map(int, sys.argv[1:])
    connections = held(count, sites, ports)
    print(len(connections), flush=True)
    sys.stdin.read()
