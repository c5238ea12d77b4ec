"""Mailboxes on real engines, for tests: a world to append to and look into, and a handler that can be held."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.mailbox.handler import Batch, Done, Handler, Write
from trunkline.mailbox.inbox import Inbox
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.store import database as store_database
from trunkline.store import mailboxes
from trunkline.store.database import Connection, Database
from trunkline.store.mailboxes import ClaimedMailbox, NewEvent, Receipt

KIND = "thing"
_EXPIRE_LEASES = (
    "UPDATE mailboxes SET claimable_at = now() - interval '1 second' WHERE processing_status = 'processing'"
)


def event(
    key: str = "a", name: str = "1", *, kind: str = KIND, type_: str = "happened", **more: Any
) -> NewEvent:
    """An event whose name is its dedupe key and its payload."""
    return NewEvent(kind, key, name, type_, {"name": name}, **more)


def names(claimed: Sequence[ClaimedMailbox]) -> list[str]:
    """The names of the events of claims, in order."""
    return [each.payload["name"] for mailbox in claimed for each in mailbox.events]


@dataclass(slots=True)
class MailboxWorld:
    database: Database
    bus: Bus
    inbox: Inbox

    async def append(self, *events: NewEvent) -> list[Receipt]:
        """In one transaction, without a wakeup."""
        async with self.database.transaction() as tx:
            return await mailboxes.append(tx, events)

    async def claim(
        self,
        keys: Sequence[str] | None = None,
        *,
        worker: str = "w1",
        lease_s: float = 60.0,
        limit: int = 100,
    ) -> list[ClaimedMailbox]:
        async with self.database.connection() as conn:
            return await mailboxes.claim(
                conn, KIND, keys, limit=limit, worker=worker, lease_s=lease_s, events_max=1000
            )

    async def complete(self, *claimed: ClaimedMailbox) -> dict[str, str]:
        async with self.database.transaction() as tx:
            done = await mailboxes.complete(tx, claimed)
        return {key: completed.status.value for key, completed in done.items()}

    async def status(self, key: str = "a", kind: str = KIND) -> str:
        return str(
            await self.value(
                "SELECT processing_status FROM mailboxes WHERE kind = $1 AND key = $2", kind, key
            )
        )

    async def unprocessed(self) -> list[str]:
        rows = await self.rows(
            """SELECT dedupe_key FROM mailbox_events AS e JOIN mailboxes AS m ON m.id = e.mailbox_id
               WHERE processed_at IS NULL ORDER BY kind, key, seq"""
        )
        return [row["dedupe_key"] for row in rows]

    async def expire_leases(self) -> None:
        """As if the workers of everything in hand had been gone for long."""
        await self.value(_EXPIRE_LEASES)

    async def steal(self, worker: str = "thief") -> list[ClaimedMailbox]:
        """Everything in hand gets another worker, in one step: a heartbeat in between would keep it."""
        async with self.database.transaction() as tx:
            await tx.execute(_EXPIRE_LEASES)
            return await mailboxes.claim(
                tx, KIND, None, limit=100, worker=worker, lease_s=60.0, events_max=1000
            )

    async def let_turns_come(self) -> None:
        """As if every backoff had passed."""
        await self.value("UPDATE mailboxes SET claimable_at = now() WHERE processing_status = 'queued'")

    async def value(self, statement: str, *args: object) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(statement, *args)

    async def rows(self, statement: str, *args: object) -> list[Any]:
        async with self.database.connection() as conn:
            return list(await conn.fetch(statement, *args))

    async def waiting_for_a_lock(self, count: int = 1) -> bool:
        """Whether so many sessions of this database wait for a row that another holds."""
        waiting = await self.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(waiting >= count)

    def worker(self, handler: Handler, *, name: str = "w1", **limits: Any) -> MailboxWorker:
        return MailboxWorker(self.database, self.bus, handler, name, WorkerLimits(**limits))


@asynccontextmanager
async def mailbox_world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    database = await store_database.connect(database_url)
    bus = bus_connection.connect(redis_url, Keys(prefix=key_prefix))
    inbox = Inbox(database, bus)
    try:
        yield MailboxWorld(database, bus, inbox)
    finally:
        await inbox.aclose()
        await bus.close()
        await database.close()


@asynccontextmanager
async def running(*workers: MailboxWorker) -> AsyncIterator[None]:
    """Workers at work, told to stop at the end and seen off."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


@dataclass(slots=True)
class Recorder:
    """A handler that notes what it was given, in memory and, with the completion, in a table."""

    kind: str = KIND
    given: list[dict[str, list[str]]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    # Mailboxes whose handler waits until it is let go.
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    # Mailboxes whose handler raises.
    poison: set[str] = field(default_factory=set)

    async def handle(self, batch: Batch) -> Write | Done | None:
        self.given.append({key: [each.payload["name"] for each in events] for key, events in batch.items()})
        self._tell()
        for key in batch:
            if key in self.poison:
                raise RuntimeError(f"{key} is poison")
            if key in self.held:
                await self.held[key].wait()
        return None

    def hold(self, key: str) -> Callable[[], None]:
        """Keep the handler of this mailbox waiting; the answer lets it go."""
        self.held[key] = asyncio.Event()
        return self.held[key].set

    def seen(self, key: str) -> list[str]:
        """The events of a mailbox that were handed over, in order, repeated as often as they were."""
        return [name for batch in self.given for name in batch.get(key, [])]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def _tell(self) -> None:
        self.changed.set()


@dataclass(slots=True)
class Ledger(Recorder):
    """A recorder whose effects are rows: an event that took effect twice is there twice."""

    async def handle(self, batch: Batch) -> Write | Done | None:
        await Recorder.handle(self, batch)
        rows = [(self.kind, key, each.seq) for key, events in batch.items() for each in events]

        async def write(tx: Connection) -> None:
            await tx.executemany("INSERT INTO effects (kind, key, seq) VALUES ($1, $2, $3)", rows)

        return write

    @staticmethod
    async def prepare(world: MailboxWorld) -> None:
        await world.value("CREATE TABLE effects (kind text, key text, seq bigint)")
