"""A small application in the same database, with jobs and mailboxes of its own, run in two processes.

What it was asked to do and what it did are rows of its own tables. A row of `app_asked` is written in one transaction
with the job or event, a row of `app_done` in one transaction with the end of the job or the completion of the mailbox.
So both are true, whatever the platform believes.
"""

import asyncio
import os

import asyncpg
import msgspec
import uvloop

from trunkline.jobs import Failed, Jobs, JobType, Policy, Run
from trunkline.jobs.service import JobConfig
from trunkline.mailbox import FailureRule, Mailbox, Mailboxes, MailboxHandler, Write, mailbox
from trunkline.store.database import Connection

TABLES = """
CREATE TABLE public.app_asked (no bigserial, what text, key text, name text, PRIMARY KEY (what, key, name));
CREATE TABLE public.app_done (no bigserial, what text, key text, name text, pid int);
CREATE TABLE public.app_runs (
    name text, key text, attempt int, pid int, began timestamptz DEFAULT clock_timestamp(), ended timestamptz
);
"""
LEASE_S = 3.0
KEYS = 6
MAILBOX = "parcel"
SCHEMA = "app"


class Work(msgspec.Struct):
    name: str
    # Jobs of one key run one at a time.
    key: str = ""
    # `fails` at its first attempt, or is `plain`.
    do: str = "plain"
    takes_s: float = 0.02


POLICY = Policy(backoff_s=(0.2,), max_attempts=1000, timeout_s=5.0)
PER_KEY = Policy(backoff_s=(0.2,), max_attempts=1000, timeout_s=5.0, per_key=1)
# For whoever only asks.
WORK, KEYED = JobType("work", Work, POLICY), JobType("keyed", Work, PER_KEY)


def jobs_of(database_url: str) -> Jobs:
    """Jobs with handlers."""

    async def handle(work: Work, run: Run) -> Failed | None:
        async with jobs.transaction() as noting:
            await noting.tx.execute(
                "INSERT INTO public.app_runs (name, key, attempt, pid) VALUES ($1, $2, $3, $4)",
                work.name, work.key, run.attempt, os.getpid(),
            )  # fmt: skip
        await asyncio.sleep(work.takes_s)
        if work.do == "fails" and run.attempt == 1:
            return Failed("told_to", retry_in_s=0.1)
        async with jobs.transaction() as ending:
            # In one transaction with the end of the job: a worker that lost its lease cannot commit it.
            await run.finish(ending.tx)
            await ending.tx.execute(
                "INSERT INTO public.app_done (what, key, name, pid) VALUES ('job', $1, $2, $3)",
                work.key, work.name, os.getpid(),
            )  # fmt: skip
            await ending.tx.execute(
                "UPDATE public.app_runs SET ended = clock_timestamp() WHERE name = $1 AND pid = $2 AND attempt = $3",
                work.name, os.getpid(), run.attempt,
            )  # fmt: skip
        return None

    types = [JobType("work", Work, POLICY, handle), JobType("keyed", Work, PER_KEY, handle)]
    config = JobConfig(
        identity=f"application-{os.getpid()}",
        lease_s=LEASE_S,
        renew_s=LEASE_S / 3,
        drain_s=2.0,
        cancel_grace_s=0.5,
    )
    jobs = Jobs(database_url, types, config=config, schema=SCHEMA)
    return jobs


def mailbox_handler() -> MailboxHandler:
    async def handle(box: Mailbox) -> Write:
        names = [(box.key, event.payload["name"], os.getpid()) for event in box.events]

        async def write(tx: Connection) -> None:
            await tx.executemany(
                "INSERT INTO public.app_done (what, key, name, pid) VALUES ('event', $1, $2, $3)", names
            )

        return write

    failure = FailureRule(failures_max=1000, backoff_first_s=0.1, backoff_max_s=0.3, timeout_s=5.0)
    return mailbox(MAILBOX, concurrency=4, lease_s=LEASE_S, sweep_s=0.3, failure=failure)(handle)


async def prepare(database_url: str, redis_url: str) -> None:
    """Tables of the application and of its queues."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(TABLES)
    finally:
        await connection.close()
    await Jobs(database_url, [WORK, KEYED], schema=SCHEMA).prepare()
    await Mailboxes(database_url, redis_url, schema=SCHEMA).prepare()


async def _work(database_url: str, redis_url: str, prefix: str) -> None:
    jobs = jobs_of(database_url)
    mailboxes = Mailboxes(
        database_url, redis_url, [mailbox_handler()], prefix=prefix, schema=SCHEMA, pool_size=4
    )
    async with jobs, mailboxes:
        await asyncio.gather(jobs.run(), mailboxes.run())


def main(database_url: str, redis_url: str, prefix: str) -> None:
    uvloop.run(_work(database_url, redis_url, prefix))
