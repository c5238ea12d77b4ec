"""Each test has its servers to itself."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from redis.asyncio import Redis, RedisCluster

from trunkline.embedded import Engines
from trunkline.store.migrate import known

prefixes_seen: set[str] = set()


async def tables(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {row["tablename"] for row in rows}
    finally:
        await connection.close()


@pytest.mark.parametrize("run", [1, 2])
async def test_a_tests_writes_are_not_seen_by_the_next_test(empty_database_url: str, run: int) -> None:
    assert await tables(empty_database_url) == set()
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("CREATE TABLE mine (id int)")
    await connection.close()


@pytest.mark.parametrize("run", [1, 2])
async def test_a_migrated_database_has_every_migration_and_no_rows(database_url: str, run: int) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        applied = await connection.fetchval("SELECT count(*) FROM schema_migrations")
        assert applied == len(known())
    finally:
        await connection.close()


@pytest.fixture
async def forgotten() -> AsyncIterator[list["asyncpg.Connection[asyncpg.Record]"]]:
    """Asked for before the database, and so torn down after it."""
    connections: list[asyncpg.Connection[asyncpg.Record]] = []
    yield connections
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connections[0].execute("SELECT 1")
    connections[0].terminate()


async def test_a_database_is_dropped_even_if_the_test_forgot_a_connection(
    forgotten: list["asyncpg.Connection[asyncpg.Record]"], empty_database_url: str
) -> None:
    forgotten.append(await asyncpg.connect(empty_database_url))


def test_a_plain_test_can_use_a_database(empty_database_url: str) -> None:
    assert empty_database_url.startswith("postgresql://")


@pytest.mark.parametrize("run", [1, 2])
def test_no_two_tests_have_the_same_key_prefix(key_prefix: str, run: int) -> None:
    assert key_prefix not in prefixes_seen
    prefixes_seen.add(key_prefix)


async def test_the_sessions_valkey_answers(redis_url: str, key_prefix: str) -> None:
    async with Redis.from_url(redis_url) as client:
        assert await client.set(f"{key_prefix}:greeting", "hello")
        assert await client.get(f"{key_prefix}:greeting") == b"hello"


async def test_the_cluster_has_three_nodes_that_share_all_slots(valkey_cluster: list[str]) -> None:
    async with RedisCluster.from_url(valkey_cluster[0]) as client:
        assert len(client.get_primaries()) == 3
        for number in range(20):
            assert await client.set(f"key-{number}", number)
        holders = {client.get_node_from_key(f"key-{number}") for number in range(20)}
        assert len(holders) == 3


async def test_private_engines_are_not_the_sessions(private_engines: Engines, redis_url: str) -> None:
    assert private_engines.redis_url != redis_url
    async with Redis.from_url(private_engines.redis_url) as client:
        assert await client.dbsize() == 0
