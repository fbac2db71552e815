"""An attacking datacenter, by what it contributes."""

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from peer.network.gossip import Reconciler
from peer.optim.bounds import largest_value
from peer.testnet.attackers.hostile import give, keep, replace, say
from protocol.codec.bitstream import Int32Array
from protocol.codec.contribution import SparseTensor, compose, decode
from protocol.codec.quantize import LARGEST
from protocol.identity import ContributionName, Part

Publish = Callable[[Reconciler, Part, int, bytes], Coroutine[Any, Any, None]]

FACTOR = 1000

ROOM = 0.98
"""Of the bound: values are rounded on the wire, to 8 significant bits."""

honest_publish = Reconciler.publish


def changed(blob: bytes, reconciler: Reconciler, change: Callable[[Int32Array], Int32Array]) -> bytes:
    """A contribution in this peer's name with other values."""
    made, me = decode(blob, reconciler.manifest), reconciler.discovery.record
    picked = {name: SparseTensor(each.offsets, change(each.values)) for name, each in made.tensors.items()}
    name = ContributionName(made.name.part, made.name.round, me.peer_id)
    return compose(name, made.run, made.steps, picked, reconciler.manifest, me.slot)[0]


def contributing(otherwise: Publish) -> None:
    """Publish something else than what this replica made, which is kept as its own."""

    async def publish(self: Reconciler, part: Part, round: int, blob: bytes) -> None:
        await keep(self, part, round, blob)
        await otherwise(self, part, round, blob)

    replace(Reconciler, "publish", publish)


async def two_of_one_name(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """One to every other peer, its negative to the rest."""
    other = changed(blob, reconciler, lambda values: -values)
    peers = reconciler.followers(part)
    say(f"two contributions to {part} of round {round}")
    await give(reconciler, part, round, blob, peers[::2])
    await give(reconciler, part, round, other, peers[1::2])


async def a_thousandfold(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """Larger than any honest one."""

    def scaled(values: Int32Array) -> Int32Array:
        return np.clip(values.astype(np.int64) * FACTOR, -LARGEST, LARGEST).astype(np.int32)

    say(f"{FACTOR} times a contribution to {part} of round {round}")
    await give(reconciler, part, round, changed(blob, reconciler, scaled), reconciler.followers(part))


async def anothers(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """The first that comes, under this peer's name."""
    ledger = reconciler.intake.ledgers[part]
    while not (others := [sha256 for author, sha256 in ledger.chosen(round).items() if author != ledger.me]):
        await reconciler.discovery.news.wait(1.0)
    copy = changed(reconciler.intake.contribution_store.read(others[0]), reconciler, lambda values: values)
    say(f"a copy to {part} of round {round}")
    await honest_publish(reconciler, part, round, copy)


async def against_all(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> None:
    """Every sign the other way round, as large as the rules allow."""
    bound = int(ROOM * largest_value(reconciler.manifest, part, round))

    def flipped(values: Int32Array) -> Int32Array:
        return (-np.sign(values) * bound).astype(np.int32)

    say(f"a contribution to {part} of round {round} of ±{bound}")
    await honest_publish(reconciler, part, round, changed(blob, reconciler, flipped))
