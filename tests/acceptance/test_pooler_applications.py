"""Jobs and mailboxes of an application behind a real transaction pooler, with two sessions for all."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.store.pooler import PGBOUNCER, transaction_pooler
from tests.support.waiting import eventually
from trunkline.errors import StoreUnavailable
from trunkline.jobs import Failed, Jobs, JobType, Outcome, Policy, Run
from trunkline.mailbox import Mailbox, Mailboxes, Write, mailbox
from trunkline.store.database import Connection

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")

SESSION = ("lock_timeout", "idle_in_transaction_session_timeout", "search_path", "synchronous_commit")


@pytest.fixture
async def pooled_url(database_url: str) -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the pooler runs as somebody else
        async with transaction_pooler(database_url, Path(folder) / "pooler") as url:
            yield url


async def settings(url: str) -> list[tuple[str, str]]:
    """Of the sessions that the pooler hands to whoever comes next, both of them."""
    connections = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(2)]
    found = set()
    transactions = [connection.transaction() for connection in connections]
    for transaction in transactions:
        await transaction.start()
    for connection in connections:
        for name in SESSION:
            found.add((name, await connection.fetchval("SELECT current_setting($1)", name)))
    for transaction, connection in zip(transactions, connections, strict=True):
        await transaction.rollback()
        await connection.close()
    return sorted(found)


async def test_jobs_work_behind_a_transaction_pooler_and_leave_its_sessions_alone(pooled_url: str) -> None:
    before = await settings(pooled_url)
    ran: list[tuple[str, int]] = []

    async def handle(payload: dict[str, str], run: Run) -> Outcome | None:
        ran.append((payload["do"], run.attempt))
        if payload["do"] == "fail" and run.attempt == 1:
            return Failed("told_to")
        if payload["do"] == "finish":
            async with jobs.transaction() as work:
                await run.finish(work.tx, {"done": True})
        return None

    kind: JobType[dict[str, str]] = JobType("pooled", dict, Policy(), handle)
    jobs = Jobs(pooled_url, [kind], behind_pooler=True)
    async with jobs, jobs.worker() as service:
        for do in ("done", "fail", "finish"):
            await jobs.submit(kind, {"do": do}, unique_key=do, concurrency_key="k")

        async def is_done() -> bool:
            async with jobs.transaction() as work:
                return bool(await work.tx.fetchval("SELECT count(*) = 3 FROM job_history"))

        await eventually(is_done, timeout_s=20)
        await service.reaper.run_once()
        await service.maintenance.run_once()
    assert sorted(ran) == [("done", 1), ("fail", 1), ("fail", 2), ("finish", 1)]
    assert await settings(pooled_url) == before


async def test_mailboxes_work_behind_a_transaction_pooler_and_leave_its_sessions_alone(
    pooled_url: str, redis_url: str, key_prefix: str
) -> None:
    before = await settings(pooled_url)
    written = asyncio.Event()

    @mailbox("thing", lease_s=1.5, sweep_s=0.1)
    async def handle(box: Mailbox) -> Write:
        async def write(tx: Connection) -> None:
            await tx.execute("CREATE TABLE IF NOT EXISTS public.replies (key text)")
            await tx.execute("INSERT INTO public.replies VALUES ($1)", box.key)
            written.set()

        return write

    async with Mailboxes.open(
        pooled_url, redis_url, [handle], prefix=key_prefix, behind_pooler=True
    ) as mailboxes:
        await mailboxes.submit("thing", "a", "happened", {"n": 1})
        async with mailboxes.transaction() as work:
            await work.append("thing", "b", "happened", {"n": 2})

        async def are_handled() -> bool:
            async with mailboxes.transaction() as work:
                return bool(
                    await work.tx.fetchval(
                        "SELECT count(*) = 2 FROM mailboxes WHERE processing_status = 'idle'"
                    )
                )

        await eventually(are_handled, timeout_s=20)
    assert await settings(pooled_url) == before


@pytest.mark.parametrize("schema", ["trunkline", None])
async def test_without_behind_pooler_the_error_behind_a_pooler_names_that_option(
    pooled_url: str, database_url: str, redis_url: str, key_prefix: str, schema: str | None
) -> None:
    async def handle(_: dict[str, str], _run: Run) -> None: ...

    jobs = Jobs(pooled_url, [JobType("pooled", dict, Policy(), handle)], schema=schema)
    with pytest.raises(StoreUnavailable, match=r"transaction pooler.*behind_pooler=True"):
        async with jobs, jobs.worker():
            pass
    mailboxes = Mailboxes(pooled_url, redis_url, prefix=key_prefix, schema=schema)
    with pytest.raises(StoreUnavailable, match=r"transaction pooler.*behind_pooler=True"):
        async with mailboxes:
            pass
