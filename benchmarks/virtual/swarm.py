"""M replicas of one stage in the round in which all of them contribute at the same moment.

What is real: every decision of `peer/network/gossip_policy.py` and `wanted.py` (with whom to compare, whom to tell,
what to fetch from whom, how many at once), their constants, and the ledgers (`protocol/outer/ledger.py` and
`set_difference.py`) of `real` peers drawn at random, which must say what the others' plain bit sets say. What is a
model: time, links, and the glue that calls those decisions when a message arrives, as `peer/network/learning.py` and
`blob_fetcher.py` do.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from peer.network.gossip_policy import FANOUT, HEARERS, NEWS_SECONDS, compare_seconds, partners, some
from peer.network.wanted import Wanted
from protocol.identity import ContributionName, Part, PeerId
from protocol.limits import ENTRIES_NAMED
from protocol.outer.ledger import Entry, Ledger, Standing
from protocol.outer.set_difference import different, lacking_keys, summary
from protocol.outer.window import Window

from .network import Clock, Network, Transfer
from .sizes import Sizes

PART, ROUND = Part("stage-0"), 1
WINDOW = Window(grace=3, liars=1)


def entry_of(author: int) -> Entry:
    """What a peer contributes."""
    return Entry(ContributionName(PART, ROUND, PeerId(str(author))), f"{author:064x}", 1)


def empty(me: int) -> Ledger:
    """The ledger of a peer at the beginning."""
    return Ledger(PART, PeerId(str(me)), WINDOW, clock=ROUND)


@dataclass(slots=True)
class VirtualPeer:
    """One replica's peer. `order` are the authors whose contributions it has accepted, `have` the same as a bit set."""

    me: int
    others: range
    ledger: Ledger | None
    wanted: Wanted[int, int]
    have: int = 0
    order: list[int] = field(default_factory=list)
    untold: list[int] = field(default_factory=list)
    quiet: bool = False
    nearly: float = 0.0
    complete: float = 0.0

    def lacks(self, keys: Iterable[int]) -> list[int]:
        """Of another's keys, those this peer has not."""
        return [key for key in keys if not self.have >> key & 1]


class Swarm:
    """All peers, and what they do when a message or a blob arrives."""

    def __init__(self, clock: Clock, network: Network, sizes: Sizes, real: int, seed: int) -> None:
        self.clock, self.network, self.sizes = clock, network, sizes
        self.random = random.Random(seed)
        count = len(network.links)
        sampled = set(self.random.sample(range(count), min(real, count)))
        self.peers = [
            VirtualPeer(me, range(1, count), empty(me) if me in sampled else None, Wanted(lambda: clock.now))
            for me in range(count)
        ]
        self.authors = {entry_of(author).key: author for author in range(count)} if sampled else {}
        self.incomplete = count
        self.compared = 0
        """Comparisons that real ledgers have answered as the bit sets did."""

    def start(self) -> None:
        """Everybody contributes now, and compares from now on."""
        for peer in self.peers:
            self.accept(peer, peer.me)
            for other in self.chosen(peer, FANOUT):
                size = self.sizes.told + self.sizes.author_entry
                self.network.message(peer.me, other.me, size, self.hear_entries, other, peer, [peer.me])
            self.clock.after(self.random.uniform(0, compare_seconds(len(self.peers) - 1)), self.compare, peer)

    def chosen(self, peer: VirtualPeer, count: int) -> list["VirtualPeer"]:
        """Some others, as the daemon chooses them."""
        return self.named(peer, some(peer.others, count, self.random))

    def named(self, peer: VirtualPeer, steps: Iterable[int]) -> list["VirtualPeer"]:
        """Others by how far they are from a peer in a circle of all."""
        return [self.peers[(peer.me + each) % len(self.peers)] for each in steps]

    # What a peer holds

    def accept(self, peer: VirtualPeer, author: int) -> None:
        """Bytes are here: into the set."""
        peer.have |= 1 << author
        peer.order.append(author)
        if peer.ledger is not None and peer.ledger.take(entry_of(author)) is not Standing.ACCEPTED:
            raise AssertionError(f"the ledger of {peer.me} does not take the contribution of {author}")
        if len(peer.order) * 100 >= 99 * len(self.peers) and not peer.nearly:
            peer.nearly = self.clock.now
        if len(peer.order) == len(self.peers):
            peer.complete = self.clock.now
            self.incomplete -= 1

    def spread(self, peer: VirtualPeer, author: int) -> None:
        """Tell others: at once, or with what else comes soon."""
        peer.untold.append(author)
        if not peer.quiet:
            self.tell(peer)

    def tell(self, peer: VirtualPeer) -> None:
        told, peer.untold = peer.untold, []
        peer.quiet = bool(told)
        if told:
            size = self.sizes.told + self.sizes.key * len(told)
            for other in self.chosen(peer, HEARERS):
                self.network.message(peer.me, other.me, size, self.hear_keys, other, peer, told)
                self.network.message(other.me, peer.me, self.sizes.call, nothing)
            self.clock.after(NEWS_SECONDS, self.tell, peer)

    # What it hears

    def hear_keys(self, peer: VirtualPeer, source: VirtualPeer, keys: list[int]) -> None:
        """What another holds: ask for what nobody has told yet, and fetch."""
        unknown = peer.wanted.add_source(peer.lacks(keys), source.me)
        for at in range(0, len(unknown), ENTRIES_NAMED):
            asked = unknown[at : at + ENTRIES_NAMED]
            size = self.sizes.call + self.sizes.key * len(asked)
            self.network.message(peer.me, source.me, size, self.answer, source, peer, asked)
        self.fetch(peer)

    def answer(self, peer: VirtualPeer, asker: VirtualPeer, keys: list[int]) -> None:
        """Entries, as asked."""
        size = self.sizes.call + self.sizes.entry * len(keys)
        self.network.message(peer.me, asker.me, size, self.hear_entries, asker, peer, keys)

    def hear_entries(self, peer: VirtualPeer, source: VirtualPeer, authors: list[int]) -> None:
        """Entries have come, with their signatures: their bytes are wanted, unless they are here."""
        for author in authors:
            standing = peer.ledger.offer(entry_of(author)) if peer.ledger is not None else None
            if not peer.lacks([author]):
                peer.wanted.forget([author])
            elif standing in (None, Standing.WANTED):
                peer.wanted.want(author, source.me)
            else:
                raise AssertionError(f"the ledger of {peer.me} finds the contribution of {author} {standing}")
        self.fetch(peer)

    def fetch(self, peer: VirtualPeer) -> None:
        """As many blobs as may be under way."""
        while (choice := peer.wanted.choose(self.random)) is not None:
            author, source = choice
            self.network.message(peer.me, source, self.sizes.fetch, self.serve, peer, author, source, self.clock.now)

    def serve(self, peer: VirtualPeer, author: int, source: int, begun: float) -> None:
        self.network.blob(Transfer(source, peer.me, self.sizes.blob, lambda: self.came(peer, author, source, begun)))

    def came(self, peer: VirtualPeer, author: int, source: int, begun: float) -> None:
        """The bytes of a contribution."""
        peer.wanted.fetched(source, self.sizes.blob / (self.clock.now - begun))
        peer.wanted.drop(author)
        self.accept(peer, author)
        self.spread(peer, author)
        self.fetch(peer)

    # Comparing

    def compare(self, peer: VirtualPeer) -> None:
        """Ask some others in which rounds they differ, and do it again."""
        for other in self.named(peer, partners(peer.others, (), self.random)):
            self.network.message(peer.me, other.me, self.sizes.comparison, self.differ, other, peer, peer.have)
        self.clock.after(compare_seconds(len(peer.others)) * self.random.uniform(0.75, 1.25), self.compare, peer)

    def differ(self, peer: VirtualPeer, asker: VirtualPeer, have: int) -> None:
        """All keys of the round, if it is not the same at both."""
        keys = [] if have == peer.have else peer.order.copy()
        if asker.ledger is not None and have == asker.have:
            self.check(peer, asker, keys)
        size = self.sizes.differences + self.sizes.key * len(keys)
        self.network.message(peer.me, asker.me, size, self.hear_keys, asker, peer, keys)

    def check(self, peer: VirtualPeer, asker: VirtualPeer, keys: list[int]) -> None:
        """That the real ledgers give the answer of the bit sets."""
        assert asker.ledger is not None
        said = different(peer.ledger or self.ledger_of(peer), summary(asker.ledger))
        lacks = [self.authors[key] for key in lacking_keys(asker.ledger, said)]
        if [self.authors[key] for key in said] != keys or lacks != asker.lacks(keys):
            raise AssertionError(f"{peer.me} and {asker.me} compare otherwise than their ledgers")
        self.compared += 1

    def ledger_of(self, peer: VirtualPeer) -> Ledger:
        """A real ledger that holds what a modelled peer does."""
        ledger = empty(peer.me)
        for author in peer.order:
            ledger.take(entry_of(author))
        return ledger


def nothing() -> None:
    """An answer that says no more than that it came."""
