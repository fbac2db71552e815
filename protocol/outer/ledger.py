"""The ledger: the set of contributions to one part that count, kept by one peer, without I/O.

The outer state is a function of this set, so two peers whose ledgers say the same hold the same bits. A ledger
takes no decision that depends on anything but what it was shown and its clock (see `protocol/outer/window.py`).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from protocol.identity import NO_PEER, ContributionName, Part, PeerId
from protocol.outer.history import History
from protocol.outer.window import SKEW, Window

VERSIONS_KEPT = 2
"""The versions of one contribution that are kept: two of them void each other, and a third says nothing new."""


class Standing(Enum):
    """The standing of a contribution that a ledger is offered."""

    ACCEPTED = "accepted"
    WANTED = "its bytes are missing"
    EARLY = "its round has not begun here"
    UNPROVEN = "it is late and has too few receipts"
    CLOSED = "its round is closed"
    SURPLUS = "two versions of it are known, which void each other"
    FALLEN = "the operator has taken out the gateway that let its author in"


@dataclass(slots=True)
class Entry:
    """A contribution that its author signed, and the receipts of peers that signed that it was there in time.

    `proof` and the values of `receipts` are the signed messages, already verified; the ledger only passes them on.
    """

    name: ContributionName
    sha256: str
    size: int
    proof: bytes = b""
    receipts: dict[PeerId, bytes] = field(default_factory=dict)
    slot: int = 0
    """The author's slot by the card that came with `proof`: a contribution that names another is not valid by it."""
    vouched: bool = False
    """Whether enough other peers said to this one that they have accepted the entry. Never sent on."""
    held: bool = False
    """Whether the entry's bytes are here. Never sent on."""
    issuer: PeerId = NO_PEER
    """The gateway that let its author in, by the card it was signed with; none: the operator itself did."""
    _key: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def key(self) -> bytes:
        """8 bytes that stand for name and content where peers compare what they have."""
        if not self._key:
            said = f"{self.name.part} {self.name.round} {self.name.author} {self.sha256}"
            self._key = blake2b(said.encode(), digest_size=8).digest()
        return self._key


Entries = dict[int, dict[PeerId, dict[str, Entry]]]
"""Round → author → SHA-256 → entry."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """A revocation: the operator takes out an author's contributions from round `start` on, and those of the peers that
    it let in as a gateway. `issued` is the round in which it was signed."""

    author: PeerId
    start: int
    issued: int

    def effective(self, window: Window) -> int:
        """The first round from which the author is out: a function of the record alone, so that all peers agree."""
        return max(self.start, self.issued - window.revocable)


@dataclass(slots=True)
class Ledger:
    """The contributions to one part that a peer has accepted.

    `clock` is the round this peer judges by, from 1: `begun`, the one it works on, or a later one that the others are
    in. Rounds up to `folded` are closed for ever, and `history` tells what counted in them.
    """

    part: Part
    me: PeerId
    window: Window
    clock: int = 1
    folded: int = 0
    history: History = field(default_factory=History)
    accepted: Entries = field(default_factory=dict)
    waiting: Entries = field(default_factory=dict)
    revocations: set[Revocation] = field(default_factory=set)
    checks: dict[int, bytes] = field(default_factory=dict)
    """The check of each round in `accepted`, 8 bytes that are equal for equal sets: the exclusive or of its entries'
    keys."""
    closed: dict[int, list[Entry]] = field(default_factory=dict)
    """The accepted entries of the last closed rounds, for peers that come from an older state. Nothing is decided by
    them."""
    begun: int = 1
    """The round on which this peer itself works."""

    def offer(self, entry: Entry, vouched: bool = False) -> Standing:
        """Consider an entry. Its receipts are kept; those of the author itself say nothing.

        `vouched`: this peer is catching up, and takes the word of others that it was there in time. Its round may be
        closed there.
        """
        entry.receipts.pop(entry.name.author, None)
        past = self.window.is_past(self.clock, entry.name.round)
        if self._has_fallen(entry):
            return Standing.FALLEN
        if entry.name.round <= self.folded or (past and not vouched):
            return Standing.CLOSED
        if not past and not self.window.is_open(self.clock, entry.name.round):
            return Standing.EARLY
        versions_known, others = self.versions(entry.name), _under(self.waiting, entry.name)
        if entry.sha256 in versions_known:
            self._merge(versions_known[entry.sha256], entry)
            return Standing.ACCEPTED
        if len(versions_known) >= VERSIONS_KEPT:
            return Standing.SURPLUS
        kept_entry = others.get(entry.sha256, entry)
        self._merge(kept_entry, entry)
        kept_entry.vouched |= vouched
        if self._in_time(kept_entry):
            return self._hold(kept_entry)
        if len(others.keys() - {entry.sha256}) >= VERSIONS_KEPT:
            return Standing.SURPLUS
        _put(self.waiting, kept_entry)
        return Standing.UNPROVEN

    def _hold(self, entry: Entry) -> Standing:
        """Put an entry that is in time among those that wait for their bytes, unless another version is in time too:
        then both are void, and so accepted without bytes. Or an author could keep a third version out by naming two
        that it never hands out."""
        versions_known, others = self.versions(entry.name), _under(self.waiting, entry.name)
        rivals = [
            candidate for candidate in others.values() if candidate.sha256 != entry.sha256 and self._in_time(candidate)
        ]
        if not versions_known and not rivals:
            _put(self.waiting, entry)
            return Standing.WANTED
        for candidate in [entry, *rivals][: VERSIONS_KEPT - len(versions_known)]:
            self._accept(candidate)
        return Standing.ACCEPTED

    def _accept(self, entry: Entry) -> None:
        _under(self.waiting, entry.name).pop(entry.sha256, None)
        _put(self.accepted, entry)
        round = entry.name.round
        self.checks[round] = combined([entry], self.checks.get(round, bytes(8)))

    def take(self, entry: Entry, vouched: bool = False) -> Standing:
        """Accept an entry whose bytes are here and valid, if it is in time now."""
        standing = self.offer(entry, vouched)
        if standing is Standing.WANTED:
            kept = _under(self.waiting, entry.name)[entry.sha256]
            kept.proof, kept.slot, kept.issuer = entry.proof, entry.slot, entry.issuer  # what it is valid by
            self._accept(kept)
            standing = Standing.ACCEPTED
        if standing is Standing.ACCEPTED:
            self.versions(entry.name)[entry.sha256].held = True
        return standing

    def wants_receipt(self, name: ContributionName, sha256: str) -> bool:
        """Whether this peer should sign that it has accepted an entry: others may need it."""
        entry = self.versions(name).get(sha256)
        return (
            entry is not None
            and self.me not in {name.author, *entry.receipts}
            and len(entry.receipts) < self.window.most_receipts
        )

    def sign(self, name: ContributionName, sha256: str, receipt: bytes) -> None:
        """Add this peer's own receipt."""
        self.versions(name)[sha256].receipts[self.me] = receipt

    def revoke(self, revocation: Revocation) -> bool:
        """Take an author out, and the peers that it let in. Returns whether all rounds concerned are still open here;
        if not, this peer's state is wrong. An entry that has fallen is as if it had never been shown: by another card
        it may come again."""
        self.revocations.add(revocation)
        self._keep(lambda entry: not self._has_fallen(entry))
        for authors in self.waiting.values():
            for author, versions in authors.items():
                authors[author] = {
                    sha256: version for sha256, version in versions.items() if not self._has_fallen(version)
                }
        return revocation.effective(self.window) > self.folded or not self.history.counts(
            revocation.author, revocation.effective(self.window), self.folded
        )

    def chosen(self, round: int) -> dict[PeerId, str]:
        """The set S_t of an open round: author → SHA-256. Authors with two versions, and revoked ones, are not
        in it."""
        revoked = self._revoked(round)
        return {
            author: next(iter(versions))
            for author, versions in sorted(self.accepted.get(round, {}).items())
            if len(versions) == 1 and author not in revoked
        }

    def advance(self, clock: int) -> range:
        """Go on to a round. Returns the rounds that are to be folded now, in order."""
        self.begun = max(self.begun, clock)
        self.clock = max(self.clock, self.begun)
        return range(self.folded + 1, self.begun - self.window.width)

    def follow(self, clock: int, caught_up: int = 0) -> None:
        """Judge by the round that the others are in, as long as their contributions show it, and by `SKEW` rounds
        beyond this peer's own at most. Only a peer that has `caught_up` with a later round, or tries to, judges by
        that."""
        self.clock = max(self.begun, min(clock, self.begun + SKEW), caught_up)

    def fall_back(self) -> None:
        """Forget the entries of rounds that have not begun here: what this peer tried to catch up with was not
        there."""
        self.clock = self.begun
        for table in (self.accepted, self.waiting, self.checks):
            for round in [round for round in table if round > self.begun + SKEW]:
                del table[round]

    def newest(self, author: PeerId) -> int:
        """The last round of an author of which something is accepted, or counts; 0 if nothing is."""
        rounds = [round for round, authors in self.accepted.items() if author in authors]
        counted = self.history.ranges.get(author)
        return max(rounds, default=counted[-1][1] if counted else 0)

    def newest_of_all(self) -> int:
        """The last round of which anything is accepted, of any author; the last closed one, if nothing is."""
        return max(self.accepted, default=self.folded)

    def is_complete(self, round: int, lately: int) -> bool:
        """Whether all others that contributed to one of the `lately` rounds before `round` have contributed to it, and
        somebody has."""
        due = self.counted_since(round - lately) - {self.me}
        return bool(due) and due <= self.accepted.get(round, {}).keys()

    def counted_since(self, round: int) -> set[PeerId]:
        """The authors whose contributions of `round` or a later one count, as far as they are here."""
        closed = set[PeerId]()
        if round <= self.folded:
            closed = {author for author in self.history.ranges if self.history.counts(author, round, self.folded)}
        return closed.union(*(self.chosen(later_round) for later_round in self.accepted if later_round >= round))

    def fold(self, round: int) -> dict[PeerId, str]:
        """Close the next round for ever. Returns what counted in it."""
        if round != self.folded + 1:
            raise ValueError(f"round {round} cannot be folded after round {self.folded}")
        chosen = self.chosen(round)
        self.history.add(round, chosen)
        for table in (self.accepted, self.waiting, self.checks):
            table.pop(round, None)
        self.folded = round
        return chosen

    def keep_closed(self, round: int) -> None:
        """Keep what is accepted of a round that is about to be closed."""
        if accepted := self.entries(round):
            self.closed[round] = accepted

    def forget_closed(self, last: int) -> None:
        """Forget what was accepted of closed rounds up to `last`."""
        self.closed = {round: entries for round, entries in self.closed.items() if round > last}

    def adopt(self, folded: int, history: History) -> None:
        """Take another peer's word for all rounds up to `folded`. What was accepted of later rounds stays.

        A clock that ran ahead of the state's holders goes back to theirs, or it would close their rounds too early
        again and again.
        """
        self.folded, self.history, self.closed = folded, history, {}
        self.begun = self.clock = max(folded + 1, min(self.clock, folded + 1 + self.window.width))
        for table in (self.accepted, self.waiting, self.checks):
            for round in [round for round in table if round <= folded]:
                del table[round]

    def _has_fallen(self, entry: Entry) -> bool:
        return entry.issuer in self._revoked(entry.name.round)

    def reconsider(self, vouched: Collection[tuple[ContributionName, str]]) -> None:
        """Judge what was accepted anew after having been away, on the others' clock: drop what was accepted by the old
        one, could not be now, and has not been accepted by enough others, as a newcomer might take it over from here.
        What was taken on others' word before, or from this peer's own disk, is judged anew."""
        for entry in self.all_entries():
            entry.vouched = (entry.name, entry.sha256) in vouched
        self._keep(self._in_time)

    def _keep(self, stays: Callable[[Entry], bool]) -> None:
        for round, authors in [*self.accepted.items()]:
            for author, versions in [*authors.items()]:
                kept_versions = {sha256: entry for sha256, entry in versions.items() if stays(entry)}
                if (
                    len(kept_versions) == 1 < len(versions)
                ):  # void no more, and perhaps accepted as such, without its bytes
                    (entry,) = kept_versions.values()
                    if not entry.held:  # it can count alone once it has its bytes again
                        _put(self.waiting, entry)
                        kept_versions = {}
                authors[author] = kept_versions
                if not kept_versions:
                    del authors[author]
            if not authors:
                del self.accepted[round]
        self.checks = {round: combined(self.entries(round)) for round in self.accepted}

    def entries(self, round: int) -> list[Entry]:
        """All entries accepted of an open round, both versions of what is void included: proof for others."""
        return [entry for versions in self.accepted.get(round, {}).values() for entry in versions.values()]

    def all_entries(self) -> list[Entry]:
        """All entries accepted of all open rounds."""
        return [entry for round in self.open_rounds() for entry in self.entries(round)]

    def open_rounds(self) -> list[int]:
        """The open rounds of which something has been accepted."""
        return sorted(self.accepted)

    def versions(self, name: ContributionName) -> dict[str, Entry]:
        """The entries accepted under a name, by SHA-256: two of them void each other."""
        return _under(self.accepted, name)

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

    def _revoked(self, round: int) -> set[PeerId]:
        return {revocation.author for revocation in self.revocations if round >= revocation.effective(self.window)}


def combined(entries: Iterable[Entry], check: bytes = bytes(8)) -> bytes:
    """The check of a set of entries, or of these and a set whose check is `check`."""
    total = int.from_bytes(check, "big")
    for entry in entries:
        total ^= int.from_bytes(entry.key, "big")
    return total.to_bytes(8, "big")


def _under(entries: Entries, name: ContributionName) -> dict[str, Entry]:
    return entries.get(name.round, {}).get(name.author, {})


def _put(entries: Entries, entry: Entry) -> None:
    entries.setdefault(entry.name.round, {}).setdefault(entry.name.author, {})[entry.sha256] = entry
