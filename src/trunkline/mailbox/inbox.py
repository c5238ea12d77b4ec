"""The way into mailboxes: append events durably, then nudge a worker.

Concurrent appends share one transaction (group commit): what arrives while a batch is being written goes into the
next one. The caller is answered when its event is committed, and never waits for a worker.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from trunkline.bus import nudges
from trunkline.bus.connection import Bus
from trunkline.errors import BusUnavailable
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import Database
from trunkline.store.mailboxes import Appended, NewEvent
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# A batch is bounded so that one commit stays in the milliseconds.
BATCH_MAX = 500
# How long an append waits for company. Measured: without it webhooks cost twice the transactions.
LINGER_S = 0.005


@dataclass(slots=True)
class _Waiting:
    event: NewEvent
    done: "asyncio.Future[None]"


class Inbox:
    """Appends events in groups. One per process."""

    def __init__(self, database: Database, bus: Bus):
        self._database = database
        self._bus = bus
        self._waiting: list[_Waiting] = []
        self._flusher: asyncio.Task[None] | None = None

    async def append(self, event: NewEvent) -> None:
        """Return when the event is durable. A doubled event is durable already."""
        waiting = _Waiting(event, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(), name="inbox")
        await waiting.done

    async def _flush(self) -> None:
        await asyncio.sleep(LINGER_S)
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            await self._write(batch)

    async def _write(self, batch: list[_Waiting]) -> None:
        try:
            appended = await self._append([w.event for w in batch])
        except Exception as error:
            await self._write_singly(batch, error)
            return
        for waiting in batch:
            if not waiting.done.done():
                waiting.done.set_result(None)
        await self._nudge(appended)

    async def _write_singly(self, batch: list[_Waiting], error: Exception) -> None:
        """One event that cannot be written must not take its neighbours with it."""
        if len(batch) == 1:
            if not batch[0].done.done():
                batch[0].done.set_exception(error)
            return
        for waiting in batch:
            await self._write([waiting])

    async def _append(self, events: Sequence[NewEvent]) -> list[Appended]:
        async with self._database.transaction() as tx:
            return await mailboxes.append(tx, events)

    async def _nudge(self, appended: list[Appended]) -> None:
        by_kind: dict[str, list[str]] = {}
        for mailbox in appended:
            metrics.MAILBOX_APPENDED.labels(mailbox.kind).inc(mailbox.added)
            if mailbox.status is MailboxStatus.DEAD:
                log.error("mailbox.append_to_dead", kind=mailbox.kind, key=mailbox.key)
            elif mailbox.status is MailboxStatus.QUEUED:
                by_kind.setdefault(mailbox.kind, []).append(mailbox.key)
        for kind, keys in by_kind.items():
            try:
                await nudges.send(self._bus, kind, keys)
            except BusUnavailable:
                log.debug("mailbox.nudge_lost", kind=kind, count=len(keys))
