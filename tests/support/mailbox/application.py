"""An application with mailboxes as a process of its own, some of whose handlers misbehave:

    python -m tests.support.mailbox.application DATABASE_URL REDIS_URL PREFIX TIMEOUT_S LEASE_S

It keeps two ledgers that mailboxes know nothing of: `begun`, written at once when a handler or its write begins, and
`effects`, written with the completion. Every write changes the one row of `places`: who keeps it locked stops them all.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg

from trunkline.mailbox import FailureRule, Mailbox, Mailboxes, MailboxHandler, Write, mailbox
from trunkline.store.database import Connection

LEDGER = """
CREATE TABLE begun (key text, what text, pid int);
CREATE TABLE effects (kind text, key text, pid int);
CREATE TABLE places (visits int);
INSERT INTO places VALUES (0)
"""
# More than the bad ones that a test sends, so that others of their kind have hands.
CONCURRENCY = 12
STOP_S = 1.0
CANCEL_GRACE_S = 0.5


async def swallow_everything() -> None:
    """As code does that catches everything and goes on."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


def handlers(pool: "asyncpg.Pool[asyncpg.Record]", timeout_s: float, lease_s: float) -> list[MailboxHandler]:
    """Two kinds that share their connections. A key of `bad` says what is done to it: `stubborn` and `stubborn write`
    cannot be cancelled, `hung write` waits for ever. All others are innocent."""

    async def note(key: str, what: str) -> None:
        await pool.execute("INSERT INTO begun VALUES ($1, $2, $3)", key, what, os.getpid())

    async def handle(box: Mailbox) -> Write:
        await note(box.key, "handle")
        if box.key == "stubborn":
            await swallow_everything()

        async def write(tx: Connection) -> None:
            if box.key.startswith("hung write"):
                await note(box.key, "write")
                await asyncio.Event().wait()
            await tx.execute("UPDATE places SET visits = visits + 1")
            await tx.execute("INSERT INTO effects VALUES ($1, $2, $3)", box.kind, box.key, os.getpid())
            if box.key == "stubborn write":
                await note(box.key, "write")
                await swallow_everything()

        return write

    # On a slow machine an innocent may take too long as well: it is tried again, until it does not.
    rule = FailureRule(failures_max=1000, backoff_first_s=0.2, timeout_s=timeout_s)
    declared = [
        mailbox("bad", concurrency=CONCURRENCY, lease_s=lease_s, sweep_s=0.2, failure=rule)(handle),
        mailbox("good", concurrency=2, lease_s=lease_s, sweep_s=0.2)(handle),
    ]
    return [
        replace(each, limits=replace(each.limits, stop_s=STOP_S, cancel_grace_s=CANCEL_GRACE_S))
        for each in declared
    ]


async def work(database_url: str, redis_url: str, prefix: str, timeout_s: float, lease_s: float) -> None:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool:
        print("ready", flush=True)  # noqa: T201
        given = handlers(pool, timeout_s, lease_s)
        await Mailboxes(database_url, redis_url, given, prefix=prefix, schema=None, pool_size=10).run()


@asynccontextmanager
async def application_process(
    place: Sequence[str], *, timeout_s: float, lease_s: float = 15.0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a process, started. It is killed at the end if the test did not do so itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.mailbox.application",
        *place,
        str(timeout_s),
        str(lease_s),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


if __name__ == "__main__":
    database_url, redis_url, prefix, timeout_s, lease_s = sys.argv[1:]
    asyncio.run(work(database_url, redis_url, prefix, float(timeout_s), float(lease_s)))
