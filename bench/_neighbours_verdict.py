"""What came of all neighbours at once: what each innocent met, whether every neighbour was bad, and the page of it."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

import asyncpg

from tests.support.jobs.neighbours import BLOCK_S, OPEN_S, TICK_S
from trunkline.jobs.outbox import Outbox
from trunkline.mailbox import Mailboxes
from trunkline.store.database import Database
from trunkline.store.tenants import Tenant

LEASE_S = 6.0
LATE_S = 1.0
RATE_PER_S = 50
TENANTS = (Tenant("north"), Tenant("south"), Tenant("south", "shop"))
JUMP_S = 600.0
EARLY_AT_ONCE = 40
# So many of those that missed the goal are told of one by one.
STORIES_MAX = 40

# Each must have been there, or nothing is proved.
NEIGHBOURS = {
    "early": f"jobs that finish first and keep their `jobs.transaction()` open for {OPEN_S:g} s, {EARLY_AT_ONCE} at "
    "once every ten seconds",
    "hung": "jobs that hang",
    "stubborn": "jobs that swallow their cancellation",
    "block": f"jobs that block the event loop for {BLOCK_S:g} s",
    "mailbox_hung": "mailboxes whose handler hangs",
    "mailbox_stubborn": "mailboxes whose handler swallows its cancellation",
    "mailbox_poison": "mailboxes whose handler raises",
    "mailbox_hung_write": "mailboxes whose write hangs",
    "mailbox_stubborn_write": "mailboxes whose write swallows its cancellation, in an open transaction",
    "held_keys": f"applications that hold a unique key and a concurrency key for {OPEN_S:g} s",
    "fail": "jobs that fail while an application holds their unique key",
    "held_mailbox": f"mailboxes that an application appended to and held for {OPEN_S:g} s, while others submitted "
    "there: turns that they had afterwards",
    "death": "workers that were killed",
    "clock": f"times that Postgres' clock was set forward or back by {JUMP_S:g} s",
    "plain": "plain functions, refused where they were declared",
}
# Goes with another one.
PART_OF = {"fail": "held_keys"}


@dataclass(frozen=True)
class Held:
    """An application that holds keys, and since when."""

    number: int
    since: datetime


@dataclass
class Scene:
    url: str
    database: Database
    outbox: Outbox
    mailboxes: Mailboxes
    seconds: float
    without: frozenset[str]
    began_s: float = field(default_factory=time.monotonic)
    # By the server's own clock.
    began_at: datetime | None = None
    ended_at: datetime | None = None
    jumps: list[datetime] = field(default_factory=list)
    killed: dict[str, datetime] = field(default_factory=dict)
    turns: dict[str, list[asyncpg.Record]] = field(default_factory=dict)
    blocks: list[asyncpg.Record] = field(default_factory=list)
    held_keys: list[Held] = field(default_factory=list)
    # Events of held mailboxes that were answered or committed, and how many were refused.
    held_taken: list[str] = field(default_factory=list)
    held_refused: int = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.began_s >= self.seconds

    def has(self, neighbour: str) -> bool:
        return PART_OF.get(neighbour, neighbour) not in self.without

    def chosen(self, *neighbours: str) -> list[str]:
        return [each for each in neighbours if self.has(each)]


async def true_time(scene: Scene) -> datetime:
    async with scene.database.connection() as conn:
        moment: datetime = await conn.fetchval("SELECT pg_catalog.clock_timestamp()")
    return moment


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


@dataclass(frozen=True)
class OwnCalls:
    """How the handlers of a worker fared with its own two objects, in one of the ways to use them."""

    call: str
    count: int
    failed: int
    # Of those without an excuse.
    latest_s: float


@dataclass(frozen=True)
class Kept:
    """Jobs under keys, and events of mailboxes, that an application held: all of them are done in the end."""

    keys: int
    # Of jobs under the keys that were held, and of those under others, which nobody held.
    held_done: int
    free_done: int
    # The latest of those, since the key beside it was held.
    free_latest_s: float
    events: int
    events_lost: int
    events_twice: int
    events_refused: int

    @property
    def is_whole(self) -> bool:
        return self.held_done == self.free_done == self.keys and not self.events_lost + self.events_twice


async def is_settled(scene: Scene) -> bool:
    async with scene.database.connection() as conn:
        left = await conn.fetchval(
            """SELECT (SELECT count(*) FROM job_outbox WHERE job_type IN ('innocent', 'keyed', 'calling'))
                    + (SELECT count(*) FROM mailboxes
                       WHERE kind IN ('innocent', 'held') AND claimable_at IS NOT NULL)"""
        )
    return not left and all((await neighbours_counted(scene)).values())


async def neighbours_counted(scene: Scene) -> dict[str, int]:
    """How often each was bad, of all that were to be."""
    async with scene.database.connection() as conn:
        rows = await conn.fetch("SELECT neighbour, count(*) AS runs FROM bad_runs GROUP BY neighbour")
        refused = await conn.fetchval("SELECT count(*) FROM refused")
    counted = {row["neighbour"]: row["runs"] for row in rows} | {
        "held_keys": len(scene.held_keys),
        "death": len(scene.killed),
        "clock": len(scene.jumps),
        "plain": refused,
    }
    return {each: counted.get(each, 0) for each in NEIGHBOURS if scene.has(each)}


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
        calls = await conn.fetch("SELECT * FROM own_calls ORDER BY call")
        ticks = [row["at"] for row in await conn.fetch("SELECT at FROM runs WHERE name = 'tick' ORDER BY at")]
    return Verdict(
        scene.seconds,
        [_innocent(scene, row) for row in job_rows],
        [_innocent(scene, row) for row in box_rows],
        await neighbours_counted(scene),
        await _kept(scene),
        [_own_calls(scene, call, calls) for call in sorted({row["call"] for row in calls})],
        len(ticks),
        _longest_gap_s(scene, ticks),
        is_pooled,
    )


async def _kept(scene: Scene) -> Kept:
    async with scene.database.connection() as conn:
        keyed = {
            row["name"]: row["first_at"]
            for row in await conn.fetch(
                "SELECT name, min(at) AS first_at FROM runs WHERE name LIKE 'keyed-%' GROUP BY name"
            )
        }
        effects = {
            row["name"]: row["effects"]
            for row in await conn.fetch(
                "SELECT name, count(*) AS effects FROM effects WHERE name LIKE 'held-%' GROUP BY name"
            )
        }
    free = [
        (keyed[f"keyed-free-{held.number}"] - held.since).total_seconds()
        for held in scene.held_keys
        if f"keyed-free-{held.number}" in keyed
    ]
    return Kept(
        len(scene.held_keys),
        sum(f"keyed-key-{held.number}" in keyed for held in scene.held_keys),
        len(free),
        max(free, default=0.0),
        len(scene.held_taken),
        sum(name not in effects for name in scene.held_taken),
        sum(count > 1 for count in effects.values()),
        scene.held_refused,
    )


def _own_calls(scene: Scene, call: str, rows: Sequence[asyncpg.Record]) -> OwnCalls:
    made = [row for row in rows if row["call"] == call]
    unexcused = [row["took_s"] for row in made if not _was_blocked(scene, row["worker"], row)]
    return OwnCalls(
        call, len(made), sum(row["error"] is not None for row in made), max(unexcused, default=0.0)
    )


def _longest_gap_s(scene: Scene, ticks: Sequence[datetime]) -> float:
    """Between two ticks, or an end of the run and the tick next to it."""
    assert scene.began_at is not None, "the run began"
    assert scene.ended_at is not None, "the run ended"
    within = [tick for tick in ticks if scene.began_at <= tick <= scene.ended_at]
    moments = [scene.began_at, *within, scene.ended_at]
    return max((later - earlier).total_seconds() for earlier, later in pairwise(moments))


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
    return _was_blocked(scene, worker, turn)


def _was_blocked(scene: Scene, worker: str, span: asyncpg.Record) -> bool:
    return any(
        block["worker"] == worker
        and span["began_at"] <= block["ended_at"]
        and (span["ended_at"] is None or span["ended_at"] >= block["began_at"])
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
    # How often each neighbour was bad.
    neighbours: dict[str, int]
    kept: Kept
    own_calls: Sequence[OwnCalls]
    ticks: int
    tick_gap_s: float
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
        """None lost and none finished twice, and every neighbour was bad: what holds however slow the machine is."""
        return (
            not any(row[2] or row[3] for row in self.rows())
            and self.kept.is_whole
            and all(self.neighbours.values())
            and len(self.own_calls) > 0
            and self.ticks > 0
        )

    @property
    def is_met(self) -> bool:
        return self.is_whole and not self.misses

    @property
    def misses(self) -> list[str]:
        """What was late, in words."""
        return [
            *(
                f"{row[0]} without excuse were late or run twice"
                for row in self.rows()
                if row[5] > LATE_S or row[6]
            ),
            *(f"{row[0]} with an excuse were late" for row in self.rows() if row[8] > LEASE_S + LATE_S),
            *(
                f"{each.call} failed or was late"
                for each in self.own_calls
                if each.failed or each.latest_s > LATE_S
            ),
            *(["jobs beside a held key were late"] if self.kept.free_latest_s > LEASE_S + LATE_S else []),
            *(["a recurring job was late"] if self.tick_gap_s > TICK_S + LEASE_S + LATE_S else []),
        ]

    def text(self) -> str:
        lines = [
            f"{what}: {sent} sent, {lost} lost, {twice} finished twice; without excuse: p99 {p99:.3f} s, "
            f"latest {most:.3f} s, {again} run twice; with excuse: {excused}, latest {excused_most:.3f} s"
            for what, sent, lost, twice, p99, most, again, excused, excused_most in self.rows()
        ]
        faults = [one.story() for one in (*self.jobs, *self.mailboxes) if one.is_fault]
        return "\n".join(
            [
                *lines,
                *(
                    f"{each.call} in handlers: {each.count}, {each.failed} failed, latest {each.latest_s:.3f} s"
                    for each in self.own_calls
                ),
                f"{self.kept}",
                f"recurring: {self.ticks} ticks, at most {self.tick_gap_s:.3f} s between two",
                f"neighbours: {self.neighbours}",
                *faults[:STORIES_MAX],
                *self.misses,
                f"whole: {self.is_whole}, met: {self.is_met}",
            ]
        )

    def page(self) -> str:
        table = "\n".join(
            f"| {what} | {sent} | {lost} | {twice} | {again} | {p99:.3f} s | {most:.3f} s | {excused} "
            f"| {latest:.3f} s |"
            for what, sent, lost, twice, p99, most, again, excused, latest in self.rows()
        )
        calls = "\n".join(
            f"| `{each.call}` | {each.count} | {each.failed} | {each.latest_s:.3f} s |"
            for each in self.own_calls
        )
        bad = "\n".join(f"| {NEIGHBOURS[each]} | {count} |" for each, count in self.neighbours.items())
        pooler = (
            "one behind pgbouncer" if self.is_pooled else "none behind a pooler: pgbouncer is not installed"
        )
        kept = self.kept
        return f"""# Isolation of jobs and mailboxes, all faults at once

`make proof-neighbours` writes this page. For {self.seconds:g} s, on real engines: two steady workers, one whose event
loop is blocked every ten seconds, one that is killed every 6 to 10 s and {pooler}, each with jobs and mailboxes and a
lease of {LEASE_S:g} s. All of these faults at once, each counted when it occurred:

| fault | how often |
|---|---|
{bad}

Beside them healthy jobs of three tenants, {RATE_PER_S} a second, which choose the same unique keys, and as many
healthy mailboxes, which have no tenants, each with one event. "Excused" are those claimed by the worker that died or
by the blocked process, and those in flight while the clock was set: late by at most a lease and a second. All others:
late by at most a second, and run once.

| | sent | lost | finished twice | run twice | p99 late | latest | excused | latest of these |
|---|---|---|---|---|---|---|---|---|
{table}

Healthy handlers use the two objects of their worker, whatever its other handlers hold open. None fails, and none
takes more than a second except where the event loop was blocked:

| call in a handler | made | failed | latest |
|---|---|---|---|
{calls}

- Of {kept.keys} jobs under a held concurrency key {kept.held_done} were done in the end, and of as many under keys that
  nobody held {kept.free_done}, the latest {kept.free_latest_s:.3f} s after the hold beside it began (allowed: a lease
  and a second).
- Of {kept.events} events that a held mailbox took {kept.events_lost} were lost, and {kept.events_twice} took effect
  twice; {kept.events_refused} were refused while it was held.
- A job that recurs every {TICK_S} s ran {self.ticks} times, at most {self.tick_gap_s:.3f} s apart (allowed: its
  {TICK_S} s, a lease and a second).

{"The goal was met." if self.is_met else "The goal was not met."}
"""


def _quantile(values: Sequence[float], share: float) -> float:
    if len(values) < 2:
        return max(values, default=0.0)
    return statistics.quantiles(values, n=100)[round(share * 100) - 1]
