"""What a hostile name says: valid words that cost others more than they cost it, and others that are not valid."""

import asyncio
import os
from itertools import count

from peer.testnet.attackers.crowd.names import Name
from protocol.codec.contribution import max_bytes
from protocol.identity import Part
from protocol.layout import model_layout
from protocol.schemas import reconciliation_pb2 as pb
from protocol.trust.proofs import sign_contribution

LAST = 2**31 - 1
"""The last round that a record can name."""

EMPTY_ENTRIES = 500_000
FAR_ENTRIES = 2_000
RANDOM_KEYS = 120_000
"""As many as fit into a message of 1 MiB."""

PAUSE_SECONDS = 1.0


async def clock(name: Name) -> None:
    """The round is said to be another than it is: a few ahead, the run's last, and far beyond it."""
    last = name.manifest.outer.rounds
    for turn in count():
        now = max((each.round for each in name.known.values()), default=0)
        ahead = (min(now + 5, last), last, LAST - 1)[turn % 3]
        await name.everywhere("Reconciliation/Tell", name.news(round=ahead, contributed=ahead))
        if turn % 3 == 0 and name.targets:
            await name.compare(name.targets[turn % len(name.targets)])
        await asyncio.sleep(PAUSE_SECONDS)


async def flood(name: Name) -> None:
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


def _far_entries(name: Name, part: Part) -> list[pb.Entry]:
    """Contributions to rounds that are far from here, each rightly signed."""
    rounds = range(LAST - FAR_ENTRIES, LAST)
    return [
        pb.Entry(proof=sign_contribution(name.signer, part, round, f"{round:064x}", 1000).proof) for round in rounds
    ]


async def slow(name: Name) -> None:
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


async def spam(name: Name) -> None:
    """Words that are not valid, twenty times a second at everybody; each hundredth is."""
    for turn in count():
        entry = pb.Entry(proof=os.urandom(500), receipts=[os.urandom(200)] * 8)
        news = name.news(entries=[entry]) if turn % 100 else name.news()
        if turn % 3 == 2:
            news.statement = os.urandom(2000)
        await name.everywhere("Reconciliation/Tell", news)
        await asyncio.sleep(PAUSE_SECONDS / 20)


async def replay(name: Name) -> None:
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
