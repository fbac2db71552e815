import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from protocol.net.tasks import Children, Notifier, apart, first_of, first_success, wait_at_most


class Life:
    """Work that lasts until it is cancelled, and then ends slowly."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = False

    async def go_on(self) -> None:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.ended = True


async def fail(error: Exception) -> None:
    raise error


def reports() -> list[dict[str, Any]]:
    """What asyncio reports from now on of errors that nobody awaits."""
    told = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    return told


# Children


def test_children_end_with_their_block_and_are_waited_for():
    async def main() -> None:
        life = Life()
        async with Children() as children:
            children.spawn(life.go_on())
            await life.begun.wait()
            assert len(children) == 1
        assert life.ended
        assert not children

    asyncio.run(main())


def test_children_end_with_a_block_that_fails_or_is_cancelled():
    async def main() -> None:
        failed, cancelled = Life(), Life()

        async def block(life: Life, error: Exception | None) -> None:
            async with Children() as children:
                children.spawn(life.go_on())
                await life.begun.wait()
                if error is not None:
                    raise error
                await asyncio.Event().wait()

        with pytest.raises(ValueError, match="so"):
            await block(failed, ValueError("so"))
        task = asyncio.create_task(block(cancelled, None))
        await cancelled.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert failed.ended
        assert cancelled.ended

    asyncio.run(main())


def test_what_children_start_at_their_end_ends_too():
    async def main() -> None:
        children, begun, life = Children(), asyncio.Event(), Life()

        async def parent() -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                children.spawn(life.go_on())

        children.spawn(parent())
        await begun.wait()
        await children.end()
        assert not children

    asyncio.run(main())


def test_a_child_that_fails_ends_alone_and_its_error_is_reported():
    async def main() -> None:
        told, life = reports(), Life()
        async with Children() as children:
            children.spawn(life.go_on())
            await asyncio.wait((children.spawn(fail(ValueError("lost"))),))
            gc.collect()
            assert [str(each["exception"]) for each in told] == ["lost"]
            assert not life.ended

    asyncio.run(main())


def test_an_error_at_the_end_is_reported():
    async def main() -> None:
        told, begun = reports(), asyncio.Event()

        async def end_badly() -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                raise ValueError("at the end")

        async with Children() as children:
            children.spawn(end_badly())
            await begun.wait()
        gc.collect()
        assert [str(each["exception"]) for each in told] == ["at the end"]

    asyncio.run(main())


def test_an_error_that_is_awaited_is_told_once():
    async def main() -> None:
        told, children = reports(), Children()
        with pytest.raises(ValueError, match="so"):
            await children.spawn(fail(ValueError("so")))
        gc.collect()
        assert not told

    asyncio.run(main())


# The first of several


def test_the_first_to_end_ends_the_others_which_are_waited_for():
    async def main() -> None:
        life = Life()
        await first_of(life.go_on(), life.begun.wait())
        assert life.ended

    asyncio.run(main())


def test_the_first_error_is_raised_in_the_order_of_the_arguments():
    async def main() -> None:
        told = reports()
        with pytest.raises(ValueError, match="one"):
            await first_of(fail(ValueError("one")), fail(ValueError("two")))
        gc.collect()
        assert [str(each["exception"]) for each in told] == ["two"]

    asyncio.run(main())


def test_a_cancelled_wait_cancels_them_all():
    async def main() -> None:
        lives = [Life(), Life()]
        waiting = asyncio.create_task(first_of(*(life.go_on() for life in lives)))
        for life in lives:
            await life.begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert all(life.ended for life in lives)

    asyncio.run(main())


def test_a_task_that_is_only_waited_for_goes_on():
    async def main() -> None:
        life = Life()
        async with Children() as children:
            task = children.spawn(life.go_on())
            await first_of(asyncio.wait((task,)), life.begun.wait())
            assert not task.done()

    asyncio.run(main())


# Waiting for so long


def test_what_lasts_too_long_is_cancelled_and_what_fails_says_so():
    async def main() -> None:
        life = Life()
        await wait_at_most(0.01, life.go_on())
        assert life.ended
        await wait_at_most(None, asyncio.sleep(0))
        with pytest.raises(ValueError, match="one"):
            await wait_at_most(10, fail(ValueError("one")))

    asyncio.run(main())


# Work apart


def test_who_is_cancelled_ends_though_its_work_swallows_that():
    async def swallows() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "ended as if nothing had been"

    async def main() -> None:
        async def go_on() -> None:
            while True:
                await apart(swallows())

        going_on = asyncio.create_task(go_on())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        going_on.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait((going_on,))
        assert going_on.cancelled()

    asyncio.run(main())


def test_work_apart_has_its_result_and_its_error():
    async def two() -> int:
        return 2

    async def main() -> None:
        assert await apart(two()) == 2
        with pytest.raises(ValueError, match="one"):
            await apart(fail(ValueError("one")))

    asyncio.run(main())


# The notifier


def test_a_ring_wakes_all_who_wait_and_a_wait_ends_in_time():
    async def main() -> None:
        news = Notifier()
        waiting = [asyncio.create_task(each) for each in (news.wait(), news.wait(60.0))]
        await news.wait(0.0)
        assert not any(task.done() for task in waiting)
        news.ring()
        async with asyncio.timeout(10):
            await asyncio.gather(*waiting)

    asyncio.run(main())


def test_a_condition_is_looked_at_after_each_ring():
    async def main() -> None:
        news, seen = Notifier(), list[int]()

        def holds() -> bool:
            seen.append(len(seen))
            return len(seen) == 3

        waiting = asyncio.create_task(news.until(holds))
        while not waiting.done():
            await asyncio.sleep(0)
            news.ring()
        assert len(seen) == 3

    asyncio.run(main())


def test_what_is_started_when_the_parent_has_ended_never_begins():
    """A call that is answered while its server stops may still start work."""

    async def main() -> None:
        begun, children = list[str](), Children()

        async def work() -> None:
            begun.append("work")

        await children.end()
        task = children.spawn(work())
        await asyncio.wait((task,))
        assert task.cancelled()
        assert not begun
        assert not children

    asyncio.run(main())


# Several attempts at one thing


async def give(what: str, after: asyncio.Event | None = None) -> str:
    if after is not None:
        await after.wait()
    return what


def test_the_first_attempt_that_succeeds_counts_and_the_others_end():
    async def scene() -> None:
        life = Life()

        async def never() -> str:
            await life.go_on()
            return "never"

        async def refuse() -> str:
            raise OSError("refused")

        assert await first_success([refuse, never, lambda: give("second")], 0.05, (OSError,)) == "second"
        assert life.ended
        assert await first_success([lambda: give("first"), never], 60.0, (OSError,)) == "first"

    asyncio.run(scene())


def test_an_earlier_attempt_may_still_succeed_when_all_later_ones_have_failed():
    async def scene() -> None:
        later = asyncio.Event()

        async def refuse() -> str:
            later.set()
            raise OSError("refused")

        assert await first_success([lambda: give("slow", later), refuse], 0.0, (OSError,)) == "slow"

    asyncio.run(scene())


def test_where_all_attempts_fail_the_first_ones_error_is_told_and_any_other_error_ends_all():
    async def scene() -> None:
        failing = [lambda: fail(OSError("one")), lambda: fail(OSError("two"))]
        with pytest.raises(OSError, match="one"):
            await first_success(failing, 0.0, (OSError,))
        with pytest.raises(ValueError, match="broken"):
            await first_success([lambda: fail(ValueError("broken")), lambda: fail(OSError("two"))], 60.0, (OSError,))

    asyncio.run(scene())
