"""What handlers hold open starves neither `submit` nor the application nor other types: each has its connections."""

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec
import pytest

from tests.support.waiting import eventually
from trunkline.errors import PoolEmpty
from trunkline.jobs import Jobs, JobType, Policy, Run
from trunkline.jobs.executor import ExecutorLimits
from trunkline.jobs.service import JobConfig


class Order(msgspec.Struct):
    number: int


@pytest.fixture
def url(empty_database_url: str) -> str:
    return empty_database_url


async def value(url: str, statement: str, *values: Any) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()


async def test_transactions_held_open_by_handlers_starve_neither_submit_nor_the_application(url: str) -> None:
    """As many as the object has connections for the application, twice over, and as many as one type may have."""
    held: list[int] = []
    let_go = asyncio.Event()
    others = asyncio.Queue[str]()

    async def hold(order: Order, run: Run) -> None:
        async with jobs.transaction() as work:
            await run.finish(work.tx)
            held.append(order.number)
            await let_go.wait()

    async def other(order: Order, run: Run) -> None:
        async with jobs.transaction() as work:
            await run.finish(work.tx)
        others.put_nowait("ran")

    types = [JobType("hold", Order, Policy(), hold), JobType("other", Order, Policy(), other)]
    async with Jobs(url, types, pool_size=4) as jobs, jobs.worker():
        for number in range(10):
            await jobs.submit("hold", Order(number))
        await eventually(lambda: len(held) == 10, what="ten handlers in a transaction each")
        await asyncio.wait_for(jobs.submit("other", Order(1)), 20)
        assert await asyncio.wait_for(others.get(), 20) == "ran"
        async with jobs.transaction() as work:
            await work.enqueue("other", Order(2))
        assert await asyncio.wait_for(others.get(), 20) == "ran"
        let_go.set()


async def test_a_job_type_past_its_share_of_connections_gets_pool_empty(url: str) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    held: list[int] = []
    let_go = asyncio.Event()

    async def hold(order: Order, run: Run) -> None:
        try:
            async with jobs.transaction():
                held.append(order.number)
                await let_go.wait()
        except PoolEmpty as error:
            told.put_nowait(str(error))

    config = JobConfig(executor=ExecutorLimits(running_max=4))
    async with Jobs(url, [JobType("hold", Order, Policy(), hold)], config=config) as jobs, jobs.worker():
        assert jobs._open is not None
        assert jobs._open.handler_connections is not None
        jobs._open.handler_connections._wait_max_s = 0.05
        for number in range(3):
            await jobs.submit("hold", Order(number))
        assert "Jobs of type hold hold 2 transactions open" in await asyncio.wait_for(told.get(), 20)
        assert len(held) == 2
        let_go.set()


async def test_a_handler_that_ignores_its_timeout_loses_its_connection(url: str) -> None:
    """Each of its runs would cost one more, and its row locks would stay."""
    runs: list[int] = []
    through: asyncio.Queue[int] = asyncio.Queue()
    let_go = asyncio.Event()

    async def stubborn(order: Order, run: Run) -> None:
        async with jobs.transaction() as work:
            runs.append(await work.tx.fetchval("SELECT pg_backend_pid()"))
            if len(runs) > 2:
                through.put_nowait(run.attempt)
                return
            while not let_go.is_set():
                with suppress(asyncio.CancelledError):
                    await let_go.wait()

    policy = Policy(timeout_s=0.2, backoff_s=(0.0,), max_attempts=50)
    config = JobConfig(executor=ExecutorLimits(running_max=4), lease_s=1.5, renew_s=0.1, cancel_grace_s=0.05)
    async with Jobs(url, [JobType("bad", Order, policy, stubborn)], config=config) as jobs, jobs.worker():
        await jobs.submit("bad", Order(1))
        # Of four connections a type may have two. Both were held once, and the third run found one.
        assert await asyncio.wait_for(through.get(), 20) >= 3
        gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY ($1)"
        await eventually(lambda: value(url, gone, runs[:2]), what="the sessions of both ended")
        let_go.set()
