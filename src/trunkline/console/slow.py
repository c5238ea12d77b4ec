"""Answers that may take longer than a page should: asked once at a time, kept for a while, not waited for.

How far a campaign of a million leads is has to be counted. A page shows the last count there is; while there is none
yet it says so, and its live part brings it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from trunkline.clock import Clock
from trunkline.console.asking import Refused

FRESH_S = 10.0
PATIENCE_S = 0.05
KEPT_MAX = 1_000


@dataclass(slots=True)
class _Kept:
    asking: "asyncio.Task[Any] | None" = None
    answer: Any = None
    answered_at_s: float = float("-inf")


class SlowAnswers:
    def __init__(self, clock: Clock):
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def get(self, key: str, ask: Callable[[], Awaitable[Any]]) -> Any | None:
        """The newest answer; None if there is none yet. `Refused` if that is the answer."""
        kept = self._of(key)
        if kept.asking is None and self._clock.monotonic_s() - kept.answered_at_s >= FRESH_S:
            kept.asking = asyncio.create_task(self._ask(kept, ask))
        if kept.asking is not None:
            await asyncio.wait({kept.asking}, timeout=PATIENCE_S)
        if isinstance(kept.answer, Refused):
            raise kept.answer
        return kept.answer

    async def _ask(self, kept: _Kept, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            kept.answer = await ask()
        except Refused as refused:
            kept.answer = refused
        finally:
            kept.answered_at_s = self._clock.monotonic_s()
            kept.asking = None

    def _of(self, key: str) -> _Kept:
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return kept
