"""Writes down how runs ended, many at a time.

What ends while a batch is being written goes into the next one. A verdict that cannot be written is tried again for as
long as its lease may last; after that the job belongs to whoever finds it expired.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from trunkline.crashpoint import crash_point
from trunkline.jobs.held import Held, Hold
from trunkline.jobs.outcomes import Verdict
from trunkline.jobs.poker import Poker
from trunkline.jobs.record import Written, record
from trunkline.store import jobs
from trunkline.store.database import Connection, Database, describe, may_pass
from trunkline.store.jobs import Death, End, Ended, Lane, Return
from trunkline.telemetry import get_logger

log = get_logger(__name__)

BATCH_MAX = 1000
# How long a verdict waits for company.
LINGER_S = 0.003
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0


async def write(
    tx: Connection, verdicts: Sequence[Verdict], worker: str | None, running_max: dict[str, int]
) -> Written:
    """Write verdicts in one transaction: jobs first, then their keys, then whom the keys let in."""
    written = Written()
    if ends := [v for v in verdicts if isinstance(v, End)]:
        written.ended = await jobs.finish(tx, ends, worker)
    if returns := [v for v in verdicts if isinstance(v, Return)]:
        written.returned = await jobs.put_back(tx, returns, worker)
    if deaths := [v for v in verdicts if isinstance(v, Death)]:
        written.buried = await jobs.bury(tx, deaths, worker)
    freed = [*written.ended, *(r.ended for r in written.returned), *written.buried]
    unparked = await jobs.free_keys(tx, freed, running_max)
    written.places = [*((r.lane, r.run_at) for r in written.returned if r.run_at is not None), *unparked]
    return written


class Finisher:
    """One per worker."""

    def __init__(
        self,
        database: Database,
        hold: Hold,
        poker: Poker,
        worker: str,
        running_max: dict[str, int],
        *,
        now_s: Callable[[], float],
        on_room: Callable[[], None],
    ):
        self._database = database
        self._hold = hold
        self._poker = poker
        self._worker = worker
        self._running_max = running_max
        self._now_s = now_s
        self._on_room = on_room
        self._waiting: list[tuple[Held, Verdict]] = []
        self._flusher: asyncio.Task[None] | None = None

    def add(self, held: Held, verdict: Verdict) -> None:
        self._waiting.append((held, verdict))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(), name="finisher")

    def finished(self, held: Held, let_in: Sequence[tuple[Lane, datetime]]) -> None:
        """The handler wrote it down itself, in a transaction of its own."""
        job = held.job
        self._hold.drop(held)
        self._poker.poke_places(let_in)
        ended = Ended(job.id, job.job_type, job.concurrency_key)
        record({held: End(job.id, job.fence)}, Written(ended=[ended]), is_retry=False)

    async def flushed(self) -> None:
        """Until everything so far is written or given up."""
        while self._flusher is not None and not self._flusher.done():
            await asyncio.wait([self._flusher])

    async def _flush(self) -> None:
        await asyncio.sleep(LINGER_S)
        while self._waiting:
            batch, self._waiting = dict(self._waiting[:BATCH_MAX]), self._waiting[BATCH_MAX:]
            await self._write(batch)

    async def _write(self, batch: dict[Held, Verdict]) -> None:
        pause_s, is_retry = RETRY_FIRST_S, False
        while batch:
            crash_point("jobs.before_finish")
            try:
                written = await self._try(batch)
            except Exception as error:
                if not may_pass(error):
                    await self._write_singly(batch, error)
                    return
                log.warning("job_results_delayed", count=len(batch), error=describe(error))
                await asyncio.sleep(pause_s)
                pause_s, is_retry = min(RETRY_MAX_S, pause_s * 2), True
                batch = self._still_leased(batch)
            else:
                self._conclude(batch, written, is_retry)
                return

    async def _try(self, batch: dict[Held, Verdict]) -> Written:
        plain = [v for held, v in batch.items() if isinstance(v, End) and held.job.concurrency_key is None]
        if len(plain) == len(batch):
            # By far the most: one statement, one round trip.
            async with self._database.connection() as conn:
                return Written(ended=await jobs.finish(conn, plain, self._worker))
        async with self._database.transaction() as tx:
            return await write(tx, list(batch.values()), self._worker, self._running_max)

    async def _write_singly(self, batch: dict[Held, Verdict], error: Exception) -> None:
        """A verdict that cannot be written must not take its neighbours with it. Its job is let go: nobody renews the
        lease of a run that has no end, and the reaper takes it from there."""
        if len(batch) > 1:
            for held, verdict in batch.items():
                await self._write({held: verdict})
            return
        for held in batch:
            log.error("job_result_refused", job_id=held.job.id, error=describe(error), exc_info=error)
            self._hold.drop(held)

    def _still_leased(self, batch: dict[Held, Verdict]) -> dict[Held, Verdict]:
        now_s = self._now_s()
        kept = {held: verdict for held, verdict in batch.items() if held.lease_until_s > now_s}
        for held in batch.keys() - kept.keys():
            log.error("job_result_lost", job_id=held.job.id, job_type=held.job.job_type)
            self._hold.drop(held)
        return kept

    def _conclude(self, batch: dict[Held, Verdict], written: Written, is_retry: bool) -> None:
        for held in batch:
            self._hold.drop(held)
        self._poker.poke_places(written.places)
        record(batch, written, is_retry=is_retry)
        self._on_room()
