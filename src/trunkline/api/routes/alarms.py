"""Alarms: open and past ones."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.errors import conflict
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, Out, require_found
from trunkline.api.paging import LAST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.api.routes.controls import Reason
from trunkline.control.alarms import DEFINITIONS, Severity
from trunkline.schema.fields import Text
from trunkline.store import alarms, audit
from trunkline.store.alarms import Alarm, AlarmFilter

router = APIRouter(prefix=f"{API_ROOT}/alarms", tags=["control"])


class AlarmOut(Out):
    id: UUID
    name: str
    subject: str = Field(
        description="What the alarm is about: a carrier, a role, a type of job. Empty if there is only one."
    )
    severity: Severity
    meaning: str
    action: str = Field(description="What an operator should do.")
    detail: dict[str, Any]
    raised_at: datetime
    seen_at: datetime = Field(description="When it was last raised or measured.")
    cleared_at: datetime | None
    cleared_by: str | None
    reseller_id: str | None
    merchant_id: str | None


class AlarmQuery(PageQuery):
    state: Literal["open", "cleared", "all"] = Field("open", description="`all` is the history.")
    name: Text | None = Field(None, max_length=100)
    severity: Severity | None = None


class ClearIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "The carrier has confirmed it"}]})

    reason: Reason = Field(description="Why the alarm is cleared, for the audit log.")


@router.get("", response_model=PageOut[AlarmOut], responses=READ_ERRORS, summary="List alarms")
async def list_alarms(query: Annotated[AlarmQuery, Query()], who: ReadKey, api: Deps) -> Page[AlarmOut]:
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
    return cursors.page([_shown(alarm) for alarm in rows], lambda alarm: alarm.id)


@router.post(
    "/{alarm_id}/clear", response_model=AlarmOut, responses=WRITE_ERRORS, summary="Clear an alarm by hand"
)
async def clear_alarm(alarm_id: UUID, body: ClearIn, who: AdminKey, api: Deps) -> AlarmOut:
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
            tenant=alarm.tenant,
            reason=body.reason,
        )
    return _shown(cleared)


def _shown(alarm: Alarm) -> AlarmOut:
    definition = DEFINITIONS.get(alarm.name)
    return AlarmOut(
        id=alarm.id,
        name=alarm.name,
        subject=alarm.subject,
        severity=Severity(alarm.severity),
        meaning=definition.meaning if definition else "",
        action=definition.action if definition else "",
        detail=dict(alarm.detail),
        raised_at=alarm.raised_at,
        seen_at=alarm.seen_at,
        cleared_at=alarm.cleared_at,
        cleared_by=alarm.cleared_by,
        reseller_id=alarm.reseller_id,
        merchant_id=alarm.merchant_id,
    )
