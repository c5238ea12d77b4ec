"""Alarms: open and past ones."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.errors import conflict
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, require_found
from trunkline.api.paging import LAST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.control.alarms import Severity, described
from trunkline.schema.alarms import Alarm
from trunkline.schema.controls import Reason
from trunkline.schema.fields import Text
from trunkline.store import alarms, audit
from trunkline.store.alarms import AlarmFilter
from trunkline.store.tenants import tenant_of

router = APIRouter(prefix=f"{API_ROOT}/alarms", tags=["control"])


class AlarmQuery(PageQuery):
    state: Literal["open", "cleared", "all"] = Field("open", description="`all` is the history.")
    name: Text | None = Field(None, max_length=100)
    severity: Severity | None = None


class ClearIn(Body):
    """Clears an alarm."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "The carrier has confirmed it"}]})

    reason: Reason = Field(description="Why the alarm is cleared, for the audit log.")


@router.get("", response_model=PageOut[Alarm], responses=READ_ERRORS, summary="List alarms")
async def list_alarms(query: Annotated[AlarmQuery, Query()], who: ReadKey, api: Deps) -> Page[Alarm]:
    """Newest first. A tenant's key sees only the tenant's own."""
    cursors = Cursors("alarms", who, query)
    before = cursors.start_id(LAST_ID)
    is_open = {"open": True, "cleared": False, "all": None}[query.state]
    async with api.store.reading() as connection:
        rows = await alarms.list_alarms(
            connection,
            who.tenant,
            AlarmFilter(is_open, query.name, query.severity),
            before=before,
            limit=cursors.fetch_limit,
        )
    return cursors.page([described(alarm) for alarm in rows], lambda alarm: alarm.id)


@router.post(
    "/{alarm_id}/clear", response_model=Alarm, responses=WRITE_ERRORS, summary="Clear an alarm by hand"
)
async def clear_alarm(alarm_id: UUID, body: ClearIn, who: AdminKey, api: Deps) -> Alarm:
    """A measured alarm is raised again if its cause persists. Needs a key of the platform."""
    async with api.store.writing() as tx:
        alarm = require_found(await alarms.get(tx, who.tenant, alarm_id), "alarm")
        require_platform(who, "clear alarms")
        cleared = await alarms.clear_by_id(tx, alarm_id, who.actor)
        if cleared is None:
            raise conflict("already_cleared", "This alarm was cleared before.")
        await audit.record(
            tx,
            actor=who.actor,
            action="alarm.cleared",
            subject=f"{alarm.name} {alarm.subject}".strip(),
            tenant=tenant_of(alarm),
            reason=body.reason,
        )
    return described(cleared)
