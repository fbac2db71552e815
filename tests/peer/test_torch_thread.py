"""The crossing between the loop and the torch thread."""

import asyncio
import threading

import pytest
import torch

from peer.torch_thread import TorchThread


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
