"""Reminders: calls at a local time, once or by a rule."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.auth import API_ROOT, LeadsKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid, unknown
from trunkline.api.models import DELETE_ERRORS, READ_ERRORS, WRITE_ERRORS, Body, require_found
from trunkline.api.ownership import record
from trunkline.api.paging import LAST_ID, Cursors, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.campaigns import put_own_policy
from trunkline.api.routes.leads import e164, merchant_of, same_request, schedule_best_effort
from trunkline.leads import ingest, phones
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.leads.ingest import FieldProblem, LeadRefused
from trunkline.reminders import lifecycle
from trunkline.reminders.request import (
    CARRIER,
    LATE_MINUTES_MAX,
    ReminderRequest,
    WallMoment,
    prepare,
    stored_series,
)
from trunkline.schema.fields import ObjectId, Text
from trunkline.schema.reminders import Occurrence, Reminder, ReminderStatus, WallTime
from trunkline.store import leads, reminders
from trunkline.store.database import Connection
from trunkline.store.reminders import NewReminder, StoredReminder, WaitingOccurrence

router = APIRouter(prefix=f"{API_ROOT}/reminders", tags=["reminders"])

UPCOMING_MAX = 100


class UpcomingOut(BaseModel):
    """An occurrence that is not a lead yet."""

    wall_at: WallTime = Field(description="Wall time in the reminder's zone.")
    at: datetime = Field(description="The wall time as an instant.")
    skipped: bool = Field(description="The occurrence was skipped before its time.")
    lead_id: UUID | None = Field(description="The lead of the occurrence. null: it is not created yet.")


class UpcomingListOut(BaseModel):
    """The next occurrences."""

    items: list[UpcomingOut]


class ReminderQuery(PageQuery):
    merchant_id: ObjectId | None = None
    status: ReminderStatus | None = None
    phone: Text | None = Field(None, min_length=1, max_length=phones.TEXT_MAX)


class UpcomingQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(10, ge=1, le=UPCOMING_MAX)


class ReminderChange(Body):
    """Omitted fields do not change. The schedule cannot be changed: cancel the reminder and create another one."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "Time for both medicines."}]})

    message: Text | None = Field(None, min_length=1, max_length=2000, description="What the agent says.")
    assistant_id: Text | None = Field(
        None, min_length=1, max_length=200, description="The assistant that talks."
    )
    payload: dict[str, Any] | None = Field(None, description="What else the agent should know.")
    priority: int | None = Field(None, ge=1, le=99, strict=True)
    max_attempts: int | None = Field(
        None, ge=1, le=20, strict=True, description="How often each occurrence is called at most."
    )
    late_minutes: int | None = Field(
        None, ge=0, le=LATE_MINUTES_MAX, strict=True, description="How late a call may be after an outage."
    )


class SkipIn(Body):
    """Skips an occurrence."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"wall_at": "2030-05-06T09:00"}]})

    wall_at: WallMoment | None = Field(
        None, description="The occurrence, as wall time. Left out: the next one."
    )


@router.post(
    "",
    status_code=201,
    responses=WRITE_ERRORS | {200: {"model": Reminder, "description": "This request was sent before."}},
    summary="Create a reminder",
)
async def create_reminder(
    body: ReminderRequest, who: LeadsKey, api: Deps, response: Response, afterwards: BackgroundTasks
) -> Reminder:
    """Idempotent with a `request_id`: 200 and the same reminder, or 409 if that one had other content."""
    merchant_id = merchant_of(who, body.merchant_id)
    async with api.store.writing() as tx:
        new = await _prepared(tx, api, who, body, merchant_id)
        reminder = await reminders.insert(tx, new)
        if reminder is None:
            response.status_code = 200
            earlier = await reminders.by_request(tx, new.merchant_id, new.request_id)
            return await _shown(tx, same_request(require_found(earlier, "reminder"), new))
        if body.windows:
            windows = CallingPolicy(windows=body.windows, timezone=reminder.timezone)
            await put_own_policy(tx, api, who, reminder, windows)
        reminder, made = await lifecycle.make_due(tx, reminder, api.deps.reminders.horizon_s)
        await record(tx, who, "reminder.made", reminder.id, reminder.tenant)
        shown = await _shown(tx, reminder)
    afterwards.add_task(schedule_best_effort, api, made)
    return shown


@router.get("", responses=READ_ERRORS, summary="List reminders")
async def list_reminders(query: Annotated[ReminderQuery, Query()], who: ReadKey, api: Deps) -> Page[Reminder]:
    """Newest first."""
    cursors = Cursors("reminders", who, query)
    async with api.store.reading() as connection:
        rows = await reminders.list_reminders(
            connection,
            who.tenant,
            merchant_id=query.merchant_id,
            status=query.status,
            phone=e164(query.phone),
            before=cursors.start_id(LAST_ID),
            limit=cursors.fetch_limit,
        )
        shown = await _all_shown(connection, rows)
    return cursors.page(shown, lambda reminder: reminder.id)


@router.get("/{reminder_id}", responses=READ_ERRORS, summary="Get a reminder")
async def get_reminder(reminder_id: UUID, who: ReadKey, api: Deps) -> Reminder:
    async with api.store.reading() as connection:
        reminder = require_found(await reminders.get(connection, who.tenant, reminder_id), "reminder")
        return await _shown(connection, reminder)


@router.patch("/{reminder_id}", responses=WRITE_ERRORS, summary="Change a reminder")
async def update_reminder(reminder_id: UUID, body: ReminderChange, who: LeadsKey, api: Deps) -> Reminder:
    """From the next occurrence on: one that is a lead already stays as it is."""
    given = body.model_dump(exclude_none=True)
    if "late_minutes" in given:
        given["late_s"] = given.pop("late_minutes") * 60
    problem = ingest.payload_problem(body.payload or {}, api.deps.limits.payload_bytes_max)
    if problem is not None:
        raise invalid(problem)
    async with api.store.writing() as tx:
        reminder = await _locked(tx, who, reminder_id)
        changed = await reminders.edit(tx, reminder.id, given)
        await record(tx, who, "reminder.changed", reminder.id, reminder.tenant, fields=sorted(given))
        return await _shown(tx, changed)


@router.get(
    "/{reminder_id}/upcoming",
    response_model=UpcomingListOut,
    responses=READ_ERRORS,
    summary="List the next occurrences of a reminder",
)
async def get_upcoming(
    reminder_id: UUID, query: Annotated[UpcomingQuery, Query()], who: ReadKey, api: Deps
) -> UpcomingListOut:
    """In order, beginning with an occurrence that is a lead already: it becomes one shortly before its time. None while
    the reminder is paused."""
    async with api.store.reading() as connection:
        reminder = require_found(await reminders.get(connection, who.tenant, reminder_id), "reminder")
        waiting = await reminders.waiting(connection, [reminder_id])
        place = lifecycle.next_place(reminder)
        places = stored_series(reminder).upcoming(place, query.limit) if place else []
        known = await reminders.known_walls(connection, reminder_id, [each.wall for each in places])
    items = [
        UpcomingOut(wall_at=each.wall_at, at=each.due_at, skipped=False, lead_id=each.lead_id)
        for each in waiting
    ]
    items += [
        UpcomingOut(wall_at=each.wall, at=each.at, skipped=each.wall in known, lead_id=None)
        for each in places
    ]
    return UpcomingListOut(items=sorted(items, key=lambda each: each.at)[: query.limit])


@router.get(
    "/{reminder_id}/occurrences",
    responses=READ_ERRORS,
    summary="List the past occurrences of a reminder",
)
async def list_occurrences(
    reminder_id: UUID, query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps
) -> Page[Occurrence]:
    """Newest first. The state is that of the lead, at most a second or two late."""
    cursors = Cursors(f"occurrences {reminder_id}", who, query)
    before = cursors.start_wall(datetime(9999, 12, 31))  # noqa: DTZ001 (a wall time)
    async with api.store.reading() as connection:
        require_found(await reminders.get(connection, who.tenant, reminder_id), "reminder")
        rows = await reminders.occurrences(connection, reminder_id, before=before, limit=cursors.fetch_limit)
    return cursors.page(rows, lambda occurrence: occurrence.wall_at.isoformat())


@router.post(
    "/{reminder_id}/skip",
    responses=WRITE_ERRORS,
    summary="Skip one occurrence of a reminder",
)
async def skip_occurrence(reminder_id: UUID, body: SkipIn, who: LeadsKey, api: Deps) -> Reminder:
    """The next occurrence, or the one at a wall time. If it is a waiting lead already, the lead ends; an occurrence
    that is being called does not count as the next."""
    async with api.store.writing() as tx:
        reminder = await _locked(tx, who, reminder_id)
        skipped = await lifecycle.skip(tx, reminder, body.wall_at)
        if skipped is None:
            raise conflict(
                "nothing_to_skip", "There is no such occurrence that has not been made or skipped."
            )
        reminder, place = skipped
        await record(
            tx, who, "reminder.skipped", reminder.id, reminder.tenant, wall_at=place.wall.isoformat()
        )
        return await _shown(tx, reminder)


@router.post(
    "/{reminder_id}/next",
    responses=WRITE_ERRORS,
    summary="Call the next occurrence now",
)
async def ring_next(reminder_id: UUID, who: LeadsKey, api: Deps, afterwards: BackgroundTasks) -> Reminder:
    """Calls the next occurrence now instead of at its time. Windows, limits and stops apply as for every call."""
    async with api.store.writing() as tx:
        reminder = await _locked(tx, who, reminder_id)
        rung = await lifecycle.make_now(tx, reminder)
        if rung is None:
            raise conflict("not_active", f"This reminder is {reminder.status}: it has no next occurrence.")
        reminder, made = rung
        await record(tx, who, "reminder.rung", reminder.id, reminder.tenant)
        shown = await _shown(tx, reminder)
    afterwards.add_task(schedule_best_effort, api, made)
    return shown


@router.post("/{reminder_id}/pause", responses=WRITE_ERRORS, summary="Pause a reminder")
async def pause_reminder(reminder_id: UUID, who: LeadsKey, api: Deps) -> Reminder:
    """Waiting occurrences are skipped; live calls go on. Idempotent."""
    async with api.store.writing() as tx:
        reminder = await _locked(tx, who, reminder_id)
        if reminder.status == "ACTIVE":
            reminder = await lifecycle.pause(tx, reminder)
            await record(tx, who, "reminder.paused", reminder.id, reminder.tenant)
    if reminder.status == "ENDED":
        raise conflict("not_active", "This reminder has ended.")
    return reminder


@router.post("/{reminder_id}/resume", responses=WRITE_ERRORS, summary="Resume a reminder")
async def resume_reminder(
    reminder_id: UUID, who: LeadsKey, api: Deps, afterwards: BackgroundTasks
) -> Reminder:
    """From its next occurrence on; those that passed during the pause are not made up for. Idempotent."""
    made: list[UUID] = []
    async with api.store.writing() as tx:
        reminder = await _locked(tx, who, reminder_id)
        if reminder.status == "ENDED":
            raise conflict("not_active", "This reminder has ended.")
        if reminder.status == "PAUSED":
            reminder = await lifecycle.resume(tx, reminder)
            reminder, made = await lifecycle.make_due(tx, reminder, api.deps.reminders.horizon_s)
            await record(tx, who, "reminder.resumed", reminder.id, reminder.tenant)
        shown = await _shown(tx, reminder)
    afterwards.add_task(schedule_best_effort, api, made)
    return shown


@router.delete("/{reminder_id}", responses=DELETE_ERRORS, summary="Cancel a reminder")
async def cancel_reminder(
    reminder_id: UUID,
    who: LeadsKey,
    api: Deps,
    hang_up: Annotated[bool, Query(description="Hang up a live call.")] = False,
) -> Reminder:
    """No more calls. The reminder and its occurrences can still be read. Idempotent."""
    async with api.store.writing() as tx:
        reminder = await _locked(tx, who, reminder_id)
        reminder = await lifecycle.cancel(tx, reminder, hang_up=hang_up)
        await record(tx, who, "reminder.cancelled", reminder.id, reminder.tenant, hang_up=hang_up)
    return reminder


async def _locked(tx: Connection, who: Principal, reminder_id: UUID) -> StoredReminder:
    return require_found(await reminders.lock(tx, who.tenant, reminder_id), "reminder")


async def _shown(conn: Connection, reminder: StoredReminder) -> StoredReminder:
    """With its next occurrence, which may be a lead already."""
    return (await _all_shown(conn, [reminder]))[0]


async def _all_shown(conn: Connection, found_: Sequence[StoredReminder]) -> list[StoredReminder]:
    first: dict[UUID, WaitingOccurrence] = {}
    for each in await reminders.waiting(conn, [reminder.id for reminder in found_]):
        first.setdefault(each.reminder_id, each)
    return [_with_next(reminder, first.get(reminder.id)) for reminder in found_]


def _with_next(reminder: StoredReminder, waiting: WaitingOccurrence | None) -> StoredReminder:
    if waiting is None or (reminder.next_at is not None and reminder.next_at < waiting.due_at):
        return reminder
    return replace(reminder, next_wall=waiting.wall_at, next_at=waiting.due_at)


async def _prepared(
    tx: Connection, api: Api, who: Principal, body: ReminderRequest, merchant_id: str
) -> NewReminder:
    carrier = body.carrier or (None if body.pool else CARRIER)
    pool_id = await reminders.pool(tx, merchant_id, body.pool, carrier)
    admission = await leads.admission(tx, who.tenant, merchant_id, pool_id)
    if admission is None:
        raise unknown("merchant_id", "merchant")
    if pool_id is None:
        raise invalid(_no_pool(body, carrier))
    prepared = prepare(
        body.model_copy(update={"carrier": carrier}),
        admission,
        attempts=api.deps.reminders.attempts_max,
        payload_bytes_max=api.deps.limits.payload_bytes_max,
    )
    if isinstance(prepared, LeadRefused):
        raise invalid(*prepared.problems)
    return prepared


def _no_pool(body: ReminderRequest, carrier: str | None) -> FieldProblem:
    if body.pool is None:
        return FieldProblem(
            "carrier", f"There is no pool whose numbers are all of {carrier}. Name another one."
        )
    if carrier is None:
        return FieldProblem("pool", f"This merchant has no pool {body.pool!r}.")
    return FieldProblem(
        "pool", f"This merchant has no pool {body.pool!r} whose numbers are all of {carrier}."
    )
