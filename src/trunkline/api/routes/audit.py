"""The audit log: who changed what, when and why."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from trunkline.api.auth import API_ROOT, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.models import READ_ERRORS
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.schema.alarms import AuditLine
from trunkline.schema.fields import Moment, Text
from trunkline.store import audit
from trunkline.store.audit import AuditFilter

router = APIRouter(prefix=f"{API_ROOT}/audit", tags=["control"])

# Higher than every id: ids are bigints.
LAST_LINE = 2**63 - 1
Action = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}(\.[a-z_]{1,40})?$")]


class AuditQuery(PageQuery):
    actor: Text | None = Field(None, max_length=200)
    action: Action | None = Field(None, description="`key.revoked`, or `key` for all actions on keys.")
    subject: Text | None = Field(None, max_length=200)
    since: Moment | None = None
    until: Moment | None = Field(None, description="Not included.")


@router.get("", response_model=PageOut[AuditLine], responses=READ_ERRORS, summary="Read the audit log")
async def list_audit(query: Annotated[AuditQuery, Query()], who: ReadKey, api: Deps) -> Page[AuditLine]:
    """Newest first: changes to your tenant and to all tenants below it. Filters are joined by "and"."""
    cursors = Cursors("audit", who, query)
    before = cursors.start_number(LAST_LINE)
    wanted = AuditFilter(query.actor, query.action, query.subject, query.since, query.until)
    async with api.store.reading() as connection:
        rows = await audit.list_lines(
            connection, who.tenant, wanted, before=before, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda line: line.id)
