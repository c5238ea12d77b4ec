"""Leadership: one leader, a term that only grows, and a stale leader that writes nothing."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.store import database as store_database
from trunkline.store.database import Database
from trunkline.testing.clock import ManualClock

TIMES = LeaseTimes(ttl_s=15.0, trust_s=10.0, retry_s=2.0)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await store_database.connect(database_url, pool_size=4)
    yield database
    await database.close()


def candidate(database: Database, clock: ManualClock, name: str, times: LeaseTimes = TIMES) -> Leadership:
    return Leadership(database, clock, "control", name, times)


async def let_the_lease_run_out(database: Database) -> None:
    async with database.connection() as conn:
        await conn.execute("UPDATE leaders SET expires_at = clock_timestamp() - interval '1 second'")


async def test_one_of_two_candidates_leads(database: Database) -> None:
    first, second = candidate(database, ManualClock(), "a"), candidate(database, ManualClock(), "b")
    assert await first.run_once() == 1
    assert await second.run_once() == 0
    assert (first.trusted, second.trusted) == (True, False)


async def test_renewing_keeps_the_term(database: Database) -> None:
    leader = candidate(database, ManualClock(), "a")
    await leader.run_once()
    await leader.run_once()
    assert leader.term == 1


async def test_a_new_leader_has_a_higher_term(database: Database) -> None:
    first, second = candidate(database, ManualClock(), "a"), candidate(database, ManualClock(), "b")
    await first.run_once()
    await let_the_lease_run_out(database)
    await second.run_once()
    assert second.term == 2


async def test_a_leader_whose_lease_ran_out_begins_a_new_term(database: Database) -> None:
    leader = candidate(database, ManualClock(), "a")
    await leader.run_once()
    await let_the_lease_run_out(database)
    await leader.run_once()
    assert leader.term == 2


async def test_a_leader_stops_trusting_itself_before_its_lease_ends(database: Database) -> None:
    clock = ManualClock()
    leader = candidate(database, clock, "a")
    await leader.run_once()
    clock.advance(TIMES.trust_s)
    assert leader.trusted is False
    assert leader.term is None


async def test_a_stale_term_cannot_write(database: Database) -> None:
    stale, fresh = candidate(database, ManualClock(), "a"), candidate(database, ManualClock(), "b")
    await stale.run_once()
    await let_the_lease_run_out(database)
    await fresh.run_once()
    assert stale.trusted is True, "its own clock has not moved: it still believes"
    async with database.transaction() as tx:
        assert await stale.guard(tx) is False
        assert await fresh.guard(tx) is True


async def test_no_leader_can_begin_while_a_guarded_write_is_open(database: Database) -> None:
    writer, rival = candidate(database, ManualClock(), "a"), candidate(database, ManualClock(), "b")
    await writer.run_once()
    await let_the_lease_run_out(database)
    async with database.transaction() as tx:
        assert await writer.guard(tx) is True
        async with database.transaction() as other:
            await other.execute("SET LOCAL lock_timeout = '100ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await other.fetchval("UPDATE leaders SET holder = 'b', term = term + 1 RETURNING term")
    assert await rival.run_once() == 1


async def test_a_resigned_leader_is_succeeded_at_once(database: Database) -> None:
    first, second = candidate(database, ManualClock(), "a"), candidate(database, ManualClock(), "b")
    await first.run_once()
    await first.resign()
    assert await second.run_once() == 1
    assert (first.trusted, second.term) == (False, 2)


async def test_a_restarted_process_is_another_holder(database: Database) -> None:
    await candidate(database, ManualClock(), "same-pod").run_once()
    assert await candidate(database, ManualClock(), "same-pod").run_once() == 0
