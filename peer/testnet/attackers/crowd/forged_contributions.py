"""What a hostile name contributes: others' contributions in its own name and their slot, or in two versions."""

import asyncio
from collections.abc import AsyncIterator

from peer.testnet.attackers.crowd.names import Name, key_of
from protocol.codec.contribution import Contribution, SparseTensor, compose, decode, digest
from protocol.errors import FormatError
from protocol.identity import ContributionName, Part
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.proofs import read_entry, sign_contribution

PAUSE_SECONDS = 1.0


async def slots(name: Name) -> None:
    """The first contribution of each round that it finds, in this name, and in the slot of the one whose it is."""
    async for made in _found(name):
        entry = _keep(name, made, 1)
        await name.everywhere("Reconciliation/Tell", name.news(entries=[entry], contributed=made.name.round))


async def equivocation(name: Name) -> None:
    """Two contributions of one name: one to every other peer, its negative to the rest."""
    async for made in _found(name):
        versions = [_keep(name, made, sign) for sign in (1, -1)]
        for number, target in enumerate(name.targets):
            news = name.news(entries=[versions[number % 2]], contributed=made.name.round)
            await name.call(target, "Reconciliation/Tell", news)


async def _found(name: Name) -> AsyncIterator[Contribution]:
    """One contribution to each part and round, as they come."""
    done: set[tuple[Part, int]] = set()
    while True:
        for part, _, entry in await name.learn():
            made = await _read(name, entry)
            if made is not None and (part, made.name.round) not in done:
                done.add((part, made.name.round))
                yield made
        await asyncio.sleep(PAUSE_SECONDS)


async def _read(name: Name, entry: pb.Entry) -> Contribution | None:
    """The contribution that an entry stands for, from whoever serves it."""
    try:
        known = read_entry(entry.proof, [], name.signer.authority)
    except FormatError:
        return None
    if known.name.author == name.peer_id:
        return None
    for target in name.targets:
        if (blob := await name.fetch(target, known.sha256)) is not None:
            try:
                return await asyncio.to_thread(decode, blob, name.manifest)
            except FormatError:
                continue
    return None


def _keep(name: Name, made: Contribution, sign: int) -> pb.Entry:
    """A contribution in this name with the same values, or their negatives, to be fetched from here."""
    picked = {tensor: SparseTensor(each.offsets, sign * each.values) for tensor, each in made.tensors.items()}
    mine = ContributionName(made.name.part, made.name.round, name.peer_id)
    blob, _ = compose(mine, made.run, made.steps, picked, name.manifest, made.slot)
    known = sign_contribution(name.signer, mine.part, mine.round, digest(blob), len(blob))
    name.blobs[known.sha256] = blob
    entry = name.entries[mine.part, key_of(known)] = pb.Entry(proof=known.proof)
    return entry
