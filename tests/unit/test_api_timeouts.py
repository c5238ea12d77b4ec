"""A limit that costs nothing while there is nothing to wait for, and holds when there is."""

import asyncio

import pytest

from trunkline.api.body_guard import timeout_if_blocking


async def test_what_is_there_comes_at_once_and_without_a_limit() -> None:
    async def ready() -> str:
        return "here"

    # A limit of no time at all would end whatever waits.
    assert await timeout_if_blocking(0, ready) == "here"


async def test_what_comes_later_is_waited_for() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def late() -> str:
        await first.wait()
        second.set()
        await asyncio.sleep(0)
        return "late"

    asyncio.get_running_loop().call_soon(first.set)
    assert await timeout_if_blocking(60, late) == "late"
    assert second.is_set()


async def test_what_never_comes_ends_at_the_limit() -> None:
    left = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    with pytest.raises(TimeoutError):
        await timeout_if_blocking(0, never)
    assert left.is_set()


async def test_who_leaves_takes_the_work_along() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def never() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    asked = asyncio.create_task(timeout_if_blocking(60, never))
    await begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert left.is_set()


@pytest.mark.parametrize("waits_first", [False, True])
async def test_what_fails_fails_as_it_is(waits_first: bool) -> None:
    async def broken() -> None:
        if waits_first:
            await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await timeout_if_blocking(60, broken)


async def test_a_plain_awaitable_is_waited_for_too() -> None:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, 7)
    assert await timeout_if_blocking(60, lambda: done) == 7
