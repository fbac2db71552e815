"""A schedule: who takes part and what goes wrong when. Drawn from a seed, and small enough to read."""

from dataclasses import dataclass, replace
from random import Random

from protocol.identity import PeerId
from protocol.outer.window import SKEW, Window

NOBODY = PeerId("")
AUTHOR, STANDBY, LIAR, JOINER, STRANGER = "author", "standby", "liar", "joiner", "stranger"

LUCK = 10**10
"""Seeds that are equal but for multiples of it have one schedule, and other delays: what took a million schedules to
find once is found again when the protocol's messages are others."""

STRANGERS = 10**12
"""From this seed on, schedules have strangers: more names than may lie, which contribute nothing and say that they are
in rounds that they are not in."""


@dataclass(frozen=True, slots=True)
class Event:
    """At `time` (in rounds of an undisturbed run) something happens to `who`. The rest depends on `kind`:

    crash     the process dies, and starts again after `length`; 0: never
    torn      it dies while publishing its next contribution: `other` alone hears of it, who, if it is a liar, keeps it
              for the first of `side` until that one is `number` rounds further
    gasp      it dies, for a moment, while passing on what came late: again `other` alone hears of it
    wipe      as crash, and its disk is lost
    pause     the process stops for `length`, and wakes up with its old clock
    part      it hears nobody on the other side for `length`; its own side are the peers of `side`
    join      a newcomer starts
    leave     a clean leave
    revoke    the operator takes out the author, from `number` rounds before its own round on
    and of liars: withhold, equivocate, three, bytes, clock, claim, snapshot, late (see `liars.py`).
    """

    time: float
    kind: str
    who: PeerId
    other: PeerId = NOBODY
    length: float = 0.0
    number: int = 0
    side: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """`calm`: every message between honest peers that are there takes less than SKEW rounds, as `window.py` assumes.
    `united`: those between whom that is so even if it is not calm. Where liars lie about their own state, more authors
    than there are liars must be, or nobody can tell which state is the true one. `slow`: in calm schedules, those whom
    every contribution reaches at the last moment allowed: SKEW rounds after its sender's clock.
    """

    seed: int
    window: Window
    roles: dict[PeerId, str]
    rounds: int
    calm: bool
    loss: float
    repeats: float
    united: frozenset[PeerId]
    slow: frozenset[PeerId]
    events: tuple[Event, ...]
    secretive: bool = False
    """Liars say nothing of what few have heard of, not even to who asks for everything."""

    def honest(self) -> list[PeerId]:
        return [peer for peer, role in self.roles.items() if role not in (LIAR, STRANGER)]

    def may_author(self, peer: PeerId) -> bool:
        """Whether what a peer contributes counts."""
        return self.roles[peer] not in (STANDBY, STRANGER)

    def of(self, role: str) -> list[PeerId]:
        return [peer for peer, its in self.roles.items() if its == role]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.window}, {self.rounds} rounds, {'calm' if self.calm else 'wild'}"]
        lines += [f"  loss {self.loss}, repeats {self.repeats}, {self.roles}"]
        return "\n".join(lines + [f"  {event}" for event in self.events])


WORDS = ("clock", "claim", "snapshot")
"""Lies about the liar's own state."""
LIES = ("withhold", "withhold", "equivocate", "equivocate", "three", "bytes", "clock", "claim", "snapshot", "late")


def draw(seed: int) -> Schedule:
    """The schedule of a seed. Negative ones are of a family of their own, which chance alone would hardly draw."""
    random = Random(seed)
    if seed < 0:
        return _last_words(random, seed)
    if seed >= STRANGERS:
        return _with_strangers(random, draw(seed - STRANGERS))
    if seed >= LUCK:
        return replace(draw(seed % LUCK), seed=seed)
    liars = random.choice((0, 1, 1, 1, 2))
    calm = random.random() < 0.5
    window = Window(SKEW + (random.random() < 0.2), liars)
    core = liars + 1 + (liars == 0)  # honest authors that are always there: more than the liars
    authors = core + random.randint(0, 2 - (liars == 2))
    standbys = random.choice((0, 0, 1))
    joiners = random.choice((0, 0, 1))
    counts = ((AUTHOR, authors), (STANDBY, standbys), (LIAR, liars), (JOINER, joiners))
    roles = dict(zip(map(PeerId, "abcdefgh"), [role for role, count in counts for _ in range(count)], strict=False))
    rounds = random.randint(3, 6)
    united: list[PeerId] = []
    loss, repeats = 0.0 if calm else random.choice((0.0, 0.05, 0.2)), random.choice((0.0, 0.1))
    schedule = Schedule(seed, window, roles, rounds, calm, loss, repeats, frozenset(), frozenset(), ())
    lies = _lies(random, schedule)
    if calm or any(lie.kind in WORDS for lie in lies):
        united = schedule.of(AUTHOR)[:core]
    slow = random.sample(schedule.of(AUTHOR)[:core], random.randint(0, core - 1)) if calm else []
    events = sorted([*lies, *_faults(random, schedule, core, united)], key=lambda event: event.time)
    return replace(schedule, united=frozenset(united), slow=frozenset(slow), events=tuple(events))


def _with_strangers(random: Random, schedule: Schedule) -> Schedule:
    """They follow the rounds as anybody, and lie about their own from some moment on."""
    strangers = map(PeerId, "nopq"[: schedule.window.liars + 1 + random.randint(0, 1)])
    roles = schedule.roles | dict.fromkeys(strangers, STRANGER)
    lies = [
        Event(random.uniform(0, schedule.rounds), "clock", peer, number=random.randint(0, 2))
        for peer, role in roles.items()
        if role == STRANGER
    ]
    events = tuple(sorted([*schedule.events, *lies], key=lambda event: event.time))
    return replace(schedule, seed=schedule.seed + STRANGERS, roles=roles, events=events)


def _last_words(random: Random, seed: int) -> Schedule:
    """An author dies publishing, a witness passing on, and only a liar hears them: it tells the witness of the author's
    contribution when a receipt is needed, and a victim when the witness's is needed too."""
    liars = random.choice((1, 1, 2))
    window, authors = Window(SKEW, liars), [PeerId(each) for each in "abcd"[: liars + 2]]
    witness, heard = PeerId("w"), [PeerId(each) for each in "xy"[:liars]]
    roles = dict.fromkeys(authors, AUTHOR) | {witness: STANDBY} | dict.fromkeys(heard, LIAR)
    asked, late = window.grace + random.randint(0, SKEW), window.width - random.randint(0, 1)
    events = (
        Event(0.1, "gasp", witness, heard[0], random.uniform(0.1, 0.3), late, (random.choice(authors[:-1]),)),
        Event(random.uniform(0.2, 3), "torn", authors[-1], heard[0], 0.0, asked, (witness,)),
    )
    rounds, nobody = random.randint(3, 6), frozenset[PeerId]()
    return Schedule(seed, window, roles, rounds, True, 0.0, 0.0, frozenset(authors[:-1]), nobody, events, True)


def _faults(random: Random, schedule: Schedule, core: int, united: list[PeerId]) -> list[Event]:
    """What happens to honest peers. The first `core` authors are never lost, and in calm schedules always there."""
    events = []
    authors, rounds = schedule.of(AUTHOR), schedule.rounds
    expendable = [*authors[core:], *schedule.of(STANDBY)]

    def moment() -> float:
        return random.uniform(0.2, rounds)

    events += [Event(random.uniform(1, rounds + 5), "join", peer) for peer in schedule.of(JOINER)]
    for peer in expendable:
        kind = random.choice(("", "crash", "crash", "leave", "torn", "torn", "torn", "gasp", "wipe"))
        length = random.choice((0.0, random.uniform(0.05, 0.5), random.uniform(0.3, 6)))
        if kind in ("torn", "gasp") and schedule.of(LIAR):
            lie = _lie(random, schedule, moment(), kind, peer)
            length = 0.1 if kind == "gasp" else length
            liar = random.choice(schedule.of(LIAR))
            events.append(replace(lie, other=liar, side=(lie.other,), length=length))
        elif kind:
            other = random.choice([each for each in schedule.roles if each != peer])
            events.append(Event(moment(), kind, peer, other, length or (1.0 if kind in ("wipe", "gasp") else 0.0)))
    if random.random() < 0.15:
        suspects = authors[core:] + schedule.of(LIAR) or authors[:1]
        events.append(
            Event(random.uniform(0.2, rounds + 4), "revoke", random.choice(suspects), number=random.randint(-1, 12))
        )
    if not schedule.calm:
        events += [_wild(random, schedule, moment(), united) for _ in range(random.randint(1, 3))]
    return events


def _wild(random: Random, schedule: Schedule, time: float, united: list[PeerId]) -> Event:
    """A fault that may last for longer than the window stays open."""
    peers = [peer for peer, role in schedule.roles.items() if role != JOINER and peer not in united]
    length = random.choice((random.uniform(0.1, 2), random.uniform(2, 6), random.uniform(6, 12)))
    kind, who = random.choice(("part", "part", "part", "pause", "pause", "crash")), random.choice(peers)
    if kind != "part":
        return Event(time, kind, who, length=length)
    side = [peer for peer in peers if peer == who or random.random() < 0.5]
    return Event(time, kind, who, length=length, side=tuple(side))


def _lies(random: Random, schedule: Schedule) -> list[Event]:
    times = [random.uniform(0, schedule.rounds) for _ in range(2 * len(schedule.of(LIAR)))]
    liars = schedule.of(LIAR)
    return [_lie(random, schedule, time, random.choice(LIES), random.choice(liars)) for time in times]


def _lie(random: Random, schedule: Schedule, time: float, kind: str, liar: PeerId) -> Event:
    """`other` is the victim; `number` how many rounds late it hears, mostly just before or after a receipt more is
    needed."""
    window = schedule.window
    edges = [window.grace + SKEW * step + after for step in range(window.liars + 2) for after in (0, 0, 1)]
    number = random.choice((*edges, random.randint(0, window.width)))
    return Event(time, kind, liar, random.choice(schedule.of(AUTHOR) + schedule.of(STANDBY)), random.random(), number)
