"""Making occurrences: the one place where a reminder becomes a lead.

Everything happens in the caller's transaction, under the lock of the series: the occurrence, its lead, and the new
position of the series. A crash before the commit leaves nothing, a crash after it everything. Two guards back up the
lock: the wall time is unique within the series, and the lead's `request_id` is made from it.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.crashpoint import crash_point
from trunkline.leads import ingest
from trunkline.leads.ingest import LeadRefused, LeadRequest
from trunkline.model import new_id
from trunkline.reminders.request import stored_series
from trunkline.reminders.series import OccurrenceTime, Series
from trunkline.states import LeadStatus
from trunkline.store import lead_edits, leads, reminders, restores
from trunkline.store.database import Connection
from trunkline.store.leads import NewLead
from trunkline.store.reminders import NewOccurrence, StoredReminder, WaitingOccurrence
from trunkline.telemetry import metrics

# After a long outage a series has many missed occurrences. This many are recorded in one transaction.
STEPS_MAX = 200


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
        reminder = advanced(reminder, series, place)
    return await moved(tx, reminder), made


async def make_now(tx: Connection, reminder: StoredReminder) -> tuple[StoredReminder, list[UUID]] | None:
    """Ring the next occurrence at once, instead of at its own time: the one that rings next, as long as its lead waits,
    or else the next of the series. None: there is no such occurrence."""
    for each in await next_to_ring(tx, reminder):
        locked = await lead_edits.lock(tx, reminder.tenant, [each.lead_id])
        if each.lead_id in locked and locked[each.lead_id].status == LeadStatus.BACKLOG:
            await lead_edits.make_due(tx, each.lead_id)
            return reminder, [each.lead_id]
    place = next_place(reminder)
    if place is None:
        return None
    made = await _make(tx, reminder, place, reminder.now)
    return await moved(tx, advanced(reminder, stored_series(reminder), place)), made


async def next_to_ring(conn: Connection, reminder: StoredReminder) -> list[WaitingOccurrence]:
    """The occurrences that wait as leads and ring before the next of the series is due."""
    place = next_place(reminder)
    waiting = await reminders.waiting(conn, [reminder.id])
    return [each for each in waiting if place is None or each.due_at <= place.at]


async def moved(tx: Connection, reminder: StoredReminder) -> StoredReminder:
    """Write the position of a locked series, and end it if it has no occurrence left."""
    return await reminders.finish(tx, await reminders.move(tx, reminder))


def next_place(reminder: StoredReminder) -> OccurrenceTime | None:
    if reminder.next_wall is None or reminder.next_at is None:
        return None
    return OccurrenceTime(reminder.next_wall, reminder.next_at, reminder.next_no)


def advanced(reminder: StoredReminder, series: Series, place: OccurrenceTime) -> StoredReminder:
    """The series after this occurrence: at the next one, or without one. It ends when the last one has ended."""
    after = series.after(place, reminder.last_at)
    if after is None:
        return replace(reminder, next_wall=None, next_at=None, last_at=place.at)
    return replace(reminder, next_wall=after.wall, next_at=after.at, next_no=after.no, last_at=place.at)


async def _make(
    tx: Connection, reminder: StoredReminder, place: OccurrenceTime, wanted_at: datetime
) -> list[UUID]:
    skip_reason = await _skip_reason(tx, reminder, wanted_at)
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


async def _skip_reason(tx: Connection, reminder: StoredReminder, wanted_at: datetime) -> str | None:
    """Why an occurrence does not ring any more. One that was due before a restore may have rung in the lost time: until
    the restore is settled, `restore-check` compares its lead with the carriers' lists, and not afterwards."""
    if wanted_at < reminder.now - timedelta(seconds=reminder.late_s):
        return "missed"
    if wanted_at < reminder.now and await restores.is_settled_after(tx, wanted_at):
        return "restored"
    return None


async def _make_lead(tx: Connection, reminder: StoredReminder, occurrence: NewOccurrence) -> list[UUID]:
    admission = await leads.admission(
        tx, reminder.tenant, reminder.merchant_id, reminder.pool, reminder.campaign_id
    )
    assert admission is not None, "a reminder's merchant is its tenant"
    match ingest.prepare(lead_request(reminder, occurrence), admission):
        case LeadRefused(problems):
            await _fail(tx, occurrence, "; ".join(problem.error for problem in problems))
            return []
        case NewLead() as new:
            lead = await leads.insert(tx, new)
            crash_point("reminders.after_lead")
            if lead is None:
                await _fail(tx, occurrence, "This person is on a do-not-call list.")
                return []
            await reminders.give_lead(tx, occurrence.id, lead.id, lead.version, None)
            return [lead.id]


async def _fail(tx: Connection, occurrence: NewOccurrence, error: str) -> None:
    metrics.REMINDERS_FAILED.inc()
    metrics.REMINDERS_PROCESSED.inc()
    await reminders.give_lead(tx, occurrence.id, None, None, error)


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
