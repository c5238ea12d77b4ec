"""The way out of mailboxes: hear of work, claim it, see to it.

Work is heard of in two ways. A wakeup on the stream comes milliseconds after an append. The sweep asks Postgres every
second; it is also the scan at start, and what finds mailboxes whose wakeup was lost or whose worker died. As many
batches are in hand at once as the limits say, so one slow mailbox delays no other.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trunkline.bus import mailbox_wakeups
from trunkline.bus.connection import Bus
from trunkline.bus.mailbox_wakeups import Wakeups
from trunkline.clock import ClockJumps
from trunkline.crashpoint import crash_point
from trunkline.errors import BusUnavailable
from trunkline.handlers import LoopWatch, leave_behind, place_of, refusal, where
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.mailbox import measures
from trunkline.mailbox.handler import AfterCommit, BadHandler, Batch, Done, Handler, Write
from trunkline.mailbox.leases import Leases
from trunkline.mailbox.notifier import MailboxNotifier
from trunkline.mailbox.processing import FailureRule, HandlerRun, HandlerStuck, Processor
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database, describe
from trunkline.store.mailboxes import Claim, ClaimedMailbox
from trunkline.telemetry import get_logger, metrics

__all__ = [
    "AfterCommit",
    "BadHandler",
    "Batch",
    "Done",
    "FailureRule",
    "Handler",
    "MailboxWorker",
    "WorkerLimits",
    "Write",
]

log = get_logger(__name__)

# What a batch waits for a row that one of its mailboxes needs: the others do not wait for whoever holds it.
BATCH_LOCK_TIMEOUT_MS = 500
# So many mailboxes of a batch are named in a log line.
NAMED_MAX = 10
# How long statements may be under way that began before Postgres' clock was set.
CLOCK_SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    # Mailboxes that a handler gets in one call, and calls that are under way at once.
    batch_max: int = 100
    concurrency: int = 4
    # Events of one mailbox that are read at once; the others follow in its next turn.
    events_max: int = 1_000
    lease_s: float = 15.0
    sweep_s: float = 1.0
    # How long a wakeup waits for others, where handling many at once is cheaper than handling one at once.
    linger_s: float = 0.0
    # How long a stopping worker waits for what is in hand. The rest is given back.
    stop_s: float = 20.0
    # How long a handler that was told to stop may still take. Then it is named, and its slot and lease are given up.
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
        """`database` is for the transactions in which handlers write; claims, renewals and completions have connections
        of their `own`, or share those."""
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
        leases = Leases(self._database, handler.kind, limits.lease_s, on_beat=self._find_stuck)
        self._leases = leases
        self._processor = Processor(
            database,
            handler,
            leases,
            self._notifier,
            limits.failure,
            lock_timeout_ms=BATCH_LOCK_TIMEOUT_MS if limits.batch_max > 1 else None,
            own=self._database,
        )
        self._watch = LoopWatch(limits.lease_s / 3, self._blocked)
        self._abandoning: set[asyncio.Task[None]] = set()
        # Wakes a worker that waits for a hand: one that is stuck was given up.
        self._hand_free = asyncio.Event()
        self._in_hand: dict[asyncio.Task[None], Sequence[Claim]] = {}
        self._wakeups = Wakeups()
        self._hearing: asyncio.Future[Wakeups] | None = None
        self._has_more = False
        self._sweep_at_s = self._tidy_at_s = float("-inf")
        self._jumps = ClockJumps()
        # Until then leases are left alone that ran out because the clock was set forward.
        self._leases_end_s = self._went_back_until_s = float("-inf")
        self._went_back_s = 0.0

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
        """The client may miss a cancellation that comes while it takes a connection, so it is told until it hears."""
        if self._hearing is not None and not self._hearing.done():
            self._hearing.cancel()
            asyncio.get_running_loop().call_later(0.05, self._stop_hearing)

    async def wait(self) -> None:
        """Until there is a hand free and something to do: a wakeup, the next sweep, or the rest of a full one."""
        if not self._room:
            self._hand_free.clear()
            freed = asyncio.ensure_future(self._hand_free.wait())
            try:
                await self._unless_stopping([*self._in_hand, freed])
            finally:
                freed.cancel()
        elif not self._has_more:
            self._wakeups = await self._listen()

    async def run_once(self) -> int:
        """Claim what is due, as much as there is room for, and begin on it; how many mailboxes were claimed."""
        try:
            claimed = await self._take_nudged()
            if self._room and (self._has_more or self._now_s() >= self._sweep_at_s):
                claimed += await self._sweep()
        except Exception:
            # The next run asks again. One that asked nobody would look like a recovery, twice a second.
            self._sweep_at_s = float("-inf")
            raise
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
            await self._notifier.flush()
            if not claimed:
                return total
            total += claimed

    @property
    def _room(self) -> int:
        """How many more mailboxes could be begun on at once."""
        return max(0, self._limits.concurrency - len(self._in_hand)) * self._limits.batch_max

    async def _take_nudged(self) -> int:
        heard, self._wakeups = self._wakeups, Wakeups()
        if not heard.keys:
            return 0
        claimed = await self._claim(heard.keys, limit=len(heard.keys))
        self._notifier.acknowledge(self._kind, heard.ids)
        return claimed

    async def _sweep(self) -> int:
        self._sweep_at_s = self._now_s() + self._limits.sweep_s
        await self._watch_the_clock()
        limit = self._room
        claimed = await self._claim(await self._due(limit), limit=limit)
        self._has_more = claimed == limit
        return claimed

    async def _due(self, limit: int) -> Sequence[str] | None:
        """None: whatever the clock says."""
        if self._now_s() >= self._leases_end_s:
            return None
        async with self._database.connection() as conn:
            return await mailboxes.truly_due(conn, self._kind, self._jumps.forward_most_s, limit)

    async def _watch_the_clock(self) -> None:
        """Turns and leases are of Postgres' clock. Set forward, it ends every lease at once: their owners renew them
        first. Set back, it would keep everything waiting for as long as the jump was."""
        asked_s = self._now_s()
        async with self._database.connection() as conn:
            seen_at = await mailboxes.now(conn)
        jump_s = self._jumps.note(seen_at, asked_s, self._now_s())
        if jump_s:
            log.warning("mailbox.clock_jumped", kind=self._kind, jump_s=round(jump_s, 1))
            # Statements that were under way still write times of the old clock: it is looked at again for a while.
            self._went_back_until_s = self._now_s() + CLOCK_SETTLE_S if jump_s < 0 else float("-inf")
            self._went_back_s = -jump_s
            if jump_s > 0:
                # Every worker notices within one sweep, and renews what it has.
                self._leases_end_s = self._now_s() + 1.5 * self._limits.sweep_s
                await self._leases.renew()
        if self._now_s() < self._went_back_until_s:
            async with self._database.connection() as conn:
                await mailboxes.follow_clock_back(
                    conn,
                    self._kind,
                    self._went_back_s,
                    lease_s=self._limits.lease_s,
                    delay_max_s=self._limits.failure.backoff_max_s,
                )

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

    def _batches(self, pieces: Sequence[ClaimedMailbox]) -> list[list[ClaimedMailbox]]:
        """What failed before travels alone, so that it costs its neighbours nothing again."""
        sound = [piece for piece in pieces if not piece.claim.failures]
        size = self._limits.batch_max
        return [
            *([piece] for piece in pieces if piece.claim.failures),
            *(sound[start : start + size] for start in range(0, len(sound), size)),
        ]

    def _begin(self, batch: list[ClaimedMailbox]) -> None:
        task = asyncio.create_task(self._see_to(batch), name=f"mailbox {self._kind}")
        self._in_hand[task] = [piece.claim for piece in batch]
        task.add_done_callback(lambda done: self._in_hand.pop(done, None))

    async def _see_to(self, batch: list[ClaimedMailbox]) -> None:
        try:
            await self._processor.process(batch)
        except Exception as error:
            # Not even the failure could be written. The lease runs out, and somebody claims it again.
            log.warning("mailbox.abandoned", kind=self._kind, count=len(batch), error=describe(error))

    async def _listen(self) -> Wakeups:
        wait_s = self._sweep_at_s - self._now_s()
        try:
            heard = await self._receive(wait_s)
            if heard.keys and self._limits.linger_s:
                await self.pause(self._limits.linger_s)
                late = await self._receive(0)
                heard = Wakeups(heard.ids + late.ids, tuple(dict.fromkeys(heard.keys + late.keys)))
            return heard
        except BusUnavailable as error:
            log.debug("mailbox.deaf", kind=self._kind, error=str(error))
            await self.pause(wait_s)
            return Wakeups()

    async def _receive(self, timeout_s: float) -> Wakeups:
        """Hear what there is, but not past the moment in which the worker is told to stop."""
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
            _, stuck = await asyncio.wait(left, timeout=self._limits.cancel_grace_s)
            for attempt in self._processor.attempts:
                if attempt.hand in stuck:
                    self._name(attempt)
                    attempt.scope.give_up()
                    leave_behind(attempt.task)
            for hand in stuck:
                leave_behind(hand)
            claims = [claim for claims in left.values() for claim in claims]
            self._leases.give_up(claims)
            await self._give_back(claims)
            if stuck:
                log.error("mailbox.stopped_without", kind=self._kind, unfinished=len(stuck))
        if self._abandoning:
            await asyncio.wait(self._abandoning, timeout=self._limits.cancel_grace_s)
        await self._notifier.flush()

    def _find_stuck(self) -> None:
        """Three times in a lease: a handler that was told to stop, by its time-out or because its lease was lost, and
        goes on. Its slot is given up, and its mailboxes come back later."""
        now_s = self._now_s()
        for attempt in self._processor.attempts:
            if attempt.lost_s is None and not any(map(self._leases.is_kept, attempt.claims)):
                attempt.lost_s = now_s
            told_s = min(attempt.deadline_s, attempt.lost_s if attempt.lost_s is not None else float("inf"))
            if now_s - told_s >= self._limits.cancel_grace_s:
                self._abandon(attempt)

    def _abandon(self, attempt: HandlerRun) -> None:
        place = self._name(attempt)
        self._in_hand.pop(attempt.hand, None)
        leave_behind(attempt.hand)
        leave_behind(attempt.task)
        self._hand_free.set()
        error = HandlerStuck(f"The handler was told to stop and goes on, at {place}")
        failing = asyncio.create_task(self._processor.abandon(attempt, error), name="mailbox_abandoned")
        self._abandoning.add(failing)
        failing.add_done_callback(self._abandoned)

    def _abandoned(self, failing: asyncio.Task[None]) -> None:
        self._abandoning.discard(failing)
        if not failing.cancelled() and (error := failing.exception()) is not None:
            # Its leases are not renewed any more: another worker takes the mailboxes when they end.
            log.warning("mailbox.not_given_back", kind=self._kind, error=describe(error))

    def _name(self, attempt: HandlerRun) -> str:
        place = where(attempt.task)
        metrics.HANDLERS_STUCK.labels("mailbox", self._kind, "ignores_cancellation").inc()
        log.error(
            "mailbox.ignores_cancellation",
            kind=self._kind,
            keys=[claim.key for claim in attempt.claims[:NAMED_MAX]],
            handler=place_of(self._function()),
            where=place,
        )
        return place

    def _blocked(self, task: "asyncio.Task[Any] | None", for_s: float, place: str) -> None:
        """Told from another thread, while the event loop stands still."""
        attempt = self._processor.of_task(task)
        if attempt is None:
            return  # whoever runs tells of it himself, or it is nobody's handler
        metrics.HANDLERS_STUCK.labels("mailbox", self._kind, "blocks").inc()
        log.error(
            "mailbox.blocks_the_event_loop",
            kind=self._kind,
            keys=[claim.key for claim in attempt.claims[:NAMED_MAX]],
            for_s=round(for_s, 1),
            where=place,
        )

    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._handler, "function", self._handler.handle)
        return function

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
