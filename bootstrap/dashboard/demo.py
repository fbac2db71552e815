"""A made-up run to look at the dashboard with: as many peers as one likes, and what may go wrong. No peer of it exists.
Pure: it moves with the time that it is given."""

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from protocol.events.activity import NO_READINGS, DeviceReadings
from protocol.events.event import PeerState
from protocol.monitor import GroupView, LineView, PeerView, RoundView, RunState, View
from protocol.staffing import uneven_stages

Trouble = Literal["none", "short", "stalled"]
"""The trouble of a made-up run: none; a stage has too few volunteers; nobody is at a stage any more."""

DEMO_ROUNDS, DEMO_STEPS, DEMO_SECONDS = 40, 20, 45.0
"""The rounds of the run, the inner steps of one, and its duration in seconds."""

ROUNDS_BEHIND = 12.3
"""The rounds that the run has done when one begins to look."""

STEP_TOKENS = 16_384
"""The tokens of an inner step of one replica."""

STALLED_AFTER = 0.2
"""The part of the round after `ROUNDS_BEHIND` at which a run with trouble loses its volunteers."""

LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def demo_id(number: int) -> str:
    """A peer id of the form of libp2p's. The ends, which people see, are unlike each other."""
    state, name = 7919 * (number + 1), ""
    for _ in range(44):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        name += LETTERS[(state >> 16) % len(LETTERS)]
    return f"12D3KooW{name}"


@dataclass(frozen=True, slots=True)
class Cast:
    """The peers of a made-up run: volunteers first, by group and stage, then datacenters, then an observer."""

    peers: int
    trouble: Trouble = "none"

    @property
    def datacenters(self) -> int:
        """A datacenter for each sixty peers."""
        return max(1, self.peers // 60)

    @property
    def observers(self) -> int:
        """An observer, where there are ten peers."""
        return int(self.peers >= 10)

    @property
    def volunteers(self) -> int:
        """The number of all others."""
        return max(0, self.peers - self.datacenters - self.observers)

    @property
    def stages(self) -> int:
        """The number of stages: more, the larger the run."""
        return 2 if self.peers < 20 else 4 if self.peers < 200 else 8

    @property
    def groups(self) -> int:
        """The groups that the volunteers are enough for."""
        return self.volunteers // self.stages

    @property
    def bad_stage(self) -> int:
        """The stage that has the trouble."""
        return min(2, self.stages - 1)

    @property
    def bad_groups(self) -> range:
        """The groups that lose their member of that stage: the last quarter where it is short, all where the run is
        stalled."""
        lost = {"none": 0, "short": -(-self.groups // 4), "stalled": self.groups}[self.trouble]
        return range(self.groups - lost, self.groups)

    def members(self, group: int) -> range:
        """The peers of a group, by stage."""
        return range(group * self.stages, (group + 1) * self.stages)

    def is_whole(self, number: int) -> bool:
        """Whether a peer is a datacenter."""
        return self.volunteers <= number < self.volunteers + self.datacenters

    def is_observer(self, number: int) -> bool:
        """Whether a peer is an observer."""
        return number >= self.volunteers + self.datacenters


def demo_view(peers: int, now: float, began: float, trouble: Trouble = "none") -> View:
    """The run at the time `now`, in which one has looked since `began`; both are Unix seconds."""
    cast = Cast(peers, trouble)
    start = began - ROUNDS_BEHIND * DEMO_SECONDS
    halted = began + STALLED_AFTER * DEMO_SECONDS if trouble == "stalled" else math.inf
    done = max(0.0, min(float(DEMO_ROUNDS), (min(now, halted) - start) / DEMO_SECONDS))
    round, phase = min(int(done) + 1, DEMO_ROUNDS), done % 1
    state: RunState = "finished" if done >= DEMO_ROUNDS else "stalled" if now >= halted else "training"
    rows = [_peer(cast, number, round, phase, state, now, start) for number in range(peers)]
    groups = [_group(cast, group, rows) for group in range(cast.groups)]
    counts = dict.fromkeys(range(cast.stages), 0)
    for row in rows:
        if row.role == "volunteer" and row.state is not PeerState.LOST:
            counts[row.stage] += 1
    history = [_round(cast, number, start) for number in range(1, int(done) + 1)]
    if done < DEMO_ROUNDS:
        whole = _round(cast, round, start)
        history.append(_begun(whole, phase, rows, state == "stalled"))
    return View(
        run_id="3fa1c2e97b60" + "d5" * 26,
        now=now,
        started=start,
        stages=cast.stages,
        replicas=cast.groups + cast.datacenters,
        rounds=DEMO_ROUNDS,
        round=round,
        inner_steps=DEMO_STEPS,
        compression=32,
        tokens=sum(entry.tokens for entry in history),
        tokens_per_second=sum(
            row.tokens_per_second for row in rows if row.role == "datacenter" or (row.replica and row.stage == 0)
        ),
        peers=rows,
        groups=groups,
        short=uneven_stages(counts) if state != "finished" else "",
        history=history,
        log=_log(cast, int(done), start, halted if now >= halted else None),
        state=state,
        state_why=f"no replica is complete: waits for 1 volunteer of stage {cast.bad_stage} (0 of 1)"
        if state == "stalled"
        else "",
        state_since={"stalled": halted, "finished": start + DEMO_ROUNDS * DEMO_SECONDS}.get(state, start + 20),
        seconds_left=(DEMO_ROUNDS - done) * DEMO_SECONDS if state == "training" else None,
        made_up=True,
    )


def _chance(*key: object) -> float:
    """A number in [0, 1), always the same for one key."""
    return zlib.crc32(repr(key).encode()) / 2**32


def _strikes(cast: Cast, number: int, round: int) -> bool:
    """Whether a peer is lost for a part of a round, as happens in every large run."""
    return _chance("lost", number, round) < 0.003 and number < cast.groups * cast.stages


def _fate(cast: Cast, number: int, round: int, phase: float, run: RunState) -> tuple[PeerState, str]:
    """A peer's state and the reason: what becomes of it follows from its number and the round."""
    group, stage = divmod(number, cast.stages)
    is_member, is_whole = group < cast.groups, cast.is_whole(number)
    has_trouble = run == "stalled" or cast.trouble == "short"
    if has_trouble and ((group in cast.bad_groups and stage == cast.bad_stage) or (is_whole and run == "stalled")):
        return PeerState.LOST, "its connection broke without a goodbye, and it has said nothing since"
    if run == "finished":
        return PeerState.WAITING, ""
    if cast.is_observer(number):
        return PeerState.WAITING, "it follows the run, and contributes nothing"
    if has_trouble and group in cast.bad_groups:
        return PeerState.WAITING, f"waits for 1 volunteer of stage {cast.bad_stage} (0 of 1)"
    struck = next((mate for mate in cast.members(group) if _strikes(cast, mate, round)), None)
    if is_member and struck is not None and 0.3 < phase < 0.6:
        if struck == number:
            return PeerState.LOST, "nothing was heard of it for 12 s"
        return PeerState.WAITING, f"waits for another member of stage {struck % cast.stages}"
    if not is_member and not is_whole:
        return PeerState.WAITING, "it has no group yet"
    odd = _chance("odd", number)
    if odd < 0.01:
        return PeerState.CATCHING_UP, f"it has finished round {round - 3}, and most others round {round - 1}"
    if odd < 0.02:
        return PeerState.ON_TRIAL, "what it contributes does not count before an audit has found nothing wrong with it"
    return PeerState.TRAINING, ""


def _peer(cast: Cast, number: int, round: int, phase: float, run: RunState, now: float, start: float) -> PeerView:
    group, stage = divmod(number, cast.stages)
    is_member, is_whole, is_observer = group < cast.groups, cast.is_whole(number), cast.is_observer(number)
    state, why = _fate(cast, number, round, phase, run)
    trains = state in (PeerState.TRAINING, PeerState.ON_TRIAL)
    usual = 4310.0 if is_whole else 900.0 + 1100.0 * _chance("speed", group)
    speed = usual * (1 + 0.08 * math.sin(now / 6 + group)) if trains else 0.0
    share = (0.6 + 0.4 * _chance("credit", number)) / cast.stages
    warmth = _chance("warmth", number)
    return PeerView(
        id=demo_id(number),
        version="0.1.0",
        role="observer" if is_observer else "datacenter" if is_whole else "volunteer",
        stage=0 if is_whole or is_observer else stage,
        slot=group if is_member else number,
        replica=demo_id(group * cast.stages) if is_member else demo_id(number) if is_whole else "",
        state=state,
        why=why,
        round=round,
        step=int(phase * DEMO_STEPS) if trains else 0,
        loss=_loss(round + phase) if trains and (is_whole or stage == cast.stages - 1) else None,
        tokens_per_second=speed,
        up=speed * (410 + 23 * stage),
        down=speed * (395 + 31 * stage),
        sent=int((round - 1 + phase) * usual * 18_000),
        address=f"198.51.100.{number % 250}:7701",
        relayed=_chance("relay", number) < 0.2,
        joined=start + 20 + 300 * _chance("joined", number),
        heard=now - (20.0 if state is PeerState.LOST else _chance("heard", number, int(now))),
        credit=int((round - 1 + phase) * DEMO_STEPS * STEP_TOKENS * share) if is_member else 0,
        device=DeviceReadings(temperature=54.0 + 20 * warmth, battery=int(40 + 60 * warmth))
        if _chance("laptop", number) < 0.1
        else NO_READINGS,
    )


def _group(cast: Cast, group: int, rows: list[PeerView]) -> GroupView:
    mates = [rows[number] for number in cast.members(group)]
    lost = next((mate for mate in mates if mate.state is PeerState.LOST), None)
    return GroupView(
        replica=mates[0].id,
        slot=group,
        members=[mate.id for mate in mates],
        compression=32,
        broken=f"stage {lost.stage} is lost: nothing heard of peer {lost.id[-8:]}" if lost else "",
        slow=f"stage {cast.stages - 1} ({mates[-1].id[-8:]}) takes 3.1 s for a step, the others 1.2 s"
        if not lost and group % 40 == 7
        else "",
    )


def _loss(round: float) -> float:
    return 3.05 + 6.1 * math.exp(-round / 5) + 0.02 * math.sin(2.4 * round)


@lru_cache(maxsize=DEMO_ROUNDS)
def _round(cast: Cast, number: int, start: float) -> RoundView:
    """A round that has ended."""
    began = start + (number - 1) * DEMO_SECONDS
    members = range(cast.groups * cast.stages)
    lost = [member for member in members if _strikes(cast, member, number)]
    authors = [*members, *range(cast.volunteers, cast.volunteers + cast.datacenters)]
    authors = [author for author in authors if author not in lost]
    late = {author for author in authors if _chance("late", author, number) < 0.004}
    replicas = cast.groups + 2 * cast.datacenters
    return RoundView(
        round=number,
        began=began,
        ended=began + DEMO_SECONDS,
        loss=_loss(number),
        loss_plain=_loss(number) - 0.06 - 0.1 / number,
        evaluated_by=demo_id(cast.peers - 1),
        tokens=replicas * DEMO_STEPS * STEP_TOKENS,
        contributions={demo_id(author): DEMO_STEPS for author in authors if author not in late},
        late={demo_id(author): "its contribution came 9 s after the round had ended" for author in late},
        left={demo_id(member): "lost: nothing was heard of it for 12 s" for member in lost},
        pipeline_bytes=int(cast.groups * 1.7e8 * (1 + 0.03 * math.sin(number))),
        outer_bytes=int(len(authors) * 4.1e6),
        uncompressed_bytes=int(cast.groups * 9.8e9),
    )


def _begun(whole: RoundView, phase: float, rows: list[PeerView], halted: bool) -> RoundView:
    """The part of a round that is over: `phase` of it."""
    lost = {row.id: f"lost: {row.why}" for row in rows if row.state is PeerState.LOST and halted}
    return whole.model_copy(
        update={
            "ended": None,
            "loss": None,
            "loss_plain": None,
            "evaluated_by": "",
            "tokens": int(whole.tokens * phase),
            "contributions": {} if phase < 0.95 else whole.contributions,
            "late": {},
            "left": lost,
            "pipeline_bytes": int(whole.pipeline_bytes * phase),
            "outer_bytes": 0,
            "uncompressed_bytes": int(whole.uncompressed_bytes * phase),
        }
    )


def _log(cast: Cast, done: int, start: float, halted: float | None) -> list[LineView]:
    lines = [LineView(at=start + 20, kind="RunState", words="The run is training.", round=1)]
    for number in range(1, done + 1):
        entry = _round(cast, number, start)
        lines += [
            LineView(at=entry.began + 14, kind="Lost", words=f"Peer {peer[-8:]} is {why}", peer=peer, round=number)
            for peer, why in entry.left.items()
        ]
        words = f"Round {number} ended: {len(entry.contributions):,} contributions."
        lines.append(LineView(at=entry.began + DEMO_SECONDS, kind="RoundDone", words=words, round=number))
    if halted is not None:
        words = f"The run is stalled: no replica is complete: waits for 1 volunteer of stage {cast.bad_stage} (0 of 1)"
        lines.append(LineView(at=halted, kind="RunState", words=words, round=done + 1))
    return lines[-200:]
