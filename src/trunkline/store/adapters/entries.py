"""Parameters and results of the functions in an application's transaction: `enqueue_jobs` and `append_events`, as
JSON."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from trunkline.states import MailboxStatus
from trunkline.store.jobs import Inserted, Lane, NewJob
from trunkline.store.mailboxes import NewEvent, Receipt

ENQUEUE_JOBS = "enqueue_jobs"
APPEND_EVENTS = "append_events"

# Jobs of one statement.
CHUNK = 1000


class _Pending(msgspec.Struct):
    id: UUID
    job_type: str
    priority: int
    run_at: datetime
    unique_key: str | None
    concurrency_key: str | None
    reseller_id: str | None
    merchant_id: str | None


class _Receipt(msgspec.Struct):
    seq: int
    created: bool
    status_before: MailboxStatus


_encode = msgspec.json.Encoder().encode
_pending = msgspec.json.Decoder(list[_Pending])
_receipts = msgspec.json.Decoder(list[_Receipt])

_EVENT = ("kind", "key", "dedupe_key", "type", "payload")


def identity(job: NewJob | _Pending) -> tuple[object, ...]:
    """The identity of a pending job: by its unique key, which is the tenant's, or by itself."""
    if job.unique_key is None:
        return job.job_type, None, job.id
    return job.job_type, job.unique_key, job.reseller_id, job.merchant_id


def jobs_in(jobs: Sequence[NewJob]) -> list[str]:
    """One text per statement. Of two with the same unique key the first is enqueued. All in one order of unique keys,
    also over several statements: it is the order of their locks."""
    unique: dict[object, NewJob] = {}
    for job in jobs:
        unique.setdefault(identity(job), job)
    ordered = sorted(unique.values(), key=lambda job: tuple(str(part or "") for part in identity(job)))
    chunks = (ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK))
    return [_encode(chunk).decode() for chunk in chunks]


def jobs_out(jobs: Sequence[NewJob], answers: Iterable[str]) -> list[Inserted]:
    """The pending job of each, in their order."""
    pending = {identity(row): row for answer in answers for row in _pending.decode(answer)}
    return [_inserted(job, pending[identity(job)]) for job in jobs]


def events_in(events: Sequence[NewEvent]) -> str:
    return _encode([{name: getattr(event, name) for name in _EVENT} for event in events]).decode()


def events_out(answer: str) -> list[Receipt]:
    return [Receipt(r.seq, r.created, r.status_before) for r in _receipts.decode(answer)]


def _inserted(job: NewJob, row: Any) -> Inserted:
    lane = Lane(row.job_type, row.priority, row.concurrency_key is not None)
    return Inserted(row.id, lane, row.run_at, row.id == job.id)
