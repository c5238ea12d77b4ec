"""Controls: stop the platform or a part of it, and lift the stop.

One level (platform, reseller, merchant) sets and lifts a stop, independently of the others. It is in force in every
process within a second.
"""

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import Field

from trunkline.api.auth import AdminKey, ReadKey, require_platform
from trunkline.api.control_subjects import KILL_SWITCH, PROMOTER, ControlSubject, find_subject
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, forbidden, invalid
from trunkline.api.ownership import record, require_owner
from trunkline.api.paging import Cursors, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import Routes, extended
from trunkline.control.raising import clear_alarm
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.controls import (
    RAMP,
    RAMP_DEFAULT_S,
    RAMP_MAX_S,
    REASON_MAX,
    ControlState,
    StopInForce,
    StopRequest,
)
from trunkline.store import controls, restores
from trunkline.store.controls import Control, Level, NewStop, Scope
from trunkline.store.database import Connection

router = Routes("/controls", "control")

Named = Literal[Scope.RESELLER, Scope.MERCHANT, Scope.CAMPAIGN, Scope.NUMBER, Scope.CARRIER]
Subject = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$",
        description="The id of the reseller, merchant, campaign or number, or the carrier's name.",
    ),
]


class ControlQuery(PageQuery):
    scope: Scope | None = Field(None, description="Only stops of this scope.")


LiftReason = Annotated[str | None, Query(max_length=REASON_MAX, description="Why. Required.")]
Ramp = Annotated[int, Query(ge=0, le=RAMP_MAX_S, description=RAMP)]
SetBy = Annotated[
    Level | None, Query(description="The level whose stop to lift, if not your own: one below it.")
]


@router.get("", summary="List stops")
async def list_controls(
    query: Annotated[ControlQuery, Query()], who: ReadKey, api: Deps
) -> Page[StopInForce]:
    """All stops of your tenant and of those below it, including those that are ramping up."""
    cursors = Cursors("controls", who, query)
    after = cursors.start_key("")
    async with api.store.reading() as connection:
        rows = await controls.list_controls(
            connection, who.tenant, scope=query.scope, after=after, limit=cursors.fetch_limit
        )
    shown = [_shown(control, who) for control in rows]
    return cursors.page(shown, lambda stop: f"{stop.scope} {stop.subject} {stop.set_by}")


@router.get("/kill-switch", summary="Is the kill switch on?")
async def get_kill_switch(who: ReadKey, api: Deps) -> ControlState:
    return await _get(api, who, KILL_SWITCH)


@router.put("/kill-switch", summary="Turn the kill switch on")
async def set_kill_switch(body: StopRequest, who: AdminKey, api: Deps) -> ControlState:
    """No call is granted and none is sent. Live calls go on. Needs a key of the platform."""
    require_platform(who, "turn the kill switch")
    return await _stop(api, who, KILL_SWITCH, body)


@router.delete("/kill-switch", summary="Turn the kill switch off")
async def lift_kill_switch(
    who: AdminKey, api: Deps, reason: LiftReason = None, ramp_s: Ramp = RAMP_DEFAULT_S
) -> ControlState:
    """Also clears the alarm of a restored database. Refused (409, `restore_unsettled`) until `trunkline restore-check`
    has settled it. Needs a key of the platform."""
    require_platform(who, "turn the kill switch")
    return await _lift(api, who, KILL_SWITCH, reason, ramp_s, Level.PLATFORM)


@router.get("/promoter", summary="Is the promoter paused?")
async def get_promoter(who: ReadKey, api: Deps) -> ControlState:
    return await _get(api, who, PROMOTER)


@router.put("/promoter", summary="Pause the promoter")
async def set_promoter(body: StopRequest, who: AdminKey, api: Deps) -> ControlState:
    """No new call is granted; granted ones are still sent. Needs a key of the platform."""
    require_platform(who, "pause the promoter")
    return await _stop(api, who, PROMOTER, body)


@router.delete("/promoter", summary="Resume the promoter")
async def lift_promoter(
    who: AdminKey, api: Deps, reason: LiftReason = None, ramp_s: Ramp = RAMP_DEFAULT_S
) -> ControlState:
    require_platform(who, "pause the promoter")
    return await _lift(api, who, PROMOTER, reason, ramp_s, Level.PLATFORM)


@router.get(
    "/{scope}/{subject}",
    summary="Get the stop of one subject",
)
async def get_control(scope: Named, subject: Subject, who: ReadKey, api: Deps) -> ControlState:
    async with api.store.reading() as connection:
        target = await find_subject(connection, who, scope, subject, api.deps.carriers)
    return await _get(api, who, target)


@router.put("/{scope}/{subject}", summary="Stop this")
async def set_control(
    scope: Named, subject: Subject, body: StopRequest, who: AdminKey, api: Deps
) -> ControlState:
    """No call of it is started. Live calls go on. A second request changes the reason and the end."""
    async with api.store.reading() as connection:
        target = await find_subject(connection, who, scope, subject, api.deps.carriers)
    require_owner(who, target.owner, scope)
    return await _stop(api, who, target, body)


@router.delete("/{scope}/{subject}", summary="Lift a stop")
async def lift_control(
    scope: Named,
    subject: Subject,
    who: AdminKey,
    api: Deps,
    reason: LiftReason = None,
    ramp_s: Ramp = RAMP_DEFAULT_S,
    set_by: SetBy = None,
) -> ControlState:
    """Lifts the stop of your own level; the response shows whether another one is still in force."""
    async with api.store.reading() as connection:
        target = await find_subject(connection, who, scope, subject, api.deps.carriers)
    require_owner(who, target.owner, scope)
    return await _lift(api, who, target, reason, ramp_s, set_by or Level.of(who.tenant))


async def _get(api: Api, who: Principal, what: ControlSubject) -> ControlState:
    async with api.store.reading() as connection:
        return await _state(connection, who, what)


async def _stop(api: Api, who: Principal, what: ControlSubject, body: StopRequest) -> ControlState:
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
        return await _state(tx, who, what)


async def _lift(
    api: Api, who: Principal, what: ControlSubject, reason: str | None, ramp_s: int, set_by: Level
) -> ControlState:
    given = given_reason(reason)
    if not Level.of(who.tenant).is_over(set_by):
        raise forbidden("not_owner", f"Only the {set_by} may lift a stop that the {set_by} has set.")
    async with api.store.writing() as tx:
        if what is KILL_SWITCH:
            await _require_settled(tx)
        control = await controls.resume(
            tx, what.scope, what.subject, set_by, reason=given, by=who.actor, ramp_s=ramp_s
        )
        if control is not None:
            await _audit(tx, who, "control.resumed", what, control)
            if what is KILL_SWITCH:
                await clear_alarm(tx, "store_restored", by=who.actor)
        return await _state(tx, who, what)


def given_reason(reason: str | None) -> str:
    if not reason or not reason.strip() or not reason.isprintable():
        raise invalid(FieldProblem("reason", "Give the reason in the query: ?reason=…"))
    return reason


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
    """As the key's own tenant: those below may read their own reasons only, and this one may be about others."""
    await record(
        tx,
        who,
        action,
        f"{what.scope} {what.subject}".strip(),
        who.tenant,
        reason=control.reason,
        set_by=control.set_by,
        expires_at=control.ends_at and control.ends_at.isoformat(),
        ramp_s=control.ramp_s,
    )


async def _state(conn: Connection, who: Principal, what: ControlSubject) -> ControlState:
    stops = [_shown(control, who) for control in await controls.get(conn, what.scope, what.subject)]
    states = {stop.state for stop in stops}
    return ControlState(
        scope=what.scope.value,
        subject=what.subject,
        state="stopped" if "stopped" in states else "ramping" if "ramping" in states else "running",
        share=min((stop.share for stop in stops), default=1.0),
        stops=stops,
    )


def _shown(control: Control, who: Principal) -> StopInForce:
    """Tenants below see the stop, but not the reason of a level above: it may be about other tenants."""
    may_know = Level.of(who.tenant).is_over(control.set_by)
    phase = control.phase(control.seen_at)
    return extended(
        StopInForce,
        control,
        state="running" if phase == "over" else phase,
        share=round(control.share(control.seen_at), 4),
        reason=control.reason if may_know else None,
        changed_by=control.changed_by if may_know else None,
        expires_at=control.ends_at,
        ramp_until=control.ramp_until,
    )
