"""A peer's own line, in virtual time: limits that hold, frames that go first, and bulk that goes on all the same."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from protocol.errors import UserError
from protocol.limits import CALLS_PER_SECOND, CHUNK_BYTES
from protocol.net.bandwidth import (
    LEAST_PIECE_BYTES,
    LEAST_WINDOW_BYTES,
    SPREAD_MEGABITS,
    WINDOW_BYTES,
    WIRE,
    YIELD_SECONDS,
    Bandwidth,
)
from tests.reference.virtual_time import run

SECONDS = 60.0
TEN = 10e6 / 8
"""Bytes a second of 10 Mb/s."""


def now() -> float:
    return asyncio.get_running_loop().time()


class Sender:
    """Moves pieces for as long as the scene lasts, and counts their bytes on the wire."""

    def __init__(self, take: Callable[[int], Awaitable[None]], piece: Callable[[], int] = lambda: CHUNK_BYTES) -> None:
        self.take = take
        self.piece = piece
        self.wire = 0.0
        self.longest = 0.0

    async def go_on(self) -> None:
        while True:
            count, began = self.piece(), now()
            await self.take(count)
            self.wire += WIRE * count
            self.longest = max(self.longest, now() - began)
            await asyncio.sleep(0.0001)  # the network takes some time, too


async def play(*senders: Sender, seconds: float = SECONDS) -> None:
    tasks = [asyncio.create_task(each.go_on()) for each in senders]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("megabits", [1, 5, 80])
@pytest.mark.parametrize("what", ["send", "take", "send_frame", "take_frame"])
def test_a_limit_is_held_and_used(megabits: float, what: str):
    async def scene() -> float:
        sender = Sender(getattr(Bandwidth.of(megabits, megabits), what))
        await play(sender)
        return sender.wire

    assert run(scene()) == pytest.approx(megabits * 1e6 / 8 * SECONDS, rel=0.05)


def test_many_transfers_share_one_limit_evenly():
    async def scene() -> list[float]:
        bandwidth = Bandwidth.of(10, None)
        senders = [Sender(bandwidth.send, lambda: bandwidth.up.piece) for _ in range(8)]
        await play(*senders)
        return [each.wire for each in senders]

    shares = run(scene())
    assert sum(shares) == pytest.approx(TEN * SECONDS, rel=0.05)
    assert max(shares) < 1.1 * min(shares)


def test_without_a_limit_nothing_waits():
    async def scene() -> None:
        bandwidth, began = Bandwidth.of(None, None), now()
        for _ in range(10_000):
            await bandwidth.send(CHUNK_BYTES)
            await bandwidth.take(CHUNK_BYTES)
            await bandwidth.send_frame(CHUNK_BYTES)
        assert now() == began
        assert bandwidth.up.piece == CHUNK_BYTES

    run(scene())


def test_frames_go_before_everything_else_that_waits():
    async def scene() -> tuple[Sender, Sender]:
        bandwidth = Bandwidth.of(10, None)
        frames, bulk = Sender(bandwidth.send_frame), Sender(bandwidth.send, lambda: bandwidth.up.piece)

        async def now_and_then(count: int) -> None:
            await asyncio.sleep(1.0)
            began = now()
            await bandwidth.send_frame(count)
            frames.longest = max(frames.longest, now() - began)

        seldom = Sender(now_and_then)
        await play(seldom, *[bulk, *(Sender(bandwidth.send, lambda: bandwidth.up.piece) for _ in range(20))])
        return frames, bulk

    frames, _ = run(scene())
    assert frames.longest < 0.1  # one piece of bulk, not one of each of twenty


def test_bulk_has_its_share_of_a_limit_that_frames_alone_would_take():
    async def scene() -> tuple[float, float]:
        bandwidth = Bandwidth.of(10, None)
        frames, bulk = Sender(bandwidth.send_frame), Sender(bandwidth.send, lambda: bandwidth.up.piece)
        await play(frames, Sender(bandwidth.send_frame), bulk)
        return frames.wire, bulk.wire

    _, bulk = run(scene())
    assert bulk == pytest.approx(TEN * SECONDS / 8, rel=0.1)


def test_what_comes_in_is_acknowledged_on_the_way_out_and_counts_there():
    async def scene() -> float:
        bandwidth = Bandwidth.of(1, 20)
        sender = Sender(bandwidth.send)
        await play(sender, Sender(bandwidth.take))
        return sender.wire

    assert run(scene()) == pytest.approx((1e6 - 0.022 * 20e6) / 8 * SECONDS, rel=0.1)


def test_while_steps_run_bulk_is_spread_and_its_pieces_are_small():
    async def scene() -> None:
        bandwidth = Bandwidth()
        bandwidth.begin_steps()
        assert bandwidth.up.piece == LEAST_PIECE_BYTES
        bulk = Sender(bandwidth.send, lambda: bandwidth.up.piece)
        await play(bulk)
        assert bulk.wire == pytest.approx(WIRE * SPREAD_MEGABITS * 1e6 / 8 * SECONDS, rel=0.05)
        bandwidth.end_steps()
        began = now()
        for _ in range(1000):
            await bandwidth.send(CHUNK_BYTES)
        assert now() == began

    run(scene())


@pytest.mark.parametrize(
    ("frames", "limit"), [(0.0, None), (1e6, None), (100e6, None), (0.0, 1), (0.0, 40), (10e6, 1000)]
)
def test_while_steps_run_bulk_is_asked_for_at_its_rate_and_no_more_often_than_others_allow(
    frames: float, limit: float | None
):
    async def scene() -> None:
        bandwidth = Bandwidth.of(None, limit)
        assert bandwidth.down.stretch == 0
        bandwidth.begin_steps()
        await bandwidth.take_frame(int(frames))
        await asyncio.sleep(1.0)
        bandwidth.end_steps()
        bandwidth.begin_steps()
        asked, began = 0, now()
        while now() - began < SECONDS:
            await bandwidth.take(bandwidth.down.stretch)
            asked += 1
        assert asked / SECONDS < CALLS_PER_SECOND / 2
        rate = min(bandwidth.down.spread, bandwidth.down.rate or bandwidth.down.spread)
        assert asked * bandwidth.down.stretch == pytest.approx(rate * SECONDS, rel=0.1)

    run(scene())


def test_what_waits_for_its_turn_goes_on_at_once_when_the_steps_end():
    async def scene() -> None:
        bandwidth = Bandwidth()
        bandwidth.begin_steps()
        await bandwidth.send(100 * CHUNK_BYTES)
        waiting = asyncio.create_task(bandwidth.send(CHUNK_BYTES))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        bandwidth.end_steps()
        before = now()
        await waiting
        assert now() == before

    run(scene())


def test_bulk_may_take_a_part_of_what_the_frames_take_and_what_the_last_round_needed_in_half_of_a_round():
    async def scene() -> None:
        bandwidth = Bandwidth()
        bandwidth.begin_steps()
        for _ in range(100):
            await bandwidth.send_frame(10_000_000)
            await asyncio.sleep(0.1)
        bandwidth.end_steps()
        assert bandwidth.up.spread == pytest.approx(25e6, rel=0.01)
        for _ in range(100):
            await bandwidth.send(10_000_000)
        await asyncio.sleep(10.0)
        bandwidth.begin_steps()
        assert bandwidth.up.spread == pytest.approx(100e6, rel=0.01)

    run(scene())


def test_bulk_waits_for_frames_that_are_unsent_but_not_for_ever():
    async def scene() -> None:
        bandwidth = Bandwidth()
        bandwidth.begin_steps()
        with bandwidth.up.sending():
            began = now()
            await bandwidth.send(1)
            assert now() - began == pytest.approx(YIELD_SECONDS)
            waiting = asyncio.create_task(bandwidth.send(1))
            await asyncio.sleep(YIELD_SECONDS / 2)
            assert not waiting.done()
        before = now()
        await waiting
        assert now() == before

    run(scene())


def test_who_gives_up_waiting_costs_the_others_nothing():
    async def scene() -> None:
        bandwidth = Bandwidth.of(1, None)
        await bandwidth.send(CHUNK_BYTES)
        given_up = [asyncio.create_task(bandwidth.send(CHUNK_BYTES)) for _ in range(10)]
        given_up += [asyncio.create_task(bandwidth.send_frame(CHUNK_BYTES)) for _ in range(10)]
        await asyncio.sleep(0.1)
        for each in given_up:
            each.cancel()
        began = now()
        await bandwidth.send(CHUNK_BYTES)
        assert now() - began < 1.2 * WIRE * CHUNK_BYTES * 8 / 1e6

    run(scene())


def test_a_sender_may_have_little_on_its_way_where_a_limit_is_to_hold():
    assert Bandwidth().window is None
    assert Bandwidth.of(5, None).window is None
    assert Bandwidth.of(None, 1).window == LEAST_WINDOW_BYTES
    assert Bandwidth.of(None, 40).window == 500_000
    assert Bandwidth.of(None, 10_000).window == WINDOW_BYTES


@pytest.mark.parametrize("megabits", [0.5, 0, -3, float("nan")])
def test_a_limit_that_others_would_take_for_a_hang_is_refused_in_words(megabits: float):
    with pytest.raises(UserError, match=r"--max-down .*: below 1 Mb/s .* 30 s after which others cut it off"):
        Bandwidth.of(5, megabits)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_everything_gets_its_turn_and_the_limit_holds(seed: int):
    async def scene() -> float:
        chance = random.Random(seed)
        bandwidth = Bandwidth.of(chance.choice([None, 2, 20]), chance.choice([None, 2, 20]))
        moves = [bandwidth.send, bandwidth.take, bandwidth.send_frame, bandwidth.take_frame]
        began, sent = now(), 0

        async def mover(number: int) -> None:
            nonlocal sent
            for _ in range(30):
                count, move = chance.randrange(1, CHUNK_BYTES), chance.choice(moves)
                try:
                    if chance.random() < 0.2:
                        await asyncio.wait_for(move(count), chance.random())
                    elif move == bandwidth.send_frame:
                        with bandwidth.up.sending():
                            await move(count)
                    else:
                        await move(count)
                except TimeoutError:
                    continue
                sent += count * (move in (bandwidth.send, bandwidth.send_frame))
                chance.choice([bandwidth.begin_steps, bandwidth.end_steps, int])()
                await asyncio.sleep(chance.random() / 10)

        async with asyncio.timeout(3600):
            await asyncio.gather(*(mover(number) for number in range(12)))
        rate = bandwidth.up.rate
        return WIRE * sent / rate / (now() - began) if rate else 0.0

    assert run(scene()) < 1.1
