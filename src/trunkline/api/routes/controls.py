"""Controls: stop the platform or a part of it, and lift the stop.

One level (platform, reseller, merchant) sets and lifts a stop, independently of the others. It is in force in every
process within a second.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field, StringConstraints

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.control_subjects import KILL_SWITCH, PROMOTER, ControlSubject, find_subject
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, forbidden, invalid
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, Out
from trunkline.api.ownership import require_owner
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.control.raising import clear_alarm
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.fields import Moment
from trunkline.store import audit, controls, restores
from trunkline.store.controls import Control, Level, NewStop, Scope
from trunkline.store.database import Connection

router = APIRouter(prefix=f"{API_ROOT}/controls", tags=["control"])

REASON_MAX = 500
RAMP_MAX_S = 86_400
RAMP_DEFAULT_S = 30
DURATION_MAX_S = 366 * 86_400
Reason = Annotated[
    str,
    StringConstraints(min_length=1, max_length=REASON_MAX, pattern=r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$"),
]
Named = Literal[Scope.RESELLER, Scope.MERCHANT, Scope.CAMPAIGN, Scope.NUMBER, Scope.CARRIER]
Subject = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$",
        description="The id of the reseller, merchant, campaign or number, or the carrier's name.",
    ),
]
State = Literal["running", "stopped", "ramping"]
_RAMP = "Over how many seconds the pace ramps up when the stop ends."


class StopIn(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "Complaints about this campaign", "duration_s": 3600}]}
    )

    reason: Reason = Field(description="The reason, for the audit log.")
    expires_at: Moment | None = Field(
        None, description="When the stop ends by itself. Left out: when it is lifted."
    )
    duration_s: int | None = Field(
        None, ge=1, le=DURATION_MAX_S, strict=True, description="The same as a duration from now."
    )
    ramp_s: int = Field(RAMP_DEFAULT_S, ge=0, le=RAMP_MAX_S, strict=True, description=_RAMP)


class StopOut(Out):
    scope: Scope
    subject: str = Field(description="Empty for the whole platform; `merchant/campaign` for a campaign.")
    state: State
    share: float = Field(description="The share of the usual pace that is allowed: 0 while stopped.")
    set_by: Level = Field(description="The level that set it; only this level can lift it.")
    reason: str | None = Field(description="null if a level above you set it.")
    changed_by: str | None = Field(description="null if a level above you set it.")
    changed_at: datetime
    stopped_at: datetime
    expires_at: datetime | None
    ramp_s: int
    ramp_until: datetime | None = Field(description="When the full pace is reached again.")
    reseller_id: str | None
    merchant_id: str | None


class SubjectOut(Out):
    """The state of one subject, over all levels."""

    scope: Scope
    subject: str
    state: State
    share: float
    stops: list[StopOut]


class ControlQuery(PageQuery):
    scope: Scope | None = Field(None, description="Only stops of this scope.")


LiftReason = Annotated[str | None, Query(max_length=REASON_MAX, description="Why. Required.")]
Ramp = Annotated[int, Query(ge=0, le=RAMP_MAX_S, description=_RAMP)]
SetBy = Annotated[
    Level | None, Query(description="The level whose stop to lift, if not your own: one below it.")
]


@router.get("", response_model=PageOut[StopOut], responses=READ_ERRORS, summary="List stops")
async def list_controls(query: Annotated[ControlQuery, Query()], who: ReadKey, api: Deps) -> Page[StopOut]:
    """All stops of your tenant and of those below it, including those that are ramping up."""
    cursors = Cursors("controls", who, query)
    after = cursors.start_key("")
    async with api.store.reading() as connection:
        rows = await controls.list_controls(
            connection, who.tenant, scope=query.scope, after=after, limit=cursors.fetch_limit
        )
    shown = [_shown(control, who) for control in rows]
    return cursors.page(shown, lambda stop: f"{stop.scope} {stop.subject} {stop.set_by}")


@router.get(
    "/kill-switch", response_model=SubjectOut, responses=READ_ERRORS, summary="Is the kill switch on?"
)
async def get_kill_switch(who: ReadKey, api: Deps) -> SubjectOut:
    return await _get(api, who, KILL_SWITCH)


@router.put(
    "/kill-switch", response_model=SubjectOut, responses=WRITE_ERRORS, summary="Turn the kill switch on"
)
async def set_kill_switch(body: StopIn, who: AdminKey, api: Deps) -> SubjectOut:
    """No call is granted and none is sent. Live calls go on. Needs a key of the platform."""
    require_platform(who, "turn the kill switch")
    return await _stop(api, who, KILL_SWITCH, body)


@router.delete(
    "/kill-switch", response_model=SubjectOut, responses=WRITE_ERRORS, summary="Turn the kill switch off"
)
async def lift_kill_switch(
    who: AdminKey, api: Deps, reason: LiftReason = None, ramp_s: Ramp = RAMP_DEFAULT_S
) -> SubjectOut:
    """Also clears the alarm of a restored database. Refused (409, `restore_unsettled`) until `trunkline restore-check`
    has settled it. Needs a key of the platform."""
    require_platform(who, "turn the kill switch")
    return await _lift(api, who, KILL_SWITCH, reason, ramp_s, Level.PLATFORM)


@router.get("/promoter", response_model=SubjectOut, responses=READ_ERRORS, summary="Is the promoter paused?")
async def get_promoter(who: ReadKey, api: Deps) -> SubjectOut:
    return await _get(api, who, PROMOTER)


@router.put("/promoter", response_model=SubjectOut, responses=WRITE_ERRORS, summary="Pause the promoter")
async def set_promoter(body: StopIn, who: AdminKey, api: Deps) -> SubjectOut:
    """No new call is granted; granted ones are still sent. Needs a key of the platform."""
    require_platform(who, "pause the promoter")
    return await _stop(api, who, PROMOTER, body)


@router.delete("/promoter", response_model=SubjectOut, responses=WRITE_ERRORS, summary="Resume the promoter")
async def lift_promoter(
    who: AdminKey, api: Deps, reason: LiftReason = None, ramp_s: Ramp = RAMP_DEFAULT_S
) -> SubjectOut:
    require_platform(who, "pause the promoter")
    return await _lift(api, who, PROMOTER, reason, ramp_s, Level.PLATFORM)


@router.get(
    "/{scope}/{subject}",
    response_model=SubjectOut,
    responses=READ_ERRORS,
    summary="Get the stop of one subject",
)
async def get_control(scope: Named, subject: Subject, who: ReadKey, api: Deps) -> SubjectOut:
    async with api.store.reading() as connection:
        target = await find_subject(connection, who, scope, subject, api.deps.carriers)
    return await _get(api, who, target)


@router.put("/{scope}/{subject}", response_model=SubjectOut, responses=WRITE_ERRORS, summary="Stop this")
async def set_control(scope: Named, subject: Subject, body: StopIn, who: AdminKey, api: Deps) -> SubjectOut:
    """No call of it is started. Live calls go on. A second request changes the reason and the end."""
    async with api.store.reading() as connection:
        target = await find_subject(connection, who, scope, subject, api.deps.carriers)
    require_owner(who, target.owner, scope)
    return await _stop(api, who, target, body)


@router.delete("/{scope}/{subject}", response_model=SubjectOut, responses=WRITE_ERRORS, summary="Lift a stop")
async def lift_control(
    scope: Named,
    subject: Subject,
    who: AdminKey,
    api: Deps,
    reason: LiftReason = None,
    ramp_s: Ramp = RAMP_DEFAULT_S,
    set_by: SetBy = None,
) -> SubjectOut:
    """Lifts the stop of your own level; the response shows whether another one is still in force."""
    async with api.store.reading() as connection:
        target = await find_subject(connection, who, scope, subject, api.deps.carriers)
    require_owner(who, target.owner, scope)
    return await _lift(api, who, target, reason, ramp_s, set_by or Level.of(who.tenant))


async def _get(api: Api, who: Principal, what: ControlSubject) -> SubjectOut:
    async with api.store.reading() as connection:
        return _together(what, who, await controls.get(connection, what.scope, what.subject))


async def _stop(api: Api, who: Principal, what: ControlSubject, body: StopIn) -> SubjectOut:
    if body.expires_at is not None and body.duration_s is not None:
        raise invalid(FieldProblem("duration_s", "Give expires_at or duration_s, not both."))
    new = NewStop(
        scope=what.scope,
        subject=what.subject,
        set_by=Level.of(who.tenant),
        reason=body.reason,
        by=who.actor,
        tenant=what.owner,
        ramp_s=body.ramp_s,
        ends_at=body.expires_at,
        ends_in_s=body.duration_s,
    )
    async with api.store.writing() as tx:
        if what is KILL_SWITCH and (body.expires_at or body.duration_s):
            await _require_settled(tx)
        control = await controls.stop(tx, new)
        if control.phase(control.seen_at) != "stopped":
            raise invalid(FieldProblem("expires_at", "This time is in the past."))
        await _audit(tx, who, "control.stopped", what, control)
        in_force = await controls.get(tx, what.scope, what.subject)
    return _together(what, who, in_force)


async def _lift(
    api: Api, who: Principal, what: ControlSubject, reason: str | None, ramp_s: int, set_by: Level
) -> SubjectOut:
    if not reason or not reason.strip() or not reason.isprintable():
        raise invalid(FieldProblem("reason", "Give the reason in the query: ?reason=…"))
    if not Level.of(who.tenant).is_over(set_by):
        raise forbidden("not_owner", f"Only the {set_by} may lift a stop that the {set_by} has set.")
    async with api.store.writing() as tx:
        if what is KILL_SWITCH:
            await _require_settled(tx)
        control = await controls.resume(
            tx, what.scope, what.subject, set_by, reason=reason, by=who.actor, ramp_s=ramp_s
        )
        if control is not None:
            await _audit(tx, who, "control.resumed", what, control)
            if what is KILL_SWITCH:
                await clear_alarm(tx, "store_restored", by=who.actor)
        in_force = await controls.get(tx, what.scope, what.subject)
    return _together(what, who, in_force)


async def _require_settled(tx: Connection) -> None:
    """After a restore the kill switch stays on until the restore is settled, and cannot get an end before."""
    unsettled = await restores.unsettled(tx)
    if unsettled is not None:
        raise conflict(
            "restore_unsettled",
            f"Postgres was restored to {unsettled.backup_at:%Y-%m-%d %H:%M:%S} UTC, and calls that were placed since "
            "are unknown. `trunkline restore-check` shows who would be called again, and settles it.",
        )


async def _audit(tx: Connection, who: Principal, action: str, what: ControlSubject, control: Control) -> None:
    await audit.record(
        tx,
        actor=who.actor,
        action=action,
        subject=f"{what.scope} {what.subject}".strip(),
        # Tenants below may read their own reasons only: a reason of a level above may be about other tenants.
        tenant=who.tenant,
        reason=control.reason,
        details={
            "set_by": control.set_by,
            "expires_at": control.ends_at and control.ends_at.isoformat(),
            "ramp_s": control.ramp_s,
        },
    )


def _together(what: ControlSubject, who: Principal, in_force: Sequence[Control]) -> SubjectOut:
    stops = [_shown(control, who) for control in in_force]
    states = {stop.state for stop in stops}
    return SubjectOut(
        scope=what.scope,
        subject=what.subject,
        state="stopped" if "stopped" in states else "ramping" if "ramping" in states else "running",
        share=min((stop.share for stop in stops), default=1.0),
        stops=stops,
    )


def _shown(control: Control, who: Principal) -> StopOut:
    """Tenants below see the stop, but not the reason of a level above: it may be about other tenants."""
    may_know = Level.of(who.tenant).is_over(control.set_by)
    phase = control.phase(control.seen_at)
    return StopOut(
        scope=control.scope,
        subject=control.subject,
        state="running" if phase == "over" else phase,
        share=round(control.share(control.seen_at), 4),
        set_by=control.set_by,
        reason=control.reason if may_know else None,
        changed_by=control.changed_by if may_know else None,
        changed_at=control.changed_at,
        stopped_at=control.stopped_at,
        expires_at=control.ends_at,
        ramp_s=control.ramp_s,
        ramp_until=control.ramp_until,
        reseller_id=control.reseller_id,
        merchant_id=control.merchant_id,
    )
