"""How fast are mailboxes? Appended events beside bare batched inserts, folded call events, and the way from an append
to its handler beside the queues on Postgres that pick up fastest; all on one Postgres that syncs every commit.

What is compared takes turns, so that a slow minute of the machine hits both sides.
"""

import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import uvloop

from bench import _mailbox_load as load
from bench import jobs, peers
from bench._mailbox_load import CALL_EVENTS, Nothing, Stage
from bench.jobs import Queue, percentile
from bench.platform import scaled
from bench.report import Report, finish
from tests.support.waiting import eventually
from trunkline.cli.running import freeze_gc_after_startup
from trunkline.dispatch import calls
from trunkline.embedded import Engines
from trunkline.mailbox import Batch, Inbox, InboxLimits, NewEvent, Receipt, WorkerLimits

ROUNDS = 3
EVENTS, SLICES = scaled(50_000, least=5_000), 5
CALLERS = 1_000
FOLDED_CALLS = scaled(4_000, least=200)
FEW, MANY, SMALL_BACKLOGS = scaled(1_000, least=100), scaled(10_000, least=400), 6
EVENTS_PER_MAILBOX = 10
APPENDS = scaled(300, least=50)
HANDLER_SLEEPS_S = 10.0
PACED_CALLS = scaled(320, least=80)
CALLS_PER_S = 80.0
AT_ONCE = WorkerLimits(batch_max=calls.LIMITS.batch_max, concurrency=calls.LIMITS.concurrency)


@dataclass
class Figures:
    values: dict[str, list[float]] = field(default_factory=dict)

    def note(self, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)
            print(f"  {name}: {value:,.2f}", file=sys.stderr, flush=True)

    def summary(self) -> dict[str, float]:
        """The median of the rounds."""
        return {name: round(statistics.median(values), 2) for name, values in self.values.items()}


async def main() -> None:
    figures, rivals = Figures(), queues()
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder)) as engines:
            for number, queue in enumerate(rivals):
                await jobs.prepare(queue, engines, f"queue_{number}")
            for turn in range(ROUNDS):
                print(f"round {turn + 1}", file=sys.stderr, flush=True)
                async with load.stage(engines) as stage:
                    for measure in (appends, folds, drains, beside_a_sleeping_handler):
                        await measure(stage, figures)
                    if turn == 0:
                        await lingering(stage, figures)
                await jobs.pickup(rivals)
                for queue in rivals:
                    print(f"  {queue.name}: {queue.summary()}", file=sys.stderr, flush=True)
    finish(judge(figures.summary(), rivals))


def queues() -> list[Queue]:
    folder = Path(__file__).parent / "jobs_peers"
    interpreter, modules = str(peers.python(*jobs.PYTHON)), peers.node(*jobs.NODE)
    os.environ["NODE_PATH"] = str(modules / "node_modules")
    jobs.place_programs()
    return [
        Queue("ours", [sys.executable, "-m", "bench._mailbox_program"], 0),
        Queue("PgQueuer", [interpreter, str(folder / "pgqueuer_jobs.py")], 0),
        Queue("graphile-worker", ["node", str(modules / "graphile_jobs.cjs")], 0),
    ]


async def appends(stage: Stage, figures: Figures) -> None:
    """Many callers at once, each waiting until its own event is durable; then the same rows in bare statements of the
    same size. They take turns in slices, so that a noisy moment falls on both."""
    new = load.events(EVENTS, EVENTS // EVENTS_PER_MAILBOX)
    inbox = Inbox(stage.database, stage.bus, InboxLimits(batch_max=500))
    freeze_gc_after_startup()  # as every process of the platform does once it is up: the events were made beforehand

    async def call(some: Sequence[NewEvent]) -> None:
        for event in some:
            await inbox.append(event)

    size = EVENTS // SLICES
    for some in (new[n * size : (n + 1) * size] for n in range(SLICES)):
        started = time.perf_counter()
        await asyncio.gather(*(call(some[n::CALLERS]) for n in range(CALLERS)))
        ours_s = time.perf_counter() - started
        started = time.perf_counter()
        await load.insert_bare(stage, some, batch=500)
        bare_s = time.perf_counter() - started
        figures.note(
            appended_per_s=size / ours_s, bare_inserts_per_s=size / bare_s, append_to_bare=bare_s / ours_s
        )
    await inbox.aclose()
    assert await stage.value("SELECT count(*) FROM mailbox_events") == size * SLICES
    await stage.worker(Nothing(), WorkerLimits(batch_max=500)).drain()


async def folds(stage: Stage, figures: Figures) -> None:
    """Call events of many attempts, folded into facts, with what follows for their leads."""
    attempts = await load.dialled(stage, FOLDED_CALLS)
    await load.fill(
        stage,
        [load.call_event(attempt, kind, urgent=False) for kind in CALL_EVENTS for attempt in attempts],
    )
    started = time.perf_counter()
    await stage.folder(calls.LIMITS).drain()
    took_s = time.perf_counter() - started
    assert await stage.value("SELECT count(*) FROM leads WHERE outcome = 'ANSWERED'") == FOLDED_CALLS
    figures.note(folded_per_s=FOLDED_CALLS * len(CALL_EVENTS) / took_s)


async def drains(stage: Stage, figures: Figures) -> None:
    """Many mailboxes in small backlogs, in one backlog, and in small ones again: the rate must not fall."""
    took_s = {FEW: 0.0, MANY: 0.0}
    for mailboxes in [FEW] * (SMALL_BACKLOGS // 2) + [MANY] + [FEW] * (SMALL_BACKLOGS // 2):
        await load.fill(stage, load.events(mailboxes * EVENTS_PER_MAILBOX, mailboxes))
        started = time.perf_counter()
        await stage.worker(Nothing(), WorkerLimits(batch_max=100)).drain()
        took_s[mailboxes] += time.perf_counter() - started
        assert await stage.value("SELECT count(*) FROM mailboxes WHERE processing_status <> 'idle'") == 0
    figures.note(
        drained_few_per_s=FEW * SMALL_BACKLOGS / took_s[FEW],
        drained_many_per_s=MANY / took_s[MANY],
        drain_many_to_few=MANY / took_s[MANY] * took_s[FEW] / (FEW * SMALL_BACKLOGS),
    )


async def beside_a_sleeping_handler(stage: Stage, figures: Figures) -> None:
    """Appends to a mailbox whose handler sleeps, in turn with appends to one that nobody handles."""
    asleep = asyncio.Event()

    class Sleeper:
        kind = "sleeper"

        async def handle(self, _batch: Batch) -> None:
            asleep.set()
            await asyncio.sleep(HANDLER_SLEEPS_S)

    inbox = Inbox(stage.database, stage.bus)
    worker = stage.worker(Sleeper(), WorkerLimits())
    running = asyncio.create_task(worker.run())
    await inbox.append(NewEvent("sleeper", "k", "first", "t", {}))
    await asleep.wait()
    took_ms: dict[str, list[float]] = {"sleeper": [], "nobody": []}
    for n in range(APPENDS):
        for kind, times in took_ms.items():
            started = time.perf_counter()
            await inbox.append(NewEvent(kind, "k", str(n), "t", {"n": n}, urgent=False))
            times.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(0.006)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await inbox.aclose()
    figures.note(
        append_p99_ms=percentile(took_ms["nobody"], 0.99),
        append_p99_beside_handler_ms=percentile(took_ms["sleeper"], 0.99),
        append_p50_ms=percentile(took_ms["nobody"], 0.5),
        append_p50_beside_handler_ms=percentile(took_ms["sleeper"], 0.5),
    )


async def lingering(stage: Stage, figures: Figures) -> None:
    """What calls cost Postgres without lingering, with that of appends, and with that of folds too."""
    linger_s = InboxLimits().linger_s
    figures.note(
        transactions_per_call_at_once=await paced(stage, AT_ONCE, linger_s=0.0, patient=False),
        transactions_per_call_appends_linger=await paced(stage, AT_ONCE, linger_s=linger_s, patient=False),
        transactions_per_call=await paced(stage, calls.LIMITS, linger_s=linger_s, patient=True),
    )


async def paced(stage: Stage, limits: WorkerLimits, *, linger_s: float, patient: bool) -> float:
    attempts = await load.dialled(stage, PACED_CALLS)
    transactions: list[int] = []
    async with stage.counting(transactions) as counted:
        inbox = Inbox(counted.database, counted.bus, InboxLimits(linger_s=linger_s))
        worker = counted.folder(limits)
        running = asyncio.create_task(worker.run())
        await asyncio.gather(*[event async for event in told(inbox, attempts, patient=patient)])
        await eventually(partial(is_all_folded, stage))
        worker.stop()
        await running
        await inbox.aclose()
    return transactions[0] / PACED_CALLS


async def told(
    inbox: Inbox, attempts: Sequence[UUID], *, patient: bool
) -> AsyncIterator[asyncio.Future[Receipt]]:
    """So many calls begin in a second, and each tells of itself twice a second, at moments of its own."""
    dice, loop = random.Random(1), asyncio.get_running_loop()
    moments = sorted(
        (n / CALLS_PER_S + age / 2 + dice.random() / 2, attempt, kind)
        for n, attempt in enumerate(attempts)
        for age, kind in enumerate(CALL_EVENTS)
    )
    start_s = loop.time()
    for at_s, attempt, kind in moments:
        await asyncio.sleep(start_s + at_s - loop.time())
        urgent = not patient or kind in calls.URGENT
        yield asyncio.ensure_future(inbox.append(load.call_event(attempt, kind, urgent=urgent)))


async def is_all_folded(stage: Stage) -> bool:
    return not await stage.value("SELECT count(*) FROM leads WHERE status = 'PROCESSING'")


def judge(figures: Mapping[str, float], rivals: Sequence[Queue]) -> Report:
    ours, *others = rivals
    mine = {**figures, **ours.summary()}
    theirs = {queue.name: queue.summary() for queue in others}
    theirs["bare inserts"] = {"appended_per_s": figures["bare_inserts_per_s"]}
    best = {
        name: min(queue.summary()[name] for queue in others) for name in ("pickup_p50_ms", "pickup_p99_ms")
    }
    goals = {
        "append at least half of bare inserts": mine["append_to_bare"] >= 0.5,
        "append to handler p50 at the best on Postgres": mine["pickup_p50_ms"] <= best["pickup_p50_ms"],
        "append to handler p99 at the best on Postgres": mine["pickup_p99_ms"] <= best["pickup_p99_ms"],
        "append p99 beside a sleeping handler unchanged": mine["append_p99_beside_handler_ms"]
        <= 1.5 * mine["append_p99_ms"],
        "the drain rate does not fall with the number of mailboxes": mine["drain_many_to_few"] >= 0.8,
    }
    for goal, met in goals.items():
        print(f"{'met' if met else 'MISSED'}: {goal}", file=sys.stderr)
    return Report("mailboxes", mine, theirs, mine["append_to_bare"], "; ".join(goals), all(goals.values()))


if __name__ == "__main__":
    uvloop.run(main())
