"""Planted errors: what a tired programmer might write, in the real protocol or in what drives it.

Each is a change of source text, so that the table below reads as what it is, and one that no longer fits is an error.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from protocol.outer import history
from protocol.outer.history import History
from protocol.outer.ledger import Ledger, Revocation
from protocol.outer.set_difference import Authored
from protocol.outer.window import Window
from tests.simulation import catching_up, comparing
from tests.simulation import peer as peers
from tests.simulation.arithmetic import State
from tests.simulation.catching_up import CatchingUp
from tests.simulation.disk import Disk
from tests.simulation.peer import Peer
from tests.simulation.properties import run
from tests.simulation.schedule import draw


@dataclass(frozen=True, slots=True)
class Change:
    """In the source of `owner.name`, `old` becomes `new`."""

    owner: type | ModuleType
    name: str
    old: str
    new: str


RECEIPTS = "max(0, -(-late // SKEW))"
LATE = "clock - round - self.grace"
LATER = "self.world.at(self.world.now + 0.3, lambda life=self.life: life == self.life and "

MUTANTS: dict[str, list[Change]] = {
    "exceptions of the version vector skipped": [
        Change(History, "add", "if ranges and ranges[-1][1] == round - 1", "if ranges"),
    ],
    "a late contribution applied twice": [
        Change(State, "settle", "add(self.theta, self.terms.get(round, ZERO))", "self.theta"),
    ],
    "what came late is not in the term that is folded": [
        Change(Peer, "fold", "self.refresh(round)", "pass"),
    ],
    "receipts needed a round too late": [Change(Window, "receipts_needed", LATE, f"{LATE} - 1")],
    "receipts needed a round too early": [Change(Window, "receipts_needed", LATE, f"{LATE} + 1")],
    "rounds folded a round too early": [Change(Ledger, "advance", "self.window.width", "self.window.width + 1")],
    "one receipt fewer needed": [Change(Window, "receipts_needed", RECEIPTS, "max(0, -(-late // SKEW) - 1)")],
    "one receipt fewer kept": [Change(Window, "most_receipts", "self.liars + 1", "self.liars")],
    "one receipt needed however late (the issue's candidate, r = 1)": [
        Change(Window, "receipts_needed", RECEIPTS, "int(late > 0)"),
    ],
    "liars + 1 receipts needed however late (the issue's candidate, r > liars)": [
        Change(Window, "receipts_needed", RECEIPTS, "(self.liars + 1) * (late > 0)"),
    ],
    "the author's own receipt counts": [
        Change(Ledger, "offer", "entry.receipts.pop(entry.name.author, None)", "pass"),
        Change(Ledger, "wants_receipt", "{name.author, *entry.receipts}", "entry.receipts"),
    ],
    "entries travel without their receipts": [
        Change(peers, "copied", "dict(entry.receipts)", "{}"),
        Change(comparing, "copied", "dict(entry.receipts)", "{}"),
    ],
    "a receipt is signed, and nothing passed on": [
        Change(Peer, "vouch", "if (self.ledger.clock > name.round or self.world.schedule.slow) and", "if False and"),
        Change(comparing, "different", "theirs.checks.get(round) != check", "round == ledger.clock"),
    ],
    "accepted although unproven": [
        Change(Ledger, "take", "is Standing.WANTED", "in (Standing.WANTED, Standing.UNPROVEN)"),
    ],
    "accepted without bytes": [Change(Peer, "hear", "self.ledger.offer if blob is None else", "")],
    "two versions without bytes keep the third out": [
        Change(
            Ledger,
            "offer",
            "if self._in_time(kept_entry):",
            "if self._in_time(kept_entry) and len(others) < VERSIONS_KEPT:",
        ),
        Change(Ledger, "_hold", "if not versions_known and not rivals:", "if True:"),
    ],
    "of two versions the first counts": [Change(Ledger, "chosen", "len(versions) == 1 and", "")],
    "a revocation forgotten on catching up": [
        Change(CatchingUp, "decide", "self.on_revocations(self.me, answer.revocations)", "pass"),
        Change(Peer, "on_compare", "self.on_revocations(self.me, revocations)", "pass"),
    ],
    "a revocation reckoned from the receiver's clock": [
        Change(
            Ledger,
            "_revoked",
            "revocation.effective(self.window)",
            "max(revocation.start, self.clock - self.window.revocable)",
        ),
    ],
    "a revocation reaches as far back as it likes": [
        Change(Revocation, "effective", "max(self.start, self.issued - window.revocable)", "self.start"),
    ],
    "a revocation reaches into rounds that some have folded": [
        Change(Window, "revocable", "self.width - SKEW", "self.width + 1"),
    ],
    "error feedback returned twice": [Change(Authored, "adopt", "self.sent.pop(round)", "self.sent[round]")],
    "returned, and not taken again when it counts after all": [
        Change(Authored, "adopt", "if ledger.history.has(ledger.me, round)]\n    self", "if False]\n    self"),
    ],
    "error feedback returned after adopting alone, not after folding": [
        Change(Peer, "fold", "if rounds:", "if False:")
    ],
    "what was void and without bytes before a restart has them after it": [
        Change(Disk, "restore", "hear = peer.ledger.offer", "hear = peer.ledger.take"),
    ],
    "own contribution on disk after it is published": [
        Change(
            Peer,
            "persist_sent",
            "self.disk.keep_sent(round, entry, sent, self.state)",
            f"{LATER}self.disk.keep_sent(round, entry, sent, self.state))",
        ),
    ],
    "a receipt is handed out before what it is for is on disk": [
        Change(
            Peer,
            "persist_accepted",
            "self.disk.keep_accepted(entry, self.blobs.get(entry.sha256))",
            f"{LATER}self.disk.keep_accepted(entry, self.blobs.get(entry.sha256)))",
        ),
    ],
    "rounds folded in the wrong order": [
        Change(Peer, "fold", "for round in rounds:", "for round in rounds[::-1]:"),
        Change(Ledger, "fold", "if round != self.folded + 1:", "if False:"),
        Change(Ledger, "fold", "self.folded = round", "self.folded = max(self.folded, round)"),
    ],
    "a snapshot adopted without checking it against claims": [
        Change(CatchingUp, "trusts", "donor.digest() == standing", "True"),
    ],
    "the state with the most contributions claimed stands": [
        Change(history, "prevailing", "-sum(claim.author for claim in claims), ", "0, "),
    ],
    "one liar's word is enough to doubt": [
        Change(comparing, "outvoted", "prevailing([mine, *others])", "([mine, *others])[-1].digest"),
        Change(comparing, "outvoted", "votes > liars or all_have_spoken", "True"),
    ],
    "who has forgotten a round, or not closed it yet, does not count": [
        Change(Peer, "doubt", "len(said) == len(others)", "True"),
        Change(CatchingUp, "decide", "folded in useful[other].claims for other", "True for other"),
    ],
    "who was there all the time judges anew what it accepted": [
        Change(CatchingUp, "decide", "elif self.up:", "elif False:"),
    ],
    "what was promised is passed on only after catching up": [
        Change(Peer, "start", "self.keep_promises()", "pass"),
    ],
    "what is found on disk is in time however late it is": [
        Change(Ledger, "reconsider", "entry.vouched = ", "entry.vouched |= "),
    ],
    "newcomers are waited for until they speak of closed rounds": [
        Change(Peer, "abreast", "if self.clocks.get(other, clock) >= clock - SKEW", ""),
    ],
    "a newcomer adopts a state that nobody honest may have named": [
        Change(catching_up, "latest_standing", "len(standing) >= needed or", "standing or"),
    ],
    "one that is far behind speaks for one that has said nothing": [
        Change(
            CatchingUp,
            "decide",
            "all(other in useful and folded in useful[other].claims for other in self.abreast(clock))",
            "sum(claim.folded == folded for claim in claims) >= len(self.abreast(clock))",
        ),
    ],
    "one liar vouches": [Change(CatchingUp, "decide", "count >= needed for", "count >= 1 for")],
    "naming an entry twice gives two votes": [
        Change(
            catching_up,
            "_votes",
            "{(entry.name, entry.sha256): None for entry in answer.entries}",
            "[(entry.name, entry.sha256) for entry in answer.entries]",
        ),
    ],
    "those who catch up themselves vouch": [Change(CatchingUp, "decide", ">= needed:  #", "< 0:  #")],
    "an author that was away keeps what only it has": [
        Change(Ledger, "reconsider", "self._keep(self._in_time)", ""),
    ],
    "one liar pushes the clock": [
        Change(comparing, "common_round", "rounds[min(liars, len(rounds) - 1)]", "rounds[0]")
    ],
    "anybody's word about its round moves the clock": [
        Change(Peer, "credible_clock", "[other for other in there if self.world.schedule.may_author(other)]", "there"),
        Change(comparing, "borne_out", "min(said.get(peer, 0), round + 1)", "said.get(peer, 0)"),
        Change(comparing, "borne_out", "if round]", "]"),
    ],
    "who is revoked has a word still": [Change(Peer, "credible_clock", "if other not in gone", "")],
    "a peer that is late goes on without catching up": [
        Change(Peer, "see", "self.fall_behind()", "self.advance(target)"),
        Change(Peer, "start", "self.fall_behind()", "self.go()"),
    ],
    "a clock that ran ahead stays ahead": [
        Change(Peer, "runs_ahead", "bool(lately)", "False"),
        Change(Ledger, "adopt", "min(self.clock, folded + 1 + self.window.width)", "self.clock"),
    ],
    "what is lost on the way is never asked for": [
        Change(Peer, "on_keys", "self.up and", "False and"),
    ],
}


@contextmanager
def planted(mutant: str) -> Iterator[None]:
    """Run with an error in place."""
    saved = []
    try:
        for change in MUTANTS[mutant]:
            present = inspect.getattr_static(change.owner, change.name)
            saved.append((change.owner, change.name, present))
            setattr(change.owner, change.name, _changed(present, change, saved))
        yield
    finally:
        for owner, name, original in reversed(saved):
            setattr(owner, name, original)


SOURCES: dict[object, str] = {}


def _changed(present: object, change: Change, saved: list[tuple[object, str, object]]) -> object:
    function = present.fget if isinstance(present, property) else present
    source = SOURCES.get(function) or textwrap.dedent(inspect.getsource(function))
    if change.old not in source:
        raise ValueError(f"{change.name} has no {change.old!r} any more: mend the mutant")
    source = source.replace(change.old, change.new)
    made: dict[str, object] = {}
    exec(source, function.__globals__, made)
    SOURCES[made[change.name] if not isinstance(made[change.name], property) else made[change.name].fget] = source
    return made[change.name]


def kills(mutant: str, seed: int) -> bool:
    """Whether the schedule of a seed tells the mutant from the protocol. An exception does."""
    with planted(mutant):
        try:
            return bool(run(draw(seed)))
        except Exception:
            return True


def first_kill(mutant: str, seeds: range) -> int | None:
    """The first seed that kills it."""
    return next((seed for seed in seeds if kills(mutant, seed)), None)
