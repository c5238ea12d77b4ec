"""Loops: they go on after a failure, log it once, and end when they are stopped."""

import asyncio

import pytest
import structlog

from trunkline.loops.base import Loop


class Scripted(Loop):
    """Fails as often as it is told to, then works; says when it has run."""

    name = "scripted"

    def __init__(self, failures: int = 0, interval_s: float = 0.001):
        super().__init__(interval_s)
        self.failures = failures
        self.ran = 0
        self.runs = asyncio.Condition()

    async def run_once(self) -> int:
        async with self.runs:
            self.ran += 1
            self.runs.notify_all()
        if self.ran <= self.failures:
            raise RuntimeError("not now")
        return 1

    async def until(self, count: int) -> None:
        async with self.runs:
            await self.runs.wait_for(lambda: self.ran >= count)


async def test_a_loop_goes_on_after_a_failure_and_reports_it_once() -> None:
    loop = Scripted(failures=3)
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(loop.run())
        await loop.until(5)
        loop.stop()
        await task
    assert [entry["event"] for entry in logs] == ["loop.failed", "loop.recovered"]


async def test_stop_ends_a_waiting_loop_at_once() -> None:
    loop = Scripted(interval_s=3600.0)
    task = asyncio.create_task(loop.run())
    await loop.until(1)
    await asyncio.sleep(0)
    loop.stop()
    await asyncio.wait_for(task, 5.0)
    assert loop.ran == 1


async def test_a_stopped_loops_task_is_not_cancelling() -> None:
    """Whoever cleans up after it asks: only what was cancelled is in a hurry."""
    loop = Scripted(interval_s=3600.0)

    async def run() -> int:
        await loop.run()
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    task = asyncio.create_task(run())
    await loop.until(1)
    await asyncio.sleep(0)
    loop.stop()
    assert await asyncio.wait_for(task, 5.0) == 0


async def test_cancelling_a_loop_from_outside_is_not_swallowed() -> None:
    loop = Scripted(interval_s=3600.0)
    task = asyncio.create_task(loop.run())
    await loop.until(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
