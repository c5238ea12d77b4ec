"""Appends events to mailboxes durably, then wakes a worker.

Concurrent appends share one transaction (group commit): events that arrive during a write go into the next batch. Only
when a whole batch waits does a second writer start beside the first; no mailbox is in both batches, so its events keep
their order. A mailbox that another transaction has locked is skipped: its events get a writer of their own, in order,
and no other mailbox waits for it. The caller gets its receipt after the commit, and never waits for a worker. If the
caller is cancelled, its event is written all the same.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from prometheus_client import Counter

from trunkline.bus.connection import Bus
from trunkline.bus.mailbox_wakeups import MailboxNotifier
from trunkline.crashpoint import crash_point
from trunkline.errors import PoolEmpty, StoreUnavailable, TrunklineError
from trunkline.old_names import kept_names
from trunkline.schema.queues import KEY_BYTES_MAX
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import ROW_HELD, UNAVAILABLE, Database, describe
from trunkline.store.driver import ROLLED_BACK
from trunkline.store.mailboxes import ISSUE, KIND_BYTES_MAX, NewEvent, Receipt
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)


class BadEvent(TrunklineError, ValueError):
    """An event that no mailbox can hold."""


@dataclass(frozen=True, slots=True)
class InboxLimits:
    # A batch is bounded so that one commit stays in the milliseconds.
    batch_max: int = 500
    # Batches that are written concurrently. The second begins while Postgres works on the first.
    writers_max: int = 2
    # How long an append waits at most for others, so that a fast machine does not commit a few at a time. Measured at
    # 200 calls per second against 5 ms and a batch target of 8: 17 % less CPU time of Postgres and 6 % less of this
    # process. A single append does not wait at all; two concurrent streams of appends wait this long for each other.
    linger_s: float = 0.015
    # A batch of this size does not wait for more.
    batch_target: int = 24
    # The decay of the recent batch size per smaller batch: after a burst of 50 some ten more appends wait before one
    # counts as alone.
    decay: float = 0.7
    # Beyond this many waiting events Postgres is not keeping up, and further appends are refused.
    waiting_max: int = 20_000
    # How many mailboxes are written concurrently after a batch of them failed.
    apart_max: int = 4
    # How many locked mailboxes are waited for concurrently, each on a connection.
    held_max: int = 2

    @property
    def connections(self) -> int:
        """What an inbox uses at most: for batches, for locked mailboxes, and for a single append."""
        return self.writers_max + self.held_max + 1


@dataclass(slots=True)
class _Waiting:
    event: NewEvent
    done: "asyncio.Future[Receipt]"
    mailbox: tuple[str, str]


@kept_names
class Inbox:
    """Appends events in groups. One per process."""

    def __init__(self, database: Database, bus: Bus, limits: InboxLimits | None = None):
        self._database = database
        self.notifier = MailboxNotifier(bus)
        self._limits = limits or InboxLimits()
        # A batch of this size does not wait for more.
        self._target = min(self._limits.batch_target, self._limits.batch_max)
        self._waiting: list[_Waiting] = []
        # The running writers, and the mailboxes that each writes to.
        self._writers: dict[asyncio.Future[None], set[tuple[str, str]]] = {}
        # Mailboxes that another transaction has locked, and the events that wait for each. No batch has them.
        self._held: dict[tuple[str, str], list[_Waiting]] = {}
        self._held_writers: set[asyncio.Task[None]] = set()
        self._held_slots = asyncio.Semaphore(self._limits.held_max)
        self._lingering: asyncio.TimerHandle | None = None
        # How many appends shared a batch lately. Below two, the next append is written alone.
        self._recent_batch_size = 1.0
        self._is_closed = False

    async def append(self, event: NewEvent) -> Receipt:
        """Return when the event is durable. A duplicate is durable already.

        Without another append to share a batch with, the caller's task writes the event: a task of its own would take
        10 % more time. If the caller is cancelled meanwhile, a writer takes over; a second write is idempotent."""
        check(event)
        mailbox = (event.kind, event.key)
        if (
            self._writers
            or self._waiting
            or self._recent_batch_size >= 2
            or mailbox in self._held
            or self._is_closed
        ):
            return await self._add(event)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(event, loop.create_future(), mailbox)
        me: asyncio.Future[None] = loop.create_future()
        self._writers[me] = {mailbox}
        self._recent_batch_size = max(1, self._recent_batch_size * self._limits.decay)
        try:
            await self._write([waiting])
        except asyncio.CancelledError:
            waiting.done.add_done_callback(_consume_exception)
            self._waiting.insert(0, waiting)
            raise
        finally:
            del self._writers[me]
            me.set_result(None)
            if self._waiting:
                self._start_writer()
        return await waiting.done

    async def append_all(self, events: Iterable[NewEvent]) -> list[Receipt]:
        """Append many, each durable by itself; raises the first error after all were tried."""
        events = list(events)
        for event in events:
            check(event)
        receipts: list[Receipt] = []
        for result in await asyncio.gather(*map(self._add, events), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            receipts.append(result)
        return receipts

    def wake(self, kind: str, keys: Iterable[str]) -> None:
        """Wake a worker for mailboxes that are queued already, such as those that were replayed."""
        self.notifier.wake(kind, keys)

    async def aclose(self) -> None:
        """Refuse new events, and return when all accepted ones are written or failed."""
        self._is_closed = True
        if self._waiting and not self._writers:
            self._start_writer()
        while writers := [*self._writers, *self._held_writers]:
            await asyncio.wait(writers)
        await self.notifier.flush()

    def _add(self, event: NewEvent) -> "asyncio.Future[Receipt]":
        if self._is_closed:
            raise StoreUnavailable("The inbox is closing.")
        mailbox = (event.kind, event.key)
        waiting = self._held.get(mailbox, self._waiting)
        if len(waiting) >= self._limits.waiting_max:
            raise StoreUnavailable("The inbox is full.")
        done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        waiting.append(_Waiting(event, done, mailbox))
        if waiting is self._waiting:
            self._write_soon()
        return done

    def _write_soon(self) -> None:
        """Have the waiting events written, if a writer is free: a full batch as soon as the caller yields, another one
        after `linger_s`."""
        if self._writers and (
            len(self._waiting) < self._limits.batch_max or len(self._writers) >= self._limits.writers_max
        ):
            return
        if self._is_closed or len(self._waiting) >= self._target:
            self._start_writer()
        elif self._lingering is None:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(self._limits.linger_s, self._start_writer)

    def _start_writer(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        writer = asyncio.create_task(self._write_waiting(), name="inbox")
        # It takes its batch when it first runs: events that come until then go with it.
        self._writers[writer] = set()

    async def _write_waiting(self) -> None:
        """Batch after batch, while there are events of mailboxes that no other writer has."""
        me = asyncio.current_task()
        assert me is not None, "a coroutine runs in a task"
        try:
            while batch := self._take_batch():
                self._writers[me] = {waiting.mailbox for waiting in batch}
                self._recent_batch_size = max(len(batch), self._recent_batch_size * self._limits.decay)
                self._write_soon()
                await self._write(batch)
                self._writers[me] = set()
                if len(self._writers) > 1 and len(self._waiting) < self._limits.batch_max:
                    return  # the other writer is enough for the remaining events
                # Callers that got their receipts continue first, and new events join. Measured under load, by
                # `bench/webhooks.py`: taking the next batch at once costs 20 % of the rate.
                await asyncio.sleep(0)
                if not self._is_closed and len(self._waiting) < self._target:
                    return
        finally:
            del self._writers[me]
            if self._waiting and not self._writers:
                self._write_soon()

    def _take_batch(self) -> list[_Waiting]:
        batch = self._waiting[: self._limits.batch_max]
        busy = set[tuple[str, str]]().union(*self._writers.values())
        if not busy or busy.isdisjoint([waiting.mailbox for waiting in batch]):
            del self._waiting[: len(batch)]
            return batch
        batch, rest = [], []
        for waiting in self._waiting:
            if len(batch) < self._limits.batch_max and waiting.mailbox not in busy:
                batch.append(waiting)
            else:
                rest.append(waiting)
        self._waiting = rest
        return batch

    async def _write(self, batch: list[_Waiting]) -> None:
        """Afterwards each event has its receipt or its error, or a writer of its own."""
        try:
            await self._append(batch, mailboxes.BATCH_LOCK_TIMEOUT_MS)
        except ROW_HELD:
            await self._skip_locked(batch)
        except Exception as error:
            if not _refused(batch, error):
                await self._write_apart(batch)

    async def _skip_locked(self, batch: list[_Waiting]) -> None:
        """A mailbox of this batch is locked: write the others, and wait for that one apart."""
        named = {waiting.mailbox for waiting in batch}
        free: set[tuple[str, str]] = set()
        try:
            if len(named) > 1:
                async with self._database.transaction() as tx:
                    unlocked = await mailboxes.lock_free(tx, named)
                    written = [waiting for waiting in batch if waiting.mailbox in unlocked]
                    events = [waiting.event for waiting in written]
                    receipts = (
                        await mailboxes.append(tx, events, lock_timeout_ms=mailboxes.BATCH_LOCK_TIMEOUT_MS)
                        if written
                        else []
                    )
                free = unlocked
                self._answer(written, events, receipts)
        except ROW_HELD:
            pass  # the whole table is locked
        except Exception as error:
            if not _refused(batch, error):
                await self._write_apart(batch)
            return
        self._hold([waiting for waiting in batch if waiting.mailbox not in free])

    def _hold(self, batch: Iterable[_Waiting]) -> None:
        """Start a writer for each of these mailboxes, which also gets the events that came for it meanwhile."""
        parts = _by_mailbox(batch)
        rest: list[_Waiting] = []
        for waiting in self._waiting:
            parts.get(waiting.mailbox, rest).append(waiting)
        self._waiting = rest
        for mailbox, part in parts.items():
            assert mailbox not in self._held, "one writer at a time"
            self._held[mailbox] = part
            writer = asyncio.create_task(self._write_held(mailbox, part), name="inbox held")
            self._held_writers.add(writer)
            writer.add_done_callback(self._held_writers.discard)

    async def _write_held(self, mailbox: tuple[str, str], waiting: list[_Waiting]) -> None:
        """In turns with other locked mailboxes, until it has no event left. Its next event joins a batch again."""
        try:
            while waiting:
                async with self._held_slots:
                    batch = waiting[: self._limits.batch_max]
                    del waiting[: len(batch)]
                    # Each is tried about once a second, however many are locked.
                    share = self._limits.held_max / max(self._limits.held_max, len(self._held))
                    await self._write_one_mailbox(batch, max(1, int(mailboxes.LOCK_TIMEOUT_MS * share)))
        finally:
            del self._held[mailbox]

    async def _write_one_mailbox(self, batch: list[_Waiting], lock_timeout_ms: int) -> None:
        """Events of one mailbox: together, and if one of them cannot be written, one by one."""
        try:
            await self._append(batch, lock_timeout_ms)
        except Exception as error:
            if not _refused(batch, error):
                for waiting in batch:
                    await self._write_one_mailbox([waiting], lock_timeout_ms)

    async def _write_apart(self, batch: list[_Waiting]) -> None:
        """An event that cannot be written must not fail the others: write by mailbox, and there one by one."""
        parts = _by_mailbox(batch)
        if len(parts) == 1:
            self._hold(batch)
            return
        slots = asyncio.Semaphore(self._limits.apart_max)

        async def write(part: list[_Waiting]) -> None:
            async with slots:
                await self._write(part)

        await asyncio.gather(*map(write, parts.values()))

    async def _append(self, batch: Sequence[_Waiting], lock_timeout_ms: int) -> None:
        events = [waiting.event for waiting in batch]
        receipts: list[Receipt] = []
        for is_last_try in (False, True):
            try:
                async with self._database.connection() as conn:
                    receipts = await mailboxes.append(conn, events, lock_timeout_ms=lock_timeout_ms)
                break
            except ROLLED_BACK:
                if is_last_try:
                    raise
        self._answer(batch, events, receipts)

    def _answer(
        self, batch: Sequence[_Waiting], events: Sequence[NewEvent], receipts: Sequence[Receipt]
    ) -> None:
        crash_point("inbox.after_commit")
        for waiting, receipt in zip(batch, receipts, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(receipt)
        for kind, keys in follow_up(events, receipts).items():
            self.notifier.wake(kind, keys)


def follow_up(events: Iterable[NewEvent], receipts: Iterable[Receipt]) -> dict[str, dict[str, None]]:
    """Count new events and log those for dead mailboxes. Returns the mailboxes to wake workers for, by kind."""
    tallies: dict[str, _Tally] = {}
    for event, receipt in zip(events, receipts, strict=True):
        if not receipt.created:
            continue
        tally = tallies.get(event.kind) or tallies.setdefault(event.kind, _Tally())
        tally.events += 1
        if receipt.status_before is MailboxStatus.IDLE:
            tally.queued.add(event.key)
            if event.urgent is not False:
                tally.wake[event.key] = None
        elif receipt.status_before is MailboxStatus.DEAD:
            tally.dead.add(event.key)
        elif event.urgent and receipt.status_before is MailboxStatus.QUEUED:
            tally.wake[event.key] = None
    to_wake: dict[str, dict[str, None]] = {}
    for kind, tally in tallies.items():
        appended, queued, appended_to_dead = _counters(kind)
        appended.inc(tally.events)
        if tally.queued:
            queued.inc(len(tally.queued))
            if kind == ISSUE:
                metrics.ISSUES_QUEUED.inc(len(tally.queued))
        for key in tally.dead:
            appended_to_dead.inc()
            log.error("mailbox.append_to_dead", kind=kind, key=key)
        if tally.wake:
            to_wake[kind] = tally.wake
    return to_wake


@dataclass(slots=True)
class _Tally:
    """The effects of a batch on the mailboxes of one kind."""

    events: int = 0
    # Those that were idle before, those that are dead, and those to wake workers for.
    queued: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    wake: dict[str, None] = field(default_factory=dict)


# Finding a counter by its label costs three times as much as counting, and an append may be alone.
@cache
def _counters(kind: str) -> tuple[Counter, Counter, Counter]:
    return (
        metrics.MAILBOX_APPENDED.labels(kind),
        metrics.MAILBOX_QUEUED.labels(kind),
        metrics.MAILBOX_APPENDED_TO_DEAD.labels(kind),
    )


def _by_mailbox(batch: Iterable[_Waiting]) -> dict[tuple[str, str], list[_Waiting]]:
    parts: dict[tuple[str, str], list[_Waiting]] = {}
    for waiting in batch:
        parts.setdefault(waiting.mailbox, []).append(waiting)
    return parts


def _consume_exception(done: "asyncio.Future[Receipt]") -> None:
    """Its caller was cancelled; asyncio would log the exception as never retrieved."""
    if not done.cancelled():
        done.exception()


_BOUNDS = (
    ("kind", KIND_BYTES_MAX),
    ("key", KEY_BYTES_MAX),
    ("dedupe key", KEY_BYTES_MAX),
    ("type", KEY_BYTES_MAX),
)


def check(event: NewEvent) -> None:
    """Refuse what Postgres would refuse, with a clear message, and before it fails a batch."""
    texts = (event.kind, event.key, event.dedupe_key, event.type)
    for (name, bytes_max), text in zip(_BOUNDS, texts, strict=True):
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if not 0 < size <= bytes_max or "\x00" in text:
            raise BadEvent(f"The {name} of an event has 1 to {bytes_max} bytes, and no NUL among them.")


def _refused(batch: Sequence[_Waiting], error: Exception) -> bool:
    """Fail the whole batch with this error if writing it one by one would not help. False: it may help."""
    refusal = error
    if isinstance(error, PoolEmpty):
        pass
    elif isinstance(error, UNAVAILABLE):
        refusal = StoreUnavailable(f"Postgres cannot be reached: {describe(error)}")
    elif isinstance(error, ROW_HELD):
        refusal = StoreUnavailable(f"Try again: {describe(error)}")
    elif len(batch) > 1:
        return False
    elif isinstance(error, ROLLED_BACK):
        refusal = StoreUnavailable(f"Try again: {describe(error)}")
    if refusal is not error:
        refusal.__cause__ = error
    for waiting in batch:
        if not waiting.done.done():
            waiting.done.set_exception(refusal)
    return True
