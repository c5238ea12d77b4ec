"""An application without a platform sees dead letters in its gauges, and replays them by its own two objects."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from tests.support.waiting import eventually
from trunkline.jobs import Failed, Jobs, JobType, Outcome, Policy, Run
from trunkline.jobs.service import JobConfig
from trunkline.jobs.worker import PollLimits
from trunkline.mailbox import BadEvent, Done, FailureRule, Mailbox, Mailboxes, MailboxHandler, Parked, mailbox
from trunkline.mailbox.maintenance import MailboxGauges
from trunkline.telemetry import metrics

# Nothing is found by looking at everything: what runs was woken.
WOKEN_ONLY = JobConfig(survey=PollLimits(probe_s=600.0, poll_s=600.0))


def gauge(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


class Shop:
    """Handlers that fail, set aside or succeed as they are told."""

    def __init__(self) -> None:
        self.is_broken = True
        self.done: asyncio.Queue[str] = asyncio.Queue()
        self.ship: JobType[dict[str, str]] = JobType("remedy_ship", dict, Policy(), self.run)
        self.other: JobType[dict[str, str]] = JobType("remedy_other", dict, Policy(), self.run)

    async def run(self, payload: dict[str, str], run: Run) -> Outcome | None:
        if self.is_broken:
            return Failed("broken", final=True)
        self.done.put_nowait(payload["name"])
        return None

    def handler(self, kind: str, function: Callable[[Mailbox], Awaitable[Done | None]]) -> MailboxHandler:
        # The sweep is far away: what is handled was woken.
        return mailbox(kind, sweep_s=600.0, failure=FailureRule(failures_max=1))(function)

    async def handle(self, box: Mailbox) -> None:
        if self.is_broken:
            raise RuntimeError("broken")
        self.done.put_nowait(",".join(str(event.seq) for event in box.events))

    async def park(self, box: Mailbox) -> Done | None:
        if self.is_broken:
            return Done(parked=[Parked(box.key, event.seq, "unreadable") for event in box.events])
        await self.handle(box)
        return None

    async def next(self) -> str:
        return await asyncio.wait_for(self.done.get(), 20)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(empty_database_url: str) -> str:
    return empty_database_url


async def value(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


# Jobs


async def dead_jobs(url: str, count: int) -> None:
    async def are_dead() -> bool:
        return await value(url, "SELECT count(*) FROM trunkline.job_dead") == count

    await eventually(are_dead)


async def test_dead_jobs_are_gauged_and_run_again_when_replayed(url: str, shop: Shop) -> None:
    async with Jobs(url, [shop.ship, shop.other], config=WOKEN_ONLY) as jobs, jobs.worker() as worker:
        await jobs.submit(shop.ship, {"name": "first"})
        await jobs.submit(shop.ship, {"name": "second"})
        await jobs.submit(shop.other, {"name": "other"})
        await dead_jobs(url, 3)
        await worker.maintenance.measure_depth()
        assert gauge("job_dead_letters", job_type="remedy_ship") == 2
        shop.is_broken = False
        assert await jobs.replay("remedy_ship") == 2
        assert {await shop.next(), await shop.next()} == {"first", "second"}
        assert await jobs.replay(shop.ship) == 0
        await worker.maintenance.measure_depth()
        assert gauge("job_dead_letters", job_type="remedy_ship") == 0
        assert gauge("job_dead_letters", job_type="remedy_other") == 1
        assert await jobs.replay() == 1
        assert await shop.next() == "other"


async def test_one_dead_job_is_replayed_by_its_id(url: str, shop: Shop) -> None:
    async with Jobs(url, [shop.ship], config=WOKEN_ONLY) as jobs, jobs.worker():
        await jobs.submit(shop.ship, {"name": "first"})
        second = await jobs.submit(shop.ship, {"name": "second"})
        await dead_jobs(url, 2)
        shop.is_broken = False
        assert await jobs.replay(job_id=second.id) == 1
        assert await shop.next() == "second"
        assert await jobs.replay(job_id=second.id) == 0


async def test_dead_jobs_of_an_unknown_type_are_gauged(url: str, shop: Shop) -> None:
    async with Jobs(url, [shop.ship]) as jobs, jobs.worker():
        await jobs.submit(shop.ship, {"name": "first"})
        await dead_jobs(url, 1)
    async with Jobs(url, [shop.other]) as jobs, jobs.worker() as worker:
        await worker.maintenance.measure_depth()
        assert gauge("job_dead_letters", job_type="remedy_ship") == 1


async def test_many_dead_jobs_of_one_type_hide_no_other_type(url: str, shop: Shop) -> None:
    async with Jobs(url, [shop.ship]) as jobs:
        async with jobs.transaction() as work:
            await work.tx.execute(
                """INSERT INTO job_dead (id, created_at, died_at, fence, priority, attempt_count, max_attempts,
                                         job_type, last_error_code, payload)
                   SELECT gen_random_uuid(), now(), now(), 1, 50, 4, 4,
                          CASE WHEN n <= 1100 THEN 'remedy_a' ELSE 'remedy_b' END, 'broken', '{}'
                   FROM generate_series(1, 1101) AS n"""
            )
        async with jobs.worker() as worker:
            await worker.maintenance.measure_depth()
    assert gauge("job_dead_letters", job_type="remedy_a") == 1000
    assert gauge("job_dead_letters", job_type="remedy_b") == 1


# Mailboxes


async def status(url: str, key: str) -> object:
    return await value(url, f"SELECT processing_status FROM trunkline.mailboxes WHERE key = '{key}'")


async def died(url: str, *keys: str) -> None:
    for key in keys:

        async def is_dead(key: str = key) -> bool:
            return await status(url, key) == "dead"

        await eventually(is_dead)


async def test_a_dead_mailbox_is_gauged_and_handled_when_replayed(
    url: str, redis_url: str, key_prefix: str, shop: Shop
) -> None:
    handlers = [shop.handler("remedy_order", shop.handle)]
    async with Mailboxes.open(url, redis_url, handlers, prefix=key_prefix) as mailboxes:
        for key in ("a", "b", "c"):
            await mailboxes.submit("remedy_order", key, "made", {})
        await died(url, "a", "b", "c")
        gauges = MailboxGauges(mailboxes.database)
        await gauges.run_once()
        assert gauge("trunkline_mailboxes", kind="remedy_order", status="dead") == 3
        shop.is_broken = False
        assert await mailboxes.replay("remedy_order", "b") == 1
        assert await shop.next() == "1"
        assert await mailboxes.replay("remedy_order", "b") == 0
        assert await mailboxes.replay("remedy_order") == 2
        assert (await shop.next(), await shop.next()) == ("1", "1")
        await gauges.run_once()
        assert gauge("trunkline_mailboxes", kind="remedy_order", status="dead") is None


async def test_a_dead_mailbox_goes_on_without_an_event_that_is_set_aside(
    url: str, redis_url: str, key_prefix: str, shop: Shop
) -> None:
    handlers = [shop.handler("remedy_order", shop.handle)]
    async with Mailboxes.open(url, redis_url, handlers, prefix=key_prefix) as mailboxes:
        await mailboxes.submit("remedy_order", "a", "made", {})
        await died(url, "a")
        await mailboxes.submit("remedy_order", "a", "paid", {})
        shop.is_broken = False
        assert await mailboxes.set_aside("remedy_order", "a", 1, "nobody can read it")
        assert not await mailboxes.set_aside("remedy_order", "a", 1, "again")
        assert not await mailboxes.set_aside("remedy_order", "a", 9, "there is none")
        assert await mailboxes.replay("remedy_order", "a") == 1
        assert await shop.next() == "2"


async def test_events_set_aside_are_gauged_and_handled_when_replayed(
    url: str, redis_url: str, key_prefix: str, shop: Shop
) -> None:
    handlers = [shop.handler("remedy_order", shop.park)]
    async with Mailboxes.open(url, redis_url, handlers, prefix=key_prefix) as mailboxes:
        await mailboxes.submit("remedy_order", "a", "made", {})

        async def is_parked() -> bool:
            return (
                await value(url, "SELECT count(*) FROM trunkline.mailbox_events WHERE error IS NOT NULL") == 1
            )

        await eventually(is_parked)
        gauges = MailboxGauges(mailboxes.database)
        await gauges.run_once()
        assert gauge("trunkline_mailbox_events_set_aside", kind="remedy_order") == 1
        shop.is_broken = False
        with pytest.raises(BadEvent, match="name the key"):
            await mailboxes.replay("remedy_order", seq=1)
        assert await mailboxes.replay("remedy_order", "a", seq=1) == 1
        assert await shop.next() == "2"
        assert await mailboxes.replay("remedy_order", "a", seq=1) == 0
        await gauges.run_once()
        assert gauge("trunkline_mailbox_events_set_aside", kind="remedy_order") is None


async def test_events_set_aside_long_ago_are_no_longer_gauged(
    url: str, redis_url: str, key_prefix: str
) -> None:
    """An operator who leaves them where they are gets no alert for a week."""
    async with Mailboxes(url, redis_url, prefix=key_prefix) as mailboxes:
        await mailboxes.submit("remedy_order", "a", "made", {})
        assert await mailboxes.set_aside("remedy_order", "a", 1, "nobody needs it")
        gauges = MailboxGauges(mailboxes.database)
        await gauges.run_once()
        assert gauge("trunkline_mailbox_events_set_aside", kind="remedy_order") == 1
        await value(
            url, "UPDATE trunkline.mailbox_events SET processed_at = processed_at - interval '16 minutes'"
        )
        await gauges.run_once()
        assert gauge("trunkline_mailbox_events_set_aside", kind="remedy_order") is None


async def test_mailboxes_of_an_unhandled_kind_are_gauged_and_can_be_renamed(
    url: str, redis_url: str, key_prefix: str, shop: Shop
) -> None:
    shop.is_broken = False
    async with Mailboxes(url, redis_url, prefix=key_prefix) as mailboxes:
        for key in ("a", "b"):
            await mailboxes.submit("remedy_old", key, "made", {})
    handlers = [shop.handler("remedy_new", shop.handle)]
    async with Mailboxes.open(url, redis_url, handlers, prefix=key_prefix) as mailboxes:
        # Told by the worker itself, in its first run.
        await eventually(lambda: gauge("trunkline_mailboxes_unhandled", kind="remedy_old") == 2)
        assert gauge("trunkline_mailboxes_unhandled", kind="remedy_new") == 0
        with pytest.raises(BadEvent, match="kind"):
            await mailboxes.rename("remedy_old", "")
        assert await mailboxes.rename("remedy_old", "remedy_new") == 2
        assert (await shop.next(), await shop.next()) == ("1", "1")
        assert await mailboxes.rename("remedy_old", "remedy_new") == 0
        await MailboxGauges(mailboxes.database, handled=["remedy_new"]).run_once()
        assert gauge("trunkline_mailboxes_unhandled", kind="remedy_old") is None


async def test_a_worker_reports_no_kind_that_it_handles_as_unhandled(
    url: str, redis_url: str, key_prefix: str
) -> None:
    """Also while others wait for their turn. Dead ones are told of elsewhere: no handler would take them."""
    async with Mailboxes(url, redis_url, prefix=key_prefix) as mailboxes:
        for kind in ("remedy_mine", "remedy_theirs", "remedy_dead"):
            await mailboxes.submit(kind, "a", "made", {})
        await value(
            url,
            """UPDATE trunkline.mailboxes SET processing_status = 'dead', claimable_at = NULL
               WHERE kind = 'remedy_dead'""",
        )
        await MailboxGauges(mailboxes.database, handled=["remedy_mine"]).run_once()
    assert gauge("trunkline_mailboxes_unhandled", kind="remedy_mine") == 0
    assert gauge("trunkline_mailboxes_unhandled", kind="remedy_theirs") == 1
    assert gauge("trunkline_mailboxes_unhandled", kind="remedy_dead") is None
