"""The command line of each process of a testnet."""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from peer.process import LINE_BYTES
from peer.testnet.swarm import BOOTSTRAP, Swarm
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import ResourceError


def arguments(
    name: str,
    swarm: Swarm,
    options: TestnetOptions,
    directory: Path,
    listen: str,
    ticket: str,
    evaluate: bool,
    dashboard: bool = False,
) -> list[str]:
    """What `hetpeer` is called with for the process `name`; `evaluate`: beside the bootstrap node, an observer does."""
    if name == BOOTSTRAP:
        data = ["--data", str(options.data)] if options.data else []
        more = ["--audit", "--revoke"] if options.audit else ["--evaluate"] if evaluate else []
        more += ["--dashboard", "0"] if dashboard else []
        return ["bootstrap", str(directory / "run.toml"), "--listen", listen, *data, *more]
    common = ["--device", "cpu", "--threads", "1"]
    if name in swarm.stages:
        return ["join", ticket, "--stage", str(swarm.stages[name]), "--priority", "normal", *common]
    return ["replica", ticket, *common]


async def spawn(command: Sequence[str], folder: Path, errors: IO[bytes]) -> asyncio.subprocess.Process:
    """Start a process that keeps its things in `folder`, says its events on standard output, and ends with us."""
    return await asyncio.create_subprocess_exec(
        *command,
        "--dir",
        str(folder),
        "--json",
        "--until-stdin-closes",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        limit=LINE_BYTES,
        start_new_session=True,  # the terminal's Ctrl-C is for the testnet, which stops its children
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def attack(kind: str, ticket: str) -> list[str]:
    """What the attacker is started with."""
    return [sys.executable, "-m", "peer.testnet.attackers.attacker", kind, ticket]


def two_free_ports() -> int:
    """The first of two neighbouring ports on loopback that are free now.

    Raises:
        ResourceError: there are none.
    """
    for _ in range(100):
        with socket.socket() as one, socket.socket() as other, suppress(OSError, OverflowError):
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            other.bind(("127.0.0.1", port + 1))
            return port
    raise ResourceError("no two neighbouring ports are free on 127.0.0.1")
