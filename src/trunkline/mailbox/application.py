"""Mailboxes for any application, with nothing but a Postgres and a Valkey.

@mailbox("issue", concurrency=20)
async def triage(issue: Mailbox) -> Write | None:
    reply = await think(issue.events)              # no transaction is open; take your time

    async def write(tx: Connection) -> None:       # one transaction with the completion
        await tx.execute("INSERT INTO replies …", issue.key, reply)

    return write

mailboxes = Mailboxes(database_url, redis_url, [triage])

async with session.begin():                        # SQLAlchemy; or asyncpg, psycopg, Django
    session.add(comment)
    await mailboxes.append(session, "issue", "acme/site#12", "comment.created", {…})

async with mailboxes:                              # by itself, for an event that follows from nothing else
    await mailboxes.submit("issue", "acme/site#12", "comment.created", {…}, dedupe_key=delivery_id)

asyncio.run(mailboxes.run())                       # the worker, in a process of its own or beside

Tables and functions are in a schema of their own, created when the object is opened or by `prepare`. To append in a
transaction of the application the object need not be open: it uses the application's connection.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict, Unpack
from uuid import uuid4

from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.mailbox_wakeups import MailboxNotifier
from trunkline.handlers import HandlerScope, HandlerThreads, current_scope, refusal
from trunkline.loops.base import Loop
from trunkline.mailbox.handler import BadHandler, Batch, Done, Write
from trunkline.mailbox.inbox import BadEvent, Inbox, InboxLimits, check, follow_up
from trunkline.mailbox.maintenance import DAY_S, MailboxGauges, MailboxRetention
from trunkline.mailbox.processing import FailureRule, report_stuck
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.queues.application import ApplicationQueue, OpenObject
from trunkline.store import adapters, mailbox_admin
from trunkline.store.adapters import Adapter, entries
from trunkline.store.database import Connection, Database
from trunkline.store.mailboxes import Event, NewEvent, Receipt
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# How many are replayed or renamed at once, so that their locks are short.
BY_HAND_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Mailbox:
    """An entity and its pending events, in order."""

    kind: str
    key: str
    events: Sequence[Event]


HandlerFunction = Callable[[Mailbox], Awaitable[Write | Done | None]]


@dataclass(frozen=True, slots=True)
class MailboxHandler:
    """A function that handles one mailbox at a time, and its limits. It can still be called, by a test for example."""

    kind: str
    function: HandlerFunction
    limits: WorkerLimits
    threads: HandlerThreads = field(default_factory=HandlerThreads, compare=False, repr=False)

    async def __call__(self, box: Mailbox) -> Write | Done | None:
        return await self.function(box)

    async def handle(self, batch: Batch) -> Write | Done | None:
        [(key, events)] = batch.items()
        # Until the task ends: the handler's write belongs to the same run.
        HandlerScope(
            "mailbox",
            self.kind,
            self.threads,
            grace_s=self.limits.cancel_grace_s,
            on_stuck_thread=partial(report_stuck, self.kind, [key], how="thread"),
            within=current_scope(),
        ).enter()
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
    """Handle the mailboxes of a kind with this function, `concurrency` at once in each process."""
    limits = WorkerLimits(
        batch_max=1,
        concurrency=concurrency,
        lease_s=lease_s,
        sweep_s=sweep_s,
        events_max=events_max,
        failure=failure or FailureRule(),
    )

    def decorate(function: HandlerFunction) -> MailboxHandler:
        if (reason := refusal(function)) is not None:
            raise BadHandler(f"The handler of mailboxes of kind {kind} cannot be run: {reason}")
        return MailboxHandler(kind, function, limits)

    return decorate


class EventOptions(TypedDict, total=False):
    """The options of an event beside its payload, as `new_event` takes them."""

    dedupe_key: str | None
    urgent: bool | None


class Mailboxes(ApplicationQueue[MailboxNotifier, "_OpenMailboxes"]):
    """The mailboxes of an application: append to them anywhere, handle them where handlers are given."""

    area = "mailboxes"

    def __init__(
        self,
        database_url: str,
        redis_url: str,
        handlers: Sequence[MailboxHandler] = (),
        *,
        schema: str | None = "trunkline",
        prefix: str = "mailboxes",
        domain: str | None = None,
        behind_pooler: bool = False,
        pool_size: int = 10,
        worker: str | None = None,
        keep_s: float = 7 * DAY_S,
    ):
        """`domain`: use the mailboxes of a platform's domain, on the search path of the URL; without it an application
        has its own schema and its own prefix of keys. `behind_pooler`: the URL is that of a transaction pooler."""
        super().__init__(database_url, None if domain else schema, behind_pooler=behind_pooler)
        self._is_of_platform = domain is not None
        self._redis_url = redis_url
        self._keys = Keys(domain) if domain else Keys(prefix=prefix)
        self._handlers = handlers
        self._pool_size = pool_size
        self._worker = worker or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self._keep_s = keep_s

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database_url: str, redis_url: str, handlers: Sequence[MailboxHandler] = (), **options: Any
    ) -> "AsyncIterator[Mailboxes]":
        """Open it, and run the worker until the end of the block. The options are those of the object."""
        async with cls(database_url, redis_url, handlers, **options) as mailboxes, mailboxes.working():
            yield mailboxes

    # In a transaction of the application

    async def append(
        self,
        tx: Any,
        kind: str,
        key: str,
        event_type: str,
        payload: dict[str, Any],
        **options: Unpack[EventOptions],
    ) -> Receipt:
        """Append one event in an open transaction. Raises `BadEvent`, or `NotInTransaction` outside a transaction;
        nothing was sent then, and the transaction can go on. The mailbox is locked until the transaction ends, so
        append last."""
        return (await self.append_many(tx, [new_event(kind, key, event_type, payload, **options)]))[0]

    async def append_many(self, tx: Any, events: Iterable[NewEvent]) -> list[Receipt]:
        """Append events made by `new_event`, in order. Their mailboxes are locked in sorted order, so that two callers
        with the same mailboxes do not deadlock."""
        listed = _checked(events)
        texts = [entries.events_in(listed)]
        return self._appended(
            listed, *await adapters.call_async(tx, self.schema, entries.APPEND_EVENTS, texts)
        )

    def append_sync(
        self,
        tx: Any,
        kind: str,
        key: str,
        event_type: str,
        payload: dict[str, Any],
        **options: Unpack[EventOptions],
    ) -> Receipt:
        """As `append`, for a connection or session that is not asynchronous."""
        return self.append_many_sync(tx, [new_event(kind, key, event_type, payload, **options)])[0]

    def append_many_sync(self, tx: Any, events: Iterable[NewEvent]) -> list[Receipt]:
        listed = _checked(events)
        texts = [entries.events_in(listed)]
        return self._appended(listed, *adapters.call_sync(tx, self.schema, entries.APPEND_EVENTS, texts))

    def wake(self, kind: str, *keys: str) -> None:
        """Wake the workers for these mailboxes. Call it after the commit: before it they find nothing. Sessions of
        SQLAlchemy and Django do it by themselves. Without it the sweep finds the mailboxes within a second. Never
        waits, in any thread."""
        self._notify(lambda notifier: notifier.wake(kind, keys))

    # On connections of its own

    async def submit(
        self, kind: str, key: str, event_type: str, payload: dict[str, Any], **options: Unpack[EventOptions]
    ) -> Receipt:
        """Append one event that follows from no other change, and return when it is durable. With a dedupe key it is
        stored once, however often it is sent."""
        return await self._opened().inbox.append(new_event(kind, key, event_type, payload, **options))

    @asynccontextmanager
    async def transaction(self) -> "AsyncIterator[Appending]":
        """A transaction on a connection of this object (`tx` of the value); it wakes workers after the commit."""
        scope, database = current_scope(), self.database
        async with database.transaction() as tx:
            appending = Appending(self, tx)
            # An abandoned handler loses its connection of the handlers' pool.
            is_handlers = scope is not None and scope.part == "mailbox"
            with scope.holding(partial(database.take_away, tx)) if scope and is_handlers else nullcontext():
                yield appending
        for event in appending.events:
            self.wake(event.kind, event.key)

    # By an operator

    async def replay(self, kind: str, key: str | None = None, *, seq: int | None = None) -> int:
        """Queue a dead mailbox, or all dead ones of a kind, again with a failure count of zero; or append one event
        that was set aside, by its number, again. Returns how many, at most 1,000: call it again until it returns 0. A
        mailbox that another transaction has locked is skipped."""
        if key is None and seq is not None:
            raise BadEvent("The number of an event is one within its mailbox: name the key too.")
        async with self.transaction() as work:
            if key is not None and seq is not None:
                is_back = await mailbox_admin.replay_event(work.tx, kind, key, seq) is not None
                keys = [key] if is_back else []
            else:
                keys = await mailbox_admin.replay(work.tx, kind, key, limit=BY_HAND_MAX)
        self.wake(kind, *keys)
        return len(keys)

    async def set_aside(self, kind: str, key: str, seq: int, reason: str) -> bool:
        """Let a mailbox go on without one of its pending events, which is stored with the reason and can be replayed.
        A dead mailbox has to be replayed too. False: it has no pending event of this number."""
        async with self.transaction() as work:
            return await mailbox_admin.set_aside(work.tx, kind, key, seq, reason)

    async def rename(self, kind: str, to: str) -> int:
        """Move the mailboxes of a kind without a handler to another kind, with all their events. Skips those that a
        worker has claimed, and those whose key exists there. Returns how many were moved, at most 1,000: call it again
        until it returns 0."""
        check(new_event(to, "any", "any", {}))
        async with self.transaction() as work:
            keys, _ = await mailbox_admin.rename(work.tx, kind, to, limit=BY_HAND_MAX)
        self.wake(to, *keys)
        return len(keys)

    # Opening and closing

    @property
    def database(self) -> Database:
        """The pool of this object, whose search path begins with the schema of mailboxes. Handlers have one pool, the
        application has another."""
        opened, scope = self._opened(), current_scope()
        return opened.database if scope is not None and scope.part == "mailbox" else opened.application

    @property
    def bus(self) -> Bus:
        return self._opened().bus

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Handle mailboxes until the end of the block, beside whatever else the process does; then finish or return
        the claimed ones."""
        opened = self._opened()
        loops: list[Loop] = [
            *(
                MailboxWorker(
                    opened.database, opened.bus, handler, self._worker, handler.limits, own=opened.own
                )
                for handler in self._handlers
            ),
            MailboxRetention(opened.own, keep_s=self._keep_s),
            MailboxGauges(
                opened.own,
                handled=None if self._is_of_platform else {handler.kind for handler in self._handlers},
            ),
        ]
        tasks = [asyncio.create_task(loop.run(), name=loop.name) for loop in loops]
        try:
            yield
        finally:
            for loop in loops:
                loop.stop()
            await asyncio.gather(*tasks)
            # Threads of handlers run on after a cancellation. They get no longer than a handler does.
            left = await asyncio.gather(
                *(handler.threads.end(handler.limits.cancel_grace_s) for handler in self._handlers)
            )
            if unfinished := [each for of_kind in left for each in of_kind]:
                log.error("mailbox.threads_left", unfinished=unfinished)

    def _appended(
        self, events: Sequence[NewEvent], adapter: Adapter, answers: Sequence[str]
    ) -> list[Receipt]:
        receipts = entries.events_out(answers[0])
        # Counted now: not every driver reports the commit.
        to_wake = follow_up(events, receipts)

        def wake() -> None:
            for kind, keys in to_wake.items():
                self.wake(kind, *keys)

        adapter.after_commit(wake)
        return receipts

    def _working(self) -> AbstractAsyncContextManager[None]:
        return self.working()

    def _make_notifier(self) -> MailboxNotifier:
        return MailboxNotifier(bus_connection.connect(self._redis_url, self._keys))

    async def _connect(self, stack: AsyncExitStack, search_path: str | None) -> "_OpenMailboxes":
        """Open transactions of handlers starve no append, renewal, completion or application transaction: those have
        pools of their own. Nor other handlers: there is a connection for each that may run."""

        async def pool(name: str, size: int) -> Database:
            return await self._pool(stack, f"trunkline mailboxes: {name}", size, search_path)

        bus = bus_connection.connect(self._redis_url, self._keys)
        stack.push_async_callback(bus.close)
        application = await pool("application", self._pool_size)
        handlers_max = sum(handler.limits.concurrency for handler in self._handlers)
        handlers = await pool("handlers", max(self._pool_size, handlers_max)) if handlers_max else application
        own = await pool("leases", 2 * len(self._handlers) + 1)
        inbox = Inbox(await pool("appends", InboxLimits().connections), bus)
        # The first to be closed: it writes the submitted events.
        stack.push_async_callback(inbox.aclose)
        return _OpenMailboxes(inbox.notifier, handlers, application, own, bus, inbox)


class Appending:
    """A transaction, and the events that were appended in it."""

    def __init__(self, mailboxes: Mailboxes, tx: Connection):
        self.tx = tx
        self.events: list[NewEvent] = []
        self._mailboxes = mailboxes

    async def append(
        self, kind: str, key: str, event_type: str, payload: dict[str, Any], **options: Unpack[EventOptions]
    ) -> Receipt:
        event = new_event(kind, key, event_type, payload, **options)
        [receipt] = await self._mailboxes.append_many(self.tx, [event])
        if event.urgent is not False:
            self.events.append(event)
        return receipt


@dataclass(eq=False)
class _OpenMailboxes(OpenObject[MailboxNotifier]):
    # Pools of handlers, of the application's transactions, and of claims, renewals and completions.
    database: Database
    application: Database
    own: Database
    bus: Bus
    inbox: Inbox


def new_event(
    kind: str,
    key: str,
    event_type: str,
    payload: dict[str, Any],
    *,
    dedupe_key: str | None = None,
    urgent: bool | None = None,
) -> NewEvent:
    """An event that can be appended. Without a dedupe key every call makes a distinct event."""
    return NewEvent(kind, key, dedupe_key or uuid4().hex, event_type, payload, urgent)


def _checked(events: Iterable[NewEvent]) -> list[NewEvent]:
    listed = list(events)
    for event in listed:
        check(event)
    return listed
