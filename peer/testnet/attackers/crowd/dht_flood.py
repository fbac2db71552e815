"""What a stranger does in the DHT, with no certificate: calls full of signatures, calls that are too large, and others'
records with a later expiry. This alone of a crowd needs libp2p's daemon."""

import asyncio
import os
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgpack

from protocol.errors import HetpeerError
from protocol.limits import RECORD_SECONDS
from protocol.net.dht import Dht, start
from protocol.trust import signed
from protocol.trust.keys import load_or_create
from protocol.trust.records import RECORD, Register

SIGNATURES = 3_000
LARGE_BYTES = 3_900_000
EVERY_LARGE, EVERY_OTHERS = 5, 3
PAUSE_SECONDS = 0.2


async def meet(folder: Path, nodes: Sequence[str], register: Register) -> Dht | None:
    """A node of the DHT; None if nobody there answers."""
    try:
        return await start(load_or_create(folder / "stranger"), "127.0.0.1", 0, register, nodes)
    except HetpeerError:
        return None


async def dht(here: Dht, folder: Path, register: Register) -> None:
    """Store what is no peer's record at every node that can be found, as fast as it is answered."""
    me = load_or_create(folder / "stranger")
    body = signed.sign(me, RECORD, [register.authority.run, os.urandom(300), b""])
    key = register.keys[0]
    name = type(here.node.node_id).generate(key)
    found = await here.read(key)
    records = {owner: value for owner, value in found.items() if isinstance(value, bytes)}

    async def trouble(target: Any) -> None:
        for turn in count():
            junk = [bytes(msgpack.packb(body[:-8] + os.urandom(8))) for _ in range(SIGNATURES)]
            await _store(here, target, name, me.peer_id, junk)
            if turn % EVERY_LARGE == 0:
                await _store(here, target, name, me.peer_id, [bytes(LARGE_BYTES)])
            if turn % EVERY_OTHERS == 0:
                for owner, value in records.items():
                    await _store(here, target, name, owner, [bytes(msgpack.packb(value))])
            await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        for target in list(here.node.protocol.routing_table.peer_id_to_uid):
            tasks.create_task(trouble(target))


async def _store(here: Dht, target: Any, name: Any, owner: str, values: list[bytes]) -> None:
    until = time.time() + 1.5 * RECORD_SECONDS
    await here.node.protocol.call_store(target, [name] * len(values), values, until, subkeys=[owner] * len(values))
