"""Polls all lanes once a second: the scan at the start, and the way to find a job whose wakeup was lost.

It runs beside the claims and never blocks them: an outbox full of dead rows makes a poll slow, while the worker claims
what wakeups name. Polls take at most 5 % of the time, so that they do not load such an outbox further; a poll that was
slow because the machine was does not count.
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

SAMPLES = 3


@dataclass(frozen=True, slots=True)
class PollLimits:
    probe_s: float = 1.0
    # The longest interval between two polls.
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
        self._costs_s: deque[float] = deque(maxlen=SAMPLES)
        self._wanted = asyncio.Event()

    def poll_now(self) -> None:
        """There may be a due job in any lane."""
        self._wanted.set()

    async def run_once(self) -> int:
        """Returns how many lanes have a waiting job."""
        self._wanted.clear()
        started_s = self._now_s()
        async with self._database.connection() as conn:
            surveys = await jobs.survey(conn, self._registry.runnable)
        now_s = self._now_s()
        self._costs_s.append(now_s - started_s)
        self._on_found(surveys, now_s)
        return len(surveys)

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(wait_s(self._costs_s, self._limits)):
                await self._wanted.wait()
        except TimeoutError:
            pass


def wait_s(costs_s: Sequence[float], limits: PollLimits) -> float:
    """By the cheapest of the last polls: all of them are expensive only if the outbox makes them so."""
    cost_s = min(costs_s) if len(costs_s) == SAMPLES else 0.0
    return min(limits.poll_s, max(limits.probe_s, cost_s / limits.share_max))
