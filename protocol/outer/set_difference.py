"""The difference between two peers' sets, and how they find it. Pure: messages in, messages out; gRPC carries them.

A peer *compares*: it sends 8 bytes for each open round, and is told the keys of the rounds in which the other
differs. It *asks* for the entries whose keys it lacks, then fetches their bytes. And it *tells* a few others at once
what it has just accepted, so that news spreads faster than anybody asks.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.identity import ContributionName, Part
from protocol.outer.ledger import Entry, Ledger, combined

KEPT_ROUNDS = 64
"""The rounds for which an author remembers its own contributions, in case that a state is adopted in which they do not
count."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of what a ledger holds: `checks` by open round."""

    part: Part
    clock: int
    folded: int
    checks: Mapping[int, bytes]


def summary(ledger: Ledger) -> Summary:
    """The summary that a peer sends when it compares."""
    return Summary(ledger.part, ledger.clock, ledger.folded, dict(sorted(ledger.checks.items())))


def different(ledger: Ledger, theirs: Summary) -> list[bytes]:
    """The keys of our entries in the rounds where the other's check is not ours and that it has not closed, though we
    may have."""
    closed = {round: combined(accepted) for round, accepted in ledger.closed.items() if round > theirs.folded}
    checks = closed | ledger.checks
    rounds = [round for round, check in checks.items() if theirs.checks.get(round) != check]
    mine = {round: ledger.closed.get(round) or ledger.entries(round) for round in rounds if round > theirs.folded}
    return [entry.key for round in sorted(mine) for entry in mine[round]]


def lacking_keys(ledger: Ledger, keys: list[bytes]) -> list[bytes]:
    """Select the keys of the other's to ask for. What waits here for receipts is asked for again: there may be more
    now."""
    have = {entry.key for entry in ledger.all_entries()}
    return [key for key in keys if key not in have]


def entries(ledger: Ledger, keys: list[bytes]) -> list[Entry]:
    """The entries for which another peer asks."""
    wanted = set(keys)
    known = [*itertools.chain.from_iterable(ledger.closed.values()), *ledger.all_entries()]
    return [entry for entry in known if entry.key in wanted]


@dataclass(slots=True)
class Authored:
    """The contributions of a peer to a part: what its own error feedback has been charged for.

    `sent` are those that count or may yet; `returned` those put back, since the state in force closed their
    round without them.
    """

    sent: dict[int, ContributionName] = field(default_factory=dict)
    returned: dict[int, ContributionName] = field(default_factory=dict)

    def send(self, name: ContributionName) -> None:
        """Note one more contribution of this peer's."""
        self.sent[name.round] = name
        for rounds in (self.sent, self.returned):
            for old in [round for round in rounds if round <= name.round - KEPT_ROUNDS]:
                del rounds[old]

    def adopt(self, ledger: Ledger) -> tuple[list[ContributionName], list[ContributionName]]:
        """Follow the ledger after `Ledger.adopt`. Returns (what goes back into the error feedback, what is taken out of
        it again).

        So that in every state what counts plus what is left is what was computed.
        """
        closed = [round for round in self.sent if round <= ledger.folded]
        back = [self.sent.pop(round) for round in closed if not ledger.history.has(ledger.me, round)]
        again = [self.returned.pop(round) for round in [*self.returned] if ledger.history.has(ledger.me, round)]
        self.returned |= {name.round: name for name in back}
        self.sent |= {name.round: name for name in again}
        return back, again
