"""The intake of a peer: signed entries are checked, their bytes fetched, receipts signed, revocations heeded."""

import asyncio
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from peer.network.blob_fetcher import BlobFetcher
from peer.store.served import ContributionStore
from protocol.codec.contribution import contribution_digest, max_bytes, slot_of
from protocol.errors import FormatError, PeerError, ResourceError
from protocol.identity import ContributionName, Part, PeerId
from protocol.layout import follows, model_layout
from protocol.limits import KEYS_NAMED, REVOCATIONS_KEPT
from protocol.manifest import Manifest
from protocol.net.tasks import Notifier, Turns
from protocol.outer.ledger import VERSIONS_KEPT, Entry, Ledger, Revocation, Standing
from protocol.outer.set_difference import lacking_keys
from protocol.outer.window import SKEW, Window
from protocol.trust.membership_card import Signer
from protocol.trust.proofs import (
    claimed_entry,
    read_entry,
    read_revocation,
    read_trial,
    sign_contribution,
    sign_receipt,
)
from protocol.trust.records import PeerRecord

MOST_TRIALS = 16
"""The contributions of peers on trial that an auditor holds for each part it follows, one of an author, until it has
looked: a datacenter's is looked at when all its parts have come."""

MOST_SHOWN = 4096
"""The authors whose signed rounds are remembered: as many as a run's replicas have places
(`protocol/outer/data_plan.py`)."""

MOST_INVALID = 4096
"""The contributions found invalid that are remembered, not to be fetched again."""

Check = Callable[[bytes, Entry], Awaitable[None]]
"""Raises FormatError unless the bytes are that contribution, and valid."""


class InvalidContributionError(FormatError):
    """The bytes that an author has signed are no contribution that can count: its own fault, whoever passed them on."""

    def __init__(self, author: PeerId, reason: str) -> None:
        super().__init__(reason)
        self.author = author


async def nothing_is_valid(blob: bytes, entry: Entry) -> None:
    """Refuse every blob: the outer state is not loaded yet."""
    raise FormatError("this peer is not ready yet")


@dataclass(slots=True)
class Intake:
    """The intake of a peer, with its ledgers and its contribution store. `news` rings whenever a ledger has changed."""

    manifest: Manifest
    signer: Signer
    fetcher: BlobFetcher
    contribution_store: ContributionStore
    ledgers: dict[Part, Ledger]
    news: Notifier
    check: Check = nothing_is_valid
    revoked: Callable[[PeerId], None] = lambda author: None
    """Is told whom the operator has taken out."""
    unkept: Callable[[ResourceError], None] = lambda error: None
    """Is told that what counts could not be kept: this peer cannot stay with the others."""
    trials: dict[tuple[PeerId, Part], tuple[int, bytes]] | None = None
    """The last round and contribution of each peer on trial, where this peer audits."""
    revocations: dict[Revocation, bytes] = field(default_factory=dict)
    vouched: dict[Part, dict[bytes, set[PeerId]]] = field(default_factory=dict)
    """While catching up: who says that an entry was accepted in time."""
    words: Counter[tuple[Part, PeerId]] = field(default_factory=Counter)
    """The number of entries for which each peer has vouched, by part."""
    catching_up: dict[Part, int] = field(default_factory=dict)
    """Rounds up to this one are taken from others' word."""
    spoken: dict[Part, set[PeerId]] = field(default_factory=dict)
    """While catching up: who has named all that it has accepted."""
    least: dict[Part, int] = field(default_factory=dict)
    """The round that those have finished, at least, who may have spoken of all that counts, by part."""
    witnesses: dict[Part, int] = field(default_factory=dict)
    """The number of peers that must vouch for an entry, by part."""
    dropped: list[Entry] = field(default_factory=list)
    """The entries that this peer stands by no longer, whose bytes may be needed to take them out of the grid."""
    invalid: dict[tuple[str, int], str] = field(default_factory=dict)
    """The reasons why contributions are invalid, by SHA-256 and by the slot of the author's card. With another card the
    same may be valid."""
    attests: bool = True
    """Whether this peer gives receipts: its clock is right as far as it knows."""
    early_listeners: list[Callable[[], None]] = field(default_factory=list)
    """Each is called when an author is seen to be in a round that has not begun here."""
    shown: dict[PeerId, int] = field(default_factory=dict)
    """The last round of which each author has signed a contribution, begun here or not."""
    turns: Turns = field(default_factory=Turns)
    """The turns of sources at the checking of what others have signed."""
    keeping: weakref.WeakValueDictionary[str, asyncio.Lock] = field(default_factory=weakref.WeakValueDictionary)
    """The locks of contributions that are being written down, by hash: a file has one writer at a time."""

    @property
    def ready(self) -> bool:
        """Whether the outer state is loaded: before that this peer can neither check anything nor say what it holds."""
        return self.check is not nothing_is_valid

    def begin(self, check: Check) -> None:
        """Take contributions from now on: the outer state is loaded, by which `check` knows whether they are valid."""
        self.check = check

    def give_receipts(self, attests: bool) -> None:
        """Give receipts from now on, or none: this peer's clock is right as far as it knows, or it is not."""
        self.attests = attests

    async def own(self, part: Part, round: int, blob: bytes) -> Entry | None:
        """Keep this peer's own contribution, and sign its entry. Returns the entry, to be announced; None if the round
        takes no more contributions, or if the peer has another slot now than it was made in: then it is kept as
        unproven. One made on trial does not count, and is announced for the audit."""
        entry = sign_contribution(self.signer, part, round, contribution_digest(blob), len(blob))
        if slot_of(blob) != self.signer.authority.read(self.signer.card).slot:
            if self.contribution_store.lookup(entry.sha256) is None:
                await asyncio.to_thread(self.contribution_store.put_unproven, entry, blob)
            return None
        await asyncio.to_thread(self.contribution_store.put, entry, blob)
        if read_trial(entry.proof, self.signer.authority) is not None:
            return entry
        entry = read_entry(entry.proof, [], self.signer.authority)  # as others see it: by whose card it is signed
        if self.ledgers[part].take(entry) is not Standing.ACCEPTED:
            await asyncio.to_thread(self.contribution_store.put_unproven, entry, blob)
            return None
        self.news.ring()
        return entry

    async def take(self, proof: bytes, receipts: list[bytes], sender: PeerRecord) -> list[Entry]:
        """Take an entry that a peer passed on, and fetch the bytes from that peer, or from another that has them.
        Returns what is accepted now and was not before.

        Raises:
            InvalidContributionError: what its author has signed is not valid.
            FormatError: what was passed on is not signed by its author, or cannot be.
        """
        entry = self.claimed(proof, receipts)
        try:
            if not self._is_of_use(entry, receipts):
                return []
            async with self.turns.of(sender.peer_id):
                if not self._is_of_use(entry, receipts):  # after what came while it waited for its turn
                    return []
                trial = read_trial(proof, self.signer.authority)
                blame = partial(self.fetcher.bans.note, sender.peer_id)  # it has checked what it passes on
                entry = trial or read_entry(proof, receipts, self.signer.authority, blame)
            if trial is None:
                return await self._take_counting(entry, sender)
            await self._take_trial(trial, sender)
            return []
        finally:
            self.fetcher.wanted.forget([entry.key])

    async def _take_counting(self, entry: Entry, sender: PeerRecord) -> list[Entry]:
        """Offer an entry, whose signatures hold, to the ledger, and fetch the bytes that it wants. Returns what is
        accepted now and was not before."""
        ledger = self.ledgers[entry.name.part]
        if (entry.sha256, entry.slot) in self.invalid:
            return []
        part, author, round = entry.name.part, entry.name.author, entry.name.round
        news = round > self.shown.get(author, 0) and (author in self.shown or len(self.shown) < MOST_SHOWN)
        if news:
            self.shown[author] = round
        versions_known = set(ledger.versions(entry.name))
        is_past = round <= self.catching_up.get(part, 0)
        vouched = is_past and len(self.vouched[part].get(entry.key, ())) >= self.witnesses[part]
        standing = ledger.offer(entry, vouched)
        if standing is Standing.EARLY and news:
            for listener in self.early_listeners:
                listener()
        if standing is Standing.WANTED and (blob := await self.fetcher.bring(entry, sender)) is not None:
            try:
                await self._check(blob, entry)
                receipt = await self._keep(entry, blob)
                if ledger.take(entry, vouched) is not Standing.ACCEPTED:  # the clock has gone on meanwhile
                    self.dropped.append(entry)
                if receipt and ledger.wants_receipt(entry.name, entry.sha256):
                    ledger.sign(entry.name, entry.sha256, receipt)
            finally:
                self.fetcher.wanted.drop(entry.key)
        return await self._attest(ledger, entry.name, versions_known)

    def claimed(self, proof: bytes, receipts: Sequence[bytes] = ()) -> Entry:
        """Read what an entry claims to be. **Its signatures are not checked yet.**

        Raises:
            FormatError: no entry of this run can say this.
        """
        entry = claimed_entry(proof, self.signer.authority)
        if entry.name.round > self.manifest.outer.rounds:
            raise FormatError(f"{entry.name}: the run ends with round {self.manifest.outer.rounds}")
        if len(receipts) > (most := Window.of(self.manifest).most_told):
            raise FormatError(f"{entry.name}: {len(receipts)} receipts, where {most} are enough")
        if entry.name.part in self.ledgers and entry.size > max_bytes(self.manifest, entry.name.part):
            raise FormatError(f"{entry.name}: {entry.size} bytes, more than possible")
        return entry

    def _is_of_use(self, entry: Entry, receipts: Sequence[bytes]) -> bool:
        """Whether an entry is worth checking: its round is open here, and it says anything new."""
        ledger, round = self.ledgers.get(entry.name.part), entry.name.round
        if ledger is None or round <= ledger.folded:
            return False
        past = ledger.window.is_past(ledger.clock, round)
        if past and round > self.catching_up.get(entry.name.part, 0):
            return False
        if round > ledger.clock + SKEW:  # that its author is so far is all it can say
            return round > self.shown.get(entry.name.author, 0)
        versions_known = ledger.versions(entry.name)
        if entry.sha256 not in versions_known:
            return len(versions_known) < VERSIONS_KEPT
        return bool(receipts) and len(versions_known[entry.sha256].receipts) < ledger.window.most_receipts

    async def _take_trial(self, entry: Entry, sender: PeerRecord) -> None:
        """Take a contribution on trial, which counts nowhere: an auditor fetches it, everybody else lets it pass."""
        part, round, author = entry.name.part, entry.name.round, entry.name.author
        ledger, trials = self.ledgers[part], self.trials
        if (
            trials is None
            or (entry.sha256, entry.slot) in self.invalid
            or not ledger.window.is_open(ledger.clock, round)
            or round <= trials.get((author, part), (0, b""))[0]
        ):
            return
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

    async def _keep(self, entry: Entry, blob: bytes = b"") -> bytes:
        """Write an entry down, and with it this peer's receipt, which is returned: it may go out from now on. Empty, if
        this peer gives none now. Without `blob`, the bytes that are here already are kept, if they are."""
        receipt = sign_receipt(self.signer, entry) if self.attests else b""
        receipts = entry.receipts | ({self.signer.identity.peer_id: receipt} if receipt else {})
        async with self.keeping.setdefault(entry.sha256, asyncio.Lock()):
            if not blob and self.contribution_store.lookup(entry.sha256) is not None:
                blob = self.contribution_store.read(entry.sha256)
            await asyncio.to_thread(self.contribution_store.put, replace(entry, receipts=receipts), blob)
        return receipt

    async def _check(self, blob: bytes, entry: Entry) -> None:
        """Check the bytes of a contribution by `FollowedParts.check`, and remember invalid ones.

        Raises:
            InvalidContributionError: the bytes are not what the entry says, or are no valid contribution.
        """
        try:
            await self.check(blob, entry)
        except FormatError as error:
            self.invalid[entry.sha256, entry.slot] = str(error)
            if len(self.invalid) > MOST_INVALID:
                del self.invalid[next(iter(self.invalid))]
            raise InvalidContributionError(entry.name.author, str(error)) from None

    async def _attest(self, ledger: Ledger, name: ContributionName, known: set[str]) -> list[Entry]:
        """Sign and keep what has been accepted under a name beside the `known` versions, and return it. A second
        version voids the first, and both go on. A version without this peer's receipt is void, and accepted without
        bytes."""
        new = [entry for sha256, entry in ledger.versions(name).items() if sha256 not in known]
        for entry in new:
            if ledger.wants_receipt(name, entry.sha256):
                receipt = await self._keep(entry)
                if receipt and ledger.wants_receipt(name, entry.sha256):  # its round may have been closed meanwhile
                    ledger.sign(name, entry.sha256, receipt)
        if new:
            self.news.ring()
            if len(ledger.versions(name)) > 1 and name.author != ledger.me:  # its author's own proof against it
                self.fetcher.bans.note(name.author, PeerError(f"it has signed two contributions: {name}"))
        return new

    def revoke(self, signed: bytes) -> bool:
        """Take an author out, by the operator's word. Returns whether that is news.

        Raises:
            FormatError: it is not the operator's.
        """
        if signed in self.revocations.values():
            return False
        revocation = read_revocation(signed, self.signer.authority)
        if revocation in self.revocations or len(self.revocations) >= REVOCATIONS_KEPT:
            return False
        self.revocations[revocation] = signed
        with suppress(ResourceError):  # the others keep it, too
            self.contribution_store.keep_revocation(signed)
        self.revoked(revocation.author)
        for ledger in self.ledgers.values():
            ledger.revoke(revocation)
        self.news.ring()
        return True

    def has_revoked(self, author: PeerId) -> bool:
        """Whether the operator has taken an author out."""
        return any(revocation.author == author for revocation in self.revocations)

    def restore(self) -> None:
        """Take up the stored contributions, which were accepted before this process began. Those damaged since are
        dropped: others still have them."""
        self.contribution_store.tidy()
        for signed in self.contribution_store.revocations():
            with suppress(FormatError):
                self.revoke(signed)
        for proof, receipts, whole in self.contribution_store.found():
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

    def catch_up(self, part: Part, target: int, witnesses: int, least: int = 0) -> None:
        """Take rounds up to `target` from the word of others, `witnesses` at least, from now on: this peer was not
        there. Who has not finished round `least` yet is none of them: it may have accepted by a clock that stood
        still."""
        self.least[part] = least
        self.catching_up[part], self.witnesses[part] = target, max(1, witnesses)
        self.vouched[part], self.spoken[part] = {}, set()
        self.words = Counter({key: count for key, count in self.words.items() if key[0] != part})

    def vouch(self, part: Part, key: bytes, peer: PeerId, round: int) -> None:
        """Note that a peer that has finished `round` says it has accepted an entry."""
        abreast = round >= self.least.get(part, 0)
        if part in self.catching_up and abreast and self.words[part, peer] < KEYS_NAMED:
            vouchers = self.vouched[part].setdefault(key, set())
            self.words[part, peer] += peer not in vouchers
            vouchers.add(peer)

    def note_spoken(self, part: Part, peer: PeerId, round: int) -> None:
        """Note that a peer that has finished `round` has named all that it has accepted of a part: what it has not
        named, it has not accepted."""
        if round >= self.least.get(part, 0):
            self.spoken.setdefault(part, set()).add(peer)

    def reconsider(self, part: Part) -> None:
        """Drop, after having been away, what this peer accepted by its old clock and enough others have not."""
        ledger, words = self.ledgers[part], self.vouched.get(part, {})
        enough = self.witnesses.get(part, 1)
        before = ledger.all_entries()
        vouched = [entry for entry in before if len(words.get(entry.key, ())) >= enough]
        ledger.reconsider({(entry.name, entry.sha256) for entry in vouched})
        for entry in before:
            if entry.sha256 not in ledger.versions(entry.name):
                self.dropped.append(entry)

    def discard_dropped(self, settled: Collection[str]) -> None:
        """Forget dropped entries, unless they are in a grid, or have been accepted again. Of this peer's own the bytes
        stay, for the error feedback."""
        still = [entry for entry in self.dropped if entry.sha256 in settled]
        for entry in self.dropped:
            ledger = self.ledgers[entry.name.part]
            if entry in still or entry.sha256 in ledger.versions(entry.name):
                continue
            if entry.name.author != ledger.me:
                self.contribution_store.discard(entry)
            elif self.contribution_store.lookup(entry.sha256) is not None:
                self.contribution_store.put_unproven(entry, self.contribution_store.read(entry.sha256))
        self.dropped = still

    def caught_up(self, part: Part) -> bool:
        """Whether enough others have spoken, and everything that enough of them vouch for is here."""
        enough = self.witnesses[part]
        vouched = [key for key, peers in self.vouched[part].items() if len(peers) >= enough]
        return len(self.spoken[part]) >= enough and not lacking_keys(self.ledgers[part], vouched)


def ledgers_of(manifest: Manifest, record: PeerRecord) -> dict[Part, Ledger]:
    """Make a ledger for each part that a peer follows."""
    followed = (part for part in model_layout(manifest) if follows(record.role, record.stage, part, manifest))
    return {part: Ledger(part, record.peer_id, Window.of(manifest)) for part in followed}
