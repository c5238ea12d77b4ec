"""The way out of mailboxes: hear of work, claim it, see to it.

Work is heard of in two ways. A nudge on the stream comes milliseconds after an append. The sweep asks Postgres every
second; it is also the scan at start, and what finds mailboxes whose nudge was lost or whose worker died. As many
batches are in hand at once as the limits say, so one slow mailbox delays no other.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trunkline.bus import nudges
from trunkline.bus.connection import Bus
from trunkline.bus.nudges import Nudges
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.mailbox import measures
from trunkline.mailbox.handler import AfterCommit, Batch, Done, Handler, Write
from trunkline.mailbox.leases import Leases
from trunkline.mailbox.nudger import Nudger
from trunkline.mailbox.processing import FailureRule, Processor
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database, describe
from trunkline.store.mailboxes import Claim, Claimed
from trunkline.telemetry import get_logger, metrics

__all__ = ["AfterCommit", "Batch", "Done", "FailureRule", "Handler", "MailboxWorker", "WorkerLimits", "Write"]

log = get_logger(__name__)

# What a batch waits for a row that one of its mailboxes needs: the others do not wait for whoever holds it.
BATCH_LOCK_TIMEOUT_MS = 500


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    # Mailboxes that a handler gets in one call, and calls that are under way at once.
    batch_max: int = 100
    concurrency: int = 4
    # Events of one mailbox that are read at once; the others follow in its next turn.
    events_max: int = 1_000
    lease_s: float = 15.0
    sweep_s: float = 1.0
    # How long a nudge waits for company, where handling many at once is cheaper than handling one at once.
    linger_s: float = 0.0
    # How long a stopping worker waits for what is in hand. The rest is given back.
    stop_s: float = 20.0
    tidy_s: float = 60.0
    failure: FailureRule = field(default_factory=FailureRule)


class MailboxWorker(Loop):
    """Serves the mailboxes of one kind."""

    name = "mailbox"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(self, database: Database, bus: Bus, handler: Handler, worker: str, limits: WorkerLimits):
        super().__init__(limits.sweep_s)
        self._database = database
        self._bus = bus
        self._kind = handler.kind
        self._worker = worker
        self._limits = limits
        self._nudger = Nudger(bus)
        leases = Leases(database, handler.kind, limits.lease_s)
        self._processor = Processor(
            database,
            handler,
            leases,
            self._nudger,
            limits.failure,
            lock_timeout_ms=BATCH_LOCK_TIMEOUT_MS if limits.batch_max > 1 else None,
        )
        self._in_hand: dict[asyncio.Task[None], Sequence[Claim]] = {}
        self._nudges = Nudges()
        self._hearing: asyncio.Future[Nudges] | None = None
        self._has_more = False
        self._sweep_at_s = self._tidy_at_s = float("-inf")

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._finish()

    def stop(self) -> None:
        super().stop()
        self._stop_hearing()

    def _stop_hearing(self) -> None:
        """The client may miss a cancellation that comes while it takes a connection, so it is told until it hears."""
        if self._hearing is not None and not self._hearing.done():
            self._hearing.cancel()
            asyncio.get_running_loop().call_later(0.05, self._stop_hearing)

    async def wait(self) -> None:
        """Until there is a hand free and something to do: a nudge, the next sweep, or the rest of a full one."""
        if not self._room:
            await self._unless_stopping(self._in_hand)
        elif not self._has_more:
            self._nudges = await self._listen()

    async def run_once(self) -> int:
        """Claim what is due, as much as there is room for, and begin on it; how many mailboxes were claimed."""
        claimed = await self._take_nudged()
        if self._room and (self._has_more or self._now_s() >= self._sweep_at_s):
            claimed += await self._sweep()
        if self._now_s() >= self._tidy_at_s:
            await self._tidy()
        return claimed

    async def drain(self) -> int:
        """See to everything that is due now; how many mailboxes that were. For tests, and commands that run once."""
        total = 0
        while True:
            self._sweep_at_s = float("-inf")
            claimed = await self.run_once()
            while self._in_hand:
                await asyncio.wait(self._in_hand)
            await self._nudger.flush()
            if not claimed:
                return total
            total += claimed

    @property
    def _room(self) -> int:
        """How many more mailboxes could be begun on at once."""
        return max(0, self._limits.concurrency - len(self._in_hand)) * self._limits.batch_max

    async def _take_nudged(self) -> int:
        heard, self._nudges = self._nudges, Nudges()
        if not heard.keys:
            return 0
        claimed = await self._claim(heard.keys, limit=len(heard.keys))
        self._nudger.acknowledge(self._kind, heard.ids)
        return claimed

    async def _sweep(self) -> int:
        self._sweep_at_s = self._now_s() + self._limits.sweep_s
        limit = self._room
        claimed = await self._claim(None, limit=limit)
        self._has_more = claimed == limit
        return claimed

    async def _claim(self, keys: Sequence[str] | None, *, limit: int) -> int:
        """Claim and begin; how many mailboxes were claimed."""
        async with self._database.connection() as conn:
            claimed = await mailboxes.claim(
                conn,
                self._kind,
                keys,
                limit=limit,
                worker=self._worker,
                lease_s=self._limits.lease_s,
                events_max=self._limits.events_max,
            )
            crash_point("mailbox.after_claim")
            alive = [each for each in claimed if not await self._buried(conn, each.claim)]
        for batch in self._batches(alive):
            self._begin(batch)
        return len(claimed)

    async def _buried(self, conn: Connection, claim: Claim) -> bool:
        """A mailbox that took too many workers with it ends like one whose handler failed too often."""
        if claim.failures < self._limits.failure.failures_max:
            return False
        error = await mailboxes.bury(conn, claim)
        metrics.MAILBOX_DIED.labels(self._kind).inc()
        log.error("mailbox.died", kind=self._kind, key=claim.key, failures=claim.failures, error=error)
        return True

    def _batches(self, pieces: Sequence[Claimed]) -> list[list[Claimed]]:
        """What failed before travels alone, so that it costs its neighbours nothing again."""
        sound = [piece for piece in pieces if not piece.claim.failures]
        size = self._limits.batch_max
        return [
            *([piece] for piece in pieces if piece.claim.failures),
            *(sound[start : start + size] for start in range(0, len(sound), size)),
        ]

    def _begin(self, batch: list[Claimed]) -> None:
        task = asyncio.create_task(self._see_to(batch), name=f"mailbox {self._kind}")
        self._in_hand[task] = [piece.claim for piece in batch]
        task.add_done_callback(self._in_hand.pop)

    async def _see_to(self, batch: list[Claimed]) -> None:
        try:
            await self._processor.process(batch)
        except Exception as error:
            # Not even the failure could be written. The lease runs out, and somebody claims it again.
            log.warning("mailbox.abandoned", kind=self._kind, count=len(batch), error=describe(error))

    async def _listen(self) -> Nudges:
        wait_s = self._sweep_at_s - self._now_s()
        try:
            heard = await self._receive(wait_s)
            if heard.keys and self._limits.linger_s:
                await self.pause(self._limits.linger_s)
                late = await self._receive(0)
                heard = Nudges(heard.ids + late.ids, tuple(dict.fromkeys(heard.keys + late.keys)))
            return heard
        except BusUnavailable as error:
            log.debug("mailbox.deaf", kind=self._kind, error=str(error))
            await self.pause(wait_s)
            return Nudges()

    async def _receive(self, timeout_s: float) -> Nudges:
        """Hear what there is, but not past the moment in which the worker is told to stop."""
        self._hearing = asyncio.ensure_future(
            nudges.receive(
                self._bus, self._kind, self._worker, count=self._room, timeout_s=max(0.0, timeout_s)
            )
        )
        try:
            return await self._hearing
        except asyncio.CancelledError:
            if not self.stopping:
                raise
            return Nudges()
        finally:
            self._hearing = None

    async def _tidy(self) -> None:
        self._tidy_at_s = self._now_s() + self._limits.tidy_s
        try:
            pending = await nudges.tidy(self._bus, self._kind, gone_after_s=self._limits.tidy_s)
        except BusUnavailable as error:
            log.debug("mailbox.not_tidied", kind=self._kind, error=str(error))
        else:
            measures.pending_nudges(self._kind, pending)

    async def _unless_stopping(self, awaited: Iterable["asyncio.Future[Any]"]) -> None:
        """Wait for the first of these, or for the word to stop."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*awaited, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _finish(self) -> None:
        """See what is in hand to its end; what takes too long is given back, for another worker to begin at once."""
        task = asyncio.current_task()
        hurried = task is not None and task.cancelling() > 0
        if self._in_hand and not hurried:
            await asyncio.wait(self._in_hand, timeout=self._limits.stop_s)
        left = dict(self._in_hand)
        for unfinished in left:
            unfinished.cancel()
        if left:
            await asyncio.wait(left)
            await self._give_back([claim for claims in left.values() for claim in claims])
        await self._nudger.flush()

    async def _give_back(self, claims: Sequence[Claim]) -> None:
        try:
            async with self._database.connection() as conn:
                keys = await mailboxes.release(conn, self._kind, claims)
        except Exception as error:
            log.warning("mailbox.not_given_back", kind=self._kind, count=len(claims), error=describe(error))
        else:
            self._nudger.wake(self._kind, keys)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
