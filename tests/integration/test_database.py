"""What a transaction of the store promises: all or nothing, READ COMMITTED, and its connection goes back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.faults.proxy import TcpProxy
from trunkline.store.database import UNAVAILABLE, Database, connect

INSERT = "INSERT INTO resellers (id, name) VALUES ('one', 'one')"


@pytest.fixture
async def single(database_url: str) -> AsyncIterator[Database]:
    """With one connection: whoever keeps it keeps everybody from everything."""
    database = await connect(database_url, pool_size=1, connect_timeout_s=30.0)
    yield database
    await database.close()


async def names(database: Database) -> list[str]:
    async with database.connection() as conn:
        assert not conn.is_in_transaction()
        return [row["name"] for row in await conn.fetch("SELECT name FROM resellers ORDER BY id")]


async def test_what_is_done_in_it_is_committed(single: Database) -> None:
    async with single.transaction() as tx:
        assert await tx.fetchval("SHOW transaction_isolation") == "read committed"
        await tx.execute(INSERT)
    assert await names(single) == ["one"]


async def test_after_an_error_nothing_of_it_is_there(single: Database) -> None:
    async def fail() -> None:
        async with single.transaction() as tx:
            await tx.execute(INSERT)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        await fail()
    assert await names(single) == []


async def test_without_postgres_it_fails_and_works_again_afterwards(database_url: str) -> None:
    async with TcpProxy.before(database_url) as proxy:
        database = await connect(proxy.url, pool_size=1, connect_timeout_s=30.0)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(UNAVAILABLE):
            async with database.transaction() as tx:
                await tx.execute(INSERT)
        await proxy.heal()
        assert await names(database) == []
        await database.close()


async def test_whoever_is_cancelled_while_it_waits_for_a_connection_leaves_nothing(single: Database) -> None:
    async def use() -> None:
        async with single.transaction():
            pytest.fail("somebody else has the connection")

    async with single.connection():
        user = asyncio.create_task(use())
        await asyncio.sleep(0)
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
    assert await names(single) == []
