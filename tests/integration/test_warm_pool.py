"""Connections at hand: the same one again, unless it is broken, spoilt, worn or wanted elsewhere."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from trunkline.store import database, warm_pool
from trunkline.store.database import Database

POOL_SIZE = 3


@pytest.fixture
async def db(empty_database_url: str) -> AsyncIterator[Database]:
    opened = await database.connect(empty_database_url, pool_size=POOL_SIZE)
    yield opened
    await opened.close()


async def session(db: Database) -> int:
    async with db.connection() as conn:
        return int(await conn.fetchval("SELECT pg_backend_pid()"))


async def test_sequential_checkouts_get_the_same_connection(db: Database) -> None:
    assert len({await session(db) for _ in range(10)}) == 1
    assert db.warm_pool.get_idle_size() == db.warm_pool.get_size()


async def test_connections_kept_by_checkout_leave_room_in_the_pool(db: Database) -> None:
    async with db.connection(), db.connection(), db.connection():
        pass
    async with db.pool.acquire(timeout=5) as conn:
        assert await conn.fetchval("SELECT 1") == 1


async def test_a_waiting_checkout_gets_the_next_returned_connection(db: Database) -> None:
    async with db.connection(), db.connection():
        async with db.connection():
            waiting = asyncio.create_task(session(db))
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await waiting


async def test_a_connection_closed_during_its_use_is_not_lent_again(
    db: Database, empty_database_url: str
) -> None:
    first = await session(db)
    other = await asyncpg.connect(empty_database_url)
    async with db.connection() as conn:
        await other.execute("SELECT pg_terminate_backend($1)", first)
        with pytest.raises(database.UNAVAILABLE):
            await conn.fetchval("SELECT pg_sleep(60)")
    await other.close()
    assert await session(db) != first


async def test_a_connection_terminated_while_it_is_kept_is_not_lent_again(
    db: Database, empty_database_url: str
) -> None:
    async with db.connection() as conn:
        first = await conn.fetchval("SELECT pg_backend_pid()")
        ended = asyncio.Event()
        conn.add_termination_listener(lambda _conn: ended.set())
    other = await asyncpg.connect(empty_database_url)
    await other.execute("SELECT pg_terminate_backend($1)", first)
    await other.close()
    async with asyncio.timeout(5):
        await ended.wait()
    assert await session(db) != first


async def test_a_connection_goes_back_to_the_pool_after_an_error(db: Database) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with db.connection() as conn:
            await conn.execute("SELECT 1/0")
    assert db.pool.get_idle_size() == db.pool.get_size()


async def test_a_connection_with_an_open_transaction_is_not_lent_again(db: Database) -> None:
    async with db.connection() as conn:
        await conn.execute("BEGIN")
    async with db.connection() as conn:
        assert not conn.is_in_transaction()


async def test_a_cancelled_query_does_not_disturb_the_next_checkout(db: Database) -> None:
    with pytest.raises(TimeoutError):
        async with db.connection() as conn:
            await conn.execute("SELECT pg_sleep(60)", timeout=0.01)
    async with asyncio.timeout(5):
        assert await session(db)


async def test_a_connection_used_for_long_goes_back_to_the_pool(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "TURNS_MAX", 2)
    kept = []
    for _ in range(4):
        await session(db)
        kept.append(db.warm_pool.get_idle_size() - db.pool.get_idle_size())
    assert kept == [1, 1, 0, 1]


async def test_closing_does_not_wait_for_idle_connections(empty_database_url: str) -> None:
    opened = await database.connect(empty_database_url, pool_size=POOL_SIZE)
    await session(opened)
    async with asyncio.timeout(5):
        await opened.close(timeout_s=60)


async def test_warm_pool_retains_no_connection_of_a_pool_of_one(empty_database_url: str) -> None:
    opened = await database.connect(empty_database_url, pool_size=1)
    await session(opened)
    assert opened.pool.get_idle_size() == 1
    await opened.close()
