"""Does one bad neighbour harm only himself? All that jobs and mailboxes were ever seen to do to each other, at once.

Five workers on real engines (one of them dies again and again, the event loop of one is blocked, one is behind a
transaction pooler), an application that holds transactions, unique and concurrency keys open, handlers that hang,
block, cannot be cancelled or finish early, and a Postgres whose clock is set forward and back. Beside them 50 innocent
jobs and 50 innocent mailboxes a second of three tenants, which choose the same unique keys. Judged from what handlers
wrote down with the server's own clock.

    --seconds 120             how long
    --keep                    write docs/proof/neighbours.md
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.jobs import neighbours
from tests.support.jobs.neighbours import BAD, BLOCKING, INNOCENT, KEYED, LEDGER, OPEN_S
from tests.support.store.pooler import PGBOUNCER, transaction_pooler
from tests.support.store.server_clock import jump, make_settable
from trunkline.embedded import Engines, postgres
from trunkline.jobs import Registry
from trunkline.jobs.notifier import JobNotifier
from trunkline.jobs.outbox import Outbox
from trunkline.mailbox import Mailboxes
from trunkline.store import database as store
from trunkline.store.database import Database
from trunkline.store.migrate import migrate
from trunkline.store.tenants import Tenant

LEASE_S = 6.0
LATE_S = 1.0
RATE_PER_S = 50
TENANTS = (Tenant("north"), Tenant("south"), Tenant("south", "shop"))
JUMP_S = 600.0
SETTLE_S = 60.0
# So many of those that missed the goal are told of one by one.
STORIES_MAX = 40
PAGE = Path(__file__).parents[1] / "docs" / "proof" / "neighbours.md"


@dataclass
class Scene:
    url: str
    redis_url: str
    database: Database
    outbox: Outbox
    mailboxes: Mailboxes
    seconds: float
    began_s: float = field(default_factory=time.monotonic)
    # By the server's own clock.
    jumps: list[datetime] = field(default_factory=list)
    killed: dict[str, datetime] = field(default_factory=dict)
    turns: dict[str, list[asyncpg.Record]] = field(default_factory=dict)
    blocks: list[asyncpg.Record] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=lambda: {"jobs": 0, "mailboxes": 0})
    bad: int = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.began_s >= self.seconds


@dataclass(frozen=True)
class Innocent:
    """One job or mailbox: how late it was, how often it ran, and whether it had an excuse."""

    name: str
    sent_at: datetime
    late_s: float | None
    runs: int
    ends: int
    is_excused: bool
    # Every claim of it, in order.
    turns: Sequence[asyncpg.Record]

    @property
    def is_fault(self) -> bool:
        if self.is_excused:
            return self.ends != 1 or (self.late_s or 0.0) > LEASE_S + LATE_S
        return self.ends != 1 or self.runs != 1 or (self.late_s or 0.0) > LATE_S

    def story(self) -> str:
        """What came of it, turn by turn, in seconds since it was sent."""
        turns = "; ".join(
            f"{turn['worker']} from {self._after_s(turn['began_at'])} until {self._after_s(turn['ended_at'])} "
            f"({turn['how']})"
            for turn in self.turns
        )
        late = "never" if self.late_s is None else f"{self.late_s:.3f} s late"
        return f"{self.name}: {late}, ran {self.runs}, ended {self.ends}, sent {self.sent_at.time()}: {turns}"

    def _after_s(self, moment: datetime | None) -> str:
        return "?" if moment is None else f"{(moment - self.sent_at).total_seconds():.3f}"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--keep", action="store_true")
    chosen = parser.parse_args()
    found = await on_engines_of_its_own(chosen.seconds)
    print(found.text())
    if chosen.keep:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(found.page(), encoding="utf-8")
    sys.exit(0 if found.is_met else 1)


async def on_engines_of_its_own(seconds: float) -> "Verdict":
    """With room for the connections of six processes."""
    with tempfile.TemporaryDirectory(prefix="trunkline-neighbours-") as folder:
        os.chmod(folder, 0o755)  # the pooler runs as somebody else
        postgres.TUNING["max_connections"] = "400"
        async with Engines(Path(folder) / "engines") as engines:
            return await run(
                engines.database_url, engines.redis_url, "neighbours", Path(folder) / "pooler", seconds
            )


async def run(url: str, redis_url: str, prefix: str, folder: Path, seconds: float) -> "Verdict":
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
        scene = await stack.enter_async_context(opened(url, redis_url, prefix, seconds))
        place = (url, redis_url, prefix)
        for name in ("steady-1", "steady-2"):
            await stack.enter_async_context(worker(*place, name))
        await stack.enter_async_context(worker(*place, "blocked", "blocks"))
        if pooled_url is not None:
            await stack.enter_async_context(worker(pooled_url, redis_url, prefix, "pooled", "pooled"))
        scene.began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            duties: Sequence[Callable[[Scene], Coroutine[Any, Any, None]]] = (
                send_jobs, send_mailboxes, misbehave, hold_keys_open, set_the_clock,
            )  # fmt: skip
            for duty in duties:
                group.create_task(duty(scene))
            group.create_task(die_again_and_again(scene, place))
        await settled(scene)
        return await judge(scene, is_pooled=pooled_url is not None)


@asynccontextmanager
async def opened(url: str, redis_url: str, prefix: str, seconds: float) -> AsyncIterator[Scene]:
    database = await store.connect(url, pool_size=20)
    notifier = JobNotifier(url)
    registry = Registry([INNOCENT, BAD, BLOCKING, KEYED])
    async with Mailboxes(url, redis_url, prefix=prefix, schema="public") as mailboxes:
        yield Scene(url, redis_url, database, Outbox(registry, notifier), mailboxes, seconds)
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


async def paced(scene: Scene, per_s: float) -> AsyncIterator[int]:
    number = 0
    while not scene.is_over:
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
        scene.sent["jobs"] += 1

    async with asyncio.TaskGroup() as group:
        async for number in paced(scene, RATE_PER_S):
            tenant = TENANTS[number % len(TENANTS)]
            group.create_task(send(f"job-{number}", tenant, f"daily-{number // len(TENANTS)}"))


async def send_mailboxes(scene: Scene) -> None:
    async def send(name: str) -> None:
        await note_sent(scene, name)
        await scene.mailboxes.submit("innocent", name, "happened", {"name": name}, dedupe_key=name)
        scene.sent["mailboxes"] += 1

    async with asyncio.TaskGroup() as group:
        async for number in paced(scene, RATE_PER_S):
            group.create_task(send(f"mailbox-{number}"))


async def note_sent(scene: Scene, name: str) -> None:
    async with scene.database.connection() as conn:
        await conn.execute("INSERT INTO sent VALUES ($1, pg_catalog.clock_timestamp())", name)


async def misbehave(scene: Scene) -> None:
    """One of each every second or two, and one that blocks its process every ten."""
    jobs, boxes = ("early", "hung", "stubborn"), ("hung", "stubborn", "poison", "hung_write")
    async for number in paced(scene, 1.0):
        await scene.outbox.submit(scene.database, BAD, {"do": jobs[number % len(jobs)]})
        await scene.mailboxes.submit("bad", f"bad-{number}", "happened", {"do": boxes[number % len(boxes)]})
        scene.bad += 2
        if number % 10 == 5:
            await scene.outbox.submit(scene.database, BLOCKING, {})
            scene.bad += 1


async def hold_keys_open(scene: Scene) -> None:
    """An application that enqueues under a unique key and stays in its transaction, while the running job of that key
    fails; and one that holds a concurrency key, with jobs under it and under another."""
    async for number in paced(scene, 1 / (OPEN_S + 2)):
        unique, key = f"held-{number}", f"key-{number}"
        await scene.outbox.submit(scene.database, BAD, {"do": "fail"}, unique_key=unique)
        for one in (key, f"free-{number}"):
            await scene.outbox.submit(scene.database, KEYED, {"name": f"keyed-{one}"}, concurrency_key=one)
        async with scene.database.transaction() as tx:
            await scene.outbox.enqueue(tx, BAD, {"do": "none"}, unique_key=unique)
            await tx.execute("SELECT FROM job_keys WHERE key = $1 FOR UPDATE", key)
            await asyncio.sleep(OPEN_S)
        scene.bad += 4


async def set_the_clock(scene: Scene) -> None:
    """Forward and back again, twice, away from each other by more than a lease."""
    for share, by_s in ((0.3, JUMP_S), (0.5, -JUMP_S), (0.65, -JUMP_S), (0.85, JUMP_S)):
        await asyncio.sleep(max(0.0, scene.began_s + share * scene.seconds - time.monotonic()))
        scene.jumps.append(await true_time(scene))
        await jump(scene.url, by_s)


async def true_time(scene: Scene) -> datetime:
    async with scene.database.connection() as conn:
        moment: datetime = await conn.fetchval("SELECT pg_catalog.clock_timestamp()")
    return moment


async def die_again_and_again(scene: Scene, place: tuple[str, str, str]) -> None:
    chance, number = random.Random(1), 0
    while not scene.is_over:
        name = f"mortal-{number}"
        number += 1
        async with worker(*place, name) as process:
            await asyncio.sleep(chance.uniform(6.0, 10.0))
            scene.killed[name] = await true_time(scene)
            process.kill()


async def settled(scene: Scene) -> None:
    """Until nothing innocent waits any more, or for a minute."""
    end_s = time.monotonic() + SETTLE_S
    while time.monotonic() < end_s:
        async with scene.database.connection() as conn:
            left = await conn.fetchval(
                """SELECT (SELECT count(*) FROM job_outbox WHERE job_type = 'innocent')
                        + (SELECT count(*) FROM mailboxes WHERE kind = 'innocent' AND claimable_at IS NOT NULL)"""
            )
        if not left:
            return
        await asyncio.sleep(0.2)


_JOBS = """
WITH ran AS (SELECT name, min(at) AS first_at, count(*) AS runs FROM runs GROUP BY name),
     ended AS (SELECT unique_key, coalesce(reseller_id, '') AS reseller, coalesce(merchant_id, '') AS merchant,
                      count(*) AS ends
               FROM job_history WHERE job_type = 'innocent' AND outcome = 'succeeded' GROUP BY 1, 2, 3)
SELECT s.name, s.at AS sent_at, r.first_at, coalesce(r.runs, 0) AS runs, coalesce(e.ends, 0) AS ends
FROM sent AS s
LEFT JOIN ran AS r ON r.name = s.name
LEFT JOIN ended AS e ON e.unique_key = s.key AND e.reseller = s.reseller AND e.merchant = s.merchant
"""
_MAILBOXES = """
WITH ran AS (SELECT name, count(*) AS runs FROM runs GROUP BY name),
     ended AS (SELECT name, min(at) AS first_at, count(*) AS ends FROM effects GROUP BY name)
SELECT s.name, s.at AS sent_at, e.first_at, coalesce(r.runs, 0) AS runs, coalesce(e.ends, 0) AS ends
FROM sent AS s
LEFT JOIN ran AS r ON r.name = s.name
LEFT JOIN ended AS e ON e.name = s.name
WHERE s.name LIKE 'mailbox-%'
"""


async def judge(scene: Scene, *, is_pooled: bool) -> "Verdict":
    jobs_of = _JOBS.replace("FROM sent AS s\n", f"FROM {_keyed_sent()} AS s\n")
    async with scene.database.connection() as conn:
        job_rows, box_rows = await conn.fetch(jobs_of), await conn.fetch(_MAILBOXES)
        for row in await conn.fetch("SELECT * FROM turns ORDER BY began_at"):
            scene.turns.setdefault(row["name"], []).append(row)
        scene.blocks = await conn.fetch("SELECT * FROM blocks")
        refused = await conn.fetchval("SELECT count(*) FROM refused")
        keyed = await conn.fetchval("SELECT count(*) FROM runs WHERE name LIKE 'keyed-free-%'")
    return Verdict(
        scene.seconds,
        [_innocent(scene, row) for row in job_rows],
        [_innocent(scene, row) for row in box_rows],
        scene.bad,
        len(scene.killed),
        len(scene.jumps),
        refused,
        keyed,
        is_pooled,
    )


def _keyed_sent() -> str:
    """What was sent, with the key and the tenant that follow from its number."""
    resellers = ",".join(f"'{tenant.reseller_id or ''}'" for tenant in TENANTS)
    merchants = ",".join(f"'{tenant.merchant_id or ''}'" for tenant in TENANTS)
    number, count = "split_part(name, '-', 2)::int", len(TENANTS)
    return (
        f"(SELECT name, at, 'daily-' || ({number} / {count}) AS key, "
        f"(ARRAY[{resellers}])[{number} % {count} + 1] AS reseller, "
        f"(ARRAY[{merchants}])[{number} % {count} + 1] AS merchant FROM sent WHERE name LIKE 'job-%')"
    )


def _innocent(scene: Scene, row: asyncpg.Record) -> Innocent:
    turns = scene.turns.get(row["name"], [])
    is_excused = any(_was_in_bad_hands(scene, turn) for turn in turns) or _met_a_jump(scene, row)
    return Innocent(
        row["name"], row["sent_at"], _late_s(row), row["runs"], row["ends"], is_excused, tuple(turns)
    )


def _late_s(row: asyncpg.Record) -> float | None:
    return None if row["first_at"] is None else (row["first_at"] - row["sent_at"]).total_seconds()


def _was_in_bad_hands(scene: Scene, turn: asyncpg.Record) -> bool:
    """Whether its worker died while it had it, or had its event loop blocked meanwhile."""
    worker = turn["worker"].split("/")[0]
    ended_at = turn["ended_at"]
    if worker in scene.killed:
        return ended_at is None or ended_at >= scene.killed[worker]
    return any(
        block["worker"] == worker
        and turn["began_at"] <= block["ended_at"]
        and (ended_at is None or ended_at >= block["began_at"])
        for block in scene.blocks
    )


def _met_a_jump(scene: Scene, row: asyncpg.Record) -> bool:
    """Whether the clock was set while it was on its way, or within a lease before."""
    sent_at, done_at = row["sent_at"].timestamp(), (row["first_at"] or row["sent_at"]).timestamp()
    return any(
        sent_at <= at + LEASE_S + LATE_S and done_at >= at - LATE_S
        for at in (jump_at.timestamp() for jump_at in scene.jumps)
    )


@dataclass(frozen=True)
class Verdict:
    seconds: float
    jobs: Sequence[Innocent]
    mailboxes: Sequence[Innocent]
    bad: int
    killed: int
    jumps: int
    refused: int
    keyed_free: int
    is_pooled: bool

    def rows(self) -> list[tuple[str, int, int, int, float, float, int, int, float]]:
        return [
            (
                what,
                len(each),
                sum(one.ends == 0 for one in each),
                sum(one.ends > 1 for one in each),
                _quantile(
                    [one.late_s for one in each if one.late_s is not None and not one.is_excused], 0.99
                ),
                max((one.late_s or 0.0 for one in each if not one.is_excused), default=0.0),
                sum(one.runs > 1 for one in each if not one.is_excused),
                sum(one.is_excused for one in each),
                max((one.late_s or 0.0 for one in each if one.is_excused), default=0.0),
            )
            for what, each in (("jobs", self.jobs), ("mailboxes", self.mailboxes))
        ]

    @property
    def is_whole(self) -> bool:
        """None lost and none finished twice: what holds however slow the machine is."""
        return not any(row[2] or row[3] for row in self.rows()) and self.refused > 0

    @property
    def is_met(self) -> bool:
        return self.is_whole and all(
            row[5] <= LATE_S and row[6] == 0 and row[8] <= LEASE_S + LATE_S for row in self.rows()
        )

    def text(self) -> str:
        lines = [
            f"{what}: {sent} sent, {lost} lost, {twice} finished twice; without excuse: p99 {p99:.3f} s, "
            f"latest {most:.3f} s, {again} run twice; with excuse: {excused}, latest {excused_most:.3f} s"
            for what, sent, lost, twice, p99, most, again, excused, excused_most in self.rows()
        ]
        faults = [one.story() for one in (*self.jobs, *self.mailboxes) if one.is_fault]
        return "\n".join([*lines, *faults[:STORIES_MAX], f"met: {self.is_met}"])

    def page(self) -> str:
        table = "\n".join(
            f"| {what} | {sent} | {lost} | {twice} | {again} | {p99:.3f} s | {most:.3f} s | {excused} "
            f"| {latest:.3f} s |"
            for what, sent, lost, twice, p99, most, again, excused, latest in self.rows()
        )
        pooler = (
            "one behind pgbouncer" if self.is_pooled else "none behind a pooler: pgbouncer is not installed"
        )
        return f"""# Bad neighbours, all at once

`make proof-neighbours` writes this page. For {self.seconds:g} s, on real engines: two steady workers, one whose event
loop is blocked for {neighbours.BLOCK_S:g} s every ten, one that is killed every 6 to 10 s ({self.killed} times) and
{pooler}, each with jobs and mailboxes and a lease of {LEASE_S:g} s. {self.bad} bad neighbours: jobs that finish first
and keep their transaction open for {OPEN_S:g} s, jobs and mailboxes that hang, that cannot be cancelled or whose writes
hang, mailboxes that raise, applications that hold a unique key and a concurrency key open. Postgres' clock was set
forward or back by {JUMP_S:g} s {self.jumps} times. Plain functions were refused {self.refused} times. Beside them
innocent jobs and mailboxes of three tenants, {RATE_PER_S} of each a second; the tenants choose the same unique keys.

"Excused" are those in the hands of the worker that died or of the process that was blocked, and those on their way
while the clock was set: late by at most a lease and a second. All others: late by at most a second, and run once.

| | sent | lost | finished twice | run twice | p99 late | latest | excused | latest of these |
|---|---|---|---|---|---|---|---|---|
{table}

{"The goal was met." if self.is_met else "The goal was not met."}
"""


def _quantile(values: Sequence[float], share: float) -> float:
    if len(values) < 2:
        return max(values, default=0.0)
    return statistics.quantiles(values, n=100)[round(share * 100) - 1]


if __name__ == "__main__":
    asyncio.run(main())
