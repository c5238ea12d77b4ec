"""`export`: a tenant's leads as a CSV file. It reads page by page, so no transaction is open while it writes."""

import csv
import io
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from trunkline.jobs.outcomes import Done, Outcome, Policy
from trunkline.jobs.platform.files import FileStore
from trunkline.jobs.registry import JobType
from trunkline.jobs.run import Run
from trunkline.states import LeadStatus
from trunkline.store import leads
from trunkline.store.database import Database
from trunkline.store.leads import LeadFilter, StoredLead

PAGE = 1000
LAST_ID = UUID(int=2**128 - 1)
COLUMNS = (
    "id", "request_id", "merchant_id", "phone", "status", "outcome", "outcome_reason", "priority", "scheduled_at",
    "due_at", "attempt_count", "max_attempts", "created_at", "finished_at", "payload",
)  # fmt: skip
# A spreadsheet would run a cell that begins like this.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Columns whose format is safe; a phone number begins with a plus.
_SAFE = frozenset({"phone", "payload"})


class Export(msgspec.Struct):
    """Leads of the job's own tenant. A job of the platform exports those of all."""

    merchant_id: str | None = None
    status: LeadStatus | None = None
    campaign_id: UUID | None = None


EXPORT: JobType[Export] = JobType("export", Export, Policy(priority=80, per_key=1, timeout_s=6 * 3600.0))


class LeadExport:
    """The handler. A repeated run overwrites the same file."""

    def __init__(self, database: Database, files: FileStore):
        self._database = database
        self._files = files

    async def run(self, export: Export, run: Run) -> Outcome:
        name = f"export-{run.job_id}.csv"
        wanted = LeadFilter(export.merchant_id, export.campaign_id, status=export.status)
        rows, before = 0, LAST_ID
        async with self._files.draft(name) as draft:
            await draft.write(",".join(COLUMNS).encode() + b"\r\n")
            while True:
                async with self._database.connection() as conn:
                    page = await leads.list_leads(conn, run.tenant, wanted, before=before, limit=PAGE)
                if not page:
                    break
                await draft.write(as_csv(page))
                rows, before = rows + len(page), page[-1].id
                run.progress(0.0, f"{rows} leads written")
        run.progress(1.0, f"{rows} leads written")
        return Done({"file": name, "rows": rows, "bytes": draft.bytes})


def as_csv(page: Iterable[StoredLead]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_cell(name, getattr(lead, name)) for name in COLUMNS] for lead in page)
    return text.getvalue().encode()


def _cell(name: str, value: object) -> object:
    match value:
        case dict():
            return msgspec.json.encode(value).decode()
        case str() if name not in _SAFE and value.startswith(_FORMULA):
            return f"'{value}"
        case datetime():
            return value.isoformat()
        case _:
            return value
