"""A transaction that is begun before it is known whether it is needed: it is as good as any, and never left behind."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.faults.proxy import TcpProxy
from trunkline.bus.connection import connect as connect_bus
from trunkline.dispatch import batches as batches_module
from trunkline.dispatch import dialer as dialer_module
from trunkline.model import Entry
from trunkline.store.database import UNAVAILABLE, Database, connect
from trunkline.store.early_transaction import EarlyTransaction


@pytest.fixture
async def single(database_url: str) -> AsyncIterator[Database]:
    """With one connection: whoever keeps it keeps everybody from everything."""
    database = await connect(database_url, pool_size=1, connect_timeout_s=30.0)
    yield database
    await database.close()


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def names(database: Database) -> list[str]:
    async with database.connection() as conn:
        assert not conn.is_in_transaction()
        return [row["name"] for row in await conn.fetch("SELECT name FROM resellers ORDER BY id")]


INSERT = "INSERT INTO resellers (id, name) VALUES ('early', 'early')"


async def test_an_early_transaction_commits_at_its_end(single: Database) -> None:
    async with EarlyTransaction(single) as tx:
        assert await tx.fetchval("SHOW transaction_isolation") == "read committed"
        await tx.execute(INSERT)
    assert await names(single) == ["early"]


async def test_an_early_transaction_rolls_back_after_an_error(single: Database) -> None:
    async def fail() -> None:
        async with EarlyTransaction(single) as tx:
            await tx.execute(INSERT)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        await fail()
    assert await names(single) == []


async def test_a_dropped_early_transaction_returns_its_connection(single: Database) -> None:
    early = EarlyTransaction(single)
    await early.drop()
    assert await names(single) == []


async def test_dropping_a_committed_early_transaction_changes_nothing(single: Database) -> None:
    early = EarlyTransaction(single)
    async with early as tx:
        await tx.execute(INSERT)
    await early.drop()
    assert await names(single) == ["early"]


async def test_without_postgres_entering_an_early_transaction_fails_and_dropping_it_does_not(
    database_url: str,
) -> None:
    async with TcpProxy.before(database_url) as proxy:
        database = await connect(proxy.url, pool_size=1, connect_timeout_s=30.0)
        proxy.refuse()
        proxy.cut()
        await EarlyTransaction(database).drop()
        with pytest.raises(UNAVAILABLE):
            async with EarlyTransaction(database):
                pass
        await proxy.heal()
        assert await names(database) == []
        await database.close()


async def test_a_cancelled_early_transaction_leaves_no_connection_behind(single: Database) -> None:
    async def use() -> None:
        async with EarlyTransaction(single):
            pytest.fail("somebody else has the connection")

    async with single.connection():
        user = asyncio.create_task(use())
        await asyncio.sleep(0)
        user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
    assert await names(single) == []


# The dialer, with one connection


async def test_a_dialers_round_without_grants_returns_its_connection(
    stage: Stage, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[EarlyTransaction] = []  # or the collector would find them, and end them

    def remember(database: Database) -> EarlyTransaction:
        made.append(EarlyTransaction(database))
        return made[-1]

    monkeypatch.setattr(dialer_module, "EarlyTransaction", remember)
    assert await stage.another_dialer(database=single).run_once() == 0
    assert len(made) == 1
    await names(single)


async def test_a_dialer_with_one_connection_dials(stage: Stage, single: Database) -> None:
    await stage.dialing.leads(3)
    assert await stage.dial(stage.another_dialer(database=single)) == 3
    await names(single)


async def test_a_failed_match_returns_its_connection_to_the_fallback(
    stage: Stage, single: Database, redis_url: str
) -> None:
    async with TcpProxy.before(redis_url) as proxy:
        bus = connect_bus(proxy.url, stage.bus.keys)
        dialer = stage.another_dialer(database=single, bus=bus)
        await dialer.run_once()  # it is connected, and knows the clocks
        await stage.dialing.lead()
        proxy.refuse()
        proxy.cut()
        assert await dialer.run_once() == 1
        await dialer.drain()
        await bus.close()
    await names(single)


async def test_a_closed_leads_next_opening_is_written_through_the_only_connection(
    stage: Stage, single: Database
) -> None:
    closed, _ = await stage.dialing.leads(2)
    await stage.dialing.run("UPDATE leads SET closes_at = due_at WHERE id = $1", closed)
    reopened: list[UUID] = []

    async def reopen(found: Sequence[tuple[UUID, int]]) -> Sequence[Entry]:
        await names(single)
        reopened.extend(lead for lead, _ in found)
        return []

    dialer = stage.another_dialer(database=single)
    dialer._next_opening = reopen
    assert await stage.dial(dialer) == 1
    assert reopened == [closed]


async def test_an_intent_that_fails_before_its_transaction_returns_its_connection(
    stage: Stage, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_intent(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(batches_module, "intend", no_intent)
    await stage.dialing.lead()
    with pytest.raises(RuntimeError):
        await stage.dial(stage.another_dialer(database=single))
    await names(single)
    assert await stage.held() == set()
