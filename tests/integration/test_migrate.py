"""Migrations: forward, twice, at once, and never over a change of history."""

import asyncio

import asyncpg
import pytest

from trunkline.errors import MigrationError, StoreUnavailable
from trunkline.mailbox import application
from trunkline.states import LIVE
from trunkline.store import mailboxes, migrate


async def test_running_twice_applies_once(empty_database_url: str) -> None:
    applied = await migrate.migrate(empty_database_url)
    assert applied == [m.name for m in migrate.known()]
    assert await migrate.migrate(empty_database_url) == []


async def test_two_that_run_at_once_share_the_work(empty_database_url: str) -> None:
    results = await asyncio.gather(*(migrate.migrate(empty_database_url) for _ in range(4)))
    assert sorted(name for applied in results for name in applied) == [m.name for m in migrate.known()]


async def test_what_is_missing_is_known_before_and_after(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    try:
        assert await migrate.pending(connection) == [m.name for m in migrate.known()]
        await migrate.migrate(empty_database_url)
        assert await migrate.pending(connection) == []
    finally:
        await connection.close()


async def test_a_migration_that_was_changed_afterwards_is_refused(empty_database_url: str) -> None:
    await migrate.migrate(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("UPDATE schema_migrations SET checksum = 'other' WHERE name LIKE '0001%'")
    await connection.close()
    with pytest.raises(MigrationError, match="0001_tenants was changed"):
        await migrate.migrate(empty_database_url)


async def test_a_database_that_is_away_is_one_clear_line() -> None:
    with pytest.raises(StoreUnavailable, match="Check DATABASE_URL"):
        await migrate.migrate("postgresql://nobody@127.0.0.1:1/nothing")


async def test_the_indexes_that_guard_the_promise_name_the_live_states(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for index in ("attempts_one_live_per_lead", "attempts_one_live_per_pair"):
            definition = await connection.fetchval(
                "SELECT indexdef FROM pg_indexes WHERE indexname = $1", index
            )
            predicate = definition.split(" WHERE ")[1]
            named = {state for state in migrate_states() if f"'{state}'" in predicate}
            assert named == {state.value for state in LIVE}, index
    finally:
        await connection.close()


def migrate_states() -> set[str]:
    from trunkline.states import AttemptState

    return {state.value for state in AttemptState}


async def test_an_application_of_mailboxes_has_all_that_mailboxes_ask_for(empty_database_url: str) -> None:
    """It makes their part of the schema alone."""
    await migrate.migrate(empty_database_url, only=application.SCHEMA)
    asked = {name: sql for name, sql in vars(mailboxes).items() if isinstance(sql, str) and "--" in sql}
    assert {"_APPEND", "_CLAIM", "_CLAIM_ONE", "_COMPLETE"} <= asked.keys()
    connection = await asyncpg.connect(empty_database_url)
    try:
        for sql in asked.values():
            await connection.prepare(sql)
    finally:
        await connection.close()
