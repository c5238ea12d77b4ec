"""What the benchmark of mailboxes appends, folds and drains: a fresh database for each round, filled in bulk."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.dispatch import calls
from trunkline.dispatch.calls import CallFold
from trunkline.dispatch.cooldowns import CooldownWriter
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.settlement import Settler
from trunkline.embedded import Engines
from trunkline.mailbox import Batch, Handler, MailboxWorker, NewEvent, WorkerLimits
from trunkline.store import database as store_database
from trunkline.store import mailboxes
from trunkline.store.database import Database
from trunkline.store.migrate import migrate

KIND = "bench"
CALL_EVENTS = ("initiated", "ringing", "answered", "ended")
BULK = 2_000
BARE = """CREATE TABLE bare (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL, key text NOT NULL, dedupe_key text NOT NULL,
    type text NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
INSERT_BARE = """INSERT INTO bare (kind, key, dedupe_key, type, payload)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[])"""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Stage:
    url: str
    database: Database
    bus: Bus

    def worker(self, handler: Handler, limits: WorkerLimits) -> MailboxWorker:
        return MailboxWorker(self.database, self.bus, handler, f"bench-{next(_numbers)}", limits)

    def folder(self, limits: WorkerLimits) -> MailboxWorker:
        """The platform's own handler of call events."""
        return self.worker(
            CallFold(Settler(self.bus, Policies()), CooldownWriter(self.database, "bench")), limits
        )

    async def value(self, statement: str, *args: object) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(statement, *args)

    @asynccontextmanager
    async def counting(self, transactions: list[int]) -> "AsyncIterator[Stage]":
        """The same stage on sessions of its own. How many transactions they made is known when they have ended: until
        then a session keeps what it did to itself for up to ten seconds."""
        before = await self._transactions()
        database = await store_database.connect(self.url)
        try:
            yield replace(self, database=database)
        finally:
            await database.close()
            transactions.append(await self._transactions() - before)

    async def _transactions(self) -> int:
        """Looked at from another database, so that looking is not counted."""
        conn = await asyncpg.connect(self.url, database="postgres")
        await asyncio.sleep(0.2)  # a session that has just ended
        count: int = await conn.fetchval(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1",
            self.url.rpartition("/")[2].partition("?")[0],
        )
        await conn.close()
        return count


@asynccontextmanager
async def stage(engines: Engines) -> AsyncIterator[Stage]:
    name = f"mailbox_{next(_numbers)}"
    admin = await asyncpg.connect(engines.database_url)
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    assert engines.postgres is not None
    url = engines.postgres.url(name)
    await migrate(url)
    database = await store_database.connect(url)
    bus = bus_connection.connect(engines.redis_url, Keys(prefix=name))
    async with database.connection() as conn:
        await conn.execute(BARE)
        await conn.execute("INSERT INTO resellers (id, name) VALUES ('r', 'R')")
        await conn.execute("INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'M')")
        await conn.execute("INSERT INTO pools (id, name) VALUES ('p', 'P')")
    try:
        yield Stage(url, database, bus)
    finally:
        await bus.close()
        await database.close()


class Nothing:
    """A handler that has nothing to do, for many mailboxes at once."""

    kind = KIND

    async def handle(self, _batch: Batch) -> None: ...


def payload(kind: str, call_id: str) -> dict[str, Any]:
    """A carrier's webhook as it is stored: some 400 bytes."""
    return {
        "kind": kind,
        "call_id": call_id,
        "at": datetime.now(UTC).isoformat(),
        "reason": "completed" if kind == "ended" else None,
        "duration_s": 31 if kind == "ended" else None,
        "raw": {
            "CallSid": call_id,
            "CallStatus": kind,
            "Timestamp": "Wed, 01 Jan 2025 00:00:00 +0000",
            "Direction": "outbound-api",
            "ApiVersion": "2010-04-01",
            "SequenceNumber": "3",
        },
    }


def events(count: int, spread: int) -> list[NewEvent]:
    """So many events, spread over so many mailboxes, in the order in which a busy day would bring them."""
    keys = [str(uuid4()) for _ in range(spread)]
    return [
        NewEvent(KIND, keys[n % spread], f"{n}:status:ringing", "ringing", payload("ringing", f"CA{n:032}"))
        for n in range(count)
    ]


async def fill(stage: Stage, new: Sequence[NewEvent]) -> None:
    """Append in bulk, for what is not being measured."""
    for start in range(0, len(new), BULK):
        async with stage.database.connection() as conn:
            await mailboxes.append(conn, new[start : start + BULK])


async def insert_bare(stage: Stage, new: Sequence[NewEvent], batch: int) -> None:
    """What the same events cost without mailboxes: one table with one index, so many rows in each statement."""
    async with stage.database.connection() as conn:
        for start in range(0, len(new), batch):
            some = new[start : start + batch]
            await conn.execute(
                INSERT_BARE,
                [e.kind for e in some],
                [e.key for e in some],
                [e.dedupe_key for e in some],
                [e.type for e in some],
                [e.payload for e in some],
            )


async def dialled(stage: Stage, count: int) -> list[UUID]:
    """Leads that are being called, each by an attempt with a channel of its own."""
    leads, attempts, first = (
        [uuid4() for _ in range(count)],
        [uuid4() for _ in range(count)],
        next(_numbers) * 10**6,
    )
    phones = [f"+1{4 * 10**9 + first + n}" for n in range(count)]
    async with stage.database.connection() as conn:
        await conn.execute(
            """INSERT INTO leads (id, reseller_id, merchant_id, request_id, request_hash, phone, pool_id, status,
                                  scheduled_at, due_at, attempt_count)
               SELECT id, 'r', 'm', id::text, sha256(''), phone, 'p', 'PROCESSING', now(), now(), 1
               FROM unnest($1::uuid[], $2::text[]) AS l (id, phone)""",
            leads,
            phones,
        )
        await conn.execute(
            """INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,
                                     account, to_phone, from_phone, dialer, state)
               SELECT a.id, a.lead, 1, 'r', 'm', gen_random_uuid(), 1, 'twilio', 'default', a.phone, '+14155550100',
                      'bench', 'accepted'
               FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS a (id, lead, phone)""",
            attempts,
            leads,
            phones,
        )
    return attempts


def call_event(attempt: UUID, kind: str, *, urgent: bool) -> NewEvent:
    return NewEvent(calls.KIND, str(attempt), kind, kind, payload(kind, f"CA{attempt.hex}"), urgent)
