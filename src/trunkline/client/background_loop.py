"""An event loop in a thread of its own, on which the synchronous clients run their requests."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Thread-safe. A forked process has no such thread: there `run` raises, where it would wait for ever."""

    def __init__(self, name: str):
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError(
                f"This {self._name} is closed, or was made before the process forked. Make one in each process."
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self, shut: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Running requests of other threads end with CancelledError: without the loop they would never complete."""
        if not self._thread.is_alive():
            return
        self.run(_cancel_others())
        self.run(shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
