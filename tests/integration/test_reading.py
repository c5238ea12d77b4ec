"""What only reads cannot write: Postgres refuses it, with and without a pooler before it."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from trunkline.api.store import Store
from trunkline.errors import StoreUnavailable
from trunkline.store import database
from trunkline.store.database import Database

WRITE = "CREATE TABLE written ()"


@pytest.fixture(params=["session", "transaction"])
async def db(request: pytest.FixtureRequest, empty_database_url: str) -> AsyncIterator[Database]:
    behind_pooler = request.param == "transaction"
    opened = await database.connect(empty_database_url, pool_size=2, behind_pooler=behind_pooler)
    yield opened
    await opened.close()


async def is_written(db: Database) -> bool:
    async with db.connection() as conn:
        return bool(await conn.fetchval("SELECT to_regclass('written') IS NOT NULL"))


async def test_a_connection_for_reading_refuses_to_write(db: Database) -> None:
    async with db.reading() as conn:
        assert await conn.fetchval("SELECT 1") == 1
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        async with db.reading() as conn:
            await conn.execute(WRITE)
    assert not await is_written(db)


async def test_a_reading_connection_may_write_when_it_is_used_again(db: Database) -> None:
    async with db.reading() as conn:
        assert await conn.fetchval("SHOW transaction_read_only") == "on"
    async with db.connection() as conn:
        assert await conn.fetchval("SHOW transaction_read_only") == "off"
    async with db.transaction() as tx:
        await tx.execute(WRITE)
    assert await is_written(db)


async def test_a_store_opened_for_reading_cannot_write(db: Database) -> None:
    store = Store(db, timeout_s=5.0)
    with pytest.raises(StoreUnavailable, match="read-only"):
        async with store.reading() as conn:
            await conn.execute(WRITE)
    async with store.autocommit() as conn:
        await conn.execute(WRITE)
    assert await is_written(db)


async def test_reading_does_not_wait_for_an_open_write_transaction(empty_database_url: str) -> None:
    opened = await database.connect(empty_database_url, pool_size=1)
    async with opened.transaction(), opened.reading() as conn:
        assert await conn.fetchval("SELECT 1") == 1
    await opened.close()
