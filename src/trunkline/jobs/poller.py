"""Looks at everything, once a second: the scan at the start, and what finds a job whose wakeup was lost.

Beside the claims and never in their way: an outbox full of dead rows makes a poll slow, and what a wakeup
names meanwhile is claimed all the same. Polls take at most 5 % of the time, so that such an outbox is not made worse;
one that was slow because the machine was is no reason to poll less often.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trunkline.jobs.registry import Registry
from trunkline.loops.base import Loop
from trunkline.store import jobs
from trunkline.store.database import Database
from trunkline.store.jobs import Survey

REMEMBERED = 3


@dataclass(frozen=True, slots=True)
class PollLimits:
    probe_s: float = 1.0
    # A look is never put off for longer than this.
    poll_s: float = 30.0
    share_max: float = 0.05


class Poller(Loop):
    name = "job_survey"

    def __init__(
        self,
        database: Database,
        registry: Registry,
        limits: PollLimits,
        *,
        now_s: Callable[[], float],
        on_found: Callable[[Sequence[Survey], float], None],
    ):
        super().__init__(limits.probe_s)
        self._database = database
        self._registry = registry
        self._limits = limits
        self._now_s = now_s
        self._on_found = on_found
        self._costs_s: deque[float] = deque(maxlen=REMEMBERED)
        self._wanted = asyncio.Event()

    def look_now(self) -> None:
        """There may be something, and nobody knows where."""
        self._wanted.set()

    async def run_once(self) -> int:
        """How many lanes have a waiting job."""
        self._wanted.clear()
        started_s = self._now_s()
        async with self._database.connection() as conn:
            found = await jobs.survey(conn, self._registry.runnable)
        now_s = self._now_s()
        self._costs_s.append(now_s - started_s)
        self._on_found(found, now_s)
        return len(found)

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(wait_s(self._costs_s, self._limits)):
                await self._wanted.wait()
        except TimeoutError:
            pass


def wait_s(costs_s: Sequence[float], limits: PollLimits) -> float:
    """By the cheapest of the last few looks: all of them are dear only if the outbox makes them so."""
    cost_s = min(costs_s) if len(costs_s) == REMEMBERED else 0.0
    return min(limits.poll_s, max(limits.probe_s, cost_s / limits.share_max))
