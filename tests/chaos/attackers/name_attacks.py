"""What a hostile name says and contributes: valid words that cost others more than they cost it, and words that are not
valid; others' contributions in its own name and their slot, or in two versions."""

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import count

from protocol.codec.contribution import Contribution, SparseTensor, compose, contribution_digest, decode, max_bytes
from protocol.errors import FormatError
from protocol.identity import ContributionName, Part
from protocol.layout import model_layout
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.proofs import read_entry, sign_contribution
from tests.chaos.attackers.hostile_name import HostilePeer, key_of

LAST = 2**31 - 1
"""The last round that a record can name."""

EMPTY_ENTRIES = 500_000
FAR_ENTRIES = 2_000
RANDOM_KEYS = 120_000
"""As many as fit into a message of 1 MiB."""

PAUSE_SECONDS = 1.0


async def clock(name: HostilePeer) -> None:
    """The round is said to be another than it is: a few ahead, the run's last, and far beyond it."""
    last = name.manifest.outer.rounds
    for turn in count():
        now = max((each.round for each in name.known.values()), default=0)
        ahead = (min(now + 5, last), last, LAST - 1)[turn % 3]
        await name.everywhere("Reconciliation/Tell", name.news(round=ahead, contributed=ahead))
        if turn % 3 == 0 and name.targets:
            await name.compare(name.targets[turn % len(name.targets)])
        await asyncio.sleep(PAUSE_SECONDS)


async def flood(name: HostilePeer) -> None:
    """Messages that are as full as they can be: of nothing, of signed entries of far rounds, of keys nobody has."""
    parts = list(model_layout(name.manifest))
    empty = name.news().SerializeToString() + b"\x12\x00" * EMPTY_ENTRIES
    far = name.news(entries=await asyncio.to_thread(_far_entries, name, parts[0])).SerializeToString()
    for turn in count():
        keys = [int.from_bytes(os.urandom(8), "big") for _ in range(RANDOM_KEYS)]
        held = name.news(held=[pb.PartKeys(part=parts[turn % len(parts)], keys=keys)])
        for message in (empty, far, held.SerializeToString()):
            await name.everywhere("Reconciliation/Tell", message)
            await asyncio.sleep(PAUSE_SECONDS)
        await name.everywhere("Reconciliation/Ask", pb.Question(part=parts[0], keys=keys))


def _far_entries(name: HostilePeer, part: Part) -> list[pb.Entry]:
    """Contributions to rounds that are far from here, each rightly signed."""
    rounds = range(LAST - FAR_ENTRIES, LAST)
    return [
        pb.Entry(proof=sign_contribution(name.signer, part, round, f"{round:064x}", 1000).proof) for round in rounds
    ]


async def slow(name: HostilePeer) -> None:
    """Whatever others contribute, this name says that it holds it, too; it announces contributions of its own; and
    gives a byte of each in twenty seconds."""
    name.trickles = True
    parts, announced = list(model_layout(name.manifest)), set[tuple[Part, int]]()
    while True:
        if await name.learn():
            await name.everywhere("Reconciliation/Tell", name.news(held=name.held()))
        now = 1 + max((each.round for each in name.known.values()), default=0)
        due = [(part, round) for part in parts for round in (now, now + 1) if (part, round) not in announced]
        own = [
            sign_contribution(name.signer, part, round, os.urandom(32).hex(), max_bytes(name.manifest, part))
            for part, round in due
        ]
        if own:
            announced.update(due)
            entries = [pb.Entry(proof=each.proof) for each in own]
            await name.everywhere("Reconciliation/Tell", name.news(entries=entries, contributed=now), PAUSE_SECONDS)
        await asyncio.sleep(PAUSE_SECONDS / 2)


async def spam(name: HostilePeer) -> None:
    """Words that are not valid, twenty times a second at everybody; each hundredth is."""
    for turn in count():
        entry = pb.Entry(proof=os.urandom(500), receipts=[os.urandom(200)] * 8)
        news = name.news(entries=[entry]) if turn % 100 else name.news()
        if turn % 3 == 2:
            news.statement = os.urandom(2000)
        await name.everywhere("Reconciliation/Tell", news)
        await asyncio.sleep(PAUSE_SECONDS / 20)


async def replay(name: HostilePeer) -> None:
    """What others have said, said again in this name; its own old words; and entries of rounds that are over."""
    first = name.statement()
    for turn in count():
        await name.learn()
        old = list(name.entries.values())
        await name.everywhere("Reconciliation/Tell", pb.News(statement=first, entries=old[:200]))
        for target in name.targets:
            question = pb.Comparison(statement=name.statement())
            answer = await name.call(target, "Reconciliation/Compare", question)
            if answer is not None and turn % 3 == 0:
                theirs = pb.Differences.FromString(answer).statement
                await name.everywhere("Reconciliation/Tell", pb.News(statement=theirs))
        await asyncio.sleep(PAUSE_SECONDS)


async def slots(name: HostilePeer) -> None:
    """The first contribution of each round that it finds, in this name, and in the slot of the one whose it is."""
    async for made in _found(name):
        entry = _keep(name, made, 1)
        await name.everywhere("Reconciliation/Tell", name.news(entries=[entry], contributed=made.name.round))


async def equivocation(name: HostilePeer) -> None:
    """Two contributions of one name: one to every other peer, its negative to the rest."""
    async for made in _found(name):
        versions = [_keep(name, made, sign) for sign in (1, -1)]
        for number, target in enumerate(name.targets):
            news = name.news(entries=[versions[number % 2]], contributed=made.name.round)
            await name.call(target, "Reconciliation/Tell", news)


async def _found(name: HostilePeer) -> AsyncIterator[Contribution]:
    """One contribution to each part and round, as they come."""
    done: set[tuple[Part, int]] = set()
    while True:
        for part, _, entry in await name.learn():
            made = await _read(name, entry)
            if made is not None and (part, made.name.round) not in done:
                done.add((part, made.name.round))
                yield made
        await asyncio.sleep(PAUSE_SECONDS)


async def _read(name: HostilePeer, entry: pb.Entry) -> Contribution | None:
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


def _keep(name: HostilePeer, made: Contribution, sign: int) -> pb.Entry:
    """A contribution in this name with the same values, or their negatives, to be fetched from here."""
    picked = {tensor: SparseTensor(each.offsets, sign * each.values) for tensor, each in made.tensors.items()}
    mine = ContributionName(made.name.part, made.name.round, name.peer_id)
    blob, _ = compose(mine, made.run, made.steps, picked, name.manifest, made.slot)
    known = sign_contribution(name.signer, mine.part, mine.round, contribution_digest(blob), len(blob))
    name.blobs[known.sha256] = blob
    entry = name.entries[mine.part, key_of(known)] = pb.Entry(proof=known.proof)
    return entry
