"""The simulated network: a connection loses nothing, and changes no order."""

import asyncio
from types import SimpleNamespace

from tests.world.loop import VirtualLoop
from tests.world.network import Connection, End, Network


def test_what_is_on_its_way_when_the_network_is_cut_comes_before_what_is_sent_after_that():
    loop, came = VirtualLoop(), list[str]()
    network = Network(loop)
    near, far = (End(SimpleNamespace(machine=network.machine(name, latency=0.01))) for name in ("near", "far"))
    connection = Connection(network, near, far)
    network.connections[connection] = None

    def send(what: str) -> None:
        connection.send(True, 10, lambda: came.append(what))

    async def scene() -> None:
        send("before")
        network.partition(["far"])
        send("meanwhile")
        await asyncio.sleep(1.0)
        assert came == []
        network.partition([])
        send("after")
        await asyncio.sleep(1.0)

    loop.run_until_complete(scene())
    loop.close()
    assert came == ["before", "meanwhile", "after"]
