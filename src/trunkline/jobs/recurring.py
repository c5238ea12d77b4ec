"""Recurring jobs: each tick is enqueued once, however many processes are running.

The guard is the schedule's row. The transaction that enqueues the job also advances the next tick, so a second process
finds it advanced, and a crash leaves neither. Ticks that passed while no process ran count as one: the job runs once,
and then on time.

A tick that is further away than the rule allows was written before the server's clock was set back; it is moved to the
time of the rule. The tick that was enqueued last is not enqueued again, so a small correction repeats nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from trunkline.jobs.cron import parse_rule
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.registry import InvalidJob, JobType
from trunkline.loops.base import Loop
from trunkline.store import job_schedules
from trunkline.store.database import Connection, Database, now
from trunkline.store.job_schedules import Schedule
from trunkline.store.jobs import Inserted
from trunkline.telemetry import get_logger

log = get_logger(__name__)

P = TypeVar("P")

WAIT_MAX_S = 30.0


@dataclass(frozen=True, slots=True)
class Recurring:
    """`Recurring("nightly_export", EXPORT, Export(…), "cron 30 2 * * *", "Europe/Berlin")`"""

    name: str
    job_type: JobType[Any]
    payload: Any
    rule: str
    timezone: str = "UTC"


# Every schedule that was declared by `recurring`, in any module that was imported.
declared_schedules: list[Recurring] = []


def recurring(name: str, job_type: JobType[P], payload: P, rule: str, *, timezone: str = "UTC") -> Recurring:
    """Enqueue this job at every tick of the rule, as `cron` explains it. A wrong rule is an `InvalidJob` here."""
    parse_rule(rule, timezone)
    job_type.encode(payload)
    if any(schedule.name == name for schedule in declared_schedules):
        raise InvalidJob(f"There are two recurring jobs of the name {name}")
    schedule = Recurring(name, job_type, payload, rule, timezone)
    declared_schedules.append(schedule)
    return schedule


class Scheduler(Loop):
    name = "job_schedules"

    def __init__(self, database: Database, outbox: Outbox, schedules: Sequence[Recurring]):
        super().__init__(WAIT_MAX_S)
        self._database = database
        self._outbox = outbox
        self._schedules = {schedule.name: schedule for schedule in schedules}
        assert len(self._schedules) == len(schedules), "two schedules of one name"
        # A wrong rule is a bug of the program: raise it at the start, not when the tick is due.
        for schedule in schedules:
            parse_rule(schedule.rule, schedule.timezone)
            schedule.job_type.encode(schedule.payload)
        self._registered = False
        self._due_in_s: float | None = None

    async def run_once(self) -> int:
        """Enqueue the jobs of due ticks. Returns how many."""
        if not self._schedules:
            return 0
        async with self._outbox.transaction(self._database) as work:
            if not self._registered:
                await self._register(work.tx)
            await self._follow_clock_back(work.tx)
            due = await job_schedules.lock_due(work.tx, list(self._schedules))
            for schedule in due:
                work.enqueued.append(await self._tick(work.tx, schedule))
            self._due_in_s = await job_schedules.next_tick_in_s(work.tx, list(self._schedules))
        self._registered = True
        return len(due)

    async def wait(self) -> None:
        due_in_s = WAIT_MAX_S if self._due_in_s is None else self._due_in_s
        # At least 20 ms: another process is enqueueing a tick that is still due.
        await self.pause(min(WAIT_MAX_S, max(0.02, due_in_s)))

    async def _register(self, tx: Connection) -> None:
        today = await now(tx)
        for schedule in self._schedules.values():
            await job_schedules.register(
                tx,
                schedule.name,
                job_type=schedule.job_type.name,
                rule=schedule.rule,
                timezone=schedule.timezone,
                payload=schedule.job_type.encode(schedule.payload),
                next_at=parse_rule(schedule.rule, schedule.timezone).after(today),
            )

    async def _follow_clock_back(self, tx: Connection) -> None:
        for tick in await job_schedules.list_ticks(tx, list(self._schedules)):
            next_at = _next_by_rule(tick)
            if next_at < tick.next_at:
                log.warning("jobs.tick_pulled", schedule=tick.name, was=tick.next_at, next_at=next_at)
                await job_schedules.pull(tx, tick, next_at=next_at)

    async def _tick(self, tx: Connection, due: Schedule) -> Inserted:
        """By the rule in the row: a process of another version may have written a newer one."""
        schedule = self._schedules[due.name]
        job = await self._outbox.enqueue(
            tx, schedule.job_type, schedule.payload, unique_key=f"{due.name}@{due.next_at.isoformat()}"
        )
        next_at = parse_rule(due.rule, due.timezone).after(due.now)
        await job_schedules.advance(tx, due.name, next_at=next_at, last_at=due.next_at)
        log.info("jobs.tick", schedule=due.name, tick=due.next_at, next_at=next_at, job_id=job.id)
        return job


def _next_by_rule(tick: Schedule) -> datetime:
    try:
        rule = parse_rule(tick.rule, tick.timezone)
    except InvalidJob:
        return tick.next_at  # written by a newer version, which maintains it
    next_at = rule.after(tick.now)
    return rule.after(next_at) if next_at == tick.last_at else next_at
