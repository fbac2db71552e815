"""The reasons why this peer's own contributions to the rounds count or do not, in words, for its event log. Nothing is
decided here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from peer.swarm.rounds.parts import FollowedPart
from protocol.events.activity import Progress
from protocol.events.decisions import IDLE, Counted, NotCounted, WentOn
from protocol.events.event import Listener
from protocol.identity import ContributionName, Part, PeerId
from protocol.trust.records import PeerRecord

Parts = Mapping[Part, FollowedPart]

MOST_VERDICTS = 256
"""The number of verdicts that are remembered: more than there are open rounds and parts that a peer authors."""

ON_TRIAL = "it is on trial, and the run's operator has not let its contributions count yet"
REVOKED = "the run's operator has taken its contributions out"
VOID = "two contributions of its name are known, which void each other"
UNPROVEN = "it came late, and too few others have signed that it was there in time"
UNSEEN = "it came too late to be taken"
STAYS_IN_ERROR_FEEDBACK = "what it did stays in the error feedback, and a later contribution has it"
TOO_LATE = f"the others had closed the round before it was done; {STAYS_IN_ERROR_FEEDBACK}"
TWICE = f"that one stands, and {STAYS_IN_ERROR_FEEDBACK}"


def credit_objection(part: Part, followed: FollowedPart, round: int, me: PeerRecord) -> str:
    """Return why this peer's contribution to a part in an open round does not count as of now; empty: it does."""
    ledger, name = followed.ledger, ContributionName(part, round, me.peer_id)
    if me.peer_id in ledger.chosen(round):
        return ""
    if round not in followed.own:
        return IDLE
    if me.on_trial:
        return ON_TRIAL
    if any(one.author == me.peer_id and round >= one.effective(ledger.window) for one in ledger.revocations):
        return REVOKED
    if len(ledger.versions(name)) > 1:
        return VOID
    return UNPROVEN if me.peer_id in ledger.waiting.get(round, {}) else UNSEEN


@dataclass(slots=True)
class OwnCredit:
    """The verdicts that were emitted for each round and part: why the contribution does not count, or empty where it
    does. `given_up`: the rounds for which it was emitted whom this peer does not wait for. `is_idle`: it was emitted
    that this peer did nothing in a round, and it has done nothing since."""

    emit: Listener
    parts: Parts
    reported: dict[tuple[int, Part], str] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    is_idle: bool = False

    def withheld(self, round: int, withheld: Collection[Part]) -> None:
        """Emit that the work for these parts is not contributed. Where an earlier contribution is out, that one may
        count all the same."""
        again = sorted(str(part) for part in withheld if round in self.parts[part].own)
        if again:
            self.emit(Progress(f"round {round} again, after a contribution to {', '.join(again)}: {TWICE}"))
        late = [part for part in sorted(withheld) if round not in self.parts[part].own]
        self.reported |= {(round, part): TOO_LATE for part in late}
        if late:
            self.emit(NotCounted(round, [*map(str, late)], TOO_LATE))

    def look(self, round: int, me: PeerRecord) -> None:
        """Tell what is new: of this round, and of earlier ones that are still open."""
        changed: dict[tuple[int, str], list[str]] = {}
        for part, followed in self.parts.items():
            authored = {round, *(one for one in followed.own if followed.ledger.folded < one < round)}
            for at in sorted(authored) if followed.state.error_feedback else ():
                why, before = credit_objection(part, followed, at, me), self.reported.get((at, part))
                if before is None or why not in (before, IDLE):
                    self.reported[at, part] = why
                    if why or before:
                        changed.setdefault((at, why), []).append(str(part))
        for old in list(self.reported)[:-MOST_VERDICTS]:
            del self.reported[old]
        self.is_idle &= not any(round in followed.own for followed in self.parts.values())
        for (at, why), names in changed.items():
            if why != IDLE or not self.is_idle:
                self.emit(NotCounted(at, names, why) if why else Counted(at, names))
            self.is_idle |= why == IDLE

    def go_on(self, awaited: Mapping[Part, frozenset[PeerId]], round: int, why: str) -> None:
        """This peer waits no longer for those whose contributions are due."""
        here = {part: followed.ledger.accepted.get(round, {}).keys() for part, followed in self.parts.items()}
        without = sorted({str(peer) for part, due in awaited.items() for peer in due - here[part]})
        if without and round not in self.given_up:
            self.given_up = {old_round for old_round in self.given_up if old_round > round - MOST_VERDICTS} | {round}
            self.emit(WentOn(round, without, why))
