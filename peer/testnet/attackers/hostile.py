"""What attacks are made of: one thing of the daemon replaced, contributions signed and given to whom one likes."""

import asyncio
from collections.abc import Sequence

from peer.network.gossip import Reconciler
from peer.process import print_json
from peer.telemetry.events import Progress
from peer.testnet.child import ATTACK
from protocol.codec.contribution import digest
from protocol.identity import Part
from protocol.outer.ledger import Entry
from protocol.trust.proofs import sign_contribution
from protocol.trust.records import PeerRecord


def say(what: str) -> None:
    """Tell of an attack."""
    print_json(Progress(ATTACK + what))


def replace(where: object, name: str, by: object) -> None:
    """From now on, `by` is what others find there."""
    assert hasattr(where, name)
    setattr(where, name, by)


async def keep(reconciler: Reconciler, part: Part, round: int, blob: bytes) -> Entry:
    """To be fetched from here; the entry that stands for it."""
    entry = sign_contribution(reconciler.intake.signer, part, round, digest(blob), len(blob))
    await asyncio.to_thread(reconciler.intake.contribution_store.put, entry, blob)
    return entry


async def give(reconciler: Reconciler, part: Part, round: int, blob: bytes, peers: Sequence[PeerRecord]) -> None:
    """A contribution in this peer's name, to these."""
    entry = await keep(reconciler, part, round, blob)
    await asyncio.gather(*(reconciler._tell(peer, [entry]) for peer in peers))
