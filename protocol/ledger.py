"""Which contributions count: the set of one part, kept by one peer, without I/O.

The outer state is a function of this set, so two peers whose ledgers say the same hold the same bits. A ledger
takes no decision that depends on anything but what it was shown and its clock (see `protocol/window.py`).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from protocol.history import History
from protocol.identity import ContributionName, Part, PeerId
from protocol.window import SKEW, Window

VERSIONS_KEPT = 2
"""Two versions of one contribution void each other; a third says nothing new."""


@dataclass(slots=True)
class Entry:
    """A contribution that its author signed, and who signed that it was there in time.

    `proof` and the values of `receipts` are the signed messages, already verified; the ledger only passes them on.
    """

    name: ContributionName
    sha256: str
    size: int
    proof: bytes = b""
    receipts: dict[PeerId, bytes] = field(default_factory=dict)
    vouched: bool = False
    """Enough other peers said to this one that they have accepted it. Never sent on."""
    held: bool = False
    """Its bytes are here. Never sent on."""

    @property
    def key(self) -> bytes:
        """8 bytes that stand for name and content where peers compare what they have."""
        said = f"{self.name.part} {self.name.round} {self.name.author} {self.sha256}"
        return blake2b(said.encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Revocation:
    """The operator takes an author's contributions out, from round `start` on. `issued`: the round it was signed in."""

    author: PeerId
    start: int
    issued: int

    def effective(self, window: Window) -> int:
        """The first round without this author: a function of the record alone, so that all peers agree."""
        return max(self.start, self.issued - window.revocable)


class Standing(Enum):
    """What a ledger makes of an entry it is offered."""

    ACCEPTED = "accepted"
    WANTED = "its bytes are missing"
    EARLY = "its round has not begun here"
    UNPROVEN = "it is late and has too few receipts"
    CLOSED = "its round is closed"
    SURPLUS = "two versions of it are known, which void each other"


@dataclass(slots=True)
class Ledger:
    """The contributions to one part that a peer has accepted.

    `clock` is the round this peer works on, from 1; rounds up to `folded` are closed for ever, and `history` tells what
    counted in them.
    """

    part: Part
    me: PeerId
    window: Window
    clock: int = 1
    folded: int = 0
    history: History = field(default_factory=History)
    accepted: dict[int, dict[PeerId, dict[str, Entry]]] = field(default_factory=dict)
    waiting: dict[tuple[ContributionName, str], Entry] = field(default_factory=dict)
    revocations: set[Revocation] = field(default_factory=set)
    _checks: dict[int, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def offer(self, entry: Entry, vouched: bool = False) -> Standing:
        """Hear of an entry. Its receipts are kept; those of the author itself say nothing.

        `vouched`: this peer is catching up, and takes the word of others that it was there in time.
        """
        entry.receipts.pop(entry.name.author, None)
        if entry.name.round <= self.folded or self.window.is_past(self.clock, entry.name.round):
            return Standing.CLOSED
        if not self.window.is_open(self.clock, entry.name.round):
            return Standing.EARLY
        known = self.versions(entry.name)
        if entry.sha256 in known:
            self._merge(known[entry.sha256], entry)
            return Standing.ACCEPTED
        if len(known) >= VERSIONS_KEPT:
            return Standing.SURPLUS
        kept = self.waiting.get((entry.name, entry.sha256), entry)
        self._merge(kept, entry)
        kept.vouched |= vouched
        if self._in_time(kept):
            return self._hold(kept)
        others = sum(name == entry.name and sha256 != entry.sha256 for name, sha256 in self.waiting)
        if others >= VERSIONS_KEPT:
            return Standing.SURPLUS
        self.waiting[entry.name, entry.sha256] = kept
        return Standing.UNPROVEN

    def _hold(self, entry: Entry) -> Standing:
        """An entry in time waits for its bytes, unless another version is in time too: then both are void, and so
        accepted without bytes. Or an author could keep a third version out by naming two that it never hands out."""
        known = self.versions(entry.name)
        rivals = [
            other
            for (name, sha256), other in self.waiting.items()
            if name == entry.name and sha256 != entry.sha256 and self._in_time(other)
        ]
        if not known and not rivals:
            self.waiting[entry.name, entry.sha256] = entry
            return Standing.WANTED
        for each in [entry, *rivals][: VERSIONS_KEPT - len(known)]:
            self._accept(each)
        return Standing.ACCEPTED

    def _accept(self, entry: Entry) -> None:
        self.waiting.pop((entry.name, entry.sha256), None)
        self.accepted.setdefault(entry.name.round, {}).setdefault(entry.name.author, {})[entry.sha256] = entry
        self._checks.pop(entry.name.round, None)

    def take(self, entry: Entry, vouched: bool = False) -> Standing:
        """The bytes of an entry are here and valid: accept it, if it is in time now."""
        standing = self.offer(entry, vouched)
        if standing is not Standing.WANTED:
            return standing
        kept = self.waiting[entry.name, entry.sha256]
        kept.held = True
        self._accept(kept)
        return Standing.ACCEPTED

    def wants_receipt(self, name: ContributionName, sha256: str) -> bool:
        """Whether this peer should sign that it has accepted an entry: others may need it."""
        entry = self.versions(name).get(sha256)
        return (
            entry is not None
            and self.me not in (name.author, *entry.receipts)
            and len(entry.receipts) < self.window.most_receipts
        )

    def sign(self, name: ContributionName, sha256: str, receipt: bytes) -> None:
        """Add this peer's own receipt."""
        self.versions(name)[sha256].receipts[self.me] = receipt

    def revoke(self, revocation: Revocation) -> bool:
        """Take an author out; whether all rounds concerned are still open here. If not, this peer's state is wrong."""
        self.revocations.add(revocation)
        return revocation.effective(self.window) > self.folded or not self.history.counts(
            revocation.author, revocation.effective(self.window), self.folded
        )

    def chosen(self, round: int) -> dict[PeerId, str]:
        """S_t of an open round: author → SHA-256. Authors with two versions, and revoked ones, are not in it."""
        return {
            author: next(iter(versions))
            for author, versions in sorted(self.accepted.get(round, {}).items())
            if len(versions) == 1 and not self._revoked(author, round)
        }

    def advance(self, clock: int) -> list[int]:
        """Set the clock forward; the rounds that are to be folded now, in order."""
        self.clock = max(self.clock, clock)
        return list(range(self.folded + 1, self.clock - self.window.width))

    def fold(self, round: int) -> dict[PeerId, str]:
        """Close the next round for ever; what counted in it."""
        if round != self.folded + 1:
            raise ValueError(f"round {round} cannot be folded after round {self.folded}")
        chosen = self.chosen(round)
        self.history.add(round, chosen)
        self.accepted.pop(round, None)
        self._checks.pop(round, None)
        self.waiting = {key: entry for key, entry in self.waiting.items() if key[0].round > round}
        self.folded = round
        return chosen

    def adopt(self, folded: int, history: History) -> None:
        """Take another peer's word for all rounds up to `folded`. What was accepted of later rounds stays.

        A clock that ran ahead of the state's holders goes back to theirs, or it would close their rounds too early
        again and again.
        """
        self.folded, self.history = folded, history
        self.clock = max(folded + 1, min(self.clock, folded + 1 + self.window.width))
        self.accepted = {round: authors for round, authors in self.accepted.items() if round > folded}
        self.waiting = {key: entry for key, entry in self.waiting.items() if key[0].round > folded}

    def reconsider(self, vouched: Collection[tuple[ContributionName, str]]) -> None:
        """After having been away, on the others' clock: drop what was accepted by the old one, could not be now, and
        has not been accepted by enough others. Or a newcomer might take it over from here."""
        for round, authors in self.accepted.items():
            self._checks.pop(round, None)
            for author, versions in authors.items():
                stays = {
                    sha256: entry
                    for sha256, entry in versions.items()
                    if (entry.name, sha256) in vouched or self._in_time(entry)
                }
                if len(stays) == 1 < len(versions):  # void no more, and perhaps accepted as such, without its bytes
                    stays = {sha256: entry for sha256, entry in stays.items() if self._stands(entry)}
                authors[author] = stays
        self.accepted = {
            round: kept
            for round, authors in self.accepted.items()
            if (kept := {author: versions for author, versions in authors.items() if versions})
        }

    def _stands(self, entry: Entry) -> bool:
        """Whether an entry can count alone; if its bytes are missing, it waits for them again."""
        if not entry.held:
            self.waiting[entry.name, entry.sha256] = entry
        return entry.held

    def entries(self, round: int) -> list[Entry]:
        """Everything accepted of an open round, both versions of what is void included: proof for others."""
        return [entry for versions in self.accepted.get(round, {}).values() for entry in versions.values()]

    def all_entries(self) -> list[Entry]:
        """Everything accepted of all open rounds."""
        return [entry for round in self.open_rounds() for entry in self.entries(round)]

    def open_rounds(self) -> list[int]:
        """Open rounds of which something has been accepted."""
        return sorted(round for round, authors in self.accepted.items() if authors)

    def check(self, round: int) -> bytes:
        """8 bytes that are equal for equal sets of a round: the exclusive or of its entries' keys."""
        if round not in self._checks:
            total = 0
            for entry in self.entries(round):
                total ^= int.from_bytes(entry.key, "big")
            self._checks[round] = total.to_bytes(8, "big")
        return self._checks[round]

    def versions(self, name: ContributionName) -> dict[str, Entry]:
        """What has been accepted under a name, by SHA-256: two of them void each other."""
        return self.accepted.get(name.round, {}).get(name.author, {})

    def _in_time(self, entry: Entry) -> bool:
        if entry.vouched:
            return True
        receipts = len(entry.receipts) - (self.me in entry.receipts)
        if entry.name.author != self.me:
            return receipts >= self.window.receipts_needed(self.clock, entry.name.round)
        needed = self.window.receipts_needed(self.clock + SKEW, entry.name.round)
        return receipts >= min(needed, self.window.most_receipts)  # its author adds none: others must do with these

    def _merge(self, kept: Entry, entry: Entry) -> None:
        for signer, receipt in entry.receipts.items():
            if len(kept.receipts) < self.window.most_receipts:
                kept.receipts.setdefault(signer, receipt)

    def _revoked(self, author: PeerId, round: int) -> bool:
        return any(each.author == author and round >= each.effective(self.window) for each in self.revocations)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a peer says of its closed rounds: up to `folded`, `contributions` counted, and the state is `digest`, which
    covers the history too."""

    folded: int
    digest: str
    contributions: int
    author: bool
    """Whether it contributes itself. Those who only follow do not decide."""


def prevailing(claims: Iterable[Claim]) -> str | None:
    """Which of several states after the same round stands: the one that most authors hold; of equals, that with more
    contributions, then the smaller digest. None without claims."""
    votes: dict[str, list[Claim]] = {}
    for claim in claims:
        votes.setdefault(claim.digest, []).append(claim)
    return min(votes, key=lambda digest: _weight(votes, digest), default=None)


def outvoted(mine: Claim, others: Collection[Claim], liars: int, all_have_spoken: bool) -> str | None:
    """The state that stands instead of `mine`, if one does; `others` are what others say of the same round.

    Not before more than `liars` authors hold it, or all others have spoken of the round, but for those far behind: who
    has not closed it yet, or has forgotten it, may hold what this peer does.
    """
    standing = prevailing([mine, *others])
    votes = sum(claim.author for claim in others if claim.digest == standing)
    return standing if standing != mine.digest and (votes > liars or all_have_spoken) else None


def _weight(votes: Mapping[str, list[Claim]], digest: str) -> tuple[int, int, str]:
    claims = votes[digest]
    return -sum(claim.author for claim in claims), -max(claim.contributions for claim in claims), digest
