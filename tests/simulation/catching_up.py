"""How a peer that comes new, was away, or is wrong, chooses among what the others answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mypy_extensions import trait

from protocol.identity import ContributionName, PeerId
from protocol.outer.history import Claim, History, latest_standing, outvoted
from protocol.outer.ledger import Entry, Revocation
from tests.simulation.arithmetic import Vector, digest
from tests.simulation.disk import copied

if TYPE_CHECKING:
    from tests.simulation.peer import Peer

ATTEMPTS = 5
"""How often to ask again when the answers do not fit together, as they may in the midst of a boundary."""
ANSWERS = 0.45
"""How long to wait for answers."""


@dataclass(slots=True)
class Answer:
    """What a donor tells one that catches up: its folded state, and all it has accepted since."""

    clock: int
    folded: int
    theta: Vector
    closed: dict[int, dict[PeerId, str]]
    history: History
    claims: dict[int, Claim]
    entries: list[Entry]
    blobs: dict[str, Vector]
    revocations: set[Revocation]
    up: bool
    """Whether the donor takes part, or is catching up itself."""

    def digest(self) -> str:
        return digest(self.theta, self.history)


@trait
class CatchingUp:
    """The part of a peer that talks to donors."""

    def resync(self: Peer) -> None:
        """This peer's folded state is not the one that stands."""
        if not self.catching:
            self.catch_up()

    def fall_behind(self: Peer) -> None:
        """What this peer's clock says is of no use: take part again when others have told where they are."""
        self.late = True
        self.up = False
        if not self.catching:
            self.catch_up()

    def catch_up(self: Peer) -> None:
        """Ask everybody."""
        self.catching = True
        self.attempts += 1
        self.answers = {}
        for other in self.world.others(self.me):
            self.world.send(self.me, other, "on_catching_up", self.me, self.ledger.clock)
        self.world.timer(ANSWERS, self, "decide")

    def on_catching_up(self: Peer, source: PeerId, clock: int) -> None:
        self.clocks[source] = clock
        if self.up or not self.newcomer:
            self.world.send(self.me, source, "on_answer", self.me, self.answer())

    def answer(self: Peer) -> Answer:
        ledger = self.ledger
        accepted = [copied(entry) for round in ledger.open_rounds() for entry in ledger.entries(round)]
        blobs = {each.sha256: self.blobs[each.sha256] for each in accepted if each.sha256 in self.blobs}
        history, revocations = ledger.history.copy(), set(ledger.revocations)
        theta, closed, claims = self.state.folded, dict(self.state.closed), self.claimed()
        return Answer(
            ledger.clock, ledger.folded, theta, closed, history, claims, accepted, blobs, revocations, self.up
        )

    def on_answer(self: Peer, source: PeerId, answer: Answer) -> None:
        if self.catching:
            self.answers[source] = answer

    def decide(self: Peer) -> None:
        """Adopt the state that stands, and accept what enough others have accepted since.

        Asks again while no state has the word of one honest peer, or an entry is known to some only. In the end it
        does with what it has; a state that liars alone may vouch for is adopted only if all have spoken of that round.
        """
        useful, last = self.answers, self.attempts >= ATTEMPTS
        needed = min(self.window.liars + 1, len(self.world.others(self.me)) or 1)
        if sum(answer.up for answer in useful.values()) >= needed:  # those who catch up themselves say nothing of use,
            useful = {donor: answer for donor, answer in useful.items() if answer.up}  # unless all have begun again
        answers = list(useful.values())
        if len(answers) < needed:
            return self.catch_up() if self.newcomer or not last else self.resume(0, {})
        clock = self.clock_of(useful)
        claims = [claim for answer in answers for claim in answer.claims.values()]

        def all_have_spoken(folded: int) -> bool:
            return last and all(other in useful and folded in useful[other].claims for other in self.abreast(clock))

        held = latest_standing(claims, needed, all_have_spoken)
        folded = held.folded if held is not None else self.ledger.folded
        adopting = held is not None and self.stands_against(held, claims, all_have_spoken(folded))
        donors = [answer for answer in answers if held and answer.folded == folded and self.trusts(answer, held.digest)]
        if held is None or (adopting and not donors):
            if self.newcomer or not last:
                return self.catch_up()
            adopting = False
        votes = _votes(answers)
        unclear = [(name, sha256) for (name, sha256), count in votes.items() if count < needed and name.round > folded]
        if not last and any(sha256 not in self.ledger.versions(name) for name, sha256 in unclear):
            return self.catch_up()
        for answer in answers:
            self.on_revocations(self.me, answer.revocations)
        if adopting:
            self.adopt(self.world.random.choice(donors))
        elif self.up:
            return self.stay()
        vouched = {key: count >= needed for key, count in votes.items()}
        return self.resume(clock, vouched)

    def stands_against(self: Peer, held: Claim, claims: list[Claim], all_have_spoken: bool) -> bool:
        """Whether a state that stands is later than this peer's, or stands instead of it."""
        mine = self.claims.get(held.folded)
        if mine is None:
            return held.folded > self.ledger.folded
        said = [claim for claim in claims if claim.folded == held.folded]
        return outvoted(mine, said, self.window.liars, all_have_spoken) is not None

    def clock_of(self: Peer, answers: dict[PeerId, Answer]) -> int:
        """The round that the donors are in, as far as the contributions that they show bear them out."""
        for answer in answers.values():
            for entry in answer.entries:
                self.shown[entry.name.author] = max(entry.name.round, self.shown.get(entry.name.author, 0))
        return self.credible_clock({donor: answer.clock for donor, answer in answers.items()})

    def stay(self: Peer) -> None:
        """This peer was there all the time, and its state stands after all: what it accepted, it accepted in time."""
        self.answers = {}
        self.attempts, self.catching = 0, False

    def trusts(self: Peer, donor: Answer, standing: str | None) -> bool:
        """Whether a snapshot is what it is said to be."""
        return donor.digest() == standing

    def adopt(self: Peer, donor: Answer) -> None:
        """Another's folded state instead of this peer's own. A peer that takes part does so loudly."""
        self.resyncs += self.up
        self.ledger.adopt(donor.folded, donor.history.copy())
        self.state.adopt(donor.theta, donor.closed)
        self.stale = set(self.ledger.open_rounds())
        self.claims = {}
        self.note_claim()
        self.account()

    def resume(self: Peer, clock: int, vouched: dict[tuple[ContributionName, str], bool]) -> None:
        """Take part from this clock on, with what others have accepted."""
        self.up = False
        closing = self.ledger.advance(clock)
        self.ledger.reconsider([key for key, enough in vouched.items() if enough])
        self.stale |= {*self.state.terms, *self.ledger.open_rounds()}
        for donor, answer in self.answers.items():
            for entry in answer.entries:
                enough = vouched.get((entry.name, entry.sha256), False)
                self.hear(copied(entry), answer.blobs.get(entry.sha256), donor, enough)
        self.answers = {}
        self.attempts, self.catching = 0, False
        self.fold(closing)
        self.settle()
        self.disk.checkpoint(self)
        self.go()


def _votes(answers: list[Answer]) -> dict[tuple[ContributionName, str], int]:
    """How many have accepted each entry. Naming one twice is one vote."""
    votes: dict[tuple[ContributionName, str], int] = {}
    for answer in answers:
        for key in {(entry.name, entry.sha256): None for entry in answer.entries}:
            votes[key] = votes.get(key, 0) + 1
    return votes
