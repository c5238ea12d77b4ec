"""Skipping, pausing, resuming and cancelling, each under the lock of its series.

A call that is going on continues; waiting occurrences are ended and count as skipped. Locks are taken in one order: the
series, then its leads, then its occurrences.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from trunkline.model import new_id
from trunkline.reminders.making import advanced, moved, next_place, next_to_ring
from trunkline.reminders.request import stored_series
from trunkline.reminders.series import OccurrenceTime, instant
from trunkline.states import LeadStatus
from trunkline.store import lead_edits, reminders
from trunkline.store.database import Connection
from trunkline.store.reminders import NewOccurrence, OpenLead, StoredReminder, WaitingOccurrence

SEARCH_MAX = 10_000


async def pause(tx: Connection, reminder: StoredReminder) -> StoredReminder:
    """The series keeps its position, and no occurrence is made."""
    await _end_waiting(tx, reminder, "paused")
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
        return await moved(tx, replace(reminder, status="ACTIVE", next_wall=None, next_at=None))
    return await reminders.move(
        tx, replace(reminder, status="ACTIVE", next_wall=place.wall, next_at=place.at, next_no=place.no)
    )


async def cancel(tx: Connection, reminder: StoredReminder, *, hang_up: bool) -> StoredReminder:
    await _end_waiting(tx, reminder, "cancelled", hang_up=hang_up)
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
        await next_to_ring(tx, reminder)
        if wall is None
        else await reminders.open_leads(tx, reminder.id, wall)
    )
    for each in ringing:
        if await _end(tx, reminder, [each.lead_id], "asked"):
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
        reminder = await moved(tx, advanced(reminder, stored_series(reminder), place))
    return reminder, place


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


async def _end_waiting(
    tx: Connection, reminder: StoredReminder, reason: str, *, hang_up: bool = False
) -> None:
    waiting = await reminders.open_leads(tx, reminder.id)
    await _end(tx, reminder, [each.lead_id for each in waiting], reason, hang_up=hang_up)


async def _end(
    tx: Connection, reminder: StoredReminder, lead_ids: list[UUID], reason: str, *, hang_up: bool = False
) -> int:
    """Returns how many of them were skipped. Those that are being called end with their call."""
    if not lead_ids:
        return 0
    locked = await lead_edits.lock(tx, reminder.tenant, lead_ids)
    called = [lead.id for lead in locked.values() if lead.status == LeadStatus.PROCESSING]
    ended = await lead_edits.abort(tx, sorted(locked.keys() - set(called)), f"reminder {reason}")
    if called and reason == "cancelled":
        await lead_edits.request_cancel(tx, called, f"reminder {reason}", hang_up=hang_up)
    return await reminders.skip(tx, [lead.id for lead in ended], reason)
