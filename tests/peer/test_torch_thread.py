"""The crossing between the loop and the torch thread."""

import asyncio
import threading

import pytest
import torch

from peer import torch_thread as torch_threads
from peer.torch_thread import Throttle, TorchThread


def test_calls_run_one_at_a_time_in_order_on_one_thread_that_is_not_the_loops():
    async def scene() -> None:
        torch_thread = TorchThread(1)
        seen: list[tuple[int, int]] = []
        await asyncio.gather(
            *(torch_thread.run(lambda i=i: seen.append((i, threading.get_ident()))) for i in range(50))
        )
        assert [number for number, _ in seen] == list(range(50))
        assert {thread for _, thread in seen} - {threading.get_ident()} == {seen[0][1]}
        torch_thread.stop()

    asyncio.run(scene())


def test_errors_come_back():
    async def scene() -> None:
        torch_thread = TorchThread(1)
        try:
            await torch_thread.run(int, "no number")
        finally:
            torch_thread.stop()

    with pytest.raises(ValueError, match="no number"):
        asyncio.run(scene())


def test_the_torch_thread_has_the_cores_it_was_given():
    async def scene() -> int:
        torch_thread = TorchThread(2)
        try:
            return await torch_thread.run(torch.get_num_threads)
        finally:
            torch_thread.stop()

    assert asyncio.run(scene()) == 2


def test_a_cancelled_call_finishes_before_the_next_begins():
    async def scene() -> None:
        torch_thread = TorchThread(1)
        begun, go_on, order = threading.Event(), threading.Event(), []

        def slow() -> None:
            begun.set()
            go_on.wait()
            order.append("slow")

        task = asyncio.create_task(torch_thread.run(slow))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        go_on.set()
        await torch_thread.run(order.append, "next")
        assert order == ["slow", "next"]
        torch_thread.stop()

    asyncio.run(scene())


def test_a_throttled_thread_computes_for_its_share_of_the_time_and_gives_each_result_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def compute(seconds: float) -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(torch_threads, "monotonic", lambda: now[0])
    monkeypatch.setattr(torch_threads.time, "sleep", sleep)

    async def scene() -> list[float]:
        waited = list[None]()
        thread = TorchThread(1, throttle=Throttle(0.25, lambda: waited.append(None)))
        try:
            return [await thread.run(compute, 1.0) for _ in range(3)]
        finally:
            thread.stop()
            assert len(waited) == 3

    assert asyncio.run(scene()) == [1.0, 5.0, 9.0]
    assert slept == [0.0, 3.0, 3.0]
