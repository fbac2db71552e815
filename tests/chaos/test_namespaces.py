"""Real namespaces: who may talk to whom, and that nothing is left. Skipped, with the reason, without root or tools."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from protocol.errors import ResourceError
from tests.chaos import namespaces
from tests.chaos.namespaces import Namespaces, opened

needs_them = pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")

ANSWER = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("up", flush=True)
while True:
    caller, _ = server.accept()
    caller.sendall(b"x" * int(sys.argv[2]))
    caller.close()
"""

ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as call:
    while call.recv(65536):
        pass
"""


def run(story: Callable[[Namespaces], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with opened() as network:
            await story(network)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


async def server(network: Namespaces, name: str, address: str, size: int = 1) -> asyncio.subprocess.Process:
    command = [*await network.enter(name), sys.executable, "-c", ANSWER, address, str(size)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    return process


async def reaches(network: Namespaces, name: str, address: str, patience: float) -> bool:
    command = [*await network.enter(name), sys.executable, "-c", ASK, address, str(patience)]
    asking = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    return await asking.wait() == 0


def left(pid: int = os.getpid()) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"hetpeer-{pid}-*")]


@needs_them
def test_all_reach_each_other_until_they_are_cut_off_and_after_it_is_healed():
    async def story(network: Namespaces) -> None:
        address = await network.add("server")
        await network.add("friend")
        await network.add("stranger")
        serving = await server(network, "server", address)
        assert await reaches(network, "server", address, 5)
        assert await reaches(network, "stranger", address, 5)
        await network.cut(0, ["server", "friend"], ["stranger"])
        assert not await reaches(network, "stranger", address, 1)
        assert await reaches(network, "friend", address, 5)
        await network.heal(0)
        assert await reaches(network, "stranger", address, 5)
        serving.kill()
        await serving.wait()

    run(story)


@needs_them
def test_a_limited_link_is_slow_both_ways_until_it_is_free_again():
    async def story(network: Namespaces) -> None:
        address = await network.add("server")
        await network.add("client")
        serving = await server(network, "server", address, size=1_000_000)
        loop = asyncio.get_running_loop()
        seconds = []
        for limited in ("nobody", "server", "client", "nobody"):
            if limited != "nobody":
                await network.limit(limited, "8mbit")
            began = loop.time()
            assert await reaches(network, "client", address, 10)
            seconds.append(loop.time() - began)
            if limited != "nobody":
                await network.unlimit(limited)
        assert min(seconds[1:3]) > 0.8  # a megabyte at a megabyte a second, less the burst
        assert max(seconds[0], seconds[3]) < 0.8
        serving.kill()
        await serving.wait()

    run(story)


@needs_them
def test_in_each_the_loopback_is_up_and_the_congestion_control_reno():
    async def story(network: Namespaces) -> None:
        await network.add("one")
        show = await network.enter("one")

        def said(*command: str) -> str:
            return subprocess.run([*show, *command], check=True, capture_output=True, text=True).stdout

        assert "LOOPBACK,UP" in said("ip", "link", "show", "lo")
        assert said("cat", "/proc/sys/net/ipv4/tcp_congestion_control") == "reno\n"

    run(story)


@needs_them
def test_addresses_and_names_are_each_ones_own():
    async def story(network: Namespaces) -> None:
        assert [await network.add(name) for name in "abc"] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        assert len(left()) == 4

    run(story)


class OnPurposeError(Exception):
    pass


@needs_them
def test_nothing_is_left_after_an_error():
    async def story(network: Namespaces) -> None:
        await network.add("one")
        raise OnPurposeError

    with pytest.raises(OnPurposeError):
        run(story)
    assert left() == []


@needs_them
def test_what_a_killed_testnet_left_is_removed_at_the_next_start():
    gone = subprocess.Popen(["true"])
    gone.wait()
    name = f"hetpeer-{gone.pid}-switch"
    subprocess.run(["ip", "netns", "add", name], check=True)

    async def story(network: Namespaces) -> None:
        assert left(gone.pid) == []

    assert left(gone.pid) == [name]
    run(story)


@needs_them
def test_a_command_that_fails_is_named():
    async def story(network: Namespaces) -> None:
        await network.add("one")
        await network.limit("one", "no rate")

    with pytest.raises(ResourceError, match=r"`tc .* rate no rate .*` failed: "):
        run(story)


@pytest.mark.parametrize(
    ("where", "words"),
    [("platform", "Linux"), ("geteuid", "root"), ("which", r"the commands ip, nft, tc, nsenter \(Debian: iproute2")],
)
def test_a_machine_without_them_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch, where: str, words: str):
    monkeypatch.setattr(namespaces.sys, "platform", "darwin" if where == "platform" else "linux")
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000 if where == "geteuid" else 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: None)

    async def nothing(network: Namespaces) -> None:
        raise AssertionError

    with pytest.raises(ResourceError, match=f"partition and slow .* needs {words}"):
        run(nothing)


@needs_them
def test_behind_a_router_one_reaches_the_others_and_is_reached_by_nobody():
    async def story(network: Namespaces) -> None:
        public, hidden = await network.add("public"), await network.add_behind_router("hidden")
        outside, inside = await server(network, "public", public), await server(network, "hidden", hidden)
        try:
            assert await reaches(network, "hidden", public, 10)
            assert not await reaches(network, "public", hidden, 2)
            router = "10.77.0.2"
            assert not await reaches(network, "public", router, 2)
        finally:
            for each in (outside, inside):
                each.kill()
                await each.wait()

    run(story)
