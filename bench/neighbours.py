"""Does one bad neighbour harm only himself? All that jobs and mailboxes were ever seen to do to each other, at once.

Five workers on real engines (one of them dies again and again, the event loop of one is blocked, one is behind a
transaction pooler), applications that hold transactions, unique keys, concurrency keys and mailboxes open, handlers
that hang, block, cannot be cancelled or finish early in `jobs.transaction()`, and a Postgres whose clock is set forward
and back. Beside them 50 innocent jobs a second of three tenants, which choose the same unique keys, 50 innocent
mailboxes a second, a recurring job, and handlers that enqueue and append by the two objects of their worker.
`_neighbours_verdict` judges by what handlers wrote down with the server's own clock; every neighbour must have been bad
at least once.

    --seconds 120             how long
    --keep                    write docs/proof/neighbours.md
    --without NEIGHBOUR       leave one out, to find whose fault it is; as often as you like
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from bench._neighbours_verdict import (
    EARLY_AT_ONCE,
    JUMP_S,
    LEASE_S,
    NEIGHBOURS,
    RATE_PER_S,
    TENANTS,
    Held,
    Scene,
    Verdict,
    is_settled,
    judge,
    true_time,
)
from tests.support.jobs import neighbours
from tests.support.jobs.neighbours import BAD, BLOCKING, CALLING, INNOCENT, KEYED, LEDGER, OPEN_S
from tests.support.store.pooler import PGBOUNCER, transaction_pooler
from tests.support.store.server_clock import jump, make_settable
from trunkline.embedded import Engines, postgres
from trunkline.errors import TrunklineError
from trunkline.jobs import Registry
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.wakeups import JobNotifier
from trunkline.mailbox import Mailboxes
from trunkline.store import database as store
from trunkline.store.database import Connection
from trunkline.store.migrate import migrate
from trunkline.store.tenants import Tenant

CALLS_PER_S = 2
# With three tries each, more than the connections that the handlers of five workers have, if every try costs one.
STUBBORN_WRITES_AT_ONCE = 80
HELD_SUBMITS_PER_S = 2
SETTLE_S = 60.0
PAGE = Path(__file__).parents[1] / "docs" / "proof" / "neighbours.md"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--without", action="append", default=[], choices=sorted(NEIGHBOURS))
    chosen = parser.parse_args()
    found = await on_engines_of_its_own(chosen.seconds, frozenset(chosen.without))
    print(found.text())
    if chosen.keep and not chosen.without:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(found.page(), encoding="utf-8")
    sys.exit(0 if found.is_met else 1)


async def on_engines_of_its_own(seconds: float, without: frozenset[str] = frozenset()) -> Verdict:
    """With room for the connections of six processes."""
    with tempfile.TemporaryDirectory(prefix="trunkline-neighbours-") as folder:
        os.chmod(folder, 0o755)  # the pooler runs as somebody else
        postgres.TUNING["max_connections"] = "600"
        async with Engines(Path(folder) / "engines") as engines:
            place = (engines.database_url, engines.redis_url, "neighbours")
            return await run(*place, Path(folder) / "pooler", seconds, without)


async def run(
    url: str, redis_url: str, prefix: str, folder: Path, seconds: float, without: frozenset[str]
) -> Verdict:
    """The whole of it, on a database of its own that nobody has connected to yet."""
    await migrate(url)
    connection = await asyncpg.connect(url)
    await connection.execute(LEDGER)
    await connection.close()
    await make_settable(url)
    async with AsyncExitStack() as stack:
        pooled_url = None
        if PGBOUNCER is not None:
            pooled_url = await stack.enter_async_context(transaction_pooler(url, folder, sessions=40))
        scene = await stack.enter_async_context(opened(url, redis_url, prefix, seconds, without))
        place = (url, redis_url, prefix)
        for name in ("steady-1", "steady-2"):
            await stack.enter_async_context(worker(*place, name))
        await stack.enter_async_context(worker(*place, "blocked", "blocks"))
        if pooled_url is not None:
            await stack.enter_async_context(worker(pooled_url, redis_url, prefix, "pooled", "pooled"))
        scene.began_s, scene.began_at = time.monotonic(), await true_time(scene)
        async with asyncio.TaskGroup() as group:
            duties: Sequence[Callable[[Scene], Coroutine[Any, Any, None]]] = (
                send_jobs, send_mailboxes, let_handlers_call, misbehave, hold_keys_open, hold_mailboxes_open,
                set_the_clock,
            )  # fmt: skip
            for duty in duties:
                group.create_task(duty(scene))
            group.create_task(die_again_and_again(scene, place))
        scene.ended_at = await true_time(scene)
        await settled(scene)
        return await judge(scene, is_pooled=pooled_url is not None)


@asynccontextmanager
async def opened(
    url: str, redis_url: str, prefix: str, seconds: float, without: frozenset[str]
) -> AsyncIterator[Scene]:
    database = await store.connect(url, pool_size=30)
    notifier = JobNotifier(url)
    registry = Registry([INNOCENT, BAD, BLOCKING, KEYED, CALLING])
    async with Mailboxes(url, redis_url, prefix=prefix, schema="public") as mailboxes:
        yield Scene(url, database, Outbox(registry, notifier), mailboxes, seconds, without)
    await notifier.close()
    await database.close()


@asynccontextmanager
async def worker(
    url: str, redis_url: str, prefix: str, name: str, *more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    command = neighbours.command(url, redis_url, prefix, name, LEASE_S, *more)
    log = open(os.environ.get("NEIGHBOURS_LOG", os.devnull), "ab")  # noqa: ASYNC230, SIM115
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
    log.close()
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n", f"{name} did not start"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def paced(scene: Scene, per_s: float, *, at_least: int = 1) -> AsyncIterator[int]:
    """Turn after turn until the run is over, but so many of them however slow the machine is."""
    number = 0
    while number < at_least or not scene.is_over:
        yield number
        number += 1
        wait_s = scene.began_s + number / per_s - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)


async def send_jobs(scene: Scene) -> None:
    """Three tenants, each with the same unique key."""

    async def send(name: str, tenant: Tenant, key: str) -> None:
        await note_sent(scene, name)
        await scene.outbox.submit(scene.database, INNOCENT, {"name": name}, unique_key=key, tenant=tenant)

    async with asyncio.TaskGroup() as group:
        async for number in paced(scene, RATE_PER_S):
            tenant = TENANTS[number % len(TENANTS)]
            group.create_task(send(f"job-{number}", tenant, f"daily-{number // len(TENANTS)}"))


async def send_mailboxes(scene: Scene) -> None:
    async def send(name: str) -> None:
        await note_sent(scene, name)
        await scene.mailboxes.submit("innocent", name, "happened", {"name": name}, dedupe_key=name)

    async with asyncio.TaskGroup() as group:
        async for number in paced(scene, RATE_PER_S):
            group.create_task(send(f"mailbox-{number}"))


async def note_sent(scene: Scene, name: str) -> None:
    async with scene.database.connection() as conn:
        await conn.execute("INSERT INTO sent VALUES ($1, pg_catalog.clock_timestamp())", name)


async def let_handlers_call(scene: Scene) -> None:
    """Innocent handlers that enqueue and append by the objects of their own worker."""
    async for number in paced(scene, CALLS_PER_S):
        await scene.outbox.submit(scene.database, CALLING, {"name": f"called-{number}"})


async def misbehave(scene: Scene) -> None:
    """One of each every few seconds, and every ten seconds one that blocks its process and a crowd that finishes early;
    once, a crowd of writes that cannot be cancelled."""
    jobs = scene.chosen("early", "hung", "stubborn")
    boxes = scene.chosen(
        "mailbox_hung", "mailbox_stubborn", "mailbox_poison", "mailbox_hung_write", "mailbox_stubborn_write"
    )
    # Enough for one of each.
    async for number in paced(scene, 1.0, at_least=6):
        if jobs:
            await send_bad_job(scene, jobs[number % len(jobs)])
        if boxes:
            await send_bad_mailbox(scene, boxes[number % len(boxes)], f"bad-{number}")
        if number % 10 == 5 and scene.has("block"):
            await scene.outbox.submit(scene.database, BLOCKING, {})
        if number % 10 == 2 and scene.has("early"):
            for _ in range(EARLY_AT_ONCE):
                await send_bad_job(scene, "early")
        if number == 3 and scene.has("mailbox_stubborn_write"):
            for each in range(STUBBORN_WRITES_AT_ONCE):
                await send_bad_mailbox(scene, "mailbox_stubborn_write", f"crowd-{each}")


async def send_bad_job(scene: Scene, do: str) -> None:
    await scene.outbox.submit(scene.database, BAD, {"do": do})


async def send_bad_mailbox(scene: Scene, do: str, key: str) -> None:
    await scene.mailboxes.submit("bad", key, "happened", {"do": do})


async def hold_keys_open(scene: Scene) -> None:
    """An application that enqueues under a unique key and stays in its transaction, while the running job of that key
    fails; and one that holds a concurrency key, with jobs under it and under another."""
    if not scene.has("held_keys"):
        return
    async for number in paced(scene, 1 / (OPEN_S + 2)):
        unique, key = f"held-{number}", f"key-{number}"
        await scene.outbox.submit(scene.database, BAD, {"do": "fail"}, unique_key=unique)
        async with scene.database.transaction() as tx:
            await scene.outbox.enqueue(tx, BAD, {"do": "none"}, unique_key=unique)
            await hold_concurrency_key(scene, tx, key)
            scene.held_keys.append(Held(number, await true_time(scene)))
            for one in (key, f"free-{number}"):
                await scene.outbox.submit(
                    scene.database, KEYED, {"name": f"keyed-{one}"}, concurrency_key=one
                )
            await asyncio.sleep(OPEN_S)


async def hold_concurrency_key(scene: Scene, tx: Connection, key: str) -> None:
    """Until the transaction ends. The upkeep of a worker may remove a key under which nothing runs before it is
    held."""
    is_held = None
    while is_held is None:
        async with scene.database.connection() as conn:
            await conn.execute(
                "INSERT INTO job_keys (job_type, key) VALUES ($1, $2) ON CONFLICT DO NOTHING", KEYED.name, key
            )
        is_held = await tx.fetchval("SELECT true FROM job_keys WHERE key = $1 FOR UPDATE", key)


async def hold_mailboxes_open(scene: Scene) -> None:
    """An application that appends to a mailbox and stays in its transaction, while others submit to the same one from
    the process that sends the innocents."""
    if not scene.has("held_mailbox"):
        return

    async def submit(key: str, name: str) -> None:
        try:
            await scene.mailboxes.submit("held", key, "happened", {"name": name}, dedupe_key=name)
        except TrunklineError:
            scene.held_refused += 1
        else:
            scene.held_taken.append(name)

    async for number in paced(scene, 1 / (OPEN_S + 2)):
        key = f"held-{number}"
        async with asyncio.TaskGroup() as group, scene.database.transaction() as tx:
            name = f"{key}-first"
            await scene.mailboxes.append(tx, "held", key, "happened", {"name": name}, dedupe_key=name)
            for each in range(round(OPEN_S * HELD_SUBMITS_PER_S)):
                group.create_task(submit(key, f"{key}-{each}"))
                await asyncio.sleep(1 / HELD_SUBMITS_PER_S)
        scene.held_taken.append(name)
        scene.mailboxes.wake("held", key)


async def set_the_clock(scene: Scene) -> None:
    """Forward and back again, twice, away from each other by more than a lease."""
    if not scene.has("clock"):
        return
    for share, by_s in ((0.3, JUMP_S), (0.5, -JUMP_S), (0.65, -JUMP_S), (0.85, JUMP_S)):
        await asyncio.sleep(max(0.0, scene.began_s + share * scene.seconds - time.monotonic()))
        scene.jumps.append(await true_time(scene))
        await jump(scene.url, by_s)


async def die_again_and_again(scene: Scene, place: tuple[str, str, str]) -> None:
    chance, number = random.Random(1), 0
    while scene.has("death") and not scene.is_over:
        name = f"mortal-{number}"
        number += 1
        async with worker(*place, name) as process:
            await asyncio.sleep(chance.uniform(6.0, 10.0))
            scene.killed[name] = await true_time(scene)
            process.kill()


async def settled(scene: Scene) -> None:
    """Until nothing innocent waits any more and every neighbour had its turn, or for a minute."""
    end_s = time.monotonic() + SETTLE_S
    while time.monotonic() < end_s:
        if await is_settled(scene):
            return
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
