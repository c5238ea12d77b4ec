"""docs/how-to/applications.md is true: its code runs, its names exist, its tables are complete."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg
import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.support.api.asgi import AsgiClient
from trunkline import jobs as jobs_package
from trunkline import mailbox as mailbox_package
from trunkline import old_names
from trunkline.jobs import Jobs
from trunkline.jobs.registry import Registry, declared
from trunkline.jobs.service import JobConfig, JobService
from trunkline.mailbox import Mailboxes
from trunkline.mailbox.maintenance import MailboxGauges
from trunkline.mailbox.stores import EventLogStore, IssueStore
from trunkline.telemetry import metrics

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "applications.md").read_text()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Application:
    """The page's code as one module, on a database with a table `orders`."""

    def __init__(self, url: str, names: dict[str, Any]):
        self.url, self.names = url, names
        self.jobs: Jobs = names["jobs"]
        self.mailboxes: Mailboxes = names["mailboxes"]

    async def counts(self) -> tuple[int, int, int]:
        connection = await asyncpg.connect(self.url)
        try:
            counted = await connection.fetchrow(
                "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM trunkline.job_outbox),"
                " (SELECT count(*) FROM trunkline.mailbox_events)"
            )
            assert counted is not None
            return counted[0], counted[1], counted[2]
        finally:
            await connection.close()


@pytest.fixture
async def application(
    empty_database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Application]:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setattr(declared, "_types", dict(declared._types))
    monkeypatch.setattr(declared, "_handlers", dict(declared._handlers))
    names: dict[str, Any] = {"Order": Order}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("CREATE TABLE orders (id serial PRIMARY KEY, item text)")
    await connection.close()
    application = Application(empty_database_url, names)
    await application.jobs.prepare()
    await application.mailboxes.prepare()
    yield application
    application.jobs.close()
    application.mailboxes.close()


async def test_the_asyncpg_example_of_the_page_runs(application: Application) -> None:
    connection = await asyncpg.connect(application.url)
    await application.names["by_asyncpg"](connection)
    await connection.close()
    assert await application.counts() == (1, 1, 0)


async def test_the_psycopg_example_of_the_page_runs(application: Application) -> None:
    async with await psycopg.AsyncConnection.connect(application.url) as connection:
        await application.names["by_psycopg"](connection)
    assert await application.counts() == (1, 1, 0)


async def test_the_sqlalchemy_example_of_the_page_runs(application: Application) -> None:
    engine = create_async_engine(application.url.replace("postgresql:", "postgresql+asyncpg:"))
    async with AsyncSession(engine) as session:
        await application.names["by_sqlalchemy"](session)
    await engine.dispose()
    assert await application.counts() == (1, 1, 1)


async def test_the_sync_sqlalchemy_example_of_the_page_runs(application: Application) -> None:
    engine = create_engine(application.url.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        await asyncio.to_thread(application.names["by_sqlalchemy_without_asyncio"], session)
    engine.dispose()
    assert await application.counts() == (1, 1, 1)


async def test_the_django_example_of_the_page_runs(application: Application) -> None:
    from django.conf import settings

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    from django.db import connections

    address = urlsplit(application.url)
    connections.settings = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": address.path.lstrip("/"),
                "USER": address.username,
                "PASSWORD": address.password or "",
                "HOST": address.hostname,
                "PORT": address.port,
            }
        }
    )

    def view() -> None:
        application.names["by_django"]()
        connections.close_all()

    await asyncio.to_thread(view)
    assert await application.counts() == (1, 1, 0)


async def test_the_sql_example_of_the_page_runs(application: Application) -> None:
    [script] = re.findall(r"```sql\n(.*?)```", PAGE.partition("## From SQL")[2], re.DOTALL)
    connection = await asyncpg.connect(application.url)
    try:
        await connection.execute(script)
        assert await application.counts() == (1, 1, 1)
        await connection.execute(script.replace("COMMIT", "ROLLBACK").replace("order-1", "order-2"))
        assert await application.counts() == (1, 1, 1)
        job = await connection.fetchrow("SELECT * FROM trunkline.job_outbox")
        assert job is not None
        assert (job["priority"], job["max_attempts"], job["unique_key"]) == (50, 4, "order-1")
    finally:
        await connection.close()


async def test_the_workers_of_the_page_run_until_they_are_cancelled(application: Application) -> None:
    worker = asyncio.create_task(application.names["worker"]())
    served = asyncio.Event()

    async def serve() -> None:
        served.set()

    await asyncio.sleep(0)
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    await application.names["web_application_that_works_too"](serve)
    assert served.is_set()


async def test_a_web_application_serves_the_metrics_of_its_own_work(application: Application) -> None:
    shop = FastAPI()
    application.names["mount_metrics"](shop)
    assert b"job_completed_total" in (await AsgiClient(shop).get("/metrics/")).body


ALERTS = re.findall(
    r"^\|([^|]+)\| `(\w+ by [^`]+ > 0)` \|([^|]+)\|$", PAGE.partition("## What to alert on")[2], re.MULTILINE
)


def rings(expression: str) -> bool:
    """As Prometheus would say, of this one worker."""
    found = re.fullmatch(r'(?:max|min) by \((\w+)\) \((\w+)(?:\{(\w+)="(\w+)"\})?\) > 0', expression)
    assert found is not None, expression
    label, name, where, which = found.groups()
    samples = [
        sample
        for family in metrics.REGISTRY.collect()
        for sample in family.samples
        if sample.name == name and (where is None or sample.labels[where] == which)
    ]
    return any(sample.value > 0 for sample in samples if sample.labels[label])


async def misfortune(application: Application) -> None:
    """A job and a mailbox are dead, an event was set aside, and one waits that nobody handles."""
    connection = await asyncpg.connect(application.url)
    try:
        for statement in (
            "SELECT trunkline.enqueue_job('ship', '{\"item\": \"tea\"}')",
            "WITH gone AS (DELETE FROM trunkline.job_outbox RETURNING *)"
            " INSERT INTO trunkline.job_dead (id, created_at, died_at, fence, priority, attempt_count, max_attempts,"
            " job_type, payload, last_error_code)"
            " SELECT id, created_at, now(), 1, 50, 4, 4, job_type, payload, 'broken' FROM gone",
            "SELECT trunkline.append_event('customer', 'ada', 'ordered', '{}')",
            "SELECT trunkline.append_event('customer', 'ada', 'paid', '{}')",
            "SELECT trunkline.append_event('client', 'bob', 'ordered', '{}')",
            "UPDATE trunkline.mailboxes SET processing_status = 'dead', claimable_at = NULL WHERE key = 'ada'",
        ):
            await connection.execute(statement)
    finally:
        await connection.close()
    async with application.mailboxes as mailboxes:
        assert await mailboxes.set_aside("customer", "ada", 2, "nobody can read it")


async def test_every_alert_of_the_page_fires_and_its_remedy_clears_it(
    application: Application,
) -> None:
    assert len(ALERTS) == 4
    await misfortune(application)
    async with application.jobs as jobs, application.mailboxes as mailboxes:

        async def measure() -> None:
            async with JobService.open(
                JobConfig(notify=False), Registry(), application.url, search_path="trunkline"
            ) as service:
                await service.maintenance.measure_depth()
            await MailboxGauges(mailboxes.database, handled=["customer"]).run_once()

        await measure()
        assert [rings(expression) for _, expression, _ in ALERTS] == [True] * 4
        for call in re.findall(r"`await ([^`]+\))`", "".join(helps for _, _, helps in ALERTS)):
            assert await eval(call, {"jobs": jobs, "mailboxes": mailboxes}), call
        await measure()
        # `set_aside` stands among the calls too, and what it did is told of for a quarter of an hour.
        still = [expression for _, expression, _ in ALERTS if rings(expression)]
        assert still == ["max by (kind) (trunkline_mailbox_events_set_aside) > 0"]
    await application.names["replay_what_is_dead"]()


async def test_the_pages_sql_finds_the_rows_behind_each_alert(application: Application) -> None:
    [script] = re.findall(
        r"```sql\n(.*?)```", PAGE.partition("## What to alert on")[2].partition("\n## ")[0], re.DOTALL
    )
    await misfortune(application)
    connection = await asyncpg.connect(application.url)
    try:
        dead, mailboxes, events = [
            await connection.fetch(statement) for statement in script.split(";") if statement.strip()
        ]
    finally:
        await connection.close()
    assert [row["job_type"] for row in dead] == ["ship"]
    assert [row["key"] for row in mailboxes] == ["ada"]
    assert {(row["seq"], row["waits"]) for row in events} == {(1, True), (2, False)}


def test_every_method_of_the_two_objects_is_on_the_page_and_no_other() -> None:
    rows = re.findall(
        r"^\|[^|]+\|([^|]+)\|([^|]+)\|$", PAGE.partition("## In your transaction")[0], re.MULTILINE
    )
    for cls, cells in ((Jobs, "".join(row[0] for row in rows)), (Mailboxes, "".join(row[1] for row in rows))):
        public = {
            name
            for name, member in inspect.getmembers(cls)
            if not name.startswith("_") and inspect.isfunction(member)
        }
        named = set(re.findall(r"(?:`|await |with |jobs\.)(\w+)(?:\(|`)", cells))
        named |= {"prepare", "prepare_sync", "run", "transaction"}  # "the same" stands in the second column
        assert public - named - {"open"} - old_names.METHODS.get(cls.__name__, {}).keys() == set(), cls


def test_every_name_that_the_page_promises_exists() -> None:
    for name in ("Jobs", "InvalidJob", "NotInTransaction"):
        assert hasattr(jobs_package, name)
    for name in ("Mailboxes", "BadEvent", "NotInTransaction", "new_event"):
        assert hasattr(mailbox_package, name)
    for name in ("queue_if_idle", "claim_queued", "set_processed"):
        assert f"`{name}`" in PAGE
        assert hasattr(IssueStore, name)
    for name in ("list_unprocessed_by_issue", "mark_batch_processed", "mark_failed"):
        assert f"`{name}`" in PAGE
        assert hasattr(EventLogStore, name)


async def test_the_schema_has_every_source_name_on_the_page(application: Application) -> None:
    connection = await asyncpg.connect(application.url)
    try:
        indexes = {
            row[0]
            for row in await connection.fetch(
                "SELECT indexname FROM pg_indexes WHERE schemaname = 'trunkline'"
            )
        }
        assert {"job_outbox_runnable", "job_outbox_expired_lease", "mailboxes_claimable"} <= indexes
        checks = {
            row[0] for row in await connection.fetch("SELECT conname FROM pg_constraint WHERE contype = 'c'")
        }
        assert "chk_mailboxes_processing_status" in checks
        await connection.execute(
            "SELECT job_type, run_at, locked_by, locked_at, lease_expires_at, attempt_count, last_error_code,"
            " last_error_message FROM trunkline.job_outbox"
        )
        await connection.execute("SELECT unique_key FROM trunkline.jobs")
        await connection.execute("SELECT processing_started_at, last_processed_at FROM trunkline.mailboxes")
        await connection.execute("SELECT mailbox_id, seq, processed_at, error FROM trunkline.mailbox_events")
    finally:
        await connection.close()
