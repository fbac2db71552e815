"""The bytes of contributions, fetched from whoever holds them."""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from peer.network import wanted as deciding
from peer.network.bans import Bans
from peer.network.wanted import Wanted
from protocol.clock import monotonic
from protocol.errors import HetpeerError, UnreachableError
from protocol.identity import PeerId
from protocol.limits import PEERS_KEPT
from protocol.net.blobs import Patience
from protocol.net.tasks import Children
from protocol.outer.ledger import Entry
from protocol.trust.records import PeerRecord


@dataclass(slots=True)
class FetchAttempt:
    """One attempt to fetch a blob. It is `late` when it is so slow that it has lost its place."""

    source: PeerId
    patience: Patience = field(default_factory=Patience)
    late: bool = False
    ended: bool = False
    """Whether `Wanted` has heard how the attempt ended."""
    behind: float = 0.0
    waited: float = 0.0
    received: int = 0

    def lags(self, now: float, speed: float) -> bool:
        """Whether the source has fallen too far behind a speed."""
        waited, received = self.patience.total(now), self.patience.received
        self.behind += waited - self.waited - (received - self.received) / speed
        self.behind, self.waited, self.received = max(0.0, self.behind), waited, received
        return self.behind > deciding.LAG_SECONDS

    @property
    def speed(self) -> float:
        """The attempt's bytes a second until now."""
        return self.received / max(self.waited, 1e-9)


@dataclass(slots=True)
class Bringing:
    """An entry whose bytes somebody waits for, and the fetches for it."""

    entry: Entry
    blob: asyncio.Future[bytes | None]
    attempts: list[FetchAttempt] = field(default_factory=list)
    tasks: Children = field(default_factory=Children)


@dataclass(slots=True)
class BlobFetcher:
    """The fetcher: it carries out what `Wanted` decides, from whom to fetch next, and how many blobs at once. `fetch`
    fetches bytes from a peer, as `peer.network.contacts.Contacts.fetch` does."""

    fetch: Callable[[PeerRecord, str, int, Patience], Awaitable[bytes]]
    bans: Bans
    wanted: Wanted[bytes, PeerId] = field(default_factory=lambda: Wanted(monotonic))
    holders: OrderedDict[PeerId, PeerRecord] = field(default_factory=OrderedDict)
    bringing: dict[bytes, Bringing] = field(default_factory=dict)

    def add_source(self, lacking: list[bytes], peer: PeerRecord) -> list[bytes]:
        """Note that a peer holds entries that this one lacks. Returns the keys of those to ask it for."""
        self._note_holder(peer)
        unknown = self.wanted.add_source(lacking, peer.peer_id)
        self._go_on()
        return unknown

    def _note_holder(self, peer: PeerRecord) -> None:
        self.holders[peer.peer_id] = peer
        self.holders.move_to_end(peer.peer_id)
        if len(self.holders) > PEERS_KEPT:
            self.holders.popitem(last=False)

    async def bring(self, entry: Entry, holder: PeerRecord) -> bytes | None:
        """Fetch the bytes of an entry from one of the peers that hold them. Returns None if they are under way already,
        or nobody gives them. A peer that gives other bytes is reported, and passed over; beside one that is too slow,
        another is tried. The entry is wanted until `Wanted.drop`."""
        self._note_holder(holder)
        if not self.wanted.want(entry.key, holder.peer_id):
            return None
        wanted = self.bringing[entry.key] = Bringing(entry, asyncio.get_running_loop().create_future())
        self._go_on()
        try:
            return await wanted.blob
        except asyncio.CancelledError:
            self.wanted.drop(entry.key)
            raise
        finally:
            del self.bringing[entry.key]
            wanted.tasks.cancel()
            self._go_on()
            await wanted.tasks.end()

    def _go_on(self) -> None:
        while (choice := self.wanted.choose(random)) is not None:
            key, source = choice
            attempt, wanted = FetchAttempt(source), self.bringing[key]
            wanted.attempts.append(attempt)
            task = wanted.tasks.spawn(self._try(attempt, wanted))
            task.add_done_callback(partial(self._end, attempt, wanted))

    def _end(self, attempt: FetchAttempt, wanted: Bringing, _: object) -> None:
        """Forget an attempt that has ended. It may have ended without a result, even before it began, since another was
        quicker, or nobody waits any longer."""
        wanted.attempts.remove(attempt)
        if not attempt.ended:
            self.wanted.stop(attempt.source, attempt.late)
        self._go_on()

    async def _try(self, attempt: FetchAttempt, wanted: Bringing) -> None:
        """Fetch from one source, until it or another source has given the bytes."""
        clock, key = asyncio.get_running_loop().time, wanted.entry.key
        fetching = wanted.tasks.spawn(self._fetch(attempt, wanted.entry))
        started = clock()
        try:
            while not fetching.done():
                await asyncio.wait((fetching,), timeout=deciding.LAG_SECONDS / 8)
                if fetching.done() or attempt.late:
                    continue
                if attempt.lags(clock(), self.wanted.lag_speed):
                    self._let_lag(attempt, wanted)
                elif attempt.behind > deciding.DOUBT_SECONDS:
                    self.wanted.retry_elsewhere(key)
                    self._go_on()
            blob = fetching.result()
        except HetpeerError as error:  # another has it, too
            self.bans.note(attempt.source, error)
            if not wanted.blob.done():
                attempt.ended = True
                if not self.wanted.failed(key, attempt.source, attempt.late):
                    wanted.blob.set_result(None)
        else:
            if not attempt.late:
                attempt.ended = True
                self.wanted.fetched(attempt.source, wanted.entry.size / max(clock() - started, 1e-9))
            if not wanted.blob.done():
                wanted.blob.set_result(blob)
                self.wanted.settle(key)
        finally:
            fetching.cancel()

    async def _fetch(self, attempt: FetchAttempt, entry: Entry) -> bytes:
        holder = self.holders.get(attempt.source)
        if holder is None:
            raise UnreachableError("nobody knows any longer where it is")
        return await self.fetch(holder, entry.sha256, entry.size, attempt.patience)

    def _let_lag(self, attempt: FetchAttempt, wanted: Bringing) -> None:
        """Take an attempt's place from it. If there are too many such attempts, give the slowest up."""
        attempt.late = True
        self.wanted.lag(wanted.entry.key, attempt.source)
        late = [attempt for one in self.bringing.values() for attempt in one.attempts if attempt.late]
        if len(late) > deciding.MOST_SLOW_FETCHES:
            min(late, key=lambda attempt: attempt.speed).patience.give_up()
        self._go_on()
