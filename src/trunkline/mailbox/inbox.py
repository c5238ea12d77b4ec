"""The way into mailboxes: append events durably, then nudge a worker.

Concurrent appends share one transaction (group commit): what arrives while a batch is being written goes into the
next one. The caller is answered when its event is committed, and never waits for a worker. A caller that leaves
takes nothing back: its event is written all the same.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import asyncpg

from trunkline.bus.connection import Bus
from trunkline.crashpoint import crash_point
from trunkline.errors import StoreUnavailable, TrunklineError
from trunkline.mailbox import measures
from trunkline.mailbox.nudger import Nudger
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import UNAVAILABLE, Database, describe
from trunkline.store.mailboxes import KEY_BYTES_MAX, KIND_BYTES_MAX, NewEvent, Receipt
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# Sent again, the same batch may pass: a deadlock, a row that somebody held too long.
_PASSING = (asyncpg.TransactionRollbackError, asyncpg.LockNotAvailableError)

# What a nudge can do something for. `processing` finds the event when it completes.
_WAITS = (MailboxStatus.IDLE, MailboxStatus.QUEUED)


class BadEvent(TrunklineError, ValueError):
    """An event that no mailbox can hold."""


@dataclass(frozen=True, slots=True)
class InboxLimits:
    # A batch is bounded so that one commit stays in the milliseconds.
    batch_max: int = 500
    # How long an append waits for company, if there has been some. Measured: half the transactions for webhooks.
    linger_s: float = 0.005
    # Beyond this many the store is not keeping up, and callers had better know.
    waiting_max: int = 20_000
    # How many mailboxes are written at once after a batch of them failed.
    apart_max: int = 4


@dataclass(slots=True)
class _Waiting:
    event: NewEvent
    done: "asyncio.Future[Receipt]"

    def answer(self, receipt: Receipt) -> None:
        if not self.done.done():
            self.done.set_result(receipt)

    def refuse(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Inbox:
    """Appends events in groups. One per process."""

    def __init__(self, database: Database, bus: Bus, limits: InboxLimits | None = None):
        self._database = database
        self._nudger = Nudger(bus)
        self._limits = limits or InboxLimits()
        self._waiting: list[_Waiting] = []
        self._flusher: asyncio.Task[None] | None = None
        self._last_came_s = float("-inf")
        self._is_closed = False

    async def append(self, event: NewEvent) -> Receipt:
        """Return when the event is durable. A doubled event is durable already."""
        check(event)
        return await self._add(event)

    async def append_all(self, events: Iterable[NewEvent]) -> list[Receipt]:
        """Many at once, each durable by itself: the first error is raised after all were tried."""
        events = list(events)
        for event in events:
            check(event)
        results = await asyncio.gather(*map(self._add, events), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, Receipt)]

    async def aclose(self) -> None:
        """Take nothing new, and return when everything taken is written or refused."""
        self._is_closed = True
        while self._flusher is not None and not self._flusher.done():
            await asyncio.wait([self._flusher])
        await self._nudger.flush()

    def _add(self, event: NewEvent) -> "asyncio.Future[Receipt]":
        if self._is_closed or len(self._waiting) >= self._limits.waiting_max:
            raise StoreUnavailable("The inbox is closing." if self._is_closed else "The inbox is full.")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(event, loop.create_future())
        self._waiting.append(waiting)
        if self._flusher is None or self._flusher.done():
            has_company = loop.time() - self._last_came_s < self._limits.linger_s
            self._flusher = loop.create_task(self._flush(has_company), name="inbox")
        self._last_came_s = loop.time()
        return waiting.done

    async def _flush(self, has_company: bool) -> None:
        """Write until nothing waits. A lone event goes at once; in a stream of them each waits a moment for others."""
        if has_company and not self._is_closed:
            await asyncio.sleep(self._limits.linger_s)
        while self._waiting:
            batch = self._waiting[: self._limits.batch_max]
            del self._waiting[: len(batch)]
            await self._write(batch)

    async def _write(self, batch: list[_Waiting]) -> None:
        try:
            try:
                receipts = await self._append(batch)
            except _PASSING:
                receipts = await self._append(batch)
        except UNAVAILABLE as error:
            _refuse(batch, StoreUnavailable(f"Postgres cannot be reached: {describe(error)}"), error)
        except Exception as error:
            await self._write_apart(batch, error)
        else:
            for waiting, receipt in zip(batch, receipts, strict=True):
                waiting.answer(receipt)
            crash_point("inbox.after_commit")
            self._follow_up([w.event for w in batch], receipts)

    async def _write_apart(self, batch: list[_Waiting], error: Exception) -> None:
        """What cannot be written must not take its neighbours with it: by mailbox, and then one by one."""
        if len(batch) == 1:
            lasting = not isinstance(error, _PASSING)
            _refuse(batch, error if lasting else StoreUnavailable(f"Try again: {describe(error)}"), error)
            return
        parts: dict[tuple[str, str], list[_Waiting]] = {}
        for waiting in batch:
            parts.setdefault((waiting.event.kind, waiting.event.key), []).append(waiting)
        if len(parts) == 1:
            for waiting in batch:
                await self._write([waiting])
            return
        hands = asyncio.Semaphore(self._limits.apart_max)

        async def write(part: list[_Waiting]) -> None:
            async with hands:
                await self._write(part)

        await asyncio.gather(*map(write, parts.values()))

    async def _append(self, batch: Sequence[_Waiting]) -> list[Receipt]:
        async with self._database.transaction() as tx:
            return await mailboxes.append(tx, [waiting.event for waiting in batch])

    def _follow_up(self, events: Sequence[NewEvent], receipts: Sequence[Receipt]) -> None:
        """Count what is new, alarm about what nobody will process, and wake workers for the rest."""
        counts: dict[str, Counter[str]] = {}
        wake: dict[str, dict[str, None]] = {}
        seen: set[tuple[str, str]] = set()
        for event, receipt in zip(events, receipts, strict=True):
            if not receipt.created:
                continue
            count = counts.setdefault(event.kind, Counter())
            count["events"] += 1
            if (event.kind, event.key) not in seen:
                seen.add((event.kind, event.key))
                count[receipt.status_before] += 1
                if receipt.status_before is MailboxStatus.DEAD:
                    log.error("mailbox.append_to_dead", kind=event.kind, key=event.key)
            if event.urgent and receipt.status_before in _WAITS:
                wake.setdefault(event.kind, {})[event.key] = None
        for kind, count in counts.items():
            measures.appended(
                kind, count["events"], queued=count[MailboxStatus.IDLE], dead=count[MailboxStatus.DEAD]
            )
        for kind, keys in wake.items():
            self._nudger.wake(kind, keys)


def check(event: NewEvent) -> None:
    """Refuse what Postgres would refuse, in words, and without a batch that has to be written twice."""
    for name, text, bytes_max in (
        ("kind", event.kind, KIND_BYTES_MAX),
        ("key", event.key, KEY_BYTES_MAX),
        ("dedupe_key", event.dedupe_key, KEY_BYTES_MAX),
        ("type", event.type, KEY_BYTES_MAX),
    ):
        if (
            not text
            or "\x00" in text
            or len(text) > bytes_max
            or len(text.encode("utf-8", "replace")) > bytes_max
        ):
            raise BadEvent(f"The {name} of an event has 1 to {bytes_max} bytes and no NUL.")


def _refuse(batch: Iterable[_Waiting], error: Exception, cause: BaseException) -> None:
    for waiting in batch:
        if error is not cause:
            error.__cause__ = cause
        waiting.refuse(error)
