"""The audit log: who changed what, when and why."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from trunkline.api.auth import API_ROOT, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.models import READ_ERRORS, Out
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.schema.fields import Moment, Text
from trunkline.store import audit
from trunkline.store.audit import AuditFilter, AuditLine

router = APIRouter(prefix=f"{API_ROOT}/audit", tags=["control"])

# Higher than every id: ids are bigints.
LAST_LINE = 2**63 - 1
Action = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}(\.[a-z_]{1,40})?$")]


class AuditOut(Out):
    id: int
    at: datetime
    actor: str = Field(
        description="`key:<id>` of the API key, or the component of the platform that made the change."
    )
    action: str
    subject: str
    reason: str | None
    details: dict[str, Any]
    reseller_id: str | None
    merchant_id: str | None


class AuditQuery(PageQuery):
    actor: Text | None = Field(None, max_length=200)
    action: Action | None = Field(None, description="`key.revoked`, or `key` for all actions on keys.")
    subject: Text | None = Field(None, max_length=200)
    since: Moment | None = None
    until: Moment | None = Field(None, description="Not included.")


@router.get("", response_model=PageOut[AuditOut], responses=READ_ERRORS, summary="Read the audit log")
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
