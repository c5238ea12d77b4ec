"""Claims mailboxes with pending events and processes them.

It finds them in two ways. A wakeup on the stream comes milliseconds after an append. The sweep queries Postgres every
second; it is also the scan at the start, and finds mailboxes whose wakeup was lost or whose worker died. Several
batches are processed concurrently, up to the limit, so one slow mailbox delays no other.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trunkline.bus import mailbox_wakeups
from trunkline.bus.connection import Bus
from trunkline.bus.mailbox_wakeups import MailboxNotifier, Wakeups
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.handlers import LoopWatch, abandon, leave_behind, place_of, refusal
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.mailbox.handler import BadHandler, Handler
from trunkline.mailbox.processing import (
    FailureRule,
    HandlerRun,
    HandlerStuck,
    Leases,
    Processor,
    report_stuck,
)
from trunkline.queues.server_clock import ClockJumps
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database, describe
from trunkline.store.mailboxes import ISSUE, Claim, ClaimedMailbox
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# How long the write of a batch waits for a locked row that one of its mailboxes needs.
BATCH_LOCK_TIMEOUT_MS = 500
# How many mailboxes of a batch a log line names.
NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    # Mailboxes that a handler gets in one call, and concurrent calls.
    batch_max: int = 100
    concurrency: int = 4
    # Events of one mailbox that are read at once; the others follow with its next claim.
    events_max: int = 1_000
    lease_s: float = 15.0
    sweep_s: float = 1.0
    # How long a wakeup waits for others, for handlers to which a batch costs less than its mailboxes one by one.
    linger_s: float = 0.0
    # How long a stopping worker waits for running handlers. Then it returns the claims of the others.
    stop_s: float = 20.0
    # How long a cancelled handler may still run. Then the worker logs it and releases its slot and lease.
    cancel_grace_s: float = 5.0
    tidy_s: float = 60.0
    failure: FailureRule = field(default_factory=FailureRule)


class MailboxWorker(Loop):
    """Serves the mailboxes of one kind."""

    name = "mailbox"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(
        self,
        database: Database,
        bus: Bus,
        handler: Handler,
        worker: str,
        limits: WorkerLimits,
        *,
        own: Database | None = None,
    ):
        """`database` is for the transactions in which handlers write; claims, renewals and completions use `own`, or
        share the first."""
        if (reason := refusal(handler.handle)) is not None:
            raise BadHandler(f"The handler of mailboxes of kind {handler.kind} cannot be run: {reason}")
        super().__init__(limits.sweep_s)
        self._database = own or database
        self._handler = handler
        self._bus = bus
        self._kind = handler.kind
        self._worker = worker
        self._limits = limits
        self._notifier = MailboxNotifier(bus)
        self._leases = Leases(self._database, handler.kind, limits.lease_s, on_beat=self._find_stuck)
        lock_timeout_ms = BATCH_LOCK_TIMEOUT_MS if limits.batch_max > 1 else None
        self._processor = Processor(
            database, self._database, handler, self._leases, self._notifier, limits.failure, lock_timeout_ms
        )
        self._watch = LoopWatch(limits.lease_s / 3, self._blocked)
        self._abandoning: set[asyncio.Task[None]] = set()
        # Wakes a worker that waits for a slot: a handler ended, or was abandoned.
        self._slot_freed = asyncio.Event()
        self._running: dict[asyncio.Task[None], Sequence[ClaimedMailbox]] = {}
        self._wakeups = Wakeups()
        self._hearing: asyncio.Future[Wakeups] | None = None
        self._has_more = False
        self._sweep_at_s = self._tidy_at_s = float("-inf")
        self._clock = ClockJumps()

    async def run(self) -> None:
        self._watch.start()
        try:
            await super().run()
        finally:
            await self._finish()
            self._watch.stop()

    def stop(self) -> None:
        super().stop()
        self._stop_hearing()

    def _stop_hearing(self) -> None:
        """The client may miss a cancellation while it takes a connection, so cancel it until it ends."""
        if self._hearing is not None and not self._hearing.done():
            self._hearing.cancel()
            asyncio.get_running_loop().call_later(0.05, self._stop_hearing)

    async def wait(self) -> None:
        """Until there is a free slot and something to claim: a wakeup, the next sweep, or the remainder of a full
        one."""
        if not self._room:
            self._slot_freed.clear()
            await self._slot_freed.wait()
        elif not self._has_more:
            self._wakeups = await self._listen()

    async def run_once(self) -> int:
        """Claim due mailboxes, as many as there is room for, and begin them. Returns how many were claimed."""
        claimed = 0
        try:
            wakeups, self._wakeups = self._wakeups, Wakeups()
            if wakeups.keys:
                claimed += await self._claim(wakeups.keys, limit=len(wakeups.keys))
                self._notifier.acknowledge(self._kind, wakeups.ids)
            if self._room and (self._has_more or self._now_s() >= self._sweep_at_s):
                claimed += await self._sweep()
        except Exception:
            # The next run sweeps again. One without a query would look like a recovery, twice a second.
            self._sweep_at_s = float("-inf")
            raise
        if self._now_s() >= self._tidy_at_s:
            await self._tidy()
        return claimed

    async def drain(self) -> int:
        """Process everything that is due now. Returns how many mailboxes. For tests, and commands that run once."""
        total = 0
        while True:
            self._sweep_at_s = float("-inf")
            claimed = await self.run_once()
            while self._running:
                await asyncio.wait(self._running)
            await self._notifier.flush()
            if not claimed:
                return total
            total += claimed

    @property
    def _room(self) -> int:
        """How many more mailboxes could begin at once."""
        return max(0, self._limits.concurrency - len(self._running)) * self._limits.batch_max

    async def _sweep(self) -> int:
        self._sweep_at_s = self._now_s() + self._limits.sweep_s
        await self._check_clock()
        limit = self._room
        # None: all that are due by the clock. No lease that expired only because the clock was set forward.
        keys: Sequence[str] | None = None
        if forward_s := self._clock.forward_s(self._now_s()):
            async with self._database.connection() as conn:
                keys = await mailboxes.truly_due(conn, self._kind, forward_s, limit)
        claimed = await self._claim(keys, limit=limit)
        self._has_more = claimed == limit
        return claimed

    async def _check_clock(self) -> None:
        jump_s = await self._clock.check(self._database, every_s=self._limits.sweep_s)
        if jump_s:
            log.warning("mailbox.clock_jumped", kind=self._kind, jump_s=round(jump_s, 1))
        if jump_s > 0:
            await self._leases.renew()
        if self._clock.is_settling and self._clock.went_back_s:
            async with self._database.connection() as conn:
                lease_s, delay_max_s = self._limits.lease_s, self._limits.failure.backoff_max_s
                await mailboxes.follow_clock_back(
                    conn, self._kind, self._clock.went_back_s, lease_s=lease_s, delay_max_s=delay_max_s
                )

    async def _claim(self, keys: Sequence[str] | None, *, limit: int) -> int:
        """Claim and begin. Returns how many mailboxes were claimed."""
        limits, healthy = self._limits, list[ClaimedMailbox]()
        async with self._database.connection() as conn:
            claimed = await mailboxes.claim(
                conn,
                self._kind,
                keys,
                limit=limit,
                worker=self._worker,
                lease_s=limits.lease_s,
                events_max=limits.events_max,
            )
            crash_point("mailbox.after_claim")
            for piece in claimed:
                if piece.claim.failures >= limits.failure.failures_max:
                    await self._bury(conn, piece.claim)
                elif piece.claim.failures:
                    # A batch of its own, so that it does not fail others again.
                    self._begin([piece])
                else:
                    healthy.append(piece)
        for start in range(0, len(healthy), limits.batch_max):
            self._begin(healthy[start : start + limits.batch_max])
        return len(claimed)

    async def _bury(self, conn: Connection, claim: Claim) -> None:
        """A mailbox whose worker died too often becomes dead, like one whose handler failed too often."""
        error = await mailboxes.bury(conn, claim)
        metrics.MAILBOX_DIED.labels(self._kind).inc()
        log.error("mailbox.died", kind=self._kind, key=claim.key, failures=claim.failures, error=error)

    def _begin(self, batch: list[ClaimedMailbox]) -> None:
        task = asyncio.create_task(self._processor.process(batch), name=f"mailbox {self._kind}")
        self._running[task] = batch
        task.add_done_callback(self._free_slot)

    def _free_slot(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._slot_freed.set()

    async def _listen(self) -> Wakeups:
        wait_s = self._sweep_at_s - self._now_s()
        try:
            wakeups = await self._receive(wait_s)
            if wakeups.keys and self._limits.linger_s:
                await self.pause(self._limits.linger_s)
                late = await self._receive(0)
                wakeups = Wakeups(wakeups.ids + late.ids, tuple(dict.fromkeys(wakeups.keys + late.keys)))
            return wakeups
        except BusUnavailable as error:
            log.debug("mailbox.deaf", kind=self._kind, error=str(error))
            await self.pause(wait_s)
            return Wakeups()

    async def _receive(self, timeout_s: float) -> Wakeups:
        """Receive wakeups until the timeout, or until the worker stops."""
        self._hearing = asyncio.ensure_future(
            mailbox_wakeups.receive(
                self._bus, self._kind, self._worker, count=self._room, timeout_s=max(0.0, timeout_s)
            )
        )
        try:
            return await self._hearing
        except asyncio.CancelledError:
            if not self.stopping:
                raise
            return Wakeups()
        finally:
            self._hearing = None

    async def _tidy(self) -> None:
        self._tidy_at_s = self._now_s() + self._limits.tidy_s
        try:
            pending = await mailbox_wakeups.tidy(self._bus, self._kind, gone_after_s=self._limits.tidy_s)
        except BusUnavailable as error:
            log.debug("mailbox.not_tidied", kind=self._kind, error=str(error))
        else:
            metrics.MAILBOX_PENDING_NUDGES.labels(self._kind).set(pending)
            if self._kind == ISSUE:
                metrics.ISSUES_PENDING_MESSAGES.set(pending)

    async def _finish(self) -> None:
        """Wait for running handlers; return the claims of those that take too long, so that another worker begins."""
        task = asyncio.current_task()
        hurried = task is not None and task.cancelling() > 0
        if self._running and not hurried:
            await asyncio.wait(self._running, timeout=self._limits.stop_s)
        left = dict(self._running)
        for unfinished in left:
            unfinished.cancel()
        if left:
            _, stuck = await asyncio.wait(left, timeout=self._limits.cancel_grace_s)
            for attempt in self._processor.attempts:
                if attempt.slot_task in stuck:
                    self._give_up(attempt)
            for task_stuck in stuck:
                leave_behind(task_stuck)
            claims = [piece.claim for batch in left.values() for piece in batch]
            self._leases.drop(claims)
            await self._give_back(claims)
            if stuck:
                log.error("mailbox.stopped_without", kind=self._kind, unfinished=len(stuck))
        if self._abandoning:
            await asyncio.wait(self._abandoning, timeout=self._limits.cancel_grace_s)
        await self._notifier.flush()

    def _find_stuck(self) -> None:
        """Called three times per lease: abandon handlers that run on after their timeout or the loss of their lease.
        That frees their slots, and their mailboxes are retried later."""
        now_s = self._now_s()
        for attempt in self._processor.attempts:
            if not any(map(self._leases.is_kept, attempt.claims)):
                attempt.lost_s = min(attempt.lost_s, now_s)
            if now_s - min(attempt.deadline_s, attempt.lost_s) >= self._limits.cancel_grace_s:
                self._abandon(attempt)

    def _abandon(self, attempt: HandlerRun) -> None:
        attempt.is_abandoned = True
        place = self._give_up(attempt)
        self._free_slot(attempt.slot_task)
        leave_behind(attempt.slot_task)
        error = HandlerStuck(f"The handler was cancelled and goes on, at {place}")
        failing = asyncio.create_task(self._processor.abandon(attempt, error), name="mailbox_abandoned")
        self._abandoning.add(failing)
        failing.add_done_callback(self._abandoning.discard)

    def _give_up(self, attempt: HandlerRun) -> str:
        place = abandon(attempt.task, attempt.scope)
        function: Callable[..., Any] = getattr(self._handler, "function", self._handler.handle)
        keys = [claim.key for claim in attempt.claims[:NAMED_MAX]]
        report_stuck(self._kind, keys, place_of(function), place)
        return place

    def _blocked(self, task: "asyncio.Task[Any] | None", for_s: float, place: str) -> None:
        """Called from another thread while the event loop is blocked."""
        attempt = self._processor.find_by_task(task)
        if attempt is None:
            return  # another worker's handler, which logs it, or no handler
        metrics.HANDLERS_STUCK.labels("mailbox", self._kind, "blocks").inc()
        log.error(
            "mailbox.blocks_the_event_loop",
            kind=self._kind,
            keys=[claim.key for claim in attempt.claims[:NAMED_MAX]],
            for_s=round(for_s, 1),
            where=place,
        )

    async def _give_back(self, claims: Sequence[Claim]) -> None:
        try:
            async with self._database.connection() as conn:
                keys = await mailboxes.release(conn, self._kind, claims)
        except Exception as error:
            log.warning("mailbox.not_given_back", kind=self._kind, count=len(claims), error=describe(error))
        else:
            self._notifier.wake(self._kind, keys)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
