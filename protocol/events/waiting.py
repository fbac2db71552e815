"""The waits of a peer, as events: `peer/swarm/waits.py` makes one for each occasion. Pure."""

from protocol.events.event import PRIVATE, Event, Level, event


@event(sinks=PRIVATE, cause="{until}")
class Waiting(Event):
    """This peer waits from now on for `what` it cannot do itself. `until`: what ends the wait, in words. So many are
    `here` of those `needed`; 0 and 0: they are not counted. It lasts `most_seconds`; None: as long as the swarm lacks
    them. `round`: the one whose end ends the wait; 0: none does. `brief`: it belongs to every round, and has not lasted
    long: no log keeps it."""

    what: str
    until: str = ""
    here: int = 0
    needed: int = 0
    most_seconds: float | None = None
    round: int = 0
    brief: bool = False

    @property
    def waits_for(self) -> str:
        """The wait, and what ends it: the words without the verb."""
        return f"{self.what}: {self.until}" if self.until else self.what

    @property
    def level(self) -> Level:
        return "debug" if self.brief else "info"

    @property
    def words(self) -> str | None:
        return None if self.brief else f"Waits for {self.waits_for}"

    @property
    def passing(self) -> str | None:
        return f"waits for {self.waits_for}" if self.brief else None

    @property
    def lasting_words(self) -> str:
        """The wait as a line without `--verbose`, once it has lasted long."""
        return f"Waiting for {self.waits_for}"

    def goes_on(self, before: "Waiting | None") -> bool:
        """Whether it is the wait `before`, perhaps with other numbers: with the same end, or for the same."""
        return (
            before is not None
            and before.round == self.round
            and (before.until == self.until or before.what == self.what)
        )


MEANWHILE = (
    "Meanwhile this machine keeps the newest state of its stage, and gives it to whoever needs it; that is no credit. "
    "If you want your machine back, Ctrl-C leaves: the others go on without it."
)
"""The use of a spare, and what its owner may do."""


@event(sinks=PRIVATE, cause="{until}")
class Spare(Waiting):
    """The wait of a volunteer for whom there is no seat. In JSON it is a `Waiting`."""

    name = "Waiting"

    @property
    def lasting_words(self) -> str:
        return f"Spare: {self.until}. {MEANWHILE}"
