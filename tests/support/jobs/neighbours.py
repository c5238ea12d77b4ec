"""A worker whose handlers do all that handlers should not, beside innocent ones, as a process of its own:

    python -m tests.support.jobs.neighbours DATABASE_URL REDIS_URL PREFIX NAME LEASE_S [blocks] [pooled]

It runs jobs and mailboxes. What it truly ran it writes down with the server's own clock, also where a test has set the
one that the platform sees.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import uvloop

from trunkline.jobs import Failed, InvalidJob, Jobs, JobType, Outcome, Policy, Run, job
from trunkline.jobs.recurring import Recurring
from trunkline.jobs.service import JobConfig
from trunkline.mailbox import Mailbox, Mailboxes, Write, mailbox
from trunkline.mailbox.handler import BadHandler
from trunkline.mailbox.processing import FailureRule
from trunkline.store.database import Connection

LEDGER = """
CREATE TABLE sent (name text PRIMARY KEY, at timestamptz NOT NULL);
CREATE TABLE runs (name text, worker text, at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp());
CREATE TABLE effects (name text, worker text, at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp());
CREATE TABLE blocks (worker text, began_at timestamptz, ended_at timestamptz);
CREATE TABLE refused (worker text, what text);
-- Every run of a handler that does as it should not: without them a proof proves nothing.
CREATE TABLE bad_runs (neighbour text, worker text, at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp());
-- What the handlers of a worker ask of its own two objects, how long it took, and how it failed.
CREATE TABLE own_calls (
    call text, worker text, took_s float8, error text, began_at timestamptz,
    ended_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
-- Every claim of an innocent job or mailbox: whose it was, from when until when, and how it ended.
CREATE TABLE turns (
    name text, fence bigint, worker text, how text,
    began_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(), ended_at timestamptz
);
CREATE INDEX turns_by_name ON turns (name);
CREATE FUNCTION end_turn(of_name text, of_fence bigint, in_which_way text) RETURNS void LANGUAGE sql AS $$
    UPDATE public.turns SET ended_at = pg_catalog.clock_timestamp(), how = in_which_way
    WHERE name = of_name AND fence = of_fence AND ended_at IS NULL
$$;
CREATE FUNCTION note_mailbox_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.processing_status = 'processing' THEN
        PERFORM public.end_turn(OLD.key, OLD.fence, CASE WHEN NEW.processing_status = 'processing' THEN 'claimed again'
                                                         ELSE NEW.processing_status END);
    END IF;
    IF NEW.processing_status = 'processing' THEN
        INSERT INTO public.turns (name, fence, worker) VALUES (NEW.key, NEW.fence, NEW.locked_by);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER mailbox_turns AFTER UPDATE ON mailboxes FOR EACH ROW
    WHEN (NEW.kind = 'innocent' AND (OLD.fence <> NEW.fence OR OLD.processing_status <> NEW.processing_status)
          AND 'processing' IN (OLD.processing_status, NEW.processing_status))
    EXECUTE FUNCTION note_mailbox_turn();
CREATE FUNCTION note_job_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status = 'IN_PROGRESS' THEN
        PERFORM public.end_turn(OLD.payload::jsonb ->> 'name', OLD.fence,
                                CASE TG_OP WHEN 'DELETE' THEN 'ended' ELSE NEW.status END);
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.status = 'IN_PROGRESS' THEN
        INSERT INTO public.turns (name, fence, worker) VALUES (NEW.payload::jsonb ->> 'name', NEW.fence, NEW.locked_by);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER job_turns AFTER UPDATE ON job_outbox FOR EACH ROW
    WHEN (NEW.job_type = 'innocent' AND (OLD.fence <> NEW.fence OR OLD.status <> NEW.status))
    EXECUTE FUNCTION note_job_turn();
CREATE TRIGGER job_turns_end AFTER DELETE ON job_outbox FOR EACH ROW WHEN (OLD.job_type = 'innocent')
    EXECUTE FUNCTION note_job_turn();
"""

TIMEOUT_S = 3.0
GRACE_S = 1.0
# How long a transaction is held open, by a handler or by an application.
OPEN_S = 8.0
BLOCK_S = 2.0
# Longer than all its tries, so that what it holds adds up.
STUBBORN_WRITE_S = 60.0
TICK_S = 2

Payload = dict[str, str]

INNOCENT: JobType[Payload] = JobType("innocent", dict, Policy())
BAD: JobType[Payload] = JobType(
    "bad", dict, Policy(backoff_s=(1.0,), max_attempts=3, timeout_s=TIMEOUT_S + OPEN_S)
)
BLOCKING: JobType[Payload] = JobType("blocking", dict, Policy(backoff_s=(1.0,), max_attempts=3))
KEYED: JobType[Payload] = JobType("keyed", dict, Policy())
CALLING: JobType[Payload] = JobType("calling", dict, Policy())
TICK: JobType[Payload] = JobType("tick", dict, Policy())
TICKS = Recurring("ticks", TICK, {"name": "tick"}, f"every {TICK_S}")


class Handlers:
    """`jobs` and `mailboxes` are the worker's own: what one handler does with them must not harm another."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", worker: str, jobs: Jobs):
        self._pool = pool
        self._worker = worker
        self._jobs = jobs
        self.mailboxes: Mailboxes | None = None

    async def note(self, name: str) -> None:
        await self._pool.execute("INSERT INTO runs (name, worker) VALUES ($1, $2)", name, self._worker)

    async def note_bad(self, neighbour: str) -> None:
        await self._pool.execute(
            "INSERT INTO bad_runs (neighbour, worker) VALUES ($1, $2)", neighbour, self._worker
        )

    async def innocent(self, payload: Payload, run: Run) -> None:
        await self.note(payload["name"])

    async def bad(self, payload: Payload, run: Run) -> Outcome | None:
        await self.note_bad(payload["do"])
        match payload["do"]:
            case "early":
                async with self._jobs.transaction() as work:
                    await run.finish(work.tx)
                    await asyncio.sleep(OPEN_S)
            case "hung":
                await asyncio.Event().wait()
            case "stubborn":
                await swallow_everything(OPEN_S * 2)
            case "fail":
                return Failed("told_to", retry_in_s=1.0)
        return None

    async def call(self, payload: Payload, run: Run) -> None:
        """All that a handler may ask of the two objects, each measured by itself."""
        assert self.mailboxes is not None, "opened before the worker is ready"
        jobs, mailboxes, name = self._jobs, self.mailboxes, payload["name"]

        async def enqueue() -> None:
            async with jobs.transaction() as work:
                await work.enqueue(BAD, {"do": "none"})

        async def append() -> None:
            async with mailboxes.transaction() as work:
                await work.append("called", name, "happened", {})

        await self._measure("jobs.submit", jobs.submit(BAD, {"do": "none"}))
        await self._measure("jobs.transaction", enqueue())
        await self._measure("mailboxes.submit", mailboxes.submit("called", name, "happened", {}))
        await self._measure("mailboxes.transaction", append())

    async def _measure(self, call: str, made: Awaitable[object]) -> None:
        began_at = await self._pool.fetchval("SELECT pg_catalog.clock_timestamp()")
        began_s, error = time.monotonic(), None
        try:
            await made
        except Exception as raised:
            error = repr(raised)
        await self._pool.execute(
            "INSERT INTO own_calls (call, worker, took_s, error, began_at) VALUES ($1, $2, $3, $4, $5)",
            call, self._worker, time.monotonic() - began_s, error, began_at,
        )  # fmt: skip

    async def block(self, payload: Payload, run: Run) -> None:
        await self.note_bad("block")
        began_at = await self._pool.fetchval("SELECT pg_catalog.clock_timestamp()")
        time.sleep(BLOCK_S)  # noqa: ASYNC251, as handlers do that know no better
        await self._pool.execute(
            "INSERT INTO blocks VALUES ($1, $2, pg_catalog.clock_timestamp())", self._worker, began_at
        )

    def mailbox_handlers(self, lease_s: float) -> list[Any]:
        rule = FailureRule(failures_max=3, backoff_first_s=1.0, timeout_s=TIMEOUT_S)

        @mailbox("innocent", concurrency=10, lease_s=lease_s)
        async def innocent(box: Mailbox) -> Write:
            for event in box.events:
                await self.note(event.payload["name"])

            async def write(tx: Connection) -> None:
                await tx.executemany(
                    "INSERT INTO public.effects (name, worker) VALUES ($1, $2)",
                    [(event.payload["name"], self._worker) for event in box.events],
                )

            return write

        @mailbox("bad", concurrency=10, lease_s=lease_s, failure=rule)
        async def bad(box: Mailbox) -> Write | None:
            do = box.events[0].payload["do"]
            await self.note_bad(do)
            match do:
                case "mailbox_hung":
                    await asyncio.Event().wait()
                case "mailbox_stubborn":
                    await swallow_everything(OPEN_S)
                case "mailbox_poison":
                    raise RuntimeError("poison")
                case "mailbox_hung_write":
                    return hang
                case "mailbox_stubborn_write":
                    return hold_on
            return None

        @mailbox("held", concurrency=2, lease_s=lease_s)
        async def held(box: Mailbox) -> Write:
            await self.note_bad("held_mailbox")

            async def write(tx: Connection) -> None:
                await tx.executemany(
                    "INSERT INTO public.effects (name, worker) VALUES ($1, $2)",
                    [(event.payload["name"], self._worker) for event in box.events],
                )

            return write

        @mailbox("called", concurrency=2, lease_s=lease_s)
        async def called(box: Mailbox) -> None: ...

        return [innocent, bad, held, called]

    async def note_refusals(self) -> None:
        """Plain functions, for jobs and for mailboxes: refused where they are declared."""

        def plain(*_: Any) -> None: ...

        declarations: list[tuple[str, Callable[[Any], Any]]] = [
            ("job", job("plain")),
            ("mailbox", mailbox("plain")),
        ]
        for what, declare in declarations:
            try:
                declare(plain)
            except (InvalidJob, BadHandler):
                await self._pool.execute("INSERT INTO refused VALUES ($1, $2)", self._worker, what)


async def hang(_: Connection) -> None:
    await asyncio.Event().wait()


async def hold_on(tx: Connection) -> None:
    """In an open transaction, on a connection of the worker."""
    await tx.execute("SELECT")
    await swallow_everything(STUBBORN_WRITE_S)


async def swallow_everything(for_s: float) -> None:
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        try:
            await asyncio.sleep(0.2)
        except BaseException:
            continue


async def work(
    url: str, redis_url: str, prefix: str, worker: str, lease_s: float, *, blocks: bool, pooled: bool
) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncpg.create_pool(
        url, min_size=2, max_size=8, statement_cache_size=0 if pooled else 100
    ) as pool:
        config = JobConfig(
            identity=worker, lease_s=lease_s, renew_s=lease_s / 3, drain_s=1.0, cancel_grace_s=GRACE_S
        )
        jobs = Jobs(url, [], schema=None, recurring=[TICKS], behind_pooler=pooled, config=config)
        handlers = Handlers(pool, worker, jobs)
        await handlers.note_refusals()
        for job_type in (INNOCENT, KEYED, TICK):
            jobs.registry.add(job_type, handlers.innocent)
        jobs.registry.add(BAD, handlers.bad)
        jobs.registry.add(CALLING, handlers.call)
        if blocks:
            jobs.registry.add(BLOCKING, handlers.block)
        options: dict[str, Any] = {"prefix": prefix, "schema": "public", "worker": worker}
        async with (
            jobs,
            Mailboxes(
                url, redis_url, handlers.mailbox_handlers(lease_s), behind_pooler=pooled, **options
            ) as handlers.mailboxes,
            handlers.mailboxes.working(),
            jobs.worker(),
        ):
            print("ready", flush=True)  # noqa: T201
            await stop.wait()


def command(url: str, redis_url: str, prefix: str, worker: str, lease_s: float, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "tests.support.jobs.neighbours", url, redis_url, prefix, worker, str(lease_s), *more,
    ]  # fmt: skip


if __name__ == "__main__":
    url_, redis_url_, prefix_, worker_, lease_s_, *more_ = sys.argv[1:]
    uvloop.run(
        work(
            url_,
            redis_url_,
            prefix_,
            worker_,
            float(lease_s_),
            blocks="blocks" in more_,
            pooled="pooled" in more_,
        )
    )
