"""The outbox of jobs: into it, claimed from it, and out of it.

Everything that ends a claim names its fence. A job that is missing from an answer was no longer the caller's.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from trunkline.store.database import Connection
from trunkline.store.sql import query

_INSERT = query("jobs/insert")
_NOW = query("jobs/now")
_CLAIM = query("jobs/claim")
_KEYED_CANDIDATES = query("jobs/keyed_candidates")
_LOCK_KEYS = query("jobs/lock_keys")
_CLAIM_KEYED = query("jobs/claim_keyed")
_NEXT_DUE = query("jobs/next_due")
_SURVEY = query("jobs/survey")
_RENEW = query("jobs/renew")
_FINISH = query("jobs/finish")
_PUT_BACK = query("jobs/put_back")
_BURY = query("jobs/bury")
_FREE_KEYS = query("jobs/free_keys")
_UNPARK = query("jobs/unpark")
_EXPIRED = query("jobs/expired")
_UNKNOWN_HELD = query("jobs/unknown_held")

COPY_COLUMNS = (
    "id", "job_type", "priority", "run_at", "max_attempts", "concurrency_key", "reseller_id", "merchant_id", "payload",
)  # fmt: skip

# How the planner must work on connections that keep their session. The outbox is often empty when a statement is
# planned and full when it runs; a plan that reads all of it, made then and kept, costs a hundred times as much.
PLANNER = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}
# And how long a worker may stand still inside a transaction: others wait for the keys that it has locked.
SESSION = {**PLANNER, "idle_in_transaction_session_timeout": "5s", "lock_timeout": "5s"}

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_ID = UUID(int=0)


class Lane(msgspec.Struct, frozen=True, order=True):
    """The jobs of one type and priority, with concurrency keys or without."""

    job_type: str
    priority: int
    keyed: bool = False


class Place(msgspec.Struct, frozen=True, order=True):
    """A place in the order of a lane."""

    run_at: datetime = BEGINNING
    id: UUID = FIRST_ID


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


class Inserted(msgspec.Struct, frozen=True):
    """The pending job: the one that was given, or its twin with the same unique key."""

    id: UUID
    lane: Lane
    run_at: datetime
    is_new: bool = True


class Claimant(msgspec.Struct, frozen=True):
    """Who claims, and for how long it may go without a word."""

    worker: str
    lease_s: float = 15.0


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A job in our hands until its lease ends."""

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


class Look(msgspec.Struct, frozen=True):
    """What a claim got, and the moment up to which it has seen everything. Not whole: but for jobs under a concurrency
    key that somebody was just changing."""

    at: datetime
    claimed: list[Claimed]
    is_whole: bool = True


class Candidate(msgspec.Struct, frozen=True):
    """A job that may be claimed if its concurrency key has room."""

    id: UUID
    job_type: str
    concurrency_key: str


class Survey(msgspec.Struct, frozen=True):
    """The first waiting job of a lane."""

    lane: Lane
    first: Place
    due_in_s: float


class NextDue(msgspec.Struct, frozen=True):
    """When a lane has something again (None: nothing is waiting), and the moment in which that was seen."""

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


class Return(msgspec.Struct, frozen=True):
    """A claim ends, and the job waits again. No delay given: at its old place."""

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


class Ended(msgspec.Struct, frozen=True):
    id: UUID
    job_type: str
    concurrency_key: str | None


class Returned(msgspec.Struct, frozen=True):
    """Where a job waits now. Without a place it has ended, as superseded or cancelled."""

    id: UUID
    lane: Lane
    concurrency_key: str | None
    run_at: datetime | None
    outcome: str | None

    @property
    def ended(self) -> Ended:
        return Ended(self.id, self.lane.job_type, self.concurrency_key)


class Expired(msgspec.Struct, frozen=True):
    id: UUID
    fence: int
    job_type: str
    attempt: int
    max_attempts: int
    locked_by: str


async def insert(tx: Connection, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Enqueue jobs; no two of them may have the same unique key."""
    rows = await tx.fetch(
        _INSERT,
        [j.id for j in jobs],
        [j.job_type for j in jobs],
        [j.priority for j in jobs],
        [j.run_at for j in jobs],
        [j.max_attempts for j in jobs],
        [j.unique_key for j in jobs],
        [j.concurrency_key for j in jobs],
        [j.reseller_id for j in jobs],
        [j.merchant_id for j in jobs],
        [j.payload for j in jobs],
    )
    ours = {j.id: j for j in jobs}
    twins = {(j.job_type, j.unique_key): j.id for j in jobs if j.unique_key is not None}
    found = {twins.get((r["job_type"], r["unique_key"]), r["id"]): inserted(r, r["id"] in ours) for r in rows}
    return [found[j.id] for j in jobs]


async def copy(tx: Connection, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Enqueue many jobs at once. None of them may have a unique key: COPY knows no conflict."""
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


async def now(tx: Connection) -> datetime:
    moment: datetime = await tx.fetchval(_NOW)
    return moment


async def claim(
    conn: Connection, lanes: Mapping[Lane, Place], limit: int, claimant: Claimant, *, ahead_s: float = 0.0
) -> Look:
    """Claim jobs without concurrency keys that are due, or will be within `ahead_s`, in the order of the lanes."""
    rows = await conn.fetch(_CLAIM, *_columns(lanes), limit, claimant.worker, claimant.lease_s, ahead_s)
    claimed = [Claimed(*columns) for _, *columns in rows if columns[0] is not None]
    return Look(rows[0]["looked_at"] + timedelta(seconds=ahead_s), claimed)


async def keyed_candidates(
    conn: Connection, lanes: Mapping[Lane, Place], limit: int
) -> tuple[datetime, list[Candidate]]:
    """Due jobs under concurrency keys, and the moment of the look. A statement of its own: who adds a key's row must
    not hold it any longer."""
    rows = await conn.fetch(_KEYED_CANDIDATES, *_columns(lanes), limit)
    candidates = [Candidate(*columns) for _, *columns in rows if columns[0] is not None]
    return rows[0]["looked_at"], candidates


async def claim_keyed(
    tx: Connection, candidates: Sequence[Candidate], claimant: Claimant, running_max: Mapping[str, int]
) -> tuple[list[Claimed], bool]:
    """Claim as many as their keys have room for, and whether every key could be asked: one that somebody is changing
    is passed over. `running_max` says how many of a type may run under one key."""
    wanted = sorted({(c.job_type, c.concurrency_key) for c in candidates})
    locked = await tx.fetch(_LOCK_KEYS, [w[0] for w in wanted], [w[1] for w in wanted])
    rows = await tx.fetch(
        _CLAIM_KEYED,
        [c.id for c in candidates],
        [row["job_type"] for row in locked],
        [row["key"] for row in locked],
        [running_max[row["job_type"]] for row in locked],
        claimant.worker,
        claimant.lease_s,
    )
    return [Claimed(*row) for row in rows], len(locked) == len(wanted)


async def survey(conn: Connection, job_types: Sequence[str]) -> list[Survey]:
    rows = await conn.fetch(_SURVEY, job_types)
    return [Survey(_lane(r), Place(r["run_at"], r["id"]), r["due_in_s"]) for r in rows]


async def next_due(conn: Connection, lanes: Iterable[Lane], after: datetime) -> list[NextDue]:
    """When each lane has something again, behind the moment up to which a claim has seen everything."""
    listed = list(lanes)
    rows = await conn.fetch(
        _NEXT_DUE,
        [x.job_type for x in listed],
        [x.priority for x in listed],
        [x.keyed for x in listed],
        after,
    )
    return [NextDue(_lane(r), r["seen_at"], r["due_in_s"]) for r in rows]


async def renew(conn: Connection, held: Mapping[UUID, int], claimant: Claimant) -> dict[UUID, bool]:
    """Prolong the leases of jobs by their fences. Says of each that is still ours whether it is to be cancelled."""
    fences = list(set(held.values()))
    rows = await conn.fetch(_RENEW, list(held), fences, claimant.worker, claimant.lease_s)
    return {row["id"]: row["cancel_requested"] for row in rows}


async def finish(tx: Connection, ends: Sequence[End], worker: str | None) -> list[Ended]:
    """Move finished jobs to the history. Without a worker, whoever owned them: the caller holds their locks."""
    rows = await tx.fetch(
        _FINISH,
        *_guard(ends, worker),
        [e.outcome for e in ends],
        [e.result for e in ends],
        [e.error_code for e in ends],
        [e.error_message for e in ends],
        [e.fraction for e in ends],
        [e.note for e in ends],
    )
    return [Ended(*row) for row in rows]


async def put_back(tx: Connection, returns: Sequence[Return], worker: str | None) -> list[Returned]:
    rows = await tx.fetch(
        _PUT_BACK,
        *_guard(returns, worker),
        [r.delay_s for r in returns],
        [r.counted for r in returns],
        [r.error_code for r in returns],
        [r.error_message for r in returns],
    )
    return [
        Returned(
            r["id"],
            Lane(r["job_type"], r["priority"], r["concurrency_key"] is not None),
            r["concurrency_key"],
            r["run_at"],
            r["outcome"],
        )
        for r in rows
    ]


async def bury(tx: Connection, deaths: Sequence[Death], worker: str | None) -> list[Ended]:
    rows = await tx.fetch(
        _BURY, *_guard(deaths, worker), [d.error_code for d in deaths], [d.error_message for d in deaths]
    )
    return [Ended(*row) for row in rows]


async def free_keys(
    tx: Connection, ended: Iterable[Ended], running_max: Mapping[str, int]
) -> list[tuple[Lane, datetime]]:
    """Count down the keys of ended jobs and let the next ones in; the places at which these wait."""
    counts: dict[tuple[str, str], int] = {}
    for job in ended:
        if job.concurrency_key is not None:
            key = (job.job_type, job.concurrency_key)
            counts[key] = counts.get(key, 0) + 1
    if not counts:
        return []
    types, keys = [key[0] for key in counts], [key[1] for key in counts]
    await tx.execute(_FREE_KEYS, types, keys, list(counts.values()))
    rows = await tx.fetch(_UNPARK, types, keys, [running_max.get(job_type, 1) for job_type in types])
    return [(Lane(r["job_type"], r["priority"], keyed=True), r["run_at"]) for r in rows]


async def lock_expired(tx: Connection, since: datetime, limit: int) -> list[Expired]:
    """Jobs whose lease ran out after `since`, locked until the end of the transaction."""
    rows = await tx.fetch(_EXPIRED, since, limit)
    return [
        Expired(r["id"], r["fence"], r["job_type"], r["attempt_count"], r["max_attempts"], r["locked_by"])
        for r in rows
    ]


async def lock_unknown(tx: Connection, worker: str, known: Iterable[UUID]) -> dict[UUID, int]:
    """The fences of jobs that are this worker's and not among those it knows."""
    return {row["id"]: row["fence"] for row in await tx.fetch(_UNKNOWN_HELD, worker, list(known))}


def _columns(lanes: Mapping[Lane, Place]) -> tuple[list[Any], ...]:
    return (
        [lane.job_type for lane in lanes],
        [lane.priority for lane in lanes],
        [place.run_at for place in lanes.values()],
        [place.id for place in lanes.values()],
    )


def _guard(
    ends: Sequence[End] | Sequence[Return] | Sequence[Death], worker: str | None
) -> tuple[list[UUID], list[int], str | None]:
    return [e.id for e in ends], list({e.fence for e in ends}), worker


def _lane(row: asyncpg.Record) -> Lane:
    return Lane(row["job_type"], row["priority"], row["keyed"])


def inserted(row: asyncpg.Record, is_new: bool = True) -> Inserted:
    lane = Lane(row["job_type"], row["priority"], row["concurrency_key"] is not None)
    return Inserted(row["id"], lane, row["run_at"], is_new)
