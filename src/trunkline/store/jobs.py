"""The outbox of jobs: enqueue, claim, end.

Every statement that ends a claim has its fence beside its id. A job that is missing from a result was no longer the
caller's, or was locked by another transaction: `held` tells them apart. Nothing that a worker does here waits for a
lock, so a row that stays locked affects no job but its own.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from trunkline.errors import MigrationError
from trunkline.store.database import Connection, now
from trunkline.store.rows import columns
from trunkline.store.sql import Area

_SQL = Area("jobs")

INSERT_COLUMNS = (
    "id", "job_type", "priority", "run_at", "max_attempts", "unique_key", "concurrency_key", "reseller_id",
    "merchant_id", "payload",
)  # fmt: skip
# COPY has no ON CONFLICT.
COPY_COLUMNS = tuple(name for name in INSERT_COLUMNS if name != "unique_key")

# Planner settings of connections with a session of their own. The outbox is often empty when a statement is planned and
# full when it runs; a cached plan that reads all of it costs a hundred times as much.
PLANNER = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}
# And how long a worker may be stopped inside a transaction: others wait for the keys that it has locked. Nothing that a
# worker does waits for a lock, but for a completion that expects none.
SESSION = {**PLANNER, "idle_in_transaction_session_timeout": "5s", "lock_timeout": "250ms"}

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_ID = UUID(int=0)


class Lane(msgspec.Struct, frozen=True, order=True):
    """The jobs of one type and priority, with concurrency keys or without."""

    job_type: str
    priority: int
    keyed: bool = False


class LanePosition(msgspec.Struct, frozen=True, order=True):
    """A position in the order of a lane."""

    run_at: datetime = BEGINNING
    id: UUID = FIRST_ID


class Key(msgspec.Struct, frozen=True, order=True):
    """A concurrency key: it belongs to a type and to a tenant. The platform's own have two empty strings."""

    job_type: str
    key: str
    reseller_id: str = ""
    merchant_id: str = ""


FIRST_KEY = Key("", "")


class NewJob(msgspec.Struct, frozen=True):
    id: UUID
    job_type: str
    payload: str
    priority: int
    max_attempts: int
    run_at: datetime | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    reseller_id: str | None = None
    merchant_id: str | None = None

    @property
    def lane(self) -> Lane:
        return Lane(self.job_type, self.priority, self.concurrency_key is not None)

    @property
    def unique(self) -> tuple[str, str, str | None, str | None] | None:
        """What no two pending jobs share."""
        if self.unique_key is None:
            return None
        return self.job_type, self.unique_key, self.reseller_id, self.merchant_id

    @property
    def identity(self) -> object:
        return self.unique or self.id


class Inserted(msgspec.Struct, frozen=True):
    """The pending job: the given one, or its twin with the same unique key."""

    id: UUID
    lane: Lane
    run_at: datetime
    is_new: bool = True


class Claimant(msgspec.Struct, frozen=True):
    """The worker that claims, and how long its lease lasts without a renewal."""

    worker: str
    lease_s: float = 15.0


class JobClaim(msgspec.Struct, frozen=True, gc=False):
    """A claimed job, until its lease ends."""

    id: UUID
    fence: int
    job_type: str
    priority: int
    run_at: datetime
    created_at: datetime
    attempt: int
    max_attempts: int
    unique_key: str | None
    concurrency_key: str | None
    reseller_id: str | None
    merchant_id: str | None
    payload: str


class ClaimResult(msgspec.Struct, frozen=True):
    """The claimed jobs, the time up to which the claim has seen everything, and whether no more were due. Not whole:
    except for jobs under a concurrency key that another transaction was changing."""

    at: datetime
    claimed: list[JobClaim]
    was_all: bool
    is_whole: bool = True


class Survey(msgspec.Struct, frozen=True):
    """The first waiting job of a lane."""

    lane: Lane
    first: LanePosition
    due_in_s: float


class NextDue(msgspec.Struct, frozen=True):
    """When a lane has a due job again (None: nothing is waiting), and when that was read."""

    lane: Lane
    seen_at: datetime
    due_in_s: float | None


class End(msgspec.Struct, frozen=True):
    """A claim ends, and the job with it."""

    id: UUID
    fence: int
    outcome: str = "succeeded"
    result: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    fraction: float | None = None
    note: str | None = None


class ReturnedClaim(msgspec.Struct, frozen=True):
    """A claim ends, and the job waits again. Without a delay: at its old position."""

    id: UUID
    fence: int
    delay_s: float | None = None
    counted: bool = True
    error_code: str | None = None
    error_message: str | None = None


class Death(msgspec.Struct, frozen=True):
    """A claim ends, and the job becomes a dead letter."""

    id: UUID
    fence: int
    error_code: str
    error_message: str


class EndedJob(msgspec.Struct, frozen=True):
    id: UUID
    job_type: str
    concurrency_key: str | None
    reseller_id: str | None = None
    merchant_id: str | None = None

    @property
    def key(self) -> Key | None:
        if self.concurrency_key is None:
            return None
        return Key(self.job_type, self.concurrency_key, self.reseller_id or "", self.merchant_id or "")


class Renewal(msgspec.Struct, frozen=True):
    """The renewal of a job that is still the worker's. Not renewed: another transaction has locked its row."""

    is_renewed: bool
    is_to_cancel: bool


class Returned(EndedJob, frozen=True, kw_only=True):
    """Where a job waits now. Without a time it has ended, as superseded or cancelled."""

    lane: Lane
    run_at: datetime | None
    outcome: str | None


class Expired(msgspec.Struct, frozen=True):
    id: UUID
    fence: int
    job_type: str
    attempt: int
    max_attempts: int
    locked_by: str
    unique_key: str | None
    lease_expires_at: datetime


async def check_tables(connection: Connection) -> None:
    """A worker without tables would fail at every poll, for ever."""
    if not await connection.fetchval(_SQL.has_tables):
        raise MigrationError(
            "There are no tables of jobs in this database. `trunkline migrate` makes them for a platform, "
            "`trunkline.jobs.Jobs` for an application."
        )


def in_lock_order(jobs: Iterable[NewJob], size: int) -> list[list[NewJob]]:
    """Jobs for several statements, at most `size` for each: of those with the same unique key the first, in the order
    in which a statement locks them. So two callers with the same keys lock them in one order."""
    first: dict[object, NewJob] = {}
    for job in jobs:
        first.setdefault(job.identity, job)
    ordered = sorted(
        first.values(),
        key=lambda j: (j.job_type, j.unique_key or "", j.reseller_id or "", j.merchant_id or "", j.id),
    )
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


async def insert(tx: Connection, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Enqueue jobs in the given order; no two of them may have the same unique key. A pending twin is returned instead,
    made as early and as urgent as the new one, and locked until the end of the transaction: it is not claimed before
    that commits. One in another's open transaction is no twin."""
    rows = await tx.fetch(
        _SQL.insert if all(j.unique_key is None for j in jobs) else _SQL.insert_unique,
        *columns(jobs, *INSERT_COLUMNS),
    )
    ours = {j.id: j for j in jobs}
    twins = {j.unique: j.id for j in jobs if j.unique is not None}
    by_id: dict[UUID, Inserted] = {}
    for r in rows:
        unique = r["job_type"], r["unique_key"], r["reseller_id"], r["merchant_id"]
        by_id[twins.get(unique, r["id"])] = inserted(r, r["id"] in ours)
    return [by_id[j.id] for j in jobs]


async def copy(tx: Connection, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Enqueue many jobs at once. None of them may have a unique key: COPY has no ON CONFLICT."""
    moment = await now(tx)
    places = [moment if j.run_at is None or j.run_at < moment else j.run_at for j in jobs]
    await tx.copy_records_to_table(
        "job_outbox",
        columns=COPY_COLUMNS,
        records=[
            (j.id, j.job_type, j.priority, run_at, j.max_attempts, j.concurrency_key, j.reseller_id, j.merchant_id,
             j.payload)
            for j, run_at in zip(jobs, places, strict=True)
        ],
    )  # fmt: skip
    return [Inserted(j.id, j.lane, run_at) for j, run_at in zip(jobs, places, strict=True)]


async def claim(
    conn: Connection,
    lanes: Mapping[Lane, LanePosition],
    limit: int,
    claimant: Claimant,
    *,
    ahead_s: float = 0.0,
) -> ClaimResult:
    """Claim jobs without concurrency keys that are due, or will be within `ahead_s`, in the order of the lanes."""
    rows = await conn.fetch(_SQL.claim, *_positions(lanes), limit, claimant.worker, claimant.lease_s, ahead_s)
    claimed = [JobClaim(*columns) for _, *columns in rows if columns[0] is not None]
    return ClaimResult(rows[0]["looked_at"] + timedelta(seconds=ahead_s), claimed, len(claimed) < limit)


async def keyed_candidates(
    conn: Connection, lanes: Mapping[Lane, LanePosition], limit: int, busy: Collection[Key] = ()
) -> tuple[datetime, dict[UUID, Key]]:
    """Due jobs under concurrency keys other than the busy ones, with their keys, and the time of the read. A statement
    of its own: the transaction that inserts a key's row must have ended before."""
    rows = await conn.fetch(_SQL.keyed_candidates, *_positions(lanes), limit, *key_columns(busy))
    return rows[0]["looked_at"], {job_id: Key(*key) for _, job_id, *key in rows if job_id is not None}


async def claim_keyed(
    tx: Connection, candidates: Mapping[UUID, Key], claimant: Claimant, running_max: Mapping[str, int]
) -> tuple[list[JobClaim], set[Key]]:
    """Claim as many as their keys have capacity for; returns also the keys that other transactions have locked: those
    are skipped. `running_max` is how many of a type may run under one key."""
    wanted = sorted(set(candidates.values()))
    locked = [Key(*row) for row in await tx.fetch(_SQL.lock_keys, *key_columns(wanted))]
    rows = await tx.fetch(
        _SQL.claim_keyed,
        list(candidates),
        *key_columns(locked),
        [running_max[key.job_type] for key in locked],
        claimant.worker,
        claimant.lease_s,
    )
    return [JobClaim(*row) for row in rows], set(wanted) - set(locked)


async def survey(conn: Connection, job_types: Sequence[str]) -> list[Survey]:
    rows = await conn.fetch(_SQL.survey, job_types)
    return [Survey(_lane(r), LanePosition(r["run_at"], r["id"]), r["due_in_s"]) for r in rows]


async def next_due(conn: Connection, lanes: Collection[Lane], after: datetime) -> list[NextDue]:
    """When each lane has a due job again, after the time up to which a claim has seen everything."""
    rows = await conn.fetch(_SQL.next_due, *columns(lanes, "job_type", "priority", "keyed"), after)
    return [NextDue(_lane(r), r["seen_at"], r["due_in_s"]) for r in rows]


async def renew(conn: Connection, held: Mapping[UUID, int], claimant: Claimant) -> dict[UUID, Renewal]:
    """Renew the leases of jobs by their fences; a job that is missing from the result is no longer the worker's."""
    rows = await conn.fetch(_SQL.renew, list(held), list(held.values()), claimant.worker, claimant.lease_s)
    return {row["id"]: Renewal(row["is_renewed"], row["cancel_requested"]) for row in rows}


async def held(conn: Connection, claims: Mapping[UUID, int], worker: str | None) -> set[UUID]:
    """Those of these claims, by their fences, that are still the worker's."""
    return {row["id"] for row in await conn.fetch(_SQL.held, list(claims), list(claims.values()), worker)}


async def lock_held(tx: Connection, job_id: UUID, fence: int, worker: str) -> None:
    """Wait for the row of a claim, so that what follows in this transaction does not skip it."""
    await tx.execute(_SQL.lock_held, job_id, fence, worker)


async def lock_keys_of(tx: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Lock the concurrency keys of jobs that are about to end; returns the jobs whose key another has locked."""
    return {row["id"] for row in await tx.fetch(_SQL.lock_keys_of, ids)}


async def finish(tx: Connection, ends: Sequence[End], worker: str | None) -> list[EndedJob]:
    """Move finished jobs to the history. Without a worker, whichever owned them: the caller holds their locks."""
    return await _finish(_SQL.finish, tx, ends, worker)


async def finish_at_once(conn: Connection, ends: Sequence[End], worker: str) -> list[EndedJob]:
    """As `finish`, and cheaper where nothing is locked: else it waits, for as long as the session's lock_timeout."""
    return await _finish(_SQL.finish_at_once, conn, ends, worker)


async def _finish(statement: str, tx: Connection, ends: Sequence[End], worker: str | None) -> list[EndedJob]:
    rows = await tx.fetch(
        statement,
        *columns(ends, "id", "fence"),
        worker,
        *columns(ends, "outcome", "result", "error_code", "error_message", "fraction", "note"),
    )
    return [EndedJob(*row) for row in rows]


async def put_back(tx: Connection, returns: Sequence[ReturnedClaim], worker: str | None) -> list[Returned]:
    rows = await tx.fetch(
        _SQL.put_back,
        *columns(returns, "id", "fence"),
        worker,
        *columns(returns, "delay_s", "counted", "error_code", "error_message"),
    )
    return [
        Returned(
            *(r["id"], r["job_type"], r["concurrency_key"], r["reseller_id"], r["merchant_id"]),
            lane=Lane(r["job_type"], r["priority"], r["concurrency_key"] is not None),
            run_at=r["run_at"],
            outcome=r["outcome"],
        )
        for r in rows
    ]


async def bury(tx: Connection, deaths: Sequence[Death], worker: str | None) -> list[EndedJob]:
    messages = columns(deaths, "error_code", "error_message")
    rows = await tx.fetch(_SQL.bury, *columns(deaths, "id", "fence"), worker, *messages)
    return [EndedJob(*row) for row in rows]


async def free_keys(
    tx: Connection, ended: Iterable[EndedJob], running_max: Mapping[str, int]
) -> list[tuple[Lane, datetime]]:
    """Count down the keys of ended jobs and unpark the next ones; returns the lanes and times of these."""
    counts = Counter(job.key for job in ended if job.key is not None)
    if not counts:
        return []
    await tx.execute(_SQL.free_keys, *key_columns(counts), list(counts.values()))
    return await unpark(tx, list(counts), running_max)


async def unpark(
    tx: Connection, keys: Sequence[Key], running_max: Mapping[str, int]
) -> list[tuple[Lane, datetime]]:
    """Unpark what has capacity under these locked keys; returns the lanes and times."""
    rows = await tx.fetch(_SQL.unpark, *key_columns(keys), [running_max.get(key.job_type, 1) for key in keys])
    return [(Lane(r["job_type"], r["priority"], keyed=True), r["run_at"]) for r in rows]


async def lock_expired(
    tx: Connection, since: datetime, limit: int, among: Sequence[UUID] | None = None, *, jump_s: float = 0.0
) -> list[Expired]:
    """Jobs whose lease expired after `since`, locked until the end of the transaction. `jump_s`: by how much the
    server's clock was just set forward."""
    return [Expired(*row) for row in await tx.fetch(_SQL.expired, since, limit, among, jump_s)]


async def lock_unknown(
    tx: Connection, worker: str, known: Iterable[UUID]
) -> list[tuple[UUID, int, str | None]]:
    """Jobs that are this worker's and not among `known`: the id, fence and unique key of each."""
    return [tuple(row) for row in await tx.fetch(_SQL.unknown_held, worker, list(known))]


def _positions(lanes: Mapping[Lane, LanePosition]) -> list[list[Any]]:
    return [*columns(lanes, "job_type", "priority"), *columns(lanes.values(), "run_at", "id")]


def key_columns(keys: Collection[Key]) -> list[list[str]]:
    return columns(keys, "job_type", "key", "reseller_id", "merchant_id")


def _lane(row: asyncpg.Record) -> Lane:
    return Lane(row["job_type"], row["priority"], row["keyed"])


def inserted(row: asyncpg.Record, is_new: bool = True) -> Inserted:
    lane = Lane(row["job_type"], row["priority"], row["concurrency_key"] is not None)
    return Inserted(row["id"], lane, row["run_at"], is_new)


async def write_progress(conn: Connection, reports: Sequence[tuple[UUID, int, float, str | None]]) -> None:
    """Id, fence, fraction and note of each report of a running job. A report under a fence that is no longer valid is
    dropped."""
    await conn.execute(_SQL.write_progress, *map(list, zip(*reports, strict=True)))
