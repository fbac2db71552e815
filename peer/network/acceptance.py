"""What a peer accepts: signed entries are checked, their bytes fetched, receipts signed, revocations heeded."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from peer.network.discovery import News
from peer.network.fetching import Fetcher
from peer.network.shelf import Shelf
from protocol.contribution import digest, max_bytes
from protocol.errors import FormatError, PeerError
from protocol.identity import ContributionName, Part, PeerId
from protocol.layout import model_layout, parts_followed
from protocol.ledger import Entry, Ledger, Revocation, Standing
from protocol.manifest import Manifest
from protocol.proofs import Signer, read_entry, read_revocation, read_trial
from protocol.reconciliation import lacking
from protocol.records import PeerRecord
from protocol.window import Window

MOST_TRIALS = 16
"""So many contributions of peers on trial an auditor holds for each part it follows, one of an author, until it has
looked: a datacenter's is looked at when all its parts have come."""

MOST_INVALID = 4096
"""So many contributions that were found invalid are remembered, not to be fetched again."""

Check = Callable[[bytes, Entry], Awaitable[None]]
"""Raises FormatError unless the bytes are that contribution, and valid."""


async def nothing_is_valid(blob: bytes, entry: Entry) -> None:
    """Before the outer state is loaded."""
    raise FormatError("this peer is not ready yet")


@dataclass(slots=True)
class Acceptance:
    """The ledgers of a peer, and its shelf. `news` rings whenever a ledger has changed."""

    manifest: Manifest
    signer: Signer
    fetcher: Fetcher
    shelf: Shelf
    ledgers: dict[Part, Ledger]
    news: News
    check: Check = nothing_is_valid
    revoked: Callable[[PeerId], None] = lambda author: None
    """Is told whom the operator has taken out."""
    trials: dict[tuple[PeerId, Part], tuple[int, bytes]] | None = None
    """Where this peer audits: the last round and contribution of each peer on trial."""
    revocations: dict[Revocation, bytes] = field(default_factory=dict)
    vouched: dict[Part, dict[bytes, set[PeerId]]] = field(default_factory=dict)
    """While catching up: who says that an entry was accepted in time."""
    catching_up: dict[Part, int] = field(default_factory=dict)
    """Rounds up to this one are taken from others' word."""
    spoken: dict[Part, set[PeerId]] = field(default_factory=dict)
    """While catching up: who has named all that it has accepted."""
    witnesses: dict[Part, int] = field(default_factory=dict)
    """So many must give it."""
    invalid: dict[str, str] = field(default_factory=dict)
    keeping: weakref.WeakValueDictionary[str, asyncio.Lock] = field(default_factory=weakref.WeakValueDictionary)
    """What is being written down, by hash: a file has one writer at a time."""

    async def own(self, part: Part, round: int, blob: bytes) -> Entry | None:
        """Keep this peer's own contribution; None if it is too late for it. On trial, it is there to be looked at."""
        entry = self.signer.contribution(part, round, digest(blob), len(blob))
        await asyncio.to_thread(self.shelf.put, entry, blob)
        if read_trial(entry.proof, self.signer.authority) is not None:
            return entry
        if self.ledgers[part].take(entry) is not Standing.ACCEPTED:
            return None
        self.news.ring()
        return entry

    async def take(self, proof: bytes, receipts: list[bytes], sender: PeerRecord) -> list[Entry]:
        """Take what a peer passed on, and fetch the bytes from it, or from another who has them. What is accepted now
        and was not before.

        Raises:
            FormatError: it, or what it stands for, is not valid.
        """
        if (trial := read_trial(proof, self.signer.authority)) is not None:
            await self._take_trial(trial, sender)
            return []
        entry = read_entry(proof, receipts, self.signer.authority)
        ledger = self.ledgers.get(entry.name.part)
        if ledger is None or entry.sha256 in self.invalid:
            return []
        self._require_possible(entry)
        known = set(ledger.versions(entry.name))
        vouched = self._is_vouched(entry)
        standing = ledger.offer(entry, vouched)
        if standing is not Standing.WANTED:
            self.fetcher.wanted.forget([entry.key])
        elif (blob := await self.fetcher.bring(entry, sender)) is not None:
            try:
                await self._check(blob, entry)
                receipt = await self._keep(entry, blob)
                if ledger.take(entry, vouched) is not Standing.ACCEPTED:  # the clock has gone on meanwhile
                    self.shelf.discard(entry)
                if ledger.wants_receipt(entry.name, entry.sha256):
                    ledger.sign(entry.name, entry.sha256, receipt)
            finally:
                self.fetcher.wanted.drop(entry.key)
        return await self._attest(ledger, entry.name, known)

    async def _take_trial(self, entry: Entry, sender: PeerRecord) -> None:
        """What counts nowhere: an auditor fetches it, everybody else lets it pass."""
        part, round, author = entry.name.part, entry.name.round, entry.name.author
        ledger, trials = self.ledgers.get(part), self.trials
        if ledger is None or trials is None or entry.sha256 in self.invalid:
            return
        if not ledger.window.is_open(ledger.clock, round) or round <= trials.get((author, part), (0, b""))[0]:
            return
        self._require_possible(entry)
        if (blob := await self.fetcher.bring(entry, sender)) is None:
            return
        try:
            await self._check(blob, entry)
        finally:
            self.fetcher.wanted.drop(entry.key)
        trials.pop((author, part), None)
        trials[author, part] = round, blob
        for old in list(trials)[: -MOST_TRIALS * len(self.ledgers)]:
            del trials[old]

    def _require_possible(self, entry: Entry) -> None:
        if entry.size > max_bytes(self.manifest, entry.name.part):
            raise FormatError(f"{entry.name}: {entry.size} bytes, more than possible")

    async def _keep(self, entry: Entry, blob: bytes = b"") -> bytes:
        """Write an entry down, and with it this peer's receipt, which is returned: it may go out from now on. Without
        `blob`, with the bytes that are here already, if they are."""
        receipt = self.signer.receipt(entry)
        receipts = entry.receipts | {self.signer.identity.peer_id: receipt}
        async with self.keeping.setdefault(entry.sha256, asyncio.Lock()):
            if not blob and self.shelf.lookup(entry.sha256) is not None:
                blob = self.shelf.read(entry.sha256)
            await asyncio.to_thread(self.shelf.put, replace(entry, receipts=receipts), blob)
        return receipt

    async def _check(self, blob: bytes, entry: Entry) -> None:
        try:
            await self.check(blob, entry)
        except FormatError as error:
            if len(self.invalid) < MOST_INVALID:
                self.invalid[entry.sha256] = str(error)
            raise

    async def _attest(self, ledger: Ledger, name: ContributionName, known: set[str]) -> list[Entry]:
        """What has been accepted under a name; a second version voids the first, and both go on. What has no receipt of
        this peer yet is void, and accepted without bytes."""
        new = [entry for sha256, entry in ledger.versions(name).items() if sha256 not in known]
        for entry in new:
            if ledger.wants_receipt(name, entry.sha256):
                receipt = await self._keep(entry)
                if ledger.wants_receipt(name, entry.sha256):  # its round may have been closed meanwhile
                    ledger.sign(name, entry.sha256, receipt)
        if new:
            self.news.ring()
            self._note_equivocation(ledger, name)
        return new

    def _note_equivocation(self, ledger: Ledger, name: ContributionName) -> None:
        """Two contributions of one name are their author's own proof against it."""
        if len(ledger.versions(name)) > 1 and name.author != ledger.me:
            self.fetcher.distrust.note(name.author, PeerError(f"it has signed two contributions: {name}"))

    def revoke(self, signed: bytes) -> bool:
        """Take an author out, by the operator's word; whether that is news.

        Raises:
            FormatError: it is not the operator's.
        """
        revocation = read_revocation(signed, self.signer.authority)
        if revocation in self.revocations:
            return False
        self.revocations[revocation] = signed
        self.shelf.keep_revocation(signed)
        self.revoked(revocation.author)
        for ledger in self.ledgers.values():
            ledger.revoke(revocation)
        self.news.ring()
        return True

    def restore(self) -> None:
        """Take up what the shelf holds: it was accepted before this process began. What has been damaged since is not
        on it any more: others still have it."""
        self.shelf.tidy()
        for signed in self.shelf.revocations():
            with suppress(FormatError):
                self.revoke(signed)
        for proof, receipts, whole in self.shelf.found():
            try:
                entry = read_entry(proof, receipts, self.signer.authority)
            except FormatError:
                continue
            ledger = self.ledgers.get(entry.name.part)
            if ledger is not None:
                (ledger.take if whole else ledger.offer)(entry, vouched=True)
                if entry.name.round <= ledger.folded and ledger.history.has(entry.name.author, entry.name.round):
                    ledger.closed.setdefault(entry.name.round, []).append(entry)
        self.news.ring()

    # Catching up

    def catch_up(self, part: Part, target: int, witnesses: int) -> None:
        """From now on, take rounds up to `target` from the word of others, `witnesses` at least: this peer was not
        there."""
        self.catching_up[part], self.witnesses[part] = target, max(1, witnesses)
        self.vouched[part], self.spoken[part] = {}, set()

    def vouch(self, part: Part, key: bytes, peer: PeerId) -> None:
        """A peer says that it has accepted an entry."""
        if part in self.catching_up:
            self.vouched[part].setdefault(key, set()).add(peer)

    def note_spoken(self, part: Part, peer: PeerId) -> None:
        """A peer has named all that it has accepted of a part: what it has not named, it has not."""
        self.spoken.setdefault(part, set()).add(peer)

    def _is_vouched(self, entry: Entry) -> bool:
        part = entry.name.part
        if entry.name.round > self.catching_up.get(part, 0):
            return False
        return len(self.vouched[part].get(entry.key, ())) >= self.witnesses[part]

    def reconsider(self, part: Part) -> None:
        """After having been away: drop what this peer accepted by its old clock and enough others have not."""
        ledger, words = self.ledgers[part], self.vouched.get(part, {})
        enough = self.witnesses.get(part, 1)
        before = ledger.all_entries()
        vouched = [each for each in before if len(words.get(each.key, ())) >= enough]
        ledger.reconsider({(each.name, each.sha256) for each in vouched})
        for entry in before:
            dropped = entry.sha256 not in ledger.versions(entry.name)
            if dropped and entry.name.author != ledger.me:  # its own it may need for the error feedback
                self.shelf.discard(entry)

    def caught_up(self, part: Part) -> bool:
        """Whether enough others have spoken, and everything that enough of them vouch for is here."""
        enough = self.witnesses[part]
        vouched = [key for key, peers in self.vouched[part].items() if len(peers) >= enough]
        return len(self.spoken[part]) >= enough and not lacking(self.ledgers[part], vouched)


def ledgers_of(manifest: Manifest, record: PeerRecord) -> dict[Part, Ledger]:
    """One for each part that a peer follows."""
    volunteer = record.role == "volunteer"
    parts = parts_followed(manifest, record.stage) if volunteer else list(model_layout(manifest))
    window = Window(manifest.outer.grace, manifest.outer.liars)
    return {part: Ledger(part, record.peer_id, window) for part in parts}
