"""The lines of a peer's terminal without `--verbose`: one a round, changes of what the peer does, warnings and errors.
Each event says itself whether it is for everybody (`Event.plain`). Pure."""

from dataclasses import dataclass, field

from peer.telemetry.status import Status
from protocol.events.activity import Evaluated, Paused, RoundDone, StepDone
from protocol.events.event import Event, PeerState
from protocol.events.waiting import Spare, Waiting
from protocol.wording import lasting

CHANGE_SECONDS = 10.0
"""The length of a wait that is a change of what the peer does, in seconds, before a round shows what is usual."""


SPARE_SECONDS = 2.0
"""The time after which a spare's owner is told what that is, in seconds: its rounds say that it is one."""


@dataclass(slots=True)
class PlainLines:
    """The lines of one peer. `status` hears each event before."""

    status: Status
    _is_helping: bool = False
    """Whether the last line on what the peer does was that it helps."""
    _shown_wait: Waiting | None = None
    """The wait that the last such line was about; None: it was about none."""
    _tokens: dict[int, int] = field(default_factory=dict)
    """The tokens that this peer has helped with, by round: of the rounds that have not ended."""

    def take(self, event: Event, now: float) -> list[str]:
        """Follow an event of the peer's that comes `now`. Returns the lines that it gives."""
        lines = [event.plain] if event.plain is not None else []
        match event:
            case StepDone(round, _, _, tokens):
                self._tokens[round] = self._tokens.get(round, 0) + tokens
                if not self._is_helping:
                    lines.append(self._helping())
                self._is_helping, self._shown_wait = True, None
            case RoundDone(round) if self.status.role != "observer":
                lines.append(self._round_line(round, self._work(round), now))
            case Evaluated(round) if self.status.role == "observer":
                lines.append(self._round_line(round, "followed", now))
            case Paused():
                self._is_helping, self._shown_wait = False, None
            case _:
                pass
        if isinstance(event, RoundDone):
            self._tokens = {round: tokens for round, tokens in self._tokens.items() if round > event.round}
        return lines + self._wait_lines(now)

    def _helping(self) -> str:
        status = self.status
        if isinstance(self._shown_wait, Spare):
            return f"This peer has a seat now: helping with stage {status.stage}."
        return f"Helping with stage {status.stage}." if status.role == "volunteer" else "Helping with all stages."

    def _work(self, round: int) -> str:
        """The part of this peer in a round, in words."""
        if tokens := self._tokens.get(round, 0):
            return f"helped with {tokens:,} tokens"
        return "followed as a spare" if isinstance(self.status.waiting, Spare) else "followed"

    def _round_line(self, round: int, work: str, now: float) -> str:
        """The line of a round that has ended."""
        status = self.status
        loss = status.loss if round in self._tokens else None
        if status.role == "observer" and status.held_out is not None:
            loss = status.held_out[0]
        shown = [work]
        if loss is not None:
            shown.append(f"loss {loss:.2f}")
        if round == status.rounds:
            shown.append("the last")
        elif (seconds := status.seconds_left(now)) is not None:
            shown.append(f"about {lasting(seconds)} left")
        return f"Round {round} of {status.rounds}: {', '.join(shown)}"

    def _wait_lines(self, now: float) -> list[str]:
        """The line on the present wait, once it is longer than what belongs to every round."""
        waiting = self.status.waiting
        if waiting is None or waiting.goes_on(self._shown_wait):
            return []
        usual = self.status.last_round.seconds if self.status.last_round is not None else 0.0
        least = max(CHANGE_SECONDS, usual) if self.status.state != PeerState.STARTING else 0.0
        least = min(least, SPARE_SECONDS) if isinstance(waiting, Spare) else least
        if waiting.brief or now - self.status.waits_since < least:
            return []
        self._is_helping, self._shown_wait = False, waiting
        return [waiting.lasting_words]
