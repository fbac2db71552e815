"""Learning from others: the keys that they name are heard, entries asked for and checked, and their bytes fetched. No
source has more of them under way than its places."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.network.bans import Bans
from peer.network.contacts import Contacts
from peer.network.intake import Intake, InvalidContributionError
from protocol.errors import HetpeerError, PeerError, ResourceError
from protocol.identity import Part, PeerId
from protocol.limits import ENTRIES_NAMED, ENTRIES_OF_FEW, ENTRIES_OF_ONE, ENTRIES_TAKEN, LEARNING_OF_ONE
from protocol.manifest import Manifest
from protocol.net.allowances import Places
from protocol.net.channels import handshake
from protocol.outer.ledger import Entry
from protocol.outer.set_difference import lacking_keys
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc
from protocol.trust.records import PeerRecord

ASK_ANSWER_SECONDS = 3.0
"""The time for an answer of at most 64 entries, which are there already."""

LIE_KEYS = 32
"""The number of keys that shows a lie: a peer that names so many, and shows the entry of none, has made them up; honest
peers forget a few meanwhile."""

Taking = set[asyncio.Task[None]]
"""The tasks that take entries."""


@dataclass(slots=True)
class Learner:
    """The learner of a peer. `believes` tells whether a peer's word on a part counts, `start` begins work beside
    everything else, and `tell_on` hears of what has been accepted."""

    manifest: Manifest
    contacts: Contacts
    intake: Intake
    bans: Bans
    believes: Callable[[PeerId, Part], bool]
    tell_on: Callable[[Iterable[Entry]], None]
    start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    entries: Places[PeerId] = field(default_factory=lambda: Places(ENTRIES_OF_ONE, ENTRIES_TAKEN, ENTRIES_OF_FEW))
    """The places for entries that came from others, until they are accepted or not."""
    asking: Counter[PeerId] = field(default_factory=Counter)
    """The number of messages of each peer whose keys are being asked for."""

    async def receive(self, messages: Sequence[pb.Entry], sender: PeerRecord) -> bool:
        """Take entries that another peer passed on, and tell on what is new; this goes on if nobody waits for it any
        longer. Returns whether there was room for them."""
        if not self.entries.take(sender.peer_id, len(messages)):
            return False
        if taking := self._begin(messages, sender):
            await asyncio.wait(taking)
        return True

    def _begin(self, messages: Iterable[pb.Entry], sender: PeerRecord) -> Taking:
        """Take entries that have their places, and give these back."""

        def end(_: object) -> None:
            self.entries.give_back(sender.peer_id)

        taking = {self.start(self._take(message, sender)) for message in messages}
        for task in taking:
            task.add_done_callback(end)
        return taking

    async def _take(self, message: pb.Entry, sender: PeerRecord) -> None:
        try:
            if self.bans.objection(sender.peer_id):  # by what came before it
                entry = self.intake.claimed(message.proof)
                self._ask_others(sender.peer_id, entry.name.part, [entry.key])
                return
            self.tell_on(await self.intake.take(message.proof, list(message.receipts), sender))
        except InvalidContributionError as error:  # who passed it on may hold it as void, and so without its bytes
            self.bans.note(error.author, error)
        except PeerError as error:
            self.bans.note(sender.peer_id, error)
        except ResourceError as error:
            self.intake.unkept(error)

    async def learn(self, held: Iterable[pb.PartKeys], peer: PeerRecord) -> None:
        """Learn from a peer that says what it holds: take from it, or from any other that says so, what is lacking
        here. A peer that has named much without showing it yet is heard no more now: comparing will find out."""
        if self.asking[peer.peer_id] >= LEARNING_OF_ONE:
            return
        self.asking[peer.peer_id] += 1
        taking = Taking()
        try:
            for held_key in held:
                part, keys = Part(held_key.part), [key.to_bytes(8, "big") for key in held_key.keys]
                if (ledger := self.intake.ledgers.get(part)) is None:
                    continue
                for key in keys if self.believes(peer.peer_id, part) else ():
                    self.intake.vouch(part, key, peer.peer_id, peer.round)
                taking |= await self._ask(peer, part, self.intake.fetcher.add_source(lacking_keys(ledger, keys), peer))
        finally:
            self.asking[peer.peer_id] -= 1
            if not self.asking[peer.peer_id]:
                del self.asking[peer.peer_id]
        if taking:
            await asyncio.wait(taking)

    async def _ask(self, peer: PeerRecord, part: Part, keys: list[bytes]) -> Taking:
        """Ask a peer for entries that it has named, and begin to take what it shows. Others that have named them, too,
        are asked for what it does not show."""
        unresponsive, taking, keys_left = self.intake.fetcher.wanted.unresponsive, Taking(), keys
        try:
            while keys_left and (keys_asked := await self._take_places(peer.peer_id, keys_left, taking)):
                shown = await self._request(peer, part, keys_asked)
                keys_left = keys_left[len(keys_asked) :]
                taking |= self._begin(shown.values(), peer)
                if missing := [key for key in keys_asked if key not in shown]:
                    unresponsive.note(peer.peer_id)
                    self._ask_others(peer.peer_id, part, missing)
                else:
                    unresponsive.forgive(peer.peer_id)
        except HetpeerError as error:
            unresponsive.note(peer.peer_id)
            self.bans.note(peer.peer_id, error)
        finally:
            self._ask_others(peer.peer_id, part, keys_left)
        return taking

    async def _take_places(self, peer: PeerId, keys: list[bytes], taking: Taking) -> list[bytes]:
        """Take places for the entries of as many keys as there are, waiting until entries that came before have left
        some. Returns these keys; none if nothing under way holds a place."""
        while not (free := self.entries.free(peer)):
            if not (waited := {task for task in taking if not task.done()}):
                return []
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        asked = keys[: min(free, ENTRIES_NAMED)]
        self.entries.take(peer, len(asked))
        return asked

    async def _request(self, peer: PeerRecord, part: Part, asked: list[bytes]) -> dict[bytes, pb.Entry]:
        """Ask a peer for the entries of these keys, of which it may have forgotten some. Each key holds one of the
        peer's places in `entries`: those of the entries returned stay taken, the others are given back here.

        Raises:
            PeerError: it sends other entries, or none of `LIE_KEYS` or more that it has named.
        """
        shown: dict[bytes, pb.Entry] = {}
        question = pb.Question(part=part, keys=[int.from_bytes(key, "big") for key in asked])
        try:
            async with self.contacts.to(peer) as channel:
                stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
                answer = await stub.Ask(question, metadata=handshake(self.manifest), timeout=ASK_ANSWER_SECONDS)
            _require_shown(len(answer.entries) <= len(asked), "more entries than it was asked for")
            entries = {self.intake.claimed(entry.proof, entry.receipts).key: entry for entry in answer.entries}
            _require_shown(entries.keys() <= {*asked}, "entries that it was not asked for")
            _require_shown(bool(entries) or len(asked) < LIE_KEYS, f"none of {len(asked)} entries that it named")
            shown = entries
        finally:
            self.entries.give_back(peer.peer_id, len(asked) - len(shown))
        return shown

    def _ask_others(self, peer: PeerId, part: Part, keys: Iterable[bytes]) -> None:
        """Ask others that have named these keys for the entries that `peer` has not shown."""
        fetcher = self.intake.fetcher

        async def ask(other: PeerRecord, named: list[bytes]) -> None:
            if taking := await self._ask(other, part, named):
                await asyncio.wait(taking)

        for other, named in fetcher.wanted.reassign(keys, peer).items():
            if (record := fetcher.holders.get(other)) is not None:
                self.start(ask(record, named))
            else:
                fetcher.wanted.forget(named)


def _require_shown(holds: bool, instead: str) -> None:
    if not holds:
        raise PeerError(f"it shows {instead}")
