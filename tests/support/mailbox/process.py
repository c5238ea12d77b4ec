"""A worker, or a sender, as a process of its own, to be killed and stopped by tests:

    python -m tests.support.mailbox.process work DATABASE_URL REDIS_URL PREFIX LEASE_S
    python -m tests.support.mailbox.process send DATABASE_URL REDIS_URL PREFIX COUNT

A worker keeps two ledgers that mailboxes know nothing of: `begun`, written at once when a handler begins, and
`effects`, written with the completion.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvloop

from tests.support.waiting import eventually
from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.mailbox.handler import Batch, Write
from trunkline.mailbox.inbox import Inbox
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.store import database as store_database
from trunkline.store.database import Connection, Database
from trunkline.store.mailboxes import NewEvent

LEDGER = """
CREATE TABLE begun (kind text, key text, pid int);
CREATE TABLE effects (kind text, key text, name text, pid int);
CREATE TABLE gates (key text)
"""
# One mailbox in a call, and many.
KINDS = {"single": 1, "batch": 20}
# Its handler waits until somebody opens its gate.
HELD = "held"
# What its handler writes does.
HELD_AT_WRITE = "held at write"


@dataclass(frozen=True, slots=True)
class LedgerHandler:
    kind: str
    database: Database

    async def handle(self, batch: Batch) -> Write:
        pid = os.getpid()
        async with self.database.connection() as conn:
            await conn.executemany(
                "INSERT INTO begun VALUES ($1, $2, $3)", [(self.kind, key, pid) for key in batch]
            )
        if HELD in batch:
            await self._gate(HELD)
        rows = [
            (self.kind, key, each.payload["name"], pid) for key, events in batch.items() for each in events
        ]

        async def write(tx: Connection) -> None:
            await tx.executemany("INSERT INTO effects VALUES ($1, $2, $3, $4)", rows)
            if HELD_AT_WRITE in batch:
                await self._gate(HELD_AT_WRITE)

        return write

    async def _gate(self, key: str) -> None:
        async def is_open() -> bool:
            async with self.database.connection() as conn:
                return bool(await conn.fetchval("SELECT count(*) FROM gates WHERE key = $1", key))

        await eventually(is_open, timeout_s=600)


def some_events(count: int, *, mailboxes: int = 15) -> list[NewEvent]:
    """So many of each kind, spread over some mailboxes."""
    return [
        NewEvent(kind, f"k{n % mailboxes}", str(n), "happened", {"name": str(n)})
        for n in range(count)
        for kind in KINDS
    ]


@asynccontextmanager
async def _connected(database_url: str, redis_url: str, prefix: str) -> AsyncIterator[tuple[Database, Bus]]:
    database = await store_database.connect(database_url)
    bus = bus_connection.connect(redis_url, Keys(prefix=prefix))
    try:
        yield database, bus
    finally:
        await bus.close()
        await database.close()


async def work(database_url: str, redis_url: str, prefix: str, lease_s: float) -> None:
    async with _connected(database_url, redis_url, prefix) as (database, bus):
        workers = [
            MailboxWorker(
                database,
                bus,
                LedgerHandler(kind, database),
                f"process-{os.getpid()}",
                WorkerLimits(
                    batch_max=batch_max,
                    lease_s=lease_s,
                    sweep_s=0.2,
                    stop_s=2.0,
                    failure=FailureRule(failures_max=1000, backoff_first_s=0.1, backoff_max_s=0.2),
                ),
            )
            for kind, batch_max in KINDS.items()
        ]

        def stop() -> None:
            for worker in workers:
                worker.stop()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        running = [asyncio.create_task(worker.run()) for worker in workers]
        print("ready", flush=True)  # noqa: T201
        await asyncio.gather(*running)


async def send(database_url: str, redis_url: str, prefix: str, count: int) -> None:
    async with _connected(database_url, redis_url, prefix) as (database, bus):
        inbox = Inbox(database, bus)
        for event in some_events(count):
            await inbox.append(event)
        await inbox.aclose()


def command(what: str, place: Sequence[str], number: float) -> list[str]:
    return [sys.executable, "-m", "tests.support.mailbox.process", what, *place, str(number)]


@asynccontextmanager
async def mailbox_process(
    place: Sequence[str], *, lease_s: float = 1.0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker, started. It is killed at the end if the test did not do so itself."""
    process = await asyncio.create_subprocess_exec(
        *command("work", place, lease_s), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


if __name__ == "__main__":
    what, *place, number = sys.argv[1:]
    database_url, redis_url, prefix = place
    if what == "work":
        uvloop.run(work(database_url, redis_url, prefix, float(number)))
    else:
        uvloop.run(send(database_url, redis_url, prefix, int(number)))
