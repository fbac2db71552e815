"""Checks of the DHT's records, on a thread of their own: each record once, and as many as its source may cost."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from protocol.limits import CALLERS_KEPT
from protocol.net.dht_costs import Costs
from protocol.net.dht_rules import DhtEntry, Rules, digest, is_plausible, is_valid

VERIFIED_KEPT = 16384
"""The hashes of checked records that are kept, those of some minutes: these are not checked again."""


@dataclass(slots=True)
class Checks:
    """The checks of one node: which records it has seen, and which peers of the run it knows by them."""

    rules: Rules
    friends: set[str] = field(default_factory=set)
    """The peers to which this node itself has gone."""
    costs: Costs = field(init=False)
    verified: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    members: dict[str, float] = field(default_factory=dict)
    """The peers that have a record in the run, and until when."""
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "records"))

    def __post_init__(self) -> None:
        self.costs = Costs(self.is_member)

    def is_member(self, source: str) -> bool:
        """Whether a peer has a record in the run, or is one that this node has gone to."""
        return source in self.friends or self.members.get(source, 0.0) > time.time()

    async def valid(self, entries: Sequence[DhtEntry], source: str) -> list[DhtEntry]:
        """Select the entries that are valid. New ones are checked as far as their source may cost checks."""
        now = time.time()
        plausible = {digest(each): each for each in entries if is_plausible(each, now)}
        new = [each for key, each in plausible.items() if key not in self.verified and self.costs.spend(source, 1.0)]
        if new:
            judged = asyncio.get_running_loop().run_in_executor(self.worker, _valid, self.rules, new, now)
            for each in await judged:
                self._note(each)
        return [each for key, each in plausible.items() if key in self.verified]

    def holds(self, entry: DhtEntry) -> bool:
        """Whether an entry, which may have been checked already, is valid."""
        return digest(entry) in self.verified or is_valid(self.rules, *entry, time.time())

    def stop(self) -> None:
        """Stop checking."""
        self.worker.shutdown(wait=False, cancel_futures=True)

    def _note(self, entry: DhtEntry) -> None:
        self.verified[digest(entry)] = None
        self.members[entry.owner] = max(entry.expiration, self.members.get(entry.owner, 0.0))
        if len(self.verified) > VERIFIED_KEPT:
            self.verified.popitem(last=False)
        if len(self.members) > CALLERS_KEPT:
            now = time.time()
            self.members = {peer: until for peer, until in self.members.items() if until > now}


def _valid(rules: Rules, entries: Iterable[DhtEntry], now: float) -> list[DhtEntry]:
    """Select the valid entries, on the thread for it, which lets others go on after each."""
    valid = []
    for each in entries:
        if is_valid(rules, *each, now):
            valid.append(each)
        time.sleep(0)
    return valid
