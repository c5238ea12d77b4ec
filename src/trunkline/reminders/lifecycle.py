"""A series in time: making its occurrences, skipping, pausing, resuming and cancelling. Here a reminder becomes a lead.

Everything happens in the caller's transaction, under the lock of the series: the occurrence, its lead, and the new
position of the series. A crash before the commit leaves nothing, a crash after it everything. Two guards back up the
lock: the wall time is unique within the series, and the lead's `request_id` is made from it.

A call that is going on continues; waiting occurrences that a change ends count as skipped. Locks are taken in one
order: the series, then its leads, then its occurrences.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.crashpoint import crash_point
from trunkline.leads import ingest
from trunkline.leads.ingest import LeadRefused, LeadRequest
from trunkline.model import new_id
from trunkline.reminders.recurrence import OccurrenceTime, Series, instant
from trunkline.reminders.request import stored_series
from trunkline.states import LeadStatus
from trunkline.store import lead_edits, leads, reminders, restores
from trunkline.store.database import Connection
from trunkline.store.reminders import NewOccurrence, OpenLead, StoredReminder, WaitingOccurrence
from trunkline.telemetry import metrics

# After a long outage a series has many missed occurrences. This many are recorded in one transaction.
STEPS_MAX = 200
SEARCH_MAX = 10_000


async def make_due(
    tx: Connection, reminder: StoredReminder, horizon_s: float
) -> tuple[StoredReminder, list[UUID]]:
    """Make what is due within the horizon, in order. Returns the series as it is now, and the new leads."""
    series, until = stored_series(reminder), reminder.now + timedelta(seconds=horizon_s)
    made: list[UUID] = []
    for _ in range(STEPS_MAX):
        place = next_place(reminder)
        if place is None or place.at > until:
            break
        made += await _make(tx, reminder, place, place.at)
        reminder = _advanced(reminder, series, place)
    return await _moved(tx, reminder), made


async def make_now(tx: Connection, reminder: StoredReminder) -> tuple[StoredReminder, list[UUID]] | None:
    """Ring the next occurrence at once, instead of at its own time: the one that rings next, as long as its lead waits,
    or else the next of the series. None: there is no such occurrence."""
    for each in await _next_to_ring(tx, reminder):
        locked = await lead_edits.lock(tx, reminder.tenant, [each.lead_id])
        if each.lead_id in locked and locked[each.lead_id].status == LeadStatus.BACKLOG:
            await lead_edits.make_due(tx, each.lead_id)
            return reminder, [each.lead_id]
    place = next_place(reminder)
    if place is None:
        return None
    made = await _make(tx, reminder, place, reminder.now)
    return await _moved(tx, _advanced(reminder, stored_series(reminder), place)), made


async def pause(tx: Connection, reminder: StoredReminder) -> StoredReminder:
    """The series keeps its position, and no occurrence is made."""
    await _end(tx, reminder, await reminders.open_leads(tx, reminder.id), "paused")
    return await reminders.move(tx, replace(reminder, status="PAUSED", next_at=None))


async def resume(tx: Connection, reminder: StoredReminder) -> StoredReminder:
    """From the first occurrence that is yet to come: those that passed during the pause are not made up for."""
    place = None
    if reminder.next_wall is not None:  # a paused series keeps its position, if it has another occurrence
        since = OccurrenceTime(
            reminder.next_wall, instant(reminder.next_wall, reminder.timezone), reminder.next_no
        )
        place = stored_series(reminder).first_from(reminder.now, since)
    if place is None:
        return await _moved(tx, replace(reminder, status="ACTIVE", next_wall=None, next_at=None))
    return await reminders.move(
        tx, replace(reminder, status="ACTIVE", next_wall=place.wall, next_at=place.at, next_no=place.no)
    )


async def cancel(tx: Connection, reminder: StoredReminder, *, hang_up: bool) -> StoredReminder:
    waiting = await reminders.open_leads(tx, reminder.id)
    await _end(tx, reminder, waiting, "cancelled", hang_up=hang_up)
    if reminder.status == "ENDED":
        return reminder
    return await reminders.move(
        tx, replace(reminder, status="ENDED", ended_reason="cancelled", next_wall=None, next_at=None)
    )


async def skip(
    tx: Connection, reminder: StoredReminder, wall: datetime | None
) -> tuple[StoredReminder, OccurrenceTime] | None:
    """One occurrence: the next one to ring, or the one at that wall time. None: there is no such occurrence to skip.

    One that is a lead already is ended as long as it waits: until its intent."""
    ringing: Sequence[OpenLead | WaitingOccurrence] = (
        await _next_to_ring(tx, reminder)
        if wall is None
        else await reminders.open_leads(tx, reminder.id, wall)
    )
    for each in ringing:
        if await _end(tx, reminder, [each], "asked"):
            return await reminders.finish(tx, reminder), OccurrenceTime(each.wall_at, reminder.now, 0)
    place = _find(reminder, wall)
    if place is None:
        return None
    skipped = NewOccurrence(
        new_id(), reminder.id, place.wall, place.at, "SKIPPED", "asked", reminder.max_attempts
    )
    if not await reminders.insert_occurrence(tx, skipped):
        return None
    if place == next_place(reminder):
        reminder = await _moved(tx, _advanced(reminder, stored_series(reminder), place))
    return reminder, place


async def _next_to_ring(conn: Connection, reminder: StoredReminder) -> list[WaitingOccurrence]:
    """The occurrences that wait as leads and ring before the next of the series is due."""
    place = next_place(reminder)
    waiting = await reminders.waiting(conn, [reminder.id])
    return [each for each in waiting if place is None or each.due_at <= place.at]


async def _moved(tx: Connection, reminder: StoredReminder) -> StoredReminder:
    """Write the position of a locked series, and end it if it has no occurrence left."""
    return await reminders.finish(tx, await reminders.move(tx, reminder))


def next_place(reminder: StoredReminder) -> OccurrenceTime | None:
    if reminder.next_wall is None or reminder.next_at is None:
        return None
    return OccurrenceTime(reminder.next_wall, reminder.next_at, reminder.next_no)


def _advanced(reminder: StoredReminder, series: Series, place: OccurrenceTime) -> StoredReminder:
    """The series after this occurrence: at the next one, or without one. It ends when the last one has ended."""
    after = series.after(place, reminder.last_at)
    if after is None:
        return replace(reminder, next_wall=None, next_at=None, last_at=place.at)
    return replace(reminder, next_wall=after.wall, next_at=after.at, next_no=after.no, last_at=place.at)


async def _make(
    tx: Connection, reminder: StoredReminder, place: OccurrenceTime, wanted_at: datetime
) -> list[UUID]:
    skip_reason = None
    if wanted_at < reminder.now - timedelta(seconds=reminder.late_s):
        skip_reason = "missed"
    elif wanted_at < reminder.now and await restores.is_settled_after(tx, wanted_at):
        # It was due before a restore, and may have rung in the lost time. Until the restore is settled, `restore-check`
        # compares its lead with the carriers' lists, and not afterwards.
        skip_reason = "restored"
    occurrence = NewOccurrence(
        id=new_id(),
        reminder_id=reminder.id,
        wall_at=place.wall,
        scheduled_at=wanted_at,
        state="SKIPPED" if skip_reason else "SCHEDULED",
        skip_reason=skip_reason,
        max_attempts=reminder.max_attempts,
    )
    if not await reminders.insert_occurrence(tx, occurrence):
        return []
    crash_point("reminders.after_occurrence")
    metrics.REMINDER_OCCURRENCES.labels(skip_reason or "made").inc()
    return [] if skip_reason else await _make_lead(tx, reminder, occurrence)


async def _make_lead(tx: Connection, reminder: StoredReminder, occurrence: NewOccurrence) -> list[UUID]:
    admission = await leads.admission(
        tx, reminder.tenant, reminder.merchant_id, reminder.pool, reminder.campaign_id
    )
    assert admission is not None, "a reminder's merchant is its tenant"
    new = ingest.prepare(lead_request(reminder, occurrence), admission)
    if isinstance(new, LeadRefused):
        error = "; ".join(problem.error for problem in new.problems)
    else:
        lead = await leads.insert(tx, new)
        crash_point("reminders.after_lead")
        if lead is not None:
            await reminders.give_lead(tx, occurrence.id, lead.id, lead.version, None)
            return [lead.id]
        error = "This person is on a do-not-call list."
    metrics.REMINDERS_FAILED.inc()
    metrics.REMINDERS_PROCESSED.inc()
    await reminders.give_lead(tx, occurrence.id, None, None, error)
    return []


def lead_request(reminder: StoredReminder, occurrence: NewOccurrence) -> LeadRequest:
    fields = {"message": reminder.message, "assistant_id": reminder.assistant_id}
    own_fields = {name: value for name, value in fields.items() if value is not None}
    return LeadRequest(
        request_id=f"reminder/{reminder.id}/{occurrence.wall_at.isoformat()}",
        phone=reminder.phone,
        timezone=reminder.timezone,
        payload=reminder.payload
        | own_fields
        | {"reminder_id": str(reminder.id), "occurrence_id": str(occurrence.id)},
        scheduled_at=occurrence.scheduled_at,
        priority=reminder.priority,
        campaign_id=reminder.campaign_id,
        pool=reminder.pool,
        max_attempts=reminder.max_attempts,
        reporting_webhook_url=reminder.reporting_webhook_url,
    )


def _find(reminder: StoredReminder, wall: datetime | None) -> OccurrenceTime | None:
    place = next_place(reminder)
    if place is None or wall is None:
        return place
    series = stored_series(reminder)
    for _ in range(SEARCH_MAX):
        if place is None or place.wall >= wall:
            break
        place = series.after(place)
    return place if place is not None and place.wall == wall else None


async def _end(
    tx: Connection,
    reminder: StoredReminder,
    waiting: Sequence[OpenLead | WaitingOccurrence],
    reason: str,
    *,
    hang_up: bool = False,
) -> int:
    """Returns how many of them were skipped. Those that are being called end with their call."""
    if not waiting:
        return 0
    locked = await lead_edits.lock(tx, reminder.tenant, [each.lead_id for each in waiting])
    called = [lead.id for lead in locked.values() if lead.status == LeadStatus.PROCESSING]
    ended = await lead_edits.abort(tx, sorted(locked.keys() - set(called)), f"reminder {reason}")
    if called and reason == "cancelled":
        await lead_edits.request_cancel(tx, called, f"reminder {reason}", hang_up=hang_up)
    return await reminders.skip(tx, [lead.id for lead in ended], reason)
