"""Parameters and results of the functions in an application's transaction: `enqueue_jobs` and `append_events`, as
JSON."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from trunkline.store.jobs import Inserted, Lane, NewJob, in_lock_order
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

    @property
    def identity(self) -> object:
        """As that of the `NewJob`: by its unique key, which is the tenant's, or by itself."""
        if self.unique_key is None:
            return self.id
        return self.job_type, self.unique_key, self.reseller_id, self.merchant_id


_encode = msgspec.json.Encoder().encode
_pending = msgspec.json.Decoder(list[_Pending])
_receipts = msgspec.json.Decoder(list[Receipt])

_EVENT = ("kind", "key", "dedupe_key", "type", "payload")


def jobs_in(jobs: Sequence[NewJob]) -> list[str]:
    """One text per statement."""
    return [_encode(chunk).decode() for chunk in in_lock_order(jobs, CHUNK)]


def jobs_out(jobs: Sequence[NewJob], answers: Iterable[str]) -> list[Inserted]:
    """The pending job of each, in their order."""
    pending = {row.identity: row for answer in answers for row in _pending.decode(answer)}
    inserted: list[Inserted] = []
    for job in jobs:
        row = pending[job.identity]
        lane = Lane(row.job_type, row.priority, row.concurrency_key is not None)
        inserted.append(Inserted(row.id, lane, row.run_at, row.id == job.id))
    return inserted


def events_in(events: Sequence[NewEvent]) -> str:
    return _encode([{name: getattr(event, name) for name in _EVENT} for event in events]).decode()


def events_out(answer: str) -> list[Receipt]:
    return _receipts.decode(answer)
