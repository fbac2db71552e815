"""A run as its operator's node might see it: three groups of four stages, two datacenters, and what went wrong."""

import math
from dataclasses import replace

from protocol.events.event import PeerState
from protocol.monitor import GroupView, LineView, PeerView, RoundView, View

STAGES, GROUPS, ROUNDS, STEPS = 4, 3, 24, 30
BEGAN = 1_795_000_000.0
ROUND_SECONDS = 312.0
GROUP_TOKENS, WHOLE_TOKENS = 61_440 * 10, 61_440 * 22

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def peer_id(number: int) -> str:
    """Of the form of a libp2p id: the ends, which people see, are unlike each other."""
    state, name = 7919 * (number + 1), ""
    for _ in range(44):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        name += ALPHABET[(state >> 16) % len(ALPHABET)]
    return f"12D3KooW{name}"


LEADERS = [peer_id(group * STAGES) for group in range(GROUPS)]
LOST = peer_id(STAGES + 2)
"""Stage 2 of the second group."""


def view(round: int = 13, lost: bool = False, why: str = "", states: dict[str, PeerState] | None = None) -> View:
    """In the midst of a round; `lost`: a member has just been killed. `why` is what that member says of itself."""
    now = BEGAN + (round - 1) * ROUND_SECONDS + 140
    step = 0 if lost else 14
    peers = [
        _volunteer(number, round, 14 if number // STAGES != 1 else step, now, lost, why)
        for number in range(GROUPS * STAGES)
    ]
    peers += [_whole(number, round, now) for number in (40, 41)]
    peers.append(
        PeerView(
            id=peer_id(50), role="volunteer", stage=1, state=PeerState.WAITING,
            why="a standby: all groups have a stage 1", round=round, joined=BEGAN + 900, heard=now - 2,
            address="84.112.6.30:7701", relayed=True, credit=380_000,
        )
    )  # fmt: skip
    peers.append(
        PeerView(
            id=peer_id(51), role="observer", state=PeerState.TRAINING, round=round, joined=BEGAN + 60, heard=now - 1
        )
    )
    peers.append(
        PeerView(
            id=peer_id(52), role="volunteer", stage=3, state=PeerState.GONE, why="its owner stopped it", round=9,
            joined=BEGAN + 30, heard=now - 1240, credit=2_410_000, sent=8_200_000_000,
        )
    )  # fmt: skip
    peers = [replace(each, state=(states or {}).get(each.id, each.state)) for each in peers]
    broken = f"stage 2 is lost: nothing heard of peer {LOST[-8:]} for 12 s" if lost else ""
    groups = [
        GroupView(
            replica=LEADERS[group],
            slot=group,
            members=[peer_id(group * STAGES + stage) for stage in range(STAGES)],
            compression=(50, 50, 32)[group],
            broken=broken if group == 1 else "",
        )
        for group in range(GROUPS)
    ]
    history = [_round(number, number == round, lost) for number in range(1, round + 1)]
    return View(
        run_id="3fa1c2e97b60" + "d5" * 26,
        now=now,
        started=BEGAN,
        stages=STAGES,
        replicas=GROUPS + 2,
        rounds=ROUNDS,
        round=round,
        inner_steps=STEPS,
        compression=50,
        tokens=sum(each.tokens for each in history),
        tokens_per_second=sum(each.tokens_per_second for each in peers if each.stage == 0),
        peers=peers,
        groups=groups,
        history=history,
        log=_log(round, lost, now),
        state="training",
        state_since=BEGAN + 130,
    )


def _volunteer(number: int, round: int, step: int, now: float, lost: bool, why: str) -> PeerView:
    group, stage = divmod(number, STAGES)
    dead, halted = lost and peer_id(number) == LOST, lost and group == 1
    speed = 0.0 if halted else (1969.0, 1820.0, 1431.0)[group]
    state = PeerState.LOST if dead else PeerState.WAITING if halted else PeerState.TRAINING
    reason = "nothing heard of it for 12 s" if dead else "for another member of stage 2" if halted else ""
    return PeerView(
        id=peer_id(number),
        role="volunteer",
        stage=stage,
        slot=group,
        replica=LEADERS[group],
        state=state,
        why=(why or reason) if peer_id(number) == LOST else reason,
        round=round,
        step=step,
        loss=None if stage < STAGES - 1 or halted else 3.41,
        tokens_per_second=speed,
        up=speed * (410 + 23 * stage),
        down=speed * (395 + 31 * stage),
        sent=int(round * 9.1e8 * (1 + 0.1 * stage)),
        address=f"93.184.{number}.7:7701",
        relayed=number % 5 == 3,
        joined=BEGAN + 40 + 11 * number,
        heard=now - (12 if dead else 1),
        credit=int((round - 1) * GROUP_TOKENS * (0.97 - 0.05 * group) / STAGES),
    )


def _whole(number: int, round: int, now: float) -> PeerView:
    return PeerView(
        id=peer_id(number), role="datacenter", slot=number, replica=peer_id(number), state=PeerState.TRAINING,
        round=round, step=17, loss=3.38, tokens_per_second=4310.0, up=2.1e6, down=2.4e6, sent=int(round * 2.2e9),
        address=f"198.51.100.{number}:7701", joined=BEGAN + 5, heard=now - 1,
    )  # fmt: skip


def _round(number: int, going_on: bool, lost: bool) -> RoundView:
    began = BEGAN + (number - 1) * ROUND_SECONDS
    authors = [*LEADERS, peer_id(40), peer_id(41)]
    late = {LEADERS[2]: "its contribution came 21 s after the window had closed"} if number in (4, 9) else {}
    left = {peer_id(52): "its owner stopped it"} if number == 9 else {}
    if lost and going_on:
        left = {LOST: "nothing heard of it for 12 s; its group looks for another stage 2"}
    done = {} if going_on else {author: STEPS - 6 * (author == LEADERS[2]) for author in authors if author not in late}
    loss = 3.05 + 6.1 * math.exp(-number / 3.6) + 0.02 * math.sin(2.4 * number)
    share = 0.45 if going_on else 1.0
    return RoundView(
        round=number,
        began=began,
        ended=None if going_on else began + ROUND_SECONDS - 6 + 14 * (number in (4, 9)),
        loss=None if going_on else loss,
        loss_plain=None if going_on else loss - 0.06 - 0.1 / number,
        tokens=int(share * (GROUPS * GROUP_TOKENS + 2 * WHOLE_TOKENS)),
        contributions=done,
        late=late,
        left=left,
        pipeline_bytes=int(share * 5.3e9 * (1 + 0.03 * math.sin(number))),
        outer_bytes=int((not going_on) * 4.1e8),
        uncompressed_bytes=int(share * 3.4e11),
    )


def _log(round: int, lost: bool, now: float) -> list[LineView]:
    lines = [
        LineView(at=BEGAN + 130, kind="GroupFormed", words="Four stages found each other.", peer=LEADERS[0], round=1),
        LineView(
            at=BEGAN + 9 * ROUND_SECONDS - 20, kind="Left", words="Its owner stopped it.", peer=peer_id(52), round=9
        ),
        LineView(
            at=BEGAN + 9 * ROUND_SECONDS + 15,
            kind="Late",
            words="Its contribution came 21 s after the window had closed: it counts in the next round.",
            peer=LEADERS[2],
            round=9,
        ),
        LineView(
            at=now - 130,
            kind="RoundDone",
            words=f"Round {round - 1} ended: five contributions of five replicas.",
            round=round - 1,
        ),
    ]
    if lost:
        words = (
            "Stage 2 of its group is lost: nothing heard of it for 12 s. Step 15 is rolled back; looking for another."
        )
        lines.append(LineView(at=now - 1, kind="GroupBroken", words=words, peer=LOST, round=round))
    return lines
