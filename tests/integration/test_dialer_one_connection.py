"""A dialer with one connection dials, and whatever happens in a round, it keeps none."""

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.faults.proxy import TcpProxy
from trunkline.bus.connection import connect as connect_bus
from trunkline.dispatch import grants as grants_module
from trunkline.model import Entry
from trunkline.store.database import Database, connect


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


async def test_a_round_without_grants_keeps_no_connection(stage: Stage, single: Database) -> None:
    assert await stage.another_dialer(database=single).run_once() == 0
    await names(single)


async def test_a_dialer_with_one_connection_dials(stage: Stage, single: Database) -> None:
    await stage.dialing.leads(3)
    assert await stage.dial(stage.another_dialer(database=single)) == 3
    await names(single)


async def test_a_match_that_fails_keeps_no_connection_from_the_slower_way(
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


async def test_a_lead_whose_window_closed_gets_its_new_time_through_the_only_connection(
    stage: Stage, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, _ = await stage.dialing.leads(2)
    await stage.dialing.run("UPDATE leads SET closes_at = due_at WHERE id = $1", closed)
    reopened: list[UUID] = []

    async def reopen(database: Database, _: object, found: Sequence[tuple[UUID, int]]) -> Sequence[Entry]:
        await names(database)
        reopened.extend(lead for lead, _ in found)
        return []

    dialer = stage.another_dialer(database=single)
    monkeypatch.setattr(grants_module, "reopen", reopen)
    assert await stage.dial(dialer) == 1
    assert reopened == [closed]


async def test_an_intent_that_fails_keeps_no_connection(
    stage: Stage, single: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_intent(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(grants_module, "intend", no_intent)
    await stage.dialing.lead()
    with pytest.raises(RuntimeError):
        await stage.dial(stage.another_dialer(database=single))
    await names(single)
    assert await stage.held() == set()
