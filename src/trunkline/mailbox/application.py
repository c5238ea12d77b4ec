"""Mailboxes for any application, with nothing but a Postgres and a Valkey.

@mailbox("issue", concurrency=20)
async def triage(issue: Mailbox) -> Write | None:
    reply = await think(issue.events)              # no transaction is open; take your time

    async def write(tx: Connection) -> None:       # one transaction with the completion
        await tx.execute("INSERT INTO replies …", issue.key, reply)

    return write

async with Mailboxes.open(database_url, redis_url, handlers=[triage]) as mailboxes:
    await mailboxes.append("issue", "acme/site#12", "comment.created", {…}, dedupe_key=delivery_id)
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.loops.base import Loop
from trunkline.mailbox.handler import Batch, Done, Write
from trunkline.mailbox.inbox import Inbox
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.retention import DAY_S, MailboxRetention
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.store import database as store_database
from trunkline.store.database import Database
from trunkline.store.mailboxes import Event, NewEvent, Receipt
from trunkline.store.migrate import migrate

# All that is about mailboxes alone.
SCHEMA = frozenset(
    {
        "0003_mailboxes",
        "0014_mailbox_append_one",
        "0031_mailbox_append_batch",
        "0032_mailbox_claim_one",
        "0034_mailbox_by_index",
    }
)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """An entity and its pending events, in order."""

    kind: str
    key: str
    events: Sequence[Event]


HandlerFunction = Callable[[Mailbox], Awaitable[Write | Done | None]]


@dataclass(frozen=True, slots=True)
class MailboxHandler:
    """A function that handles one mailbox at a time, and how. It can still be called, by a test for example."""

    kind: str
    function: HandlerFunction
    limits: WorkerLimits

    async def __call__(self, box: Mailbox) -> Write | Done | None:
        return await self.function(box)

    async def handle(self, batch: Batch) -> Write | Done | None:
        [(key, events)] = batch.items()
        return await self.function(Mailbox(self.kind, key, events))


def mailbox(
    kind: str,
    *,
    concurrency: int = 20,
    lease_s: float = 15.0,
    sweep_s: float = 1.0,
    events_max: int = 1_000,
    failure: FailureRule | None = None,
) -> Callable[[HandlerFunction], MailboxHandler]:
    """Handle the mailboxes of a kind with this function, so many at once in each process."""
    limits = WorkerLimits(
        batch_max=1,
        concurrency=concurrency,
        lease_s=lease_s,
        sweep_s=sweep_s,
        events_max=events_max,
        failure=failure or FailureRule(),
    )
    return lambda function: MailboxHandler(kind, function, limits)


class Mailboxes:
    """The mailboxes of an application: append to them anywhere, handle them where handlers are given."""

    def __init__(
        self, database: Database, bus: Bus, handlers: Sequence[MailboxHandler], *, worker: str, keep_s: float
    ):
        self.database = database
        self.bus = bus
        self.inbox = Inbox(database, bus)
        self.workers = [MailboxWorker(database, bus, handler, worker, handler.limits) for handler in handlers]
        self._loops: list[Loop] = [*self.workers, MailboxRetention(database, keep_s=keep_s)]
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database_url: str,
        redis_url: str,
        handlers: Sequence[MailboxHandler] = (),
        *,
        prefix: str = "mailboxes",
        domain: str | None = None,
        pool_size: int = 10,
        worker: str | None = None,
        keep_s: float = 7 * DAY_S,
    ) -> "AsyncIterator[Mailboxes]":
        """Make the tables if they are missing, connect, and work until the end of the block. `domain` is that of a
        platform whose mailboxes these are too; an application alone has keys with a prefix of its own."""
        await migrate(database_url, only=SCHEMA)
        database = await store_database.connect(database_url, pool_size=pool_size)
        bus = bus_connection.connect(redis_url, Keys(domain) if domain else Keys(prefix=prefix))
        name = worker or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        mailboxes = cls(database, bus, handlers, worker=name, keep_s=keep_s)
        mailboxes.start()
        try:
            yield mailboxes
        finally:
            await mailboxes.aclose()
            await bus.close()
            await database.close()

    async def append(
        self,
        kind: str,
        key: str,
        event_type: str,
        payload: dict[str, Any],
        *,
        dedupe_key: str | None = None,
        urgent: bool | None = None,
    ) -> Receipt:
        """Return when the event is durable. With a dedupe key it is so once, however often it is sent."""
        return await self.inbox.append(
            NewEvent(kind, key, dedupe_key or uuid4().hex, event_type, payload, urgent)
        )

    def start(self) -> None:
        self._tasks = [asyncio.create_task(loop.run(), name=loop.name) for loop in self._loops]

    async def aclose(self) -> None:
        """Write what was appended, finish what is in hand or give it back."""
        await self.inbox.aclose()
        for loop in self._loops:
            loop.stop()
        await asyncio.gather(*self._tasks)
