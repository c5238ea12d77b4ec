"""Counts running calls and webhooks, so that a test can wait for their end instead of sleeping."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Activity:
    """Calls and webhooks register and deregister; background tasks are referenced and ended here."""

    def __init__(self) -> None:
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    def begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    async def idle(self) -> None:
        await self._idle.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn_later(self, delay_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def start() -> None:
            self._timers.discard(timer)
            self.spawn(work())

        timer = asyncio.get_running_loop().call_later(delay_s, start)
        self._timers.add(timer)

    async def cancel_all(self) -> None:
        for timer in self._timers:
            timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
