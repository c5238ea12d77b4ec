"""An answer by a moment, whatever hangs."""

import asyncio

import pytest

from trunkline.in_time import in_time


async def test_in_time_returns_the_works_result_or_raises_its_exception() -> None:
    async def work() -> int:
        return 7

    async def fail() -> int:
        raise KeyError("x")

    assert await in_time(60.0, work()) == 7
    with pytest.raises(KeyError):
        await in_time(60.0, fail())


async def test_in_time_does_not_wait_for_work_that_ignores_cancellation() -> None:
    released = asyncio.Event()

    async def deaf() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(TimeoutError):
        await in_time(0.001, deaf())
    released.set()


async def test_cancelling_in_time_cancels_its_work() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asked = asyncio.create_task(in_time(60.0, work()))
    await began.wait()
    asked.cancel()
    await ended.wait()
    with pytest.raises(asyncio.CancelledError):
        await asked
